"""Reading by offset, from the cache and from the disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from weir.errors import Damaged
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.group_index import GroupIndex
from weir.storage.log import Log
from weir.storage.log_reader import ENTRY_BYTES, Cache
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
GROUP = 65536
ALL = 1 << 40


@pytest.fixture
def records(log: Log, batches: Make, control: Make, settle: Settle) -> dict[int, Record]:
    """Entries 1 to 12, three messages each, every fourth one without messages."""
    made: dict[int, Record] = {}
    offset = 0
    for index in range(1, 13):
        if index % 4 == 0:
            record = control(index)
        else:
            record = batches(index, offset, count=3, size=200)
            offset += 3
        made[index] = record
        log.append(record)
        log.append(control(index, group=7))
        settle(log)
    return made


def payloads(records: dict[int, Record], *indexes: int) -> list[bytes]:
    return [bytes(records[index].payload[0]) for index in indexes]


def test_a_read_begins_at_the_entry_that_holds_the_offset(
    log: Log, records: dict[int, Record]
) -> None:
    for offset, index in ((0, 1), (2, 1), (3, 2), (8, 3), (9, 5), (26, 11)):
        reading = log.reader.read(GROUP, offset, 1, ALL)
        assert reading is not None
        assert reading.cached == records[index].payload
        assert reading.next_offset == records[index].next_offset
        assert reading.size == records[index].size
    assert log.reader.read(GROUP, 27, ALL, ALL) is None
    assert log.reader.read(12345, 0, ALL, ALL) is None


def test_a_read_takes_whole_entries_within_its_bytes(log: Log, records: dict[int, Record]) -> None:
    size = records[1].size
    for allowed, indexes in ((2 * size, (1, 2)), (3 * size - 1, (1, 2)), (4 * size, (1, 2, 3, 5))):
        reading = log.reader.read(GROUP, 0, allowed, ALL)
        assert reading is not None
        assert reading.cached is not None
        assert list(reading.cached) == payloads(records, *indexes)
        assert reading.next_offset == records[indexes[-1]].next_offset


def test_a_read_ends_at_the_last_index(log: Log, records: dict[int, Record]) -> None:
    reading = log.reader.read(GROUP, 0, ALL, 5)
    assert reading is not None
    assert reading.next_offset == records[5].next_offset
    assert log.reader.read(GROUP, 9, ALL, 4) is None


def test_what_is_not_durable_is_not_read(
    log: Log, records: dict[int, Record], batches: Make, settle: Settle
) -> None:
    log.append(batches(13, 27))
    assert log.reader.read(GROUP, 27, ALL, ALL) is None
    settle(log)
    assert log.reader.read(GROUP, 27, ALL, ALL) is not None


def test_the_disk_gives_what_the_cache_forgot(
    disk: SimDisk, small: Settings, records: dict[int, Record]
) -> None:
    log = recover(disk, small).log
    reading = log.reader.read(GROUP, 4, ALL, ALL)
    assert reading is not None
    assert reading.cached is None
    assert reading.run(disk) == payloads(records, 2, 3, 5, 6, 7, 9, 10, 11)
    assert len(reading.spans) < 8
    assert reading.next_offset == 27


def test_a_cached_beginning_is_taken_alone(
    disk: SimDisk, small: Settings, batches: Make, settle: Settle
) -> None:
    log = recover(disk, replace(small, cache_bytes_max=2 * (batches(1, 0).size + ENTRY_BYTES))).log
    made = {index: batches(index, index - 1) for index in range(1, 5)}
    for record in made.values():
        log.append(record)
    settle(log)
    cold = log.reader.read(GROUP, 0, ALL, ALL)
    assert cold is not None
    assert cold.cached is None
    assert cold.run(disk) == payloads(made, 1, 2, 3, 4)
    warm = log.reader.read(GROUP, 2, ALL, ALL)
    assert warm is not None
    assert list(warm.cached or ()) == payloads(made, 3, 4)


def test_rot_is_found_by_the_read(
    disk: SimDisk, small: Settings, records: dict[int, Record]
) -> None:
    log = recover(disk, small).log
    stored = log.reader.stored(GROUP, 2)
    assert stored is not None
    assert log.reader.load(stored) == payloads(records, 2)[0]
    name = min(disk.names())
    disk.flip(name, stored.position + 56 + 100)
    reading = log.reader.read(GROUP, 3, 1, ALL)
    assert reading is not None
    with pytest.raises(Damaged, match=f"position {stored.position:,} in {name}"):
        reading.run(disk)
    with pytest.raises(Damaged):
        log.reader.load(stored)


def test_another_frame_than_the_index_says_is_found(
    disk: SimDisk, log: Log, records: dict[int, Record]
) -> None:
    stored = log.reader.stored(GROUP, 2)
    assert stored is not None
    with pytest.raises(Damaged, match="another frame"):
        log.reader.load(msgspec.structs.replace(stored, term=99))


def test_the_cache_keeps_the_latest_within_its_bytes() -> None:
    cache = Cache(100 + 2 * ENTRY_BYTES)
    for position in range(5):
        cache.put(position, (bytes(40),), 40)
    cache.put(9, (bytes(101 + ENTRY_BYTES),), 101 + ENTRY_BYTES)
    assert [p for p in range(10) if cache.get(p)] == [3, 4]


def test_superseded_entries_take_their_offsets_with_them() -> None:
    index = GroupIndex(4)
    for i, behind in ((4, 10), (5, -1), (6, 20), (7, 30)):
        index.add(i, 1, Kind.BATCHES, i * 100, 8, behind - 10 if behind > 0 else -1, behind)
    assert [e.index for e, _ in index.holding(0, 99, 10_000)] == [4, 6, 7]
    index.add(6, 2, Kind.BATCHES, 900, 8, 10, 15)
    assert (index.first, index.last, len(index), index.next_offset) == (4, 6, 3, 15)
    assert [(e.index, behind) for e, behind in index.holding(10, 99, 10_000)] == [(6, 15)]
    index.add(2, 3, Kind.NOOP, 1000, 8)
    assert (index.first, index.last, index.next_offset) == (2, 2, 0)


def test_a_reading_ends_before_the_first_entry_that_is_damaged(
    disk: SimDisk, small: Settings, records: dict[int, Record]
) -> None:
    log = recover(disk, small).log
    stored = log.reader.stored(GROUP, 6)
    assert stored is not None
    reading = log.reader.read(GROUP, 4, ALL, ALL)
    assert reading is not None
    whole = reading.run(disk)
    assert reading.reached(whole) == reading.next_offset == 27
    for segment, entry in ((s.segment, e) for s in reading.spans for e in s.entries):
        if entry == stored:
            disk.flip(segment.name, stored.position - segment.base + 56 + 100)
    found = reading.run(disk)
    assert found == payloads(records, 2, 3, 5)
    assert reading.reached(found) == records[5].next_offset


def test_a_disk_that_fails_later_takes_nothing_back(
    disk: SimDisk, small: Settings, records: dict[int, Record]
) -> None:
    class Failing(SimDisk):
        reads = 0

        def read(self, name: str, at: int, size: int) -> bytes:
            self.reads += 1
            if self.reads > 1:
                raise OSError("worn out")
            return disk.read(name, at, size)

    log = recover(disk, small).log
    reading = log.reader.read(GROUP, 0, ALL, ALL)
    assert reading is not None
    first, *rest = reading.spans
    assert rest
    failing = Failing(random.Random(1))
    found = reading.run(failing)
    assert len(found) == len(first.entries)
    assert 0 < reading.reached(found) < reading.next_offset
    with pytest.raises(OSError, match="worn out"):
        reading.run(failing)
