"""Bugs planted in what joins shards, recycles logs and lives with bit rot: each must be caught.

As in tests/sim/test_planted_bugs.py, the number is how many seeds may pass before that. An old
generation that is believed is too rare here, for old frames must begin where new ones end:
tests/unit/log/test_recovery.py catches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker import feed
from weir.broker.growing import Growing
from weir.broker.large import ValueTable
from weir.broker.layout import Layout
from weir.broker.neighbours import Neighbours
from weir.broker.partition import Partition
from weir.broker.passing import Passing
from weir.log import index_file, scan
from weir.log.index import GroupIndex
from weir.model.ids import partition_of, topic_of
from weir.sim.run import run_seed
from weir.sim.workload import Shape
from weir.sim.world import MS

Plant = Callable[[pytest.MonkeyPatch], None]

USUAL = Shape()
ROTTEN = Shape(rots=(3,))
#: One producer id, and four who take it from each other.
QUARREL = Shape(
    authors=4, producers=1, hubs=0, consumers=0, receivers=0, operators=(False,), rots=(0,)
)
#: Faults end early, so that no later one hides what a broken trunk left open.
BRIEF = Shape(
    faults_until=400 * MS, fault_every=(100 * MS, 200 * MS), producers=4, batches=40, rots=(0,)
)
#: Many closed segments, and much rot.
INDEXED = Shape(
    authors=0, hubs=0, consumers=0, receivers=0, operators=(False,), batches=40, rots=(6,)
)


def a_fence_waits_for_nobody_away(patch: pytest.MonkeyPatch) -> None:
    """A new epoch is told before a shard that is away has heard of it (ADR 0009 §5)."""
    patch.setattr(feed, "is_fence", lambda record: False)
    patch.setattr(feed.Feed, "_may_leave", lambda self, held: self._settled(held.record))


def a_fence_leaves_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """A new epoch is told while batches of the old one wait for their commit (ADR 0009 §5)."""
    patch.setattr(Partition, "has_under_way", lambda self, producer: False)


def epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An old epoch goes on where the new one has not written yet (DESIGN §5 Dedupe)."""
    patch.setattr("weir.broker.requests.Requests._own", lambda self, *_: None)


def positions_of_a_log_that_is_not_applied(patch: pytest.MonkeyPatch) -> None:
    """A partition that starts says where it ended long ago (RealTime; seed 46 found it)."""
    patch.setattr(Partition, "_check_applied", lambda self: None)


def groups_move_with_the_number_of_shards(patch: pytest.MonkeyPatch) -> None:
    """The log of a group hangs on how many shards there are today (ADR 0009 §1)."""

    def log_of(self: Layout, group: int) -> int:
        return (topic_of(group) + partition_of(group)) % self.shards

    patch.setattr(Layout, "log_of", log_of)


def a_broken_trunk_is_nobodys_business(patch: pytest.MonkeyPatch) -> None:
    """What was passed on through a trunk that broke is never answered (ADR 0009 §3)."""
    patch.setattr(Passing, "closed", lambda self, shard: self._trunks.pop(shard, None))


def what_a_copy_lacks_does_not_exist(patch: pytest.MonkeyPatch) -> None:
    """A shard takes its copy of the registry for the whole truth (ADR 0009 §4)."""
    patch.setattr(Neighbours, "may_be_news", lambda self: False)
    patch.setattr(Neighbours, "certain", lambda self, error: error)


def chunks_of_an_ended_epoch_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A value goes on where an older epoch left it (ADR 0007 §4)."""
    honest = Growing._size

    def size(self: Growing, producer: int, epoch: int, now_ms: int) -> int:
        value = self._state.values.open(producer)
        return honest(self, producer, value.epoch if value else epoch, now_ms)

    patch.setattr(ValueTable, "at", lambda self, producer, epoch, stamp: None)
    patch.setattr(Growing, "_size", size)


def chunks_are_past_retention(patch: pytest.MonkeyPatch) -> None:
    """The chunks of a value go before its message does (ADR 0007 §6)."""
    patch.setattr(ValueTable, "first_needed_index", lambda self, index, *_: index)


def open_values_are_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint forgets the values that grow (counterexample 13)."""
    honest = ValueTable.encode

    def encode(self: ValueTable) -> object:
        _, *closed = honest(self)  # type: ignore[misc]
        return [], *closed

    patch.setattr(ValueTable, "encode", encode)


def index_files_are_believed(patch: pytest.MonkeyPatch) -> None:
    """An index file counts whatever its checksum says (DESIGN §4 Log)."""

    class Equal(int):
        def __ne__(self, other: object) -> bool:
            return False

    patch.setattr(index_file, "crc32c", lambda data: Equal())
    patch.setattr(index_file, "U32", _Unpacked(Equal))


class _Unpacked:
    """A u32 that is read as equal to whatever it is compared with."""

    size = 4

    def __init__(self, equal: type[int]) -> None:
        self._equal = equal

    def unpack_from(self, data: Any, at: int) -> tuple[int]:
        return (self._equal(),)

    def pack(self, number: int) -> bytes:
        return bytes(4)


def a_hole_is_mended_behind(patch: pytest.MonkeyPatch) -> None:
    """A sound entry stands in for what a lost one before it held (Honest; seed 49 found it)."""

    def mend(self: GroupIndex, lost: int, first_offset: int) -> None:
        self._behind[-1] = max(self._behind[-1], first_offset)

    patch.setattr(GroupIndex, "mend", mend)


def damaged_groups_take_part(patch: pytest.MonkeyPatch) -> None:
    """A group that lost entries it has to apply leads as if nothing were (DESIGN §4 Damage)."""
    honest = scan.Scan.judge

    def judge(self: scan.Scan, read: scan.Read) -> None:
        honest(self, read)
        self.damage.clear()

    patch.setattr(scan.Scan, "judge", judge)


#: The bug, the shape that shows it, seeds until it must be caught, and the promises.
BUGS: list[tuple[Plant, Shape, int, set[str]]] = [
    (a_fence_waits_for_nobody_away, USUAL, 60, {"Fenced"}),
    (a_fence_leaves_what_is_under_way, USUAL, 60, {"Fenced"}),
    (epochs_are_not_compared, USUAL, 60, {"Fenced"}),
    (positions_of_a_log_that_is_not_applied, QUARREL, 100, {"Fenced"}),
    (groups_move_with_the_number_of_shards, USUAL, 20, {"Durable", "Live"}),
    (a_broken_trunk_is_nobodys_business, BRIEF, 150, {"Live"}),
    (what_a_copy_lacks_does_not_exist, USUAL, 60, {"Durable", "Live", "Honest", "OneOffset"}),
    (chunks_of_an_ended_epoch_are_taken, USUAL, 60, {"Honest"}),
    (chunks_are_past_retention, USUAL, 60, {"Durable"}),
    (open_values_are_not_in_snapshots, USUAL, 100, {"OneOffset"}),
    (index_files_are_believed, INDEXED, 100, {"Durable", "Honest"}),
    (a_hole_is_mended_behind, ROTTEN, 100, {"Durable", "Honest"}),
    (damaged_groups_take_part, ROTTEN, 40, {"Durable", "Live", "Honest"}),
]


@pytest.mark.parametrize(
    ("plant", "shape", "seeds", "promises"), BUGS, ids=[b[0].__name__ for b in BUGS]
)
def test_the_planted_bug_is_caught(
    plant: Plant, shape: Shape, seeds: int, promises: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(seeds):
        found = {promise for promise, _ in run_seed(seed, shape).violations}
        if found & promises:
            return
    pytest.fail(f"{seeds} seeds, and nobody noticed: {plant.__doc__}")
