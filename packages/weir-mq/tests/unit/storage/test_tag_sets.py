"""Entries are passed over by the tags that they have, before and after a start."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from weir.codec import U32, crc32c, padding
from weir.model.batch import HEADER_SIZE, headers, stamped
from weir.model.batch_builder import encode
from weir.model.slices import tags_within
from weir.storage import tag_sets
from weir.storage.errors import BadIndexFile
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import Kind
from weir.storage.format.index_file import index_name, read_index, unpack_rows
from weir.storage.format.record import Record
from weir.storage.group_index import GroupIndex, LostEntries
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.storage.tag_sets import LOOK_INSIDE, TagSets
from weir.testing.simulator.disk import SimDisk

GROUP = 65_536
Settle = Callable[[Log], tuple[object, ...]]


def record(index: int, offset: int, *batches: list[str | None], size: int = 8) -> Record:
    """Return an entry of batches, each with a message for each of these tags."""
    payload, at = b"", offset
    for tags in batches:
        sealed = encode([b"v" * size] * len(tags), group=GROUP, tags=tags if any(tags) else None)
        payload += stamped(memoryview(sealed), index, at) + bytes(sealed[HEADER_SIZE:])
        at += len(tags)
    listed = tags_within(payload, headers(payload))
    return Record(
        GROUP, 1, index, Kind.BATCHES, (payload,), len(payload), offset, at, index, listed
    )


def scanned(index: GroupIndex, *wanted: str, offset: int = 0) -> list[tuple[int, int]]:
    """Return index (0: passed over) and offset behind of each entry."""
    found = index.holding(offset, 1 << 60, 1 << 60, frozenset(wanted))
    return [(stored.index if stored else 0, behind) for stored, behind in found]


ENTRIES = (
    ([["a"]], ("a",)),
    ([["b", None]], ("b", "")),
    ([[None]], ("",)),
    ([["a"], ["b"]], ("a", "b")),
    ([[f"t{at}" for at in range(40)]], ()),
)
#: What is passed over, by wanted tag.
PASSED = {"a": {2, 3}, "b": {1, 3}, "": {1, 4}, "x": {1, 2, 3, 4}}


def records() -> list[Record]:
    made, offset = [], 0
    for at, (batches, tags) in enumerate(ENTRIES, 1):
        made.append(record(at, offset, *batches))
        assert made[-1].tags == tags
        offset = made[-1].next_offset
    return made


@pytest.mark.parametrize("wanted", PASSED)
def test_an_entry_without_a_wanted_tag_is_passed_over(log: Log, wanted: str) -> None:
    for one in records():
        log.append(one)
    found = scanned(log.groups.index[GROUP], wanted)
    assert [at for at, _ in found] == [0 if at in PASSED[wanted] else at for at in range(1, 6)]
    assert [behind for _, behind in found] == [1, 3, 4, 6, 46]


@pytest.mark.parametrize("wanted", PASSED)
def test_a_start_finds_the_tags_again(
    log: Log, disk: SimDisk, small: Settings, settle: Settle, wanted: str
) -> None:
    for one in records():
        log.append(one)
    settle(log)
    again = recover(disk, small).log.groups.index[GROUP]
    assert scanned(again, wanted) == scanned(log.groups.index[GROUP], wanted)


def fill(log: Log, settle: Settle, disk: SimDisk, segments: int = 3) -> None:
    offset = 0
    for at in range(1, 6 * segments):
        one = record(at, offset, ["a" if at % 3 else "b"], size=1_200)
        offset = one.next_offset
        log.append(one)
        settle(log)
        while spare := log.spares.wants():
            spare.run(disk)
            log.spares.made(spare)
        while chore := log.next_chore():
            chore.run(disk)
    save(disk, log.checkpoint({GROUP: at}, b"body"))  # so that a start believes the index files
    log.checkpoint_saved()


def test_index_files_keep_the_sets_that_their_entries_have(
    log: Log, disk: SimDisk, small: Settings, settle: Settle
) -> None:
    log.append(record(1, 0, ["gone"]))  # superseded by the next one
    fill(log, settle, disk)
    second = list(log.segments)[1]
    index = read_index(disk, second)
    ((_, rows),) = index.sections
    assert set(rows.sets) == {frozenset("a"), frozenset("b")}
    assert set(rows.columns.tags) == {1, 2}
    again = recover(disk, small).log.groups.index[GROUP]
    assert scanned(again, "b") == scanned(log.groups.index[GROUP], "b")
    assert {at for at, _ in scanned(again, "b")} > {0}


def of_version_3(file: Any) -> bytes:
    """Return the file as the release before wrote it."""
    data = file.pack()
    head = bytearray(data[: 4 + 2 + 2 + 4 + 4 + 8 * 3])
    head[4:6] = (3).to_bytes(2, "little")
    parts: list[bytes] = [bytes(head)]
    for group, rows in file.sections:
        section = bytes(rows.pack(group)[0])
        columns = [c.tobytes() for name, c in rows.columns._asdict().items() if name != "tags"]
        parts += [section, *chain.from_iterable((c, padding(len(c))) for c in columns)]
    body = b"".join(parts)
    return body + U32.pack(crc32c(body))


def test_an_index_file_of_the_release_before_is_read_and_knows_no_tags(
    log: Log, disk: SimDisk, small: Settings, settle: Settle
) -> None:
    fill(log, settle, disk)
    for segment in list(log.segments)[:-1]:
        old = of_version_3(read_index(disk, segment))
        disk.replace(index_name(segment.name), old)
        ((_, rows),) = read_index(disk, segment).sections
        assert set(rows.columns.tags) == {LOOK_INSIDE}
    again = recover(disk, small).log.groups.index[GROUP]
    found, now = scanned(again, "b"), scanned(log.groups.index[GROUP], "b")
    assert [behind for _, behind in found] == [behind for _, behind in now]
    assert all(at for at, _ in found[:3]), "nobody knows: they are looked into"


def test_a_section_that_names_sets_it_does_not_have_is_not_believed() -> None:
    index = GroupIndex(1)
    index.add(1, 1, Kind.BATCHES, 100, 10, 0, 1, 5, tags=("größe", ""))
    rows = index.rows(0, 1 << 60)
    packed = b"".join(rows.pack(GROUP))
    group, again, at = unpack_rows(memoryview(packed), 0)
    assert (group, again.sets, at) == (GROUP, (frozenset(("größe", "")),), len(packed))
    wrong = replace(rows, columns=rows.columns._replace(tags=array("I", [1])), sets=())
    with pytest.raises(IndexError):
        wrong.pack(GROUP)
    for cut in range(8, 40, 8):
        with pytest.raises(BadIndexFile):
            unpack_rows(memoryview(packed)[:-cut], 0)
    named = packed.index((1).to_bytes(4, "little") + bytes(4), len(packed) - 60)
    broken = packed[:named] + (2).to_bytes(4, "little") + packed[named + 4 :]
    with pytest.raises(BadIndexFile, match="numbers sets"):
        unpack_rows(memoryview(broken), 0)


def test_numbers_of_another_index_are_translated() -> None:
    one, other = GroupIndex(1), GroupIndex(1)
    one.add(1, 1, Kind.BATCHES, 100, 10, 0, 1, 5, tags=("a",))
    other.add(1, 1, Kind.BATCHES, 100, 10, 0, 1, 5, tags=("b",))
    other.add(2, 1, Kind.BATCHES, 200, 10, 1, 2, 6, tags=("a",))
    other.add(3, 1, Kind.BATCHES, 300, 10, 2, 3, 7)
    one.join(other.rows(150, 400))
    assert scanned(one, "a") == [(1, 1), (2, 2), (3, 3)]
    assert scanned(one, "b") == [(0, 1), (0, 2), (3, 3)]


def test_a_batch_whose_tags_are_many_makes_its_entry_unknown() -> None:
    assert record(1, 0, ["a"], [f"t{at}" for at in range(40)]).tags == ()


def test_a_lost_entry_is_never_passed_over() -> None:
    index = GroupIndex(1)
    for at in (1, 2):
        index.add(at, 1, Kind.BATCHES, 100 * at, 10, at - 1, at, 5, tags=("a",))
    assert scanned(index, "b") == [(0, 1), (0, 2)]
    LostEntries(index).add_doubtful([2])
    assert scanned(index, "b") == [(0, 1), (2, 2)]


def test_only_so_many_sets_have_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_sets, "SETS_MAX", 2)
    sets = TagSets()
    assert [sets.number(tags) for tags in ("a", "ba", "c", "ab")] == [1, 2, LOOK_INSIDE, 2]
    assert set(sets.without(frozenset("b"))) == {1}
    assert LOOK_INSIDE not in sets.without(frozenset("x"))
    long = TagSets()
    assert long.number(["x" * 300_000]) == LOOK_INSIDE


def test_what_comes_later_is_looked_at_too() -> None:
    sets = TagSets()
    sets.number("a")
    assert set(sets.without(frozenset("b"))) == {1}
    sets.number("b")
    sets.number("c")
    assert set(sets.without(frozenset("b"))) == {1, 3}
    for at in range(100):
        sets.without(frozenset((str(at),)))
    assert set(sets.without(frozenset("b"))) == {1, 3}
