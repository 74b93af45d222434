"""What a cluster that takes some tags knows: what it does not want is done, whoever holds it."""

from __future__ import annotations

from weir.broker.records.partition import (
    ClusterOpened,
    ClusterSought,
    FilteredClusterOpened,
    MessagesGranted,
)
from weir.broker.state.clusters import ClusterState
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import PartitionState
from weir.model.topic import Mode


def granted(state: ClusterState, fence: int, *runs: tuple[int, int]) -> list[tuple[int, int]]:
    first, behind = runs[0][0], runs[-1][1]
    several = [*runs] if len(runs) > 1 else []
    grant = state.grant(fence, MessagesGranted("c", 7, first, behind, 100, 90, several, []))
    return [*grant.left] if grant is not None else []


def test_what_is_unwanted_is_done_and_nothing_else() -> None:
    state = ClusterState(mode=Mode.SHARED, tags=("a",))
    state.skip_unwanted(0, 5)
    assert (state.cursor, state.frontier) == (5, 5)
    state.skip_unwanted(8, 10)
    assert (state.cursor, state.frontier, state.lag(12)) == (5, 5, 5)  # 5 to 7 are to be granted
    assert granted(state, 1, (5, 8), (10, 12)) == [(5, 8), (10, 12)]
    assert state.ack(1, 5, 8)
    assert (state.cursor, state.lag(12)) == (10, 2)
    state.skip_unwanted(0, 10)  # it is known
    assert (state.cursor, state.lag(12)) == (10, 2)


def test_what_proves_to_be_unwanted_is_taken_from_its_grant() -> None:
    state = ClusterState(mode=Mode.SHARED, tags=("a",))
    assert granted(state, 1, (0, 10)) == [(0, 10)]
    state.skip_unwanted(0, 3)
    state.skip_unwanted(4, 10)
    assert [*state.grants[1].left] == [(3, 4)]
    assert not state.lost  # an ack of it is no late one
    assert [*state.late(1, 0, 10)] == []
    assert state.ack(1, 0, 10)
    assert (state.cursor, state.grants, state.lag(10)) == (10, {}, 0)


def test_a_grant_takes_nothing_that_is_done_ahead_of_the_frontier() -> None:
    state = ClusterState(mode=Mode.SHARED, tags=("a",))
    state.skip_unwanted(2, 4)
    assert granted(state, 1, (0, 6)) == [(0, 2)]
    assert granted(state, 2, (4, 5), (5, 6)) == [(4, 6)]
    state.ack(1, 0, 2)
    state.ack(2, 4, 6)
    assert (state.cursor, state.done) == (6, Ranges())


def test_tags_are_chosen_with_the_mode_and_come_back_from_a_snapshot() -> None:
    state = PartitionState()
    state.steer(ClusterSought("c", 0))
    state.steer(FilteredClusterOpened("c", Mode.KEYED, ("", "a")))
    state.steer(FilteredClusterOpened("c", Mode.SHARED, ("b",)))
    state.steer(ClusterOpened("c", Mode.ORDERED))
    state.steer(ClusterSought("c", 0))
    cluster = state.clusters["c"]
    assert (cluster.mode, cluster.tags) == (Mode.KEYED, ("", "a"))
    state.steer(ClusterOpened("all", Mode.SHARED))
    assert state.clusters["all"].tags == ()
    rows = state.clusters["all"].encode(), cluster.encode()
    assert [len(row) for row in rows] == [10, 11]  # without tags, as releases before know it


def test_a_cluster_without_tags_is_stored_as_before() -> None:
    plain = ClusterState(3, 9, mode=Mode.SHARED)
    cursor, frontier, done, *rest = plain.encode()
    assert (cursor, frontier, rest) == (3, 9, [[], 0, False, 0, [], plain.unknown_below, []])
    assert done is not None
