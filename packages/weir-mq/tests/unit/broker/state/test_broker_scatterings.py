"""What a partition knows of scatterings, entry by entry, and what a snapshot keeps of it."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.records.entries import BatchRecord
from weir.broker.records.partition import (
    AcksPrepared,
    ClusterSought,
    LogStartMoved,
    MessagesGranted,
)
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state.scatterings import give_again
from weir.broker.state.state import PartitionState
from weir.model.columns import Scattered
from weir.model.ids import Attempt

PARTS = (131_072, 131_074)


def batch(offset: int, stamp: int, number: int = 0, producer: int = 5, count: int = 2) -> Any:
    scattered = Scattered(number, PARTS) if number else None
    return BatchRecord(
        producer, 1, 0, count, 99, offset, stamp, offset + count, scattered=scattered
    )


def attempt(number: int, stamp: int, producer: int = 5) -> Attempt:
    return Attempt(producer, 1, number, stamp)


@pytest.fixture
def state() -> PartitionState:
    found = PartitionState()
    found.apply(batch(0, 100, producer=3), 1)
    return found


def copy(state: PartitionState) -> PartitionState:
    found = PartitionState.decode(unpack(pack(state.encode())))
    assert pack(found.encode()) == pack(state.encode())
    return found


def test_nothing_is_seen_of_what_is_undecided(state: PartitionState) -> None:
    state.apply(batch(2, 200, 1), 2)
    state.apply(batch(4, 300, producer=3), 3)
    assert (state.decided_offset, state.undecided, state.next_offset) == (2, 200, 6)
    assert state.producers.known(5) is None
    again = copy(state)
    assert (again.decided_offset, again.undecided) == (2, 200)
    assert again.decide_batch(attempt(1, 200), True)
    assert (again.decided_offset, again.undecided) == (6, 0)
    known = again.producers.known(5)
    assert known is not None
    assert known.next_sequence == 2
    assert not again.decide_batch(attempt(1, 200), False)
    assert not again.voids


def test_what_is_aborted_never_was(state: PartitionState) -> None:
    early = state.cluster("early")
    state.apply(batch(2, 200, 1), 2)
    state.apply(batch(4, 300, producer=3), 3)
    assert state.decide_batch(attempt(1, 200), False)
    assert list(state.voids) == [(2, 4)]
    assert state.producers.known(5) is None
    assert early.lag(6) == 4
    late = copy(state).cluster("late")
    assert late.lag(6) == 4
    state.steer(ClusterSought("early", 2))
    assert (early.cursor, early.frontier) == (4, 4)
    state.move_start(LogStartMoved(3, 5))
    assert not state.voids


def test_what_comes_behind_a_bar_is_void(state: PartitionState) -> None:
    state.bar(250)
    state.apply(batch(2, 200, 1), 2)
    assert state.decided_offset == 4
    assert list(state.voids) == [(2, 4)]
    state.apply(batch(4, 251, 1), 3)
    assert state.undecided == 251
    state.bar(900)  # what is prepared stays so
    assert copy(state).undecided == 251


def test_one_is_barred_alone_until_stamps_have_come_there(state: PartitionState) -> None:
    state.bar_alone(attempt(1, 900))
    state = copy(state)
    assert state.last_stamp == 100
    state.apply(batch(2, 200, 2), 2)
    assert state.undecided == 200, "others are not barred with it"
    state.decide_batch(attempt(2, 200), True)
    state.apply(batch(4, 900, 1), 3)
    assert list(state.voids) == [(4, 6)]
    assert state.scatterings.barred == 0
    state.bar_alone(attempt(7, 950))
    assert (state.scatterings.barred, state.scatterings.alone) == (900, {attempt(7, 950)})
    assert copy(state).scatterings.is_barred(attempt(1, 900))
    state.bar(950)
    assert not state.scatterings.alone


def test_acks_that_are_barred_alone_are_not_put_aside(state: PartitionState) -> None:
    grant(state, 10, 0, 2)
    state.bar_alone(attempt(1, 900))
    assert not state.prepare_acks(acks((10, 0, 1), stamp=900), 11)
    assert state.prepare_acks(acks((10, 0, 1), stamp=901), 12)


def test_a_producer_has_one_undecided(state: PartitionState) -> None:
    state.apply(batch(2, 200, 1), 2)
    state.apply(batch(4, 201, 2), 3)
    assert list(state.voids) == [(4, 6)]
    assert state.decided_offset == 2


def grant(state: PartitionState, fence: int, first: int, behind: int) -> None:
    record = MessagesGranted("crew", 7, first, behind, 900, 110)
    assert state.cluster("crew").grant(fence, record) is not None


def acks(*ranges: tuple[int, int, int], stamp: int = 200) -> AcksPrepared:
    return AcksPrepared(5, 1, 1, stamp, PARTS, [("crew", list(ranges))])


def test_undecided_acks_are_with_nobody(state: PartitionState) -> None:
    grant(state, 10, 0, 2)
    assert state.prepare_acks(acks((10, 0, 1)), 11)
    state = copy(state)
    crew = state.cluster("crew")
    assert crew.granted == 1
    assert not crew.ack(10, 0, 1)
    crew.release(7)
    # Nobody else gets it, whatever was proposed before.
    taken = crew.grant(12, MessagesGranted("crew", 8, 0, 2, 950, 120))
    assert taken is not None
    assert list(taken.left) == [(1, 2)]
    (one,) = state.scatterings.acks[attempt(1, 200)].taken
    assert give_again(crew, 11, one)
    assert crew.ack(10, 0, 1)
    assert crew.cursor == 1


def test_acks_of_what_is_not_held_bar_their_attempt(state: PartitionState) -> None:
    grant(state, 10, 0, 2)
    assert not state.prepare_acks(acks((10, 0, 1), (9, 1, 2)), 11)
    assert state.scatterings.barred == 200
    assert state.cluster("crew").ack(10, 0, 2)
    assert not state.prepare_acks(acks((10, 0, 1), stamp=300), 12)  # done already
