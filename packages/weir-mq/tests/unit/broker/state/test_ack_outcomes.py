"""What an ack answers for each message: done by its grant, done elsewhere, or expired."""

from __future__ import annotations

from weir.broker.records.partition import MessagesGranted, MessagesReturned
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state import clusters
from weir.broker.state.clusters import AT_ONCE, ClusterState
from weir.model.topic import AckOutcome, Mode

ELSEWHERE, EXPIRED = AckOutcome.DONE_ELSEWHERE, AckOutcome.EXPIRED


def granted(first: int, behind: int, consumer: int = 7) -> MessagesGranted:
    return MessagesGranted("c", consumer, first, behind, 100, 1)


def ack(
    state: ClusterState, fence: int, first: int, behind: int
) -> list[tuple[int, int, AckOutcome]]:
    late = list(state.late(fence, first, behind))
    state.ack(fence, first, behind)
    return late


def test_an_ack_of_ones_own_is_done_also_when_it_is_repeated() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    assert ack(state, 5, 0, 4) == []
    assert ack(state, 5, 0, 10) == []
    assert ack(state, 5, 0, 10) == [], "its answer may have been lost"


def test_what_another_grant_did_is_told_apart_from_what_is_not_done() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 10))
    state.grant(6, granted(0, 6))
    assert ack(state, 6, 0, 3) == []
    assert ack(state, 5, 0, 10) == [(3, 6, EXPIRED), (0, 3, ELSEWHERE)]
    assert ack(state, 6, 3, 6) == []
    assert ack(state, 5, 0, 10) == [(0, 6, ELSEWHERE)]


def test_what_was_given_back_or_deposed_is_not_done_by_its_grant() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 4))
    state.give_back(6, MessagesReturned("c", 5, [(0, 2)], AT_ONCE, 1, False))
    state.grant(7, granted(0, 2))
    state.ack(7, 0, 2)
    assert ack(state, 5, 0, 4) == [(0, 2, ELSEWHERE)]
    ordered = ClusterState(mode=Mode.ORDERED)
    ordered.grant(5, granted(0, 4, consumer=1))
    ordered.grant(8, granted(0, 4, consumer=2))
    ordered.ack(8, 0, 4)
    assert ack(ordered, 5, 0, 4) == [(0, 4, ELSEWHERE)]


def test_what_retention_or_a_seek_passed_over_is_done_by_no_grant() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 4))
    state.drop_below(2)
    assert ack(state, 5, 0, 4) == [(0, 2, ELSEWHERE)]
    state.grant(6, granted(4, 8))
    state.seek(8)
    state.grant(9, granted(8, 9))
    assert ack(state, 6, 4, 8) == [(4, 8, ELSEWHERE)]


def test_outcomes_survive_a_snapshot_and_one_of_an_earlier_release_claims_nothing() -> None:
    state = ClusterState()
    state.grant(5, granted(0, 4))
    state.grant(6, granted(0, 2))
    state.ack(6, 0, 2)
    row = unpack(pack(state.encode()))
    copy, older = ClusterState.decode(*row), ClusterState.decode(*row[:7])
    assert copy == state
    assert ack(copy, 5, 0, 4) == [(0, 2, ELSEWHERE)]
    assert ack(older, 5, 0, 4) == [(0, 2, ELSEWHERE)]
    assert ack(older, 6, 0, 2) == [(0, 2, ELSEWHERE)], "it may have been another's"
    older.grant(7, granted(4, 6))
    assert ack(older, 7, 4, 6) == []
    assert ack(older, 7, 4, 6) == []


def test_a_cluster_remembers_a_bounded_number_of_grants_and_never_claims_too_much() -> None:
    state, most = ClusterState(), clusters.LOST_GRANTS_MAX
    for n in range(most + 3):
        state.grant(2 * n + 1, granted(n, n + 1))
        state.grant(2 * n + 2, granted(n, n + 1))
        state.ack(2 * n + 2, n, n + 1)
    assert len(state.lost) == most
    for n in range(most + 3):
        assert ack(state, 2 * n + 1, n, n + 1) == [(n, n + 1, ELSEWHERE)]
