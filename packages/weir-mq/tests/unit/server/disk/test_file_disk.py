"""The real disk, in a temporary folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from weir.codec import Buffer
from weir.errors import DiskFailed
from weir.server.disk.file_disk import FileDisk, FolderInUse
from weir.storage.disk import Disk
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path / "log")
    yield disk
    disk.close()


def refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_it_is_a_disk(disk: FileDisk) -> None:
    port: Disk = disk
    assert port.names() == []


def test_a_new_file_holds_written_zeros(disk: FileDisk, tmp_path: Path) -> None:
    size = (1 << 20) + 4096
    disk.create("f", size)
    assert disk.names() == ["f"]
    assert disk.size("f") == size
    assert disk.read("f", 0, size) == bytes(size)
    assert (tmp_path / "log" / "f").stat().st_blocks * 512 >= size
    with pytest.raises(FileExistsError):
        disk.create("f", size)
    assert disk.size("f") == size


def test_thousands_of_buffers_are_written_in_order(disk: FileDisk) -> None:
    disk.create("f", 40_000)
    buffers: list[Buffer] = [f"{n:04d}".encode() for n in range(5000)]
    buffers[7] = bytearray(buffers[7])
    buffers[8] = memoryview(buffers[8])
    disk.write("f", 100, buffers)
    disk.sync("f")
    assert disk.read("f", 100, 20_000) == b"".join(buffers)
    assert disk.read("f", 0, 100) == bytes(100)
    assert disk.read("f", 39_990, 100) == bytes(10)


def test_a_write_cut_short_by_the_system_goes_on(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.create("f", 4096)
    whole = os.pwritev

    def some(handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return whole(handle, [b"".join(buffers)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", some)
    disk.write("f", 3, [b"ab", b"", b"c" * 20, b"defg"])
    assert disk.read("f", 3, 26) == b"ab" + b"c" * 20 + b"defg"


def test_a_read_cut_short_by_the_system_goes_on(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.create("f", 4096)
    disk.write("f", 0, [bytes(range(100))])
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, n, offset: whole(handle, min(n, 7), offset))
    assert disk.read("f", 5, 50) == bytes(range(5, 55))


def test_a_second_opener_is_told(disk: FileDisk, tmp_path: Path) -> None:
    with pytest.raises(FolderInUse, match="in use by another weir process"):
        FileDisk(tmp_path / "log")
    disk.close()
    disk.close()
    FileDisk(tmp_path / "log").close()


def test_a_failed_sync_or_write_is_the_end(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.create("f", 4096)

    def fail(*_: object) -> int:
        raise refuse(errno.EIO)

    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(DiskFailed, match=r"sync .*f: .*must end"):
        disk.sync("f")
    with pytest.raises(DiskFailed, match=r"write .*f: .*must end"):
        disk.write("f", 0, [b"a"])


def test_a_full_disk_leaves_no_file(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise refuse(errno.ENOSPC)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        with pytest.raises(OSError, match="space"):
            disk.create("f", 4096)
    assert disk.names() == []
    disk.create("f", 4096)


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, OSError), (errno.EIO, DiskFailed)])
def test_a_new_file_that_cannot_be_synced_is_removed(
    disk: FileDisk,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: int,
    raised: type[Exception],
) -> None:
    """No room is no failure of the disk, at whichever step it is told."""
    disk.replace("checkpoint", b"old")

    def fail(_: int) -> None:
        raise refuse(number)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(raised):
        disk.create("f", 4096)
    with pytest.raises(raised):
        disk.replace("checkpoint", b"newer")
    assert sorted(os.listdir(tmp_path / "log")) == ["checkpoint", "lock"]
    assert disk.read("checkpoint", 0, 9) == b"old"


def test_a_replace_without_room_leaves_the_old_file_alone(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk.replace("checkpoint", b"old")

    def fail(*_: object) -> int:
        raise refuse(errno.ENOSPC)

    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(OSError, match="space"):
        disk.replace("checkpoint", b"newer")
    assert sorted(os.listdir(tmp_path / "log")) == ["checkpoint", "lock"]
    assert disk.read("checkpoint", 0, 9) == b"old"


def test_a_file_that_cannot_fit_is_not_begun(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr(os, "pwritev", lambda *call: written.append(call))
    with pytest.raises(OSError, match="space"):
        disk.create("f", 1 << 60)
    assert disk.names() == []
    assert written == []


def test_a_file_is_zeroed_where_it_lies(disk: FileDisk, tmp_path: Path) -> None:
    size = (1 << 20) + 4096
    disk.create("f", size)
    number = (tmp_path / "log" / "f").stat().st_ino
    disk.write("f", size - 3, [b"abc"])
    disk.zero("f")
    assert disk.read("f", 0, size + 1) == bytes(size)
    assert (tmp_path / "log" / "f").stat().st_ino == number


def test_a_failed_folder_sync_is_the_end(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise refuse(errno.EIO)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFailed):
        disk.create("f", 4096)


def test_replace_and_remove(disk: FileDisk, tmp_path: Path) -> None:
    disk.replace("checkpoint", b"one")
    assert disk.read("checkpoint", 0, 9) == b"one"
    disk.replace("checkpoint", b"three")
    assert disk.read("checkpoint", 0, 9) == b"three"
    assert disk.names() == ["checkpoint"]
    disk.remove("checkpoint")
    assert disk.names() == []
    with pytest.raises(FileNotFoundError):
        disk.size("checkpoint")


def test_what_an_unfinished_replace_left_is_swept(disk: FileDisk, tmp_path: Path) -> None:
    disk.close()
    left = tmp_path / "log" / "checkpoint.new"
    left.write_bytes(b"half")
    again = FileDisk(tmp_path / "log")
    assert not left.exists()
    again.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "lock", "a.new"])
def test_a_name_that_is_no_file_of_the_folder_is_refused(disk: FileDisk, name: str) -> None:
    for call in (disk.size, disk.remove, disk.sync):
        with pytest.raises(ValueError, match="no name"):
            call(name)
    with pytest.raises(ValueError, match="no name"):
        disk.create(name, 10)


def test_a_closed_disk_says_so(disk: FileDisk) -> None:
    disk.create("f", 10)
    disk.close()
    with pytest.raises(ValueError, match="closed"):
        disk.read("f", 0, 1)


def test_a_log_lives_on_it(disk: FileDisk, tmp_path: Path) -> None:
    settings = Settings(1, 2, segment_bytes=1 << 16, entry_bytes_max=1 << 14)
    log = recover(disk, settings).log
    payload = bytes(range(256)) * 40
    for index in range(1, 21):
        log.append(Record(7, 1, index, Kind.CONTROL, (payload,), len(payload)))
    flush = log.next_flush()
    assert flush is not None
    flush.run(disk)
    log.flushed(flush)
    disk.close()
    again = FileDisk(tmp_path / "log")
    recovered = recover(again, settings)
    assert recovered.groups[7].last_index == 20
    stored = [recovered.log.reader.stored(7, index) for index in range(1, 21)]
    assert [recovered.log.reader.load(one) for one in stored if one] == [payload] * 20
    again.close()
