"""What becomes of a message that failed."""

from __future__ import annotations

import pytest

import weir
from weir.client.core.retries import Again, Dead, Policy, policy_of, told

BACKOFF = weir.Backoff(attempts=3, first="1s", factor=2, most="3s", jitter=0.1)
POLICY = Policy(BACKOFF, "dead")
ERROR = KeyError("door")


def test_it_is_tried_again_later_and_later_until_its_attempts_are_used_up() -> None:
    verdicts = [POLICY.failed(attempt, ERROR, 1.0, False) for attempt in (1, 2, 3)]
    assert verdicts == [Again(1.0), Again(2.0), Dead("KeyError: 'door'")]


def test_dice_decide_the_part_that_jitter_leaves_them() -> None:
    assert POLICY.failed(1, ERROR, 0.0, False) == Again(pytest.approx(0.9))
    whole = Policy(weir.Backoff(first=1, most=3, jitter=1.0), None)
    assert whole.failed(9, ERROR, 0.5, False) == Again(pytest.approx(1.5))


def test_what_is_rejected_is_dead_at_once() -> None:
    assert POLICY.failed(1, weir.Reject("no such door"), 1.0, False) == Dead("no such door")
    assert POLICY.failed(1, weir.Reject(), 1.0, True) == Dead("rejected")
    assert POLICY.failed(1, weir.Reject("line\nby line"), 1.0, True) == Dead("line by line")


def test_without_a_dead_letter_topic_nothing_is_ever_dead() -> None:
    policy = policy_of(None, None)
    assert isinstance(policy.failed(1_000_000, ERROR, 1.0, False), Again)
    assert isinstance(policy.failed(1, weir.Reject("no"), 1.0, False), Again)
    assert policy.delivered(1_000_000, False) is None


def test_attempts_that_lead_nowhere_are_refused() -> None:
    with pytest.raises(ValueError, match="dead_letter="):
        policy_of(BACKOFF, None)


def test_with_a_dead_letter_topic_alone_it_is_tried_five_times() -> None:
    policy = policy_of(None, "dead")
    assert [isinstance(policy.failed(n, ERROR, 0.5, False), Dead) for n in (4, 5)] == [False, True]


def test_one_whose_handlers_died_is_not_handled_again() -> None:
    assert POLICY.delivered(3, False) is None
    dead = POLICY.delivered(4, False)
    assert dead is not None
    assert "3 times" in dead.reason


def test_while_failures_are_forgiven_none_is_dead_for_its_attempts() -> None:
    assert POLICY.delivered(9, True) is None
    assert POLICY.failed(9, ERROR, 1.0, True) == Again(3.0)


def test_an_error_is_told_in_a_line() -> None:
    assert told(ValueError("no\n  such\tdoor")) == "ValueError: no such door"
    assert told(ValueError()) == "ValueError"
