"""Which damage can be filled in: payloads under sound headers, and nothing that hides a vote."""

from __future__ import annotations

import random

from weir.storage.format.frame import HEADER_SIZE, Kind
from weir.storage.format.record import HARD_STATE_SIZE, HardState, Record
from weir.storage.log import Log
from weir.storage.recovery import RecoveredGroup, recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SMALL = Settings(log=1, system=7, segment_bytes=16_384, entry_bytes_max=2_000, spares=1)
GROUP = 65536
NAME = "segment-00000001"


def control(index: int, term: int = 1, data: bytes = b"c" * 90) -> Record:
    return Record(GROUP, term, index, Kind.CONTROL, (data,), len(data))


def settle(log: Log, disk: SimDisk) -> None:
    for _ in range(2):
        flush = log.next_flush()
        assert flush is not None
        flush.run(disk)
        log.flushed(flush)
        log.mark_idle()


def opened(disk: SimDisk) -> tuple[Log, RecoveredGroup]:
    found = recover(disk, SMALL)
    return found.log, found.groups[GROUP]


def made() -> tuple[SimDisk, Log]:
    disk = SimDisk(random.Random(1))
    return disk, recover(disk, SMALL).log


def place(log: Log, index: int) -> int:
    stored = log.reader.stored(GROUP, index)
    assert stored is not None
    return stored.place


def test_a_payload_that_rotted_is_named_and_filled_in() -> None:
    disk, log = made()
    for index in range(1, 6):
        log.append(control(index))
    settle(log, disk)
    disk.flip(NAME, place(log, 3) + HEADER_SIZE + 9)
    log, group = opened(disk)
    assert (group.rotten, group.unreadable, group.hard_state_lost) == ((3,), 1, False)
    assert group.damage is not None
    piece = log.reader.mend(GROUP, 3, b"c" * 90)
    assert piece is not None
    assert log.segments.pins[NAME] == 1
    assert not piece.run(disk).bad
    assert log.reader.mended(piece)
    assert log.segments.pins[NAME] == 0
    disk.crash()  # it was synced
    log, group = opened(disk)
    assert (group.damage, group.unreadable, group.rotten) == (None, 0, ())


def test_a_header_that_rotted_hides_what_it_said() -> None:
    disk, log = made()
    for index in range(1, 6):
        log.append(control(index))
    settle(log, disk)
    disk.flip(NAME, place(log, 3) + 30)
    _, group = opened(disk)
    assert (group.rotten, group.hard_state_lost) == ((), True)
    assert group.damage is not None


def test_a_vote_that_rotted_is_given_back_by_nobody() -> None:
    disk, log = made()
    log.append(control(1))
    vote = HardState(3, 1, 0).pack()
    at = log.append(Record(GROUP, 3, 0, Kind.HARD_STATE, (vote,), HARD_STATE_SIZE))
    log.append(control(2))
    settle(log, disk)
    disk.flip(NAME, place(log, 1) + HEADER_SIZE)
    disk.flip(NAME, at + HEADER_SIZE)
    _, group = opened(disk)
    assert (group.rotten, group.hard_state_lost) == ((), True)
    assert group.damage is not None


def test_a_state_that_rotted_is_given_back_by_nobody() -> None:
    disk, log = made()
    at = log.install(GROUP, 9, 1, 9, 1, (b"state",))
    log.append(control(10))
    log.append(control(11))
    settle(log, disk)
    disk.flip(NAME, at + HEADER_SIZE)
    disk.flip(NAME, place(log, 11) + HEADER_SIZE)
    _, group = opened(disk)
    assert group.rotten == ()
    assert group.damage is not None


def test_what_was_superseded_is_missed_by_nobody() -> None:
    disk, log = made()
    for index in range(1, 4):
        log.append(control(index))
    at = place(log, 3)
    log.append(control(3, term=2))
    settle(log, disk)
    disk.flip(NAME, at + HEADER_SIZE)
    _, group = opened(disk)
    assert (group.damage, group.rotten, group.unreadable) == (None, (), 0)


def test_what_is_not_needed_any_more_is_not_mended() -> None:
    disk, log = made()
    for index in range(1, 6):
        log.append(control(index))
    settle(log, disk)
    log.drop_below(GROUP, 4)
    assert log.reader.mend(GROUP, 3, b"c" * 90) is None
    piece = log.reader.mend(GROUP, 5, b"c" * 90)
    assert piece is not None
    log.drop_below(GROUP, 6)
    assert not log.reader.mended(piece)
    assert not piece.run(disk).bad, "it is sound as it lies there"
