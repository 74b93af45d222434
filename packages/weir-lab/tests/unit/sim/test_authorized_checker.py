"""What counts as served to somebody who lost it, and what does not."""

from __future__ import annotations

from weir_lab.sim.checkers.authorized import AccessHistory, Account


def history(account: Account) -> AccessHistory:
    return AccessHistory([account])


def test_what_begins_behind_the_answer_is_a_violation() -> None:
    ann = Account("ann", "pw", "write")
    kept = history(ann)
    kept.serve(ann, "write", 1.0, 1.1)
    kept.lose(ann, 2.0, reached_all=True)
    kept.serve(ann, "write", 1.9, 2.5)  # it was under way
    assert (kept.found, kept.losses, ann.is_right) == ([], 1, False)
    assert kept.is_tested
    kept.serve(ann, "write", 2.1, 2.2)
    assert [promise for promise, _ in kept.found] == ["Authorized"]
    assert "ann did write of 2.100000" in kept.found[0][1]


def test_what_is_given_back_counts_from_the_moment_at_which_that_begins() -> None:
    ann = Account("ann", "pw", "read", lost_at=2.0, regained_at=3.0)
    kept = history(ann)
    kept.serve(ann, "read", 2.5, 3.1)
    assert kept.found == []
    kept.serve(ann, "read", 2.5, 2.9)
    assert len(kept.found) == 1


def test_a_loss_that_some_shards_did_not_hear_of_counts_from_the_end_on() -> None:
    ann = Account("ann", "pw", "read")
    kept = history(ann)
    kept.lose(ann, 2.0, reached_all=False)
    kept.serve(ann, "read", 2.5, 2.6)
    assert (kept.found, kept.losses, kept.is_tested) == ([], 0, False)
    kept.settle(9.0)
    kept.serve(ann, "read", 9.5, 9.6)
    assert len(kept.found) == 1


def test_who_keeps_a_right_is_not_refused_and_is_served_in_the_end() -> None:
    ann = Account("ann", "pw", "read", is_kept=True)
    bob = Account("bob", "pw", "read")
    kept = AccessHistory([ann, bob, Account("eve", "pw", "", is_stranger=True)])
    kept.refuse(bob, ValueError("no"), 1.0)
    assert kept.found == []
    kept.refuse(ann, ValueError("no"), 1.0)
    assert kept.found == [("Authorized", "ann was refused at 1.000000: no")]
    kept.serve(ann, "read", 5.0, 5.1)
    assert [text.split(",")[0] for _, text in kept.unserved(4.0)] == ["bob"]
    assert len([*kept.unserved(6.0)]) == 2
