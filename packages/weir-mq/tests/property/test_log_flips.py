"""Whatever bit rots or file is cut short, a log serves right bytes or says what is wrong.

WEIR_FLIPS trials change one place each in the files of a log with closed, reused and open segments,
class segments, index files and checkpoints. Afterwards either the log refuses to be opened, or
every entry is what was appended, is refused by name of file and position, or belongs to a group
that is marked damaged.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rigs.logs import places_of
from weir.codec import U64
from weir.errors import WeirError
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import Kind
from weir.storage.format.index_file import index_name
from weir.storage.format.record import HardState, Record
from weir.storage.log import Log
from weir.storage.recovery import Recovered, recover
from weir.storage.scrub import ScrubPiece
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

TRIALS = int(os.environ.get("WEIR_FLIPS", "40"))
SETTINGS = Settings(log=1, system=7, segment_bytes=8192, entry_bytes_max=2000, spares=1)
#: Of the last one nothing is dropped: what outlives its neighbours is copied.
GROUPS = (0, 65536, 131072, 196608)
LASTING = GROUPS[-1]


class Written:
    """A log in the middle of its life, and what was appended to it, by group and index."""

    def __init__(self) -> None:
        self.dice = random.Random(11)
        self.disk = SimDisk(random.Random(1))
        self.log = recover(self.disk, SETTINGS).log
        self.entries: dict[int, dict[int, bytes]] = {group: {} for group in GROUPS}
        self.offsets = dict.fromkeys(GROUPS, 0)
        for round in range(20):
            for group in GROUPS:
                for _ in range(1 if group == LASTING else self.dice.randint(1, 3)):
                    self.append(group)
            if round % 3 == 0:
                self.promise(round)
            self.settle()
            if round in (6, 9, 10, 13, 14, 16, 17):
                self.checkpoint()
        self.log.mark_idle()
        self.settle()
        self.files = {n: self.disk.read(n, 0, self.disk.size(n)) for n in self.disk.names()}

    def append(self, group: int) -> None:
        index = len(self.entries[group]) + 1
        if group == 0:
            record = Record(0, 1, index, Kind.CONTROL, (U64.pack(index) * 9,), 72)
        else:
            offset = self.offsets[group]
            sealed = encode([self.dice.randbytes(90)] * 3, group=group)
            payload = stamped(sealed, index, offset) + bytes(sealed[HEADER_SIZE:])
            self.offsets[group] = behind = offset + 3
            batches = Kind.BATCHES
            record = Record(
                group, 1, index, batches, (payload,), len(payload), offset, behind, index
            )
        self.log.append(record)
        self.entries[group][index] = b"".join(record.payload)

    def promise(self, term: int) -> None:
        for group in GROUPS:
            data = HardState(term + 1, 1, term).pack()
            self.log.append(Record(group, term + 1, 0, Kind.HARD_STATE, (data,), len(data)))

    def settle(self) -> None:
        flush = self.log.next_flush()
        assert flush is not None
        flush.run(self.disk)
        self.log.flushed(flush)
        while chore := self.log.next_chore():
            chore.run(self.disk)

    def checkpoint(self) -> None:
        applied = {group: len(entries) for group, entries in self.entries.items()}
        save(self.disk, self.log.checkpoint(applied, b"body"))
        self.log.checkpoint_saved()
        for group, last in applied.items():
            if group != LASTING:
                self.log.drop_below(group, last - 9)
        for _ in range(20):
            if (piece := self.log.lifecycle.copies.next_piece()) is not None:
                self.log.lifecycle.copies.copied(piece, piece.run(self.disk))

    def starts(self) -> dict[int, int]:
        return {group: self.log.groups.index[group].first for group in GROUPS}


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


def disk_with(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk(random.Random(2))
    for name, data in files.items():
        disk.replace(name, data)
    return disk


def loaded(log: Log, group: int, index: int) -> bytes | None:
    """The bytes of an entry; None where they are refused for a reason that names a place."""
    stored = log.reader.stored(group, index)
    assert stored is not None, f"entry {index} of group {group} is missing, and nobody says so"
    try:
        return log.reader.load(stored)
    except LogDamaged as damaged:
        text = str(damaged)
        place = f"position {damaged.position:,} in segment-0"
    assert place in text
    return None


def judge(recovered: Recovered, written: Written) -> int:
    """Check every entry; return how many are refused."""
    refused = told = 0
    for group, start in written.starts().items():
        found = recovered.groups[group]
        entries = written.entries[group]
        assert found.last_index == len(entries) or found.damage
        for index in range(start, found.last_index + 1):
            payload = loaded(recovered.log, group, index)
            assert payload in (None, entries[index])
            refused += payload is None
        told += found.unreadable
        if found.damage is None:
            assert found.hard_state == HardState(19, 1, 18)
    assert told <= refused
    return refused


def test_the_log_is_whole_before_anything_is_changed(written: Written) -> None:
    kinds = {name.rsplit("-", 1)[0] for name in written.files}
    assert {"segment", "index", "checkpoint"} <= kinds
    assert min(one.base for one in written.log.segments) > 0, "files were used again"
    copies = written.log.segments.copies
    assert len(copies) > 1, "one is full and one is open"
    assert index_name(copies[0].name) in written.files
    recovered = recover(disk_with(written.files), SETTINGS)
    assert judge(recovered, written) == 0
    assert recovered.body == b"body"


@pytest.mark.parametrize("seed", range(TRIALS))
def test_one_change_anywhere_is_harmless_or_told(
    written: Written, seed: int, tell: Callable[..., None]
) -> None:
    dice = random.Random(seed)
    files = dict(written.files)
    name = dice.choice(sorted(files))
    data = bytearray(files[name])
    if dice.random() < 0.2:
        del data[dice.randrange(len(data)) :]
    else:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    files[name] = bytes(data)
    disk = disk_with(files)
    try:
        recovered = recover(disk, SETTINGS)
    except WeirError:  # and not just any exception
        tell(changes=1, refused=1)
        return
    judge(recovered, written)
    disk.crash()
    recovered = recover(disk, SETTINGS)
    judge(recovered, written)
    mend(recovered, disk)
    tell(changes=1, refused=0)


def mend(recovered: Recovered, disk: SimDisk) -> None:
    """What a peer's snapshots begin anew is whole, for good, and no other vote is trusted."""
    log = recovered.log
    damaged = [group for group, found in recovered.groups.items() if found.damage]
    damaged += [group for group in GROUPS if group not in damaged and log.groups.lost_of(group)]
    applied = {}
    for group in damaged[: len(damaged) // 2 + 1]:
        applied[group] = 1_000
        log.install(group, 1_000, 30, 990, 30, (b"state" * 500,))
        for index in range(991, 1_003):
            payload = U64.pack(index) * 9
            log.append(Record(group, 31, index, Kind.CONTROL, (payload,), len(payload)))
            flush = log.next_flush()
            assert flush is not None
            flush.run(disk)
            log.flushed(flush)
    for _ in range(3):
        disk.crash()
        found = recover(disk, SETTINGS)
        for group in damaged:
            one = found.groups.get(group)
            assert bool(one and one.damage is None) == (group in applied)
            assert one or found.log.groups.lost_of(group)
        for group in applied:
            assert (found.groups[group].last_index, found.groups[group].unreadable) == (1_002, 0)
            assert loaded(found.log, group, 991) == U64.pack(991) * 9
        save(disk, found.log.checkpoint(applied, b"body"))
        found.log.checkpoint_saved()


def test_most_changes_leave_the_log_open(written: Written) -> None:
    """Not to be opened at all is the exception: where nobody can say whose bytes are gone."""
    opened = refused = 0
    dice = random.Random(5)
    for _ in range(60):
        files = dict(written.files)
        name = dice.choice(sorted(n for n in files if n.startswith("segment")))
        data = bytearray(files[name])
        data[dice.randrange(len(data))] ^= 1
        try:
            refused += judge(recover(disk_with({**files, name: bytes(data)}), SETTINGS), written)
            opened += 1
        except WeirError:
            pass
    assert opened > 45
    assert refused > 5


def test_without_index_files_and_with_one_checkpoint_all_is_there(written: Written) -> None:
    files = {n: d for n, d in written.files.items() if not n.startswith("index")}
    del files["checkpoint"]
    disk = disk_with(files)
    recovered = recover(disk, SETTINGS)
    assert judge(recovered, written) == 0
    while chore := recovered.log.next_chore():
        chore.run(disk)
    row = list(written.log.segments)
    wanted = {"checkpoint", "checkpoint-copy", *(index_name(one.name) for one in row[:-1])}
    assert wanted <= set(disk.names())


def test_a_lost_segment_costs_its_own_entries_and_no_more(written: Written) -> None:
    """Below the checkpoint, index file or not."""
    place = written.log.reader.stored(65536, written.starts()[65536] + 6)
    assert place is not None
    first = written.log.segments.find(place.position)
    known = [index_name(first.name)]
    for leave in (known, []):
        name = known[0].replace("index", "segment")
        gone = {name, *known} - set(leave)
        recovered = recover(
            disk_with({n: d for n, d in written.files.items() if n not in gone}), SETTINGS
        )
        assert judge(recovered, written) == sum(g.unreadable for g in recovered.groups.values()) > 0
        assert [hole.segment for hole in recovered.holes] == [name]
        assert not any(found.damage for found in recovered.groups.values())


@pytest.mark.parametrize("index", ["with", "without"])
def test_a_lost_class_segment_costs_its_own_entries_for_good(written: Written, index: str) -> None:
    lost = written.log.segments.copies[0].name
    places = places_of(written.log, LASTING)
    lying = sum(written.log.segments.find(place).name == lost for place in places)
    gone = {lost, *([index_name(lost)] if index == "without" else [])}
    disk = disk_with({n: d for n, d in written.files.items() if n not in gone})
    for _ in range(3):
        recovered = recover(disk, SETTINGS)
        assert judge(recovered, written) == lying > 1
        assert [hole.segment for hole in recovered.holes] == [lost]
        assert not any(found.damage for found in recovered.groups.values())
        log = recovered.log
        save(disk, log.checkpoint({g: len(e) for g, e in written.entries.items()}, b"body"))
        log.checkpoint_saved()


@pytest.mark.parametrize("index", ["with", "without"])
def test_a_flip_in_each_frame_of_a_class_segment_costs_one_entry(
    written: Written, index: str
) -> None:
    """Wherever it is: in a payload, in a header, told of by an index file or read by a start."""
    groups = written.log.groups.index
    places = {
        stored.place: written.log.segments.find(stored.place)
        for index in range(1, groups[LASTING].last + 1)
        if (stored := written.log.reader.stored(LASTING, index)) and stored.place != stored.position
    }
    assert len({segment.name for segment in places.values()}) > 1
    for place, segment in places.items():
        for at in (9, 33, 90, 200):
            data = bytearray(written.files[segment.name])
            data[place - segment.base + at] ^= 4
            files = {**written.files, segment.name: bytes(data)}
            if index == "without":
                del files[index_name(segment.name)]
            disk = disk_with(files)
            for _ in range(2):
                recovered = recover(disk, SETTINGS)
                assert judge(recovered, written) == 1
                assert len(recovered.holes) == (index == "without")
                applied = {g: len(e) for g, e in written.entries.items()}
                save(disk, recovered.log.checkpoint(applied, b"body"))
                recovered.log.checkpoint_saved()
                while chore := recovered.log.next_chore():
                    chore.run(disk)


def test_the_scrub_finds_what_rots_in_a_class_segment(written: Written) -> None:
    for segment in written.log.segments.copies:
        disk = disk_with(written.files)
        held = written.log.reader.hold_closed(segment.base)
        assert held == segment
        assert not scrubbed(disk, written.log.reader.scrub(segment)), "it is sound up to its end"
        disk.flip(segment.name, 4096 + 70)
        (bad,) = scrubbed(disk, written.log.reader.scrub(segment))
        assert bad.segment == segment.name
        written.log.reader.let_go(segment)


def scrubbed(disk: SimDisk, piece: ScrubPiece | None) -> list[LogDamaged]:
    bad: list[LogDamaged] = []
    while piece is not None:
        found = replace(piece, piece_bytes=700).run(disk)
        bad += found.bad
        piece = found.next_piece
    return bad
