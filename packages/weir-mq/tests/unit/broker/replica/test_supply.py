"""A permit for old entries is free again when the one who was sent them has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.replica.catch_up import PERMITS, CatchUp, CatchUpPermits
from weir.broker.runtime.live_traffic import LiveTraffic
from weir.errors import DamagedRange, Refused
from weir.storage.format.frame import Kind

LOAD = raft.Load(1, 11, 21, 1000, member=3)


class Still:
    """A time that stands still; a group that is given entries; a past that reads at once."""

    id = 7
    log = 0

    def __init__(self) -> None:
        #: How many entries the reading was to bring.
        self.planned = 1
        self.given: list[tuple[int, int | None]] = []
        self.saved = 0
        #: What a reading comes to: its payloads, and why there are none.
        self.found: tuple[tuple[bytes, ...], Refused | None] = ((b"",), None)

    @property
    def node(self) -> Still:
        return self

    def process_ready(self) -> None:
        """It was given entries."""

    def save(self) -> None:
        self.saved += 1

    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0

    def loaded(self, number: int, entries: Any) -> None:
        self.given.append((number, entries and entries[-1].index))

    def reading(self, load: raft.Load) -> Any:
        return self if load.hi > load.lo else None

    def start(self, reading: Any, then: Any, at_once: bool) -> None:
        assert at_once
        then(*self.found)

    @property
    def entries(self) -> Any:
        class At:
            index, term, kind, length = 20, 1, Kind.NOOP, 0

        class Behind(At):
            index = 21

        return (At, Behind)[: self.planned]


@dataclass
class Waiting:
    """A group that says when it has a permit."""

    group: int
    came: list[int]

    def read(self, load: raft.Load) -> None:
        self.came.append(self.group)


@pytest.fixture
def still() -> Still:
    return Still()


def waits(permits: CatchUpPermits) -> list[int]:
    """Take all permits but one, and let one more group stand in line; tell when it has one."""
    came: list[int] = []
    for group in range(100, 100 + PERMITS - 1):
        permits.take(group, Waiting(group, []), LOAD)
    permits.take(200, Waiting(200, came), LOAD)
    return came


def test_a_slot_is_free_with_the_acknowledgement_of_who_was_sent_entries(still: Any) -> None:
    permits = CatchUpPermits(still, LiveTraffic(still))
    supply = CatchUp(still, still, still, permits, still)
    supply.load(raft.Load(1, 11, 21, 1000, member=3))
    assert still.given == [(1, 20)]
    came = waits(permits)
    supply.acknowledged(2, 500)  # it has everything, and never lagged
    supply.acknowledged(3, 19)
    assert came == []
    supply.acknowledged(3, 20)
    assert came == [200]


def test_a_slot_for_what_is_gone_is_free_at_once_and_a_checkpoint_tells_of_it(still: Any) -> None:
    permits = CatchUpPermits(still, LiveTraffic(still))
    supply = CatchUp(still, still, still, permits, still)
    supply.load(raft.Load(1, 11, 11, 1000, member=3))
    assert (still.given, still.saved) == ([(1, None)], 1)
    assert waits(permits) == [200]


def test_what_lies_before_an_entry_that_cannot_be_read_goes_out(still: Any) -> None:
    still.planned = 2  # and only the first one's payload comes
    supply = CatchUp(still, still, still, CatchUpPermits(still, LiveTraffic(still)), still)
    supply.load(raft.Load(1, 11, 22, 1000, member=3))
    assert (still.given, still.saved) == ([(1, 20)], 0)


def test_where_the_first_entry_cannot_be_read_a_checkpoint_may_do_instead(still: Any) -> None:
    still.found = ((), DamagedRange("rotten", 4096))
    supply = CatchUp(still, still, still, CatchUpPermits(still, LiveTraffic(still)), still)
    supply.load(raft.Load(1, 11, 21, 1000, member=3))
    assert (still.given, still.saved) == ([(1, None)], 1)
