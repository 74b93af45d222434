"""The storage of the example: what a crash, a damaged byte and a compaction leave of its file."""

from __future__ import annotations

import importlib
import os
import random
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import weir_raft as raft

EXAMPLES = Path(__file__).parents[3] / "examples"
HEAD = struct.Struct("<II")
MEMBERS = raft.Configuration((1, 2), (), (3,))
PACKED = MEMBERS.pack()


@pytest.fixture
def file_storage(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("file_storage").FileStorage


def entry(index: int, term: int = 1, data: bytes = b"data") -> raft.Entry:
    return raft.Entry(index, term, raft.EntryKind.NORMAL, data, len(data))


def ready(
    *entries: raft.Entry, state: raft.HardState | None = None, snapshot: raft.Snapshot | None = None
) -> raft.Ready:
    return raft.Ready(1, state, entries, (), None, snapshot=snapshot)


WRITES = (
    (ready(raft.Entry(1, 1, raft.EntryKind.NOOP, None, 0), state=raft.HardState(1, 1)),),
    (ready(entry(2)), ready(entry(3, data=b""), entry(4))),
    (
        ready(raft.Entry(5, 1, raft.EntryKind.CONFIGURATION, PACKED, len(PACKED))),
        ready(state=raft.HardState(2, 3)),
    ),
    (ready(entry(4, 2), entry(5, 2), state=raft.HardState(2, 3)),),
    (ready(entry(41, 3), snapshot=raft.Snapshot(50, 3, b"state", MEMBERS, 40, 2)),),
)


def seen(storage: raft.Storage) -> tuple[object, ...]:
    """All that a node could ask."""
    snapshot, last = storage.snapshot(), storage.last_index()
    first = snapshot.base_index + 1 if snapshot else 1
    entries = list(storage.entries(first, last + 1, 1 << 40)) if first <= last else []
    terms = [storage.term(one.index) for one in entries]
    known = list(storage.configurations())
    return (storage.hard_state(), snapshot, storage.configuration(), known, last, entries, terms)


def test_it_keeps_what_a_storage_in_memory_keeps(file_storage: Any, tmp_path: Path) -> None:
    path, memory = tmp_path / "1.raft", raft.MemoryStorage()
    storage = file_storage(path)
    for readies in WRITES:
        before = seen(storage)
        storage.write(readies)
        assert seen(storage) == before, "nothing is answered for before `keep`"
        storage.keep(readies)
        for one in readies:
            memory.save(one.hard_state, ())
            if one.snapshot is not None:
                memory.install(one.snapshot)
            memory.save(None, one.entries)
        assert seen(storage) == seen(memory)
        storage.close()
        storage = file_storage(path)
        assert seen(storage) == seen(memory)
    storage.close()


def test_a_file_that_is_cut_at_any_byte_is_read_up_to_there(
    file_storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # two for each byte take long
    path = tmp_path / "1.raft"
    storage = file_storage(path)
    ends, states = [0], [seen(storage)]
    for readies in WRITES:
        storage.write(readies)
        storage.keep(readies)
        ends.append(path.stat().st_size)
        states.append(seen(storage))
    storage.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        known = max(number for number, end in enumerate(ends) if end <= cut)
        storage = file_storage(path)
        assert seen(storage) == states[known]
        assert path.stat().st_size == ends[known], "what was torn is gone"
        if known < len(WRITES):
            storage.write(WRITES[known])  # it goes on from there
        storage.close()
        storage = file_storage(path)
        assert seen(storage) == states[min(known + 1, len(WRITES))]
        storage.close()


def test_a_torn_write_whose_pages_came_out_of_order_is_cut_off(
    file_storage: Any, tmp_path: Path
) -> None:
    path = tmp_path / "1.raft"
    storage = file_storage(path)
    storage.write(WRITES[0])
    end = path.stat().st_size
    # A value that looks like a record, and would be one at another place.
    storage.write([ready(*(entry(at, data=path.read_bytes()[:end]) for at in range(2, 12)))])
    storage.close()
    whole = path.read_bytes()
    for lost in range(end, len(whole) - 64, 7):
        path.write_bytes(whole[:lost] + bytes(64) + whole[lost + 64 :])
        storage = file_storage(path)
        assert storage.last_index() == 1
        storage.close()
        assert path.read_bytes() == whole[:end]


def test_damage_in_front_of_a_sound_record_is_no_torn_write(
    file_storage: Any, tmp_path: Path
) -> None:
    path = tmp_path / "1.raft"
    storage = file_storage(path)
    ends = []
    for readies in WRITES:
        storage.write(readies)
        ends.append(path.stat().st_size)
    storage.close()
    whole = path.read_bytes()
    for place in range(ends[-2]):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(raft.StorageError, match=r"is damaged at .* a vote may be lost"):
            file_storage(path)
        assert path.read_bytes() == damaged, "nothing is changed"


def test_a_sound_record_of_another_version_is_not_skipped(
    file_storage: Any, tmp_path: Path
) -> None:
    path = tmp_path / "1.raft"
    for body in (b"\x09\x01\x00\x00\x00x", b"\x01\x01\x00\x00\x00x", b"\x02\x01"):
        path.write_bytes(HEAD.pack(len(body), crc32(bytes(8) + body)) + body)
        with pytest.raises(raft.StorageError, match="version"):
            file_storage(path)


def test_a_compaction_keeps_what_lies_above_the_base(file_storage: Any, tmp_path: Path) -> None:
    path = tmp_path / "1.raft"
    storage = file_storage(path)
    readies = [ready(*(entry(at) for at in range(1, 101)), state=raft.HardState(1, 1))]
    storage.write(readies)
    with pytest.raises(raft.OutOfOrder, match="keep them"):
        storage.compact(raft.Snapshot(1, 1, b"state"))
    storage.keep(readies)
    with pytest.raises(raft.StorageError, match="no entry 90 of term 2"):
        storage.compact(raft.Snapshot(90, 2, b"state"))
    before = path.stat().st_size
    storage.compact(raft.Snapshot(90, 1, b"state", MEMBERS, 80, 1))
    assert path.stat().st_size < before / 2
    more = [ready(entry(101))]
    storage.write(more)
    storage.keep(more)
    kept = seen(storage)
    assert storage.last_index() == 101
    assert [one.index for one in storage.entries(81, 102, 1 << 40)] == [*range(81, 102)]
    with pytest.raises(raft.Compacted):
        storage.term(80)
    storage.close()
    (tmp_path / "1.raft.new").write_bytes(b"of a compaction that a crash cut short")
    storage = file_storage(path)
    assert seen(storage) == kept
    assert [one.name for one in tmp_path.iterdir()] == ["1.raft"]
    storage.compact(raft.Snapshot(101, 1, b"state"))
    assert storage.last_index() == 101
    storage.close()


def test_it_is_synced_before_a_write_returns(
    file_storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_write, real_sync, real_replace = os.write, os.fsync, os.replace

    def write(file: int, data: memoryview) -> int:
        done.append("write")
        return real_write(file, data[:7])  # as little as a disk may take at once

    def sync(file: int) -> None:
        done.append("sync")
        real_sync(file)

    def replace(old: Path, new: Path) -> None:
        done.append("replace")
        real_replace(old, new)

    storage = file_storage(tmp_path / "1.raft")
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    readies = [ready(entry(1)), ready(state=raft.HardState(1, 1))]
    storage.write(readies)
    assert (done.count("sync"), done[-1]) == (1, "sync")
    storage.keep(readies)
    done.clear()
    storage.compact(raft.Snapshot(1, 1, b"state"))
    assert done[-3:] == ["sync", "replace", "sync"]
    storage.close()
    monkeypatch.undo()
    storage = file_storage(tmp_path / "1.raft")
    assert (storage.hard_state(), storage.last_index()) == (raft.HardState(1, 1), 1)
    storage.close()


def test_a_node_goes_on_with_what_its_file_holds(file_storage: Any, tmp_path: Path) -> None:
    """Lives of one node, each crashed with a write that may be torn anywhere."""
    dice, path = random.Random(1), tmp_path / "1.raft"
    confirmed: list[object] = []
    for _ in range(20):
        storage = file_storage(path)
        node = raft.Node(raft.Config(1, (1,)), storage)
        applied: list[object] = []
        node.campaign()
        for number in range(dice.randint(3, 12)):
            while node.has_ready:
                one = node.ready()
                storage.write([one])
                storage.keep([one])
                if one.must_persist:
                    node.persisted(one.number)
                applied += [e.data for e in one.committed if e.kind is raft.EntryKind.NORMAL]
                if one.committed:
                    node.applied(one.committed[-1].index)
            assert applied[: len(confirmed)] == confirmed
            confirmed = list(applied)
            node.propose(b"%d of %d" % (number, node.term), len(b"%d of %d" % (number, node.term)))
        end = path.stat().st_size
        storage.write([node.ready()])
        storage.close()
        os.truncate(path, dice.randint(end, path.stat().st_size))
