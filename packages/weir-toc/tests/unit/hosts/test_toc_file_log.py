"""The log of a member: what is durable, torn tails, damage, and golden bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import weir_raft as raft
from weir_toc.errors import LogDamaged, LogInUse
from weir_toc.hosts.file_log import FileLog


def ready(number: int, *entries: raft.Entry, state: raft.HardState | None = None) -> raft.Ready:
    return raft.Ready(number, state, entries, (), None)


def entry(index: int, data: bytes, term: int = 1) -> raft.Entry:
    return raft.Entry(index, term, raft.EntryKind.NORMAL, data, len(data))


def write(log: FileLog, *readies: raft.Ready) -> None:
    log.write(readies)
    log.keep(readies)


def filled(path: Path) -> None:
    log = FileLog(path, 2)
    write(log, ready(1, entry(1, b"one"), state=raft.HardState(1, 2)))
    write(log, ready(2, entry(2, b"two"), entry(3, b"three")))
    log.close()


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    log = FileLog(path, 2)
    assert log.hard_state() == raft.HardState(1, 2)
    assert [one.data for one in log.entries(1, 4, 1 << 20)] == [b"one", b"two", b"three"]
    assert log.torn == 0
    write(log, ready(1, entry(2, b"other", term=2)))
    log.close()
    again = FileLog(path, 2)
    assert [one.data for one in again.entries(1, 3, 1 << 20)] == [b"one", b"other"]
    assert again.last_index() == 2
    again.close()


def test_nothing_is_answered_for_before_it_is_kept(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", 2)
    one = ready(1, entry(1, b"one"))
    log.write([one])
    assert log.last_index() == 0
    assert not log.compact(raft.Snapshot(0, 0, b""))
    log.keep([one])
    assert log.last_index() == 1
    log.close()


def test_every_torn_tail_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    whole = path.read_bytes()
    last = whole.rindex(b"REC\n")
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        log = FileLog(path, 2)
        known = log.last_index()
        assert known == (1 if size >= last else 0), size
        write(log, ready(1, entry(known + 1, b"next")))
        log.close()
        again = FileLog(path, 2)
        assert again.last_index() == known + 1
        assert again.torn == 0
        again.close()


def test_damage_in_front_of_a_sound_record_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    whole = path.read_bytes()
    first, last = whole.index(b"REC\n"), whole.rindex(b"REC\n")
    for at in range(first, last):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(LogDamaged, match=f"damaged at byte {first}, in front of"):
            FileLog(path, 2)
        assert path.read_bytes() == damaged


def test_a_file_of_another_member_or_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    with pytest.raises(LogDamaged, match="the log of member 2, not of 3"):
        FileLog(path, 3)
    path.write_bytes(b"something else that is long enough")
    with pytest.raises(LogDamaged, match="does not begin as"):
        FileLog(path, 2)


def test_the_names_of_file_and_folders_are_durable_before_anything_is_answered_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink())
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "new" / "1" / "log"
    FileLog(path, 2).close()
    assert {*synced} >= {tmp_path, tmp_path / "new", path.parent, path}
    del synced[:]
    FileLog(path, 2).close()  # the first one may have been killed before it had synced the folder
    assert path.parent in synced


def test_one_process_has_it_open(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", 2)
    with pytest.raises(LogInUse, match="open in another process"):
        FileLog(tmp_path / "log", 2)
    log.close()
    FileLog(tmp_path / "log", 2).close()


def test_a_snapshot_takes_the_place_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    log = FileLog(path, 2)
    before = log.size
    members = raft.Configuration((1, 2, 3), (), ())
    assert log.compact(raft.Snapshot(2, 1, b"state", members))
    assert log.size != before
    write(log, ready(1, entry(4, b"four")))
    log.close()
    (tmp_path / "log.new").write_bytes(b"of a compaction that was cut short")
    again = FileLog(path, 2)
    found = again.snapshot()
    assert found is not None
    assert (found.index, found.term, found.data, found.configuration) == (2, 1, b"state", members)
    assert [one.data for one in again.entries(3, 5, 1 << 20)] == [b"three", b"four"]
    assert again.hard_state() == raft.HardState(1, 2)
    assert not (tmp_path / "log.new").exists()
    with pytest.raises(raft.StorageError, match="no entry 3 of term 9"):
        again.compact(raft.Snapshot(3, 9, b"", members))
    again.close()


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = FileLog(path, 2)
    write(log, ready(1, entry(1, b"one"), state=raft.HardState(1, 2)))
    log.close()
    assert path.read_bytes().hex() == GOLDEN


GOLDEN = (
    "57454952544f430102000000"  # the header: "WEIRTOC", 1, member 2
    "5245430a39000000c41e2270"  # a record of 57 bytes
    "011000000001000000000000000200000000000000"  # term 1, vote 2
    "021f000000010000000000000001000000010000000000000003000000000000006f6e65"  # entry 1
)
