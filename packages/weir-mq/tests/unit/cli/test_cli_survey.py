"""`weir inspect` reads what a log holds, says what is wrong with it, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weir.broker.records import entries
from weir.broker.records.registry import TopicCreated
from weir.cli.survey import LogSurvey, NotALog, log_folders, survey, survey_all
from weir.cli.verify import verify
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import REGISTRY_GROUP, group_of
from weir.server.disk.file_disk import FileDisk, FolderInUse
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import Kind
from weir.storage.format.record import HardState, Record
from weir.storage.format.segment import BLOCK, Segment
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings

GROUP = group_of(1, 0)
SETTINGS = Settings(log=3, system=77, segment_bytes=8192, entry_bytes_max=1900)


@contextmanager
def opened(folder: Path) -> Iterator[tuple[FileDisk, Log]]:
    disk = FileDisk(folder)
    try:
        yield disk, recover(disk, SETTINGS).log
    finally:
        disk.close()


def flush(disk: FileDisk, log: Log) -> None:
    one = log.next_flush()
    assert one is not None
    one.run(disk)
    log.flushed(one)


def batch(index: int, offset: int, count: int, term: int = 1) -> Record:
    sealed = encode([b"v" * 1_000] * count, group=GROUP)
    payload = stamped(sealed, index, offset) + bytes(sealed[HEADER_SIZE:])
    return Record(
        GROUP, term, index, Kind.BATCHES, (payload,), len(payload), offset, offset + count
    )


def written(folder: Path, batches: int = 10) -> Path:
    """A log of a named topic: a hard state, then one flush for each batch of one message."""
    with opened(folder) as (disk, log):
        record = entries.encode_control(TopicCreated("default", "flights", 1, "partition", 1))
        state = HardState(2, 1, 0).pack()
        log.append(Record(REGISTRY_GROUP, 1, 1, Kind.CONTROL, (record,), len(record)))
        log.append(Record(GROUP, 2, 0, Kind.HARD_STATE, (state,), len(state)))
        for index in range(1, batches + 1):
            log.append(batch(index, index - 1, 1, term=1 if index < 4 else 2))
            flush(disk, log)
        spare = log.spares.wants()
        assert spare is not None
        spare.run(disk)
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """All that a read-only look must not change: names, bytes, sizes, times of writing."""
    return {
        path.name: (path.read_bytes(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in [*folder.iterdir()]
    }


def change(found: LogSurvey, position: int) -> None:
    """Flip a bit of the byte at a log position."""
    (one,) = (s.segment for s in found.segments if s.segment.base <= position < s.segment.end)
    file = found.folder / one.name
    data = bytearray(file.read_bytes())
    data[position - one.base] ^= 1
    file.write_bytes(data)


def test_what_was_written_is_found(tmp_path: Path) -> None:
    found = survey(written(tmp_path), GROUP, limit=3)
    assert (found.log, found.system) == (3, 77)
    assert (found.torn, found.damage) == (None, None)
    assert [one.closed for one in found.segments] == [True, True, True, False]
    assert [one.segment.generation for one in found.segments] == [1, 2, 3, 4]
    assert sum(one.frames[Kind.BATCHES] for one in found.segments) == 10
    assert sum(one.frames[Kind.MARK] for one in found.segments) == 10
    assert len(found.spares) == 1
    registry, group = found.groups
    assert (registry.name, group.name) == ("registry", "flights/0")
    assert group.index is not None
    assert (group.index.first, group.index.last, group.index.next_offset) == (1, 10, 10)
    assert group.hard_state == HardState(2, 1, 0)
    assert [(e.index, e.term, e.first_offset, e.next_offset) for e in found.entries] == [
        (8, 2, 7, 8),
        (9, 2, 8, 9),
        (10, 2, 9, 10),
    ]


def test_mark_and_tail_are_those_of_a_start(tmp_path: Path) -> None:
    found = survey(written(tmp_path))
    disk = FileDisk(tmp_path)
    try:
        recovered = recover(disk, SETTINGS)
    finally:
        disk.close()
    assert (found.mark, found.tail) == (recovered.mark, recovered.tail)
    assert found.mark < found.tail


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "checkpoint.new").write_bytes(b"of a crash")  # a start would remove it
    before = contents(tmp_path)
    survey(tmp_path, GROUP)
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_written_to_can_be_read(tmp_path: Path) -> None:
    written(tmp_path)
    for path in tmp_path.iterdir():
        path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert survey(tmp_path).damage is None
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with opened(tmp_path), pytest.raises(FolderInUse, match="in use by a running node: stop"):
        survey(tmp_path)
    assert survey(tmp_path).damage is None


def test_a_copy_without_a_lock_is_read_and_gets_none(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "lock").unlink()
    assert survey(tmp_path).damage is None
    assert not (tmp_path / "lock").exists()


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    found = survey(written(tmp_path))
    change(found, found.tail - 8)  # the last bytes of the last flush, which no mark speaks of
    torn = survey(tmp_path)
    assert torn.damage is None
    assert torn.torn is not None
    assert torn.segments[-1].segment.name in torn.torn
    assert torn.tail < found.tail


def test_a_changed_byte_below_the_mark_is_damage(tmp_path: Path) -> None:
    found = survey(written(tmp_path))
    change(found, found.segments[0].segment.first + 500)
    before = contents(tmp_path)
    damaged = survey(tmp_path, GROUP)
    assert damaged.damage is not None
    assert "had been durable" in damaged.damage
    assert len(damaged.segments) == 4, "what can be read is still shown"
    assert contents(tmp_path) == before


def test_a_segment_of_another_system_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "a")
    other = FileDisk(tmp_path / "b")
    try:
        log = recover(other, Settings(log=3, system=78, segment_bytes=8192, entry_bytes_max=1900))
        log.log.append(batch(1, 0, 1))
        flush(other, log.log)
    finally:
        other.close()
    (tmp_path / "b" / "segment-00000001").rename(tmp_path / "a" / "segment-00000099")
    damage = survey(tmp_path / "a").damage
    assert damage is not None
    assert "segment-00000099 belongs to log 3 of system 0x4e" in damage


def test_an_unreadable_header_is_named(tmp_path: Path) -> None:
    found = survey(written(tmp_path))
    change(found, found.segments[0].segment.base)
    damaged = survey(tmp_path)
    assert damaged.unreadable == [found.segments[0].segment.name]
    assert damaged.damage is not None


def test_a_bad_checkpoint_is_damage(tmp_path: Path) -> None:
    (written(tmp_path) / "checkpoint").write_bytes(b"nothing like one")
    damage = survey(tmp_path).damage
    assert damage is not None
    assert "checkpoint" in damage


def test_an_empty_log_is_empty(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    found = survey(tmp_path)
    assert (found.segments, found.groups, found.tail, found.damage) == ([], [], 0, None)


def test_logs_are_found_in_a_nodes_folder_and_by_themselves(tmp_path: Path) -> None:
    written(tmp_path / "log-0")
    assert log_folders(tmp_path) == [tmp_path / "log-0"]
    assert log_folders(tmp_path / "log-0") == [tmp_path / "log-0"]


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="holds no log"):
        log_folders(tmp_path)
    with pytest.raises(NotALog, match="is no folder"):
        log_folders(tmp_path / "absent")


def test_every_file_gets_a_verdict(tmp_path: Path) -> None:
    folder = written(tmp_path)
    with opened(folder) as (disk, log):
        flush(disk, log)
        save(disk, log.checkpoint({GROUP: 10, REGISTRY_GROUP: 1}, b""))
        log.checkpoint_saved()
        while chore := log.next_chore():
            chore.run(disk)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = {one.file: one for one in verify(folder)}
    assert {name for name in before if name != "lock"} == set(found)
    assert not any(one.bad for one in found.values())
    assert found["segment-00000001"].says == found["checkpoint-copy"].says == "sound"
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, at in (("segment-00000001", 5_000), ("checkpoint", 50), ("index-00000001", 50)):
        data = bytearray(before[name])
        data[at] ^= 1
        (folder / name).write_bytes(data)
    found = {one.file: one for one in verify(folder)}
    assert {name for name, one in found.items() if one.bad} == {"segment-00000001", "checkpoint"}
    assert "makes it again" in found["index-00000001"].says
    assert len(found["segment-00000001"].bad) == 1


def test_a_verdict_on_the_open_segment_leaves_a_torn_tail_out(tmp_path: Path) -> None:
    folder = written(tmp_path, batches=11)
    last = folder / survey(folder).segments[-1].segment.name
    data = bytearray(last.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 20] ^= 1  # the last flush: no mark covers it
    last.write_bytes(data)
    assert not any(one.bad for one in verify(folder))
    data[4096 + 70] ^= 1
    last.write_bytes(data)
    assert [one.file for one in verify(folder) if one.bad] == [last.name]


def test_a_file_that_was_cut_short_is_told_though_no_mark_is_left(tmp_path: Path) -> None:
    """Of the segment that is written to, what lies behind the marks else counts as torn."""
    folder = written(tmp_path)
    last = survey(folder).segments[-1].segment
    with (folder / last.name).open("r+b") as file:
        file.truncate(BLOCK)
    (cut,) = (one.bad for one in verify(folder) if one.file == last.name)
    assert cut[-1] == f"cut short: {BLOCK:,} of {last.size:,} bytes are left"


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("how", ["gone", "rotten"])
def test_a_segment_that_no_checkpoint_names_is_missed(tmp_path: Path, place: str, how: str) -> None:
    """All files that were there were sound, and a node refused to start."""
    folder = written(tmp_path, batches=30)
    with opened(folder) as (disk, log):
        flush(disk, log)
        while chore := log.next_chore():
            chore.run(disk)
    assert not any(one.bad for one in verify(folder))
    row = [one.segment.name for one in survey(folder).segments]
    name = {"first": row[0], "middle": row[len(row) // 2], "last": row[-1]}[place]
    if how == "gone":
        (folder / name).unlink()
    else:
        with (folder / name).open("r+b") as file:
            file.write(b"rot")
        for index in folder.glob("index-*"):  # they would tell what the header said
            index.unlink()
    assert survey(folder).damage
    assert any(one.bad for one in verify(folder))


def copied(folder: Path) -> Segment:
    """A log whose first entries outlived all others, and were copied; return their segment."""
    other = group_of(2, 0)
    with opened(folder) as (disk, log):
        for index in range(1, 25):
            if index % 4 == 1:
                log.append(Record(other, 1, index // 4 + 1, Kind.CONTROL, (b"kept", b"long"), 8))
            log.append(batch(index, index - 1, 1))
            flush(disk, log)
            while (spare := log.spares.wants()) is not None:
                spare.run(disk)
                log.spares.made(spare)
        log.drop_below(GROUP, 24)
        for _ in range(2):
            save(disk, log.checkpoint({GROUP: 24, other: 6}, b""))
            log.checkpoint_saved()
            for _ in range(20):
                if (piece := log.lifecycle.copies.next_piece()) is not None:
                    log.lifecycle.copies.copied(piece, piece.run(disk))
        (segment,) = log.segments.copies
    return segment


def test_class_segments_are_surveyed_and_verified(tmp_path: Path) -> None:
    segment = copied(tmp_path)
    before = contents(tmp_path)
    found = survey(tmp_path, group_of(2, 0))
    assert found.damage is None
    one = found.segments[0]
    assert (one.segment, one.frames[Kind.CONTROL]) == (segment, one.frames.total())
    assert one.frames.total() > 3
    assert segment.name not in found.spares
    assert sorted({frame.index for frame in found.entries}) == [1, 2, 3, 4, 5, 6]
    verdicts = {v.file: v for v in verify(tmp_path)}
    assert verdicts[segment.name].says == "sound"
    assert verdicts[segment.name].size == one.used_bytes - 4096
    assert contents(tmp_path) == before
    path = tmp_path / segment.name
    data = bytearray(path.read_bytes())
    data[4096 + 57] ^= 1
    path.write_bytes(data)
    assert [v.file for v in verify(tmp_path) if v.bad] == [segment.name]
    assert segment.name in (survey(tmp_path).damage or "")
    path.unlink()
    assert [v.says for v in verify(tmp_path) if v.bad] == [
        "missing, though the checkpoint needs it"
    ]


def test_names_that_only_one_log_knows_go_to_all(tmp_path: Path) -> None:
    written(tmp_path / "log-0")
    with opened(tmp_path / "log-1") as (disk, log):
        log.append(batch(1, 0, 1))
        flush(disk, log)
    assert survey(tmp_path / "log-1").groups[0].name == "topic 1/0"
    assert survey_all(tmp_path)[1].groups[0].name == "flights/0"
