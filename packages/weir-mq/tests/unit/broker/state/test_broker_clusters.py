"""A cluster's replicated state: grants, acks, and what is done."""

from __future__ import annotations

from typing import Any

from weir.broker.records.partition import MessagesGranted, MessagesReturned
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState
from weir.model.topic import Mode


def granted(first: int, behind: int, consumer: int = 7, deadline: int = 100) -> MessagesGranted:
    return MessagesGranted("c", consumer, first, behind, deadline, 1)


def test_a_grant_is_leased_and_acked() -> None:
    state = ClusterState()
    grant = state.grant(5, granted(0, 10))
    assert grant is not None
    assert (list(grant.left), grant.attempts, state.frontier) == ([(0, 10)], 1, 10)
    assert state.ack(5, 2, 4)
    assert (state.cursor, list(state.done)) == (0, [(2, 4)])
    assert state.ack(5, 0, 2)
    assert (state.cursor, list(state.done)) == (4, [])
    assert state.ack(5, 4, 10)
    assert (state.cursor, state.grants) == (10, {})


def test_an_ack_may_be_repeated_and_only_of_ones_own() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.grant(6, granted(10, 20))
    assert state.ack(5, 0, 10)
    assert state.ack(5, 0, 10)
    assert not state.ack(5, 10, 20)
    assert not state.ack(4, 10, 12)
    assert list(state.grants[6].left) == [(10, 20)]


def test_a_later_grant_supersedes_and_counts_attempts() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    again = state.grant(6, granted(3, 6))
    assert again is not None
    assert again.attempts == 2
    assert list(state.grants[5].left) == [(0, 3), (6, 10)]
    assert not state.ack(5, 2, 4)
    assert state.ack(6, 3, 6)
    third = state.grant(7, granted(0, 3))
    assert third is not None
    assert third.attempts == 2


def test_what_counts_of_a_lost_grant_is_in_snapshots_and_later_grants_change_nothing() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.release(7, [(3, 4)])
    state = ClusterState.decode(*unpack(pack(state.encode())))
    later = MessagesGranted("c", 8, 0, 3, 100, 1, [], [(0, 10)])
    untried = state.grant(6, later)
    tried = state.grant(7, MessagesGranted("c", 8, 3, 4, 100, 1, [], []))
    assert untried is not None
    assert tried is not None
    assert (untried.attempts, tried.attempts) == (1, 2)
    assert list(state.grants[5].tries(4, 10)) == [(4, 10, 0)]
    assert state.extend(6, 200)


def test_a_grant_that_goes_on_is_counted_when_it_ends() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.grant(6, MessagesGranted("c", 8, 0, 1, 100, 1, [], [(0, 1)]))
    assert state.extend(5, 200)
    again = state.grant(7, MessagesGranted("c", 8, 2, 3, 100, 1, [], [(2, 3)]))
    assert again is not None
    assert again.attempts == 2


def test_what_an_ack_took_first_is_not_granted() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.ack(5, 3, 5)
    run = state.grant(6, granted(0, 10))
    assert run is not None
    assert list(run.left) == [(0, 3)]
    assert list(state.grants[5].left) == [(5, 10)], "what lies behind the run stays where it was"
    state.ack(5, 5, 10)
    state.ack(6, 0, 3)
    assert state.grant(7, granted(0, 10)) is None
    assert (state.cursor, state.grants) == (10, {})


def test_a_gone_consumer_frees_what_it_holds() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 4, consumer=7))
    state.grant(6, granted(4, 8, consumer=8))
    assert state.release(7)
    assert not state.release(9)
    assert (state.grants[5].deadline, state.grants[6].deadline) == (AT_ONCE, 100)
    assert state.ack(5, 0, 4), "it may still be heard of before another has it"


def test_a_snapshot_holds_everything() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.grant(9, granted(10, 20, consumer=8))
    state.ack(5, 2, 4)
    state.release(8)
    row = unpack(pack(state.encode()))
    assert ClusterState.decode(*row) == state


def test_an_overlap_is_done_once_and_the_rest_of_an_ack_counts() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    assert state.ack(5, 0, 5)
    assert state.ack(5, 3, 10), "a part is done already, the other is its own"
    assert (state.cursor, state.grants) == (10, {})


def test_what_went_to_another_is_refused_and_the_rest_is_done() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.grant(6, granted(3, 6, consumer=8))
    assert not state.ack(5, 0, 10)
    assert (state.cursor, list(state.done)) == (3, [(6, 10)])
    assert list(state.grants[6].left) == [(3, 6)], "nobody acks for another"
    assert state.ack(6, 3, 6)
    assert state.cursor == 10


def test_who_holds_what_is_known_without_a_search() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 4))
    state.grant(6, granted(4, 8, consumer=8))
    state.grant(7, granted(4, 6, consumer=7, deadline=50))
    assert state.held == {7: {5: None, 7: None}, 8: {6: None}}
    assert ClusterState.decode(*state.encode()).held == state.held  # type: ignore[arg-type]
    state.ack(5, 0, 4)
    state.ack(6, 6, 8)
    assert state.held == {7: {7: None}}
    assert state.release(7)
    assert state.grants[7].deadline == AT_ONCE


def returned(fence: int, *ranges: tuple[int, int], **more: Any) -> MessagesReturned:
    return MessagesReturned("c", fence, list(ranges), more.pop("deadline", 500), 1, **more)


def test_what_is_given_back_is_a_lease_to_nobody() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    assert state.give_back(6, returned(5, (2, 4), (8, 10)))
    assert list(state.grants[5].left) == [(0, 2), (4, 8)]
    back = state.grants[6]
    assert (back.consumer, back.deadline, back.attempts) == (NOBODY, 500, 1)
    assert (state.granted, state.held_back, state.lag(10)) == (6, 4, 10)
    assert not state.ack(5, 2, 3), "it is not that grant's any more"
    again = state.grant(7, granted(0, 10, consumer=8))
    assert again is not None
    assert (list(again.left), again.attempts, list(state.grants)) == ([(0, 10)], 2, [7])


def test_attempts_of_what_was_handed_to_nobody_stay() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.give_back(6, returned(5, (0, 10), untried=True))
    again = state.grant(7, granted(0, 10))
    assert again is not None
    assert again.attempts == 1


def test_runs_are_granted_together_and_take_nothing_between_them() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.ack(5, 3, 4)
    record = MessagesGranted("c", 8, 2, 9, 100, 1, [(2, 5), (7, 9)])
    run = state.grant(6, record)
    assert run is not None
    assert (list(run.left), run.attempts) == ([(2, 3), (4, 5), (7, 9)], 2)
    assert list(state.grants[5].left) == [(0, 2), (5, 7), (9, 10)]


def test_a_deadline_only_moves_forward_and_revives_nothing() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    assert state.extend(5, 300)
    assert state.extend(5, 200)
    assert state.grants[5].deadline == 300
    state.give_back(6, returned(5, (0, 1)))
    assert not state.extend(6, 900), "nobody has it"
    state.release(7)
    assert not state.extend(5, 900), "its consumer is gone"
    assert not state.extend(99, 900)


def test_the_first_grant_chooses_the_mode() -> None:
    state = ClusterState()
    state.seek(0)
    assert state.mode is None
    state.open(Mode.KEYED)
    state.open(Mode.ORDERED)
    state.grant(5, granted(0, 1))
    assert state.mode is Mode.KEYED
    plain = ClusterState()
    plain.grant(5, granted(0, 1))
    plain.open(Mode.KEYED)
    assert plain.mode is Mode.SHARED
