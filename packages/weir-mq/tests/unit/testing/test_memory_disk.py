"""A crash of the memory disk takes back what was not synced, and nothing else."""

from __future__ import annotations

import pytest

from weir.testing.disk import MemoryDisk


def test_a_crash_takes_back_writes_since_the_last_sync() -> None:
    disk = MemoryDisk()
    disk.create("log", 8)
    disk.write("log", 0, [b"ab", b"cd"])
    disk.sync("log")
    disk.write("log", 2, [b"XY"])
    disk.write("log", 3, [b"Z"])
    assert disk.read("log", 0, 100) == b"abXZ\0\0\0\0"
    disk.crash()
    assert disk.read("log", 0, 100) == b"abcd\0\0\0\0"
    disk.crash()
    assert disk.read("log", 1, 2) == b"bc"


def test_files_come_and_go_at_once() -> None:
    disk = MemoryDisk()
    disk.create("a", 4)
    disk.replace("b", b"new")
    disk.write("a", 0, [b"1234"])
    disk.zero("a")
    disk.crash()
    assert sorted(disk.names()) == ["a", "b"]
    assert (disk.size("a"), disk.read("a", 0, 4), disk.read("b", 0, 4)) == (4, bytes(4), b"new")
    disk.write("a", 0, [b"1"])
    disk.remove("a")
    disk.crash()
    assert disk.names() == ["b"]


def test_misuse_is_told() -> None:
    disk = MemoryDisk()
    disk.create("a", 4)
    with pytest.raises(FileExistsError):
        disk.create("a", 4)
    with pytest.raises(ValueError, match="past a's end"):
        disk.write("a", 3, [b"12"])
    for call in (disk.size, disk.sync, disk.remove, disk.zero):
        with pytest.raises(FileNotFoundError):
            call("b")
