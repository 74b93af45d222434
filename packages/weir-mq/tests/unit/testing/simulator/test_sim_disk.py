"""The simulated disk keeps what was synced, and only that surely."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from weir.errors import DiskFailed
from weir.testing.simulator.disk import SECTOR, PowerCut, SimDisk

SIZE = 8 * SECTOR


def disks(count: int = 200) -> list[SimDisk]:
    return [SimDisk(random.Random(seed)) for seed in range(count)]


def outcomes(prepare: Callable[[SimDisk], None]) -> set[bytes | None]:
    """What the file `f` may hold after `prepare` and a power cut."""
    seen: set[bytes | None] = set()
    for disk in disks():
        prepare(disk)
        disk.crash()
        seen.add(disk.read("f", 0, SIZE) if "f" in disk.names() else None)
    return seen


def test_a_created_file_is_there_and_zero() -> None:
    assert outcomes(lambda disk: disk.create("f", SIZE)) == {bytes(SIZE)}


def test_synced_bytes_survive() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.write("f", 100, [b"a" * 600, memoryview(b"b" * 10)])
        disk.sync("f")

    expected = bytes(100) + b"a" * 600 + b"b" * 10 + bytes(SIZE - 710)
    assert outcomes(prepare) == {expected}


def test_unsynced_sectors_are_lost_torn_and_reordered_but_whole() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.write("f", 0, [b"a" * 3 * SECTOR])

    seen = outcomes(prepare)
    patterns = set()
    for data in seen:
        assert data is not None
        sectors = [data[i : i + SECTOR] for i in range(0, SIZE, SECTOR)]
        assert all(sector in (b"a" * SECTOR, bytes(SECTOR)) for sector in sectors)
        patterns.add("".join("a" if sector[0] else "0" for sector in sectors[:3]))
    assert len(patterns) == 8


def test_an_earlier_version_may_be_what_reached_the_platter() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.write("f", 0, [b"a" * SECTOR])
        disk.write("f", 0, [b"b" * SECTOR])

    assert {data[:1] for data in outcomes(prepare) if data} == {b"a", b"b", b"\0"}


def test_a_kill_keeps_the_page_cache_unsynced() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.write("f", 0, [b"a" * SECTOR])
        disk.kill()
        assert disk.read("f", 0, 1) == b"a"

    assert {data[:1] for data in outcomes(prepare) if data} == {b"a", b"\0"}


def test_a_power_cut_in_a_create_may_leave_a_part_or_nothing() -> None:
    seen = set()
    for disk in disks():
        disk.cut_after(2)
        with pytest.raises(PowerCut):
            disk.create("f", SIZE)
        with pytest.raises(PowerCut):
            disk.names()
        disk.crash()
        seen.add(disk.size("f") if "f" in disk.names() else None)
    assert {None, 0, SIZE} <= seen
    assert len(seen) > 3


def test_a_power_cut_in_a_write_may_leave_its_beginning_in_the_cache() -> None:
    seen = set()
    for disk in disks(20):
        disk.create("f", SIZE)
        disk.cut_after(0)
        with pytest.raises(PowerCut):
            disk.write("f", 0, [b"a" * SIZE])
        disk.kill()
        seen.add(disk.read("f", 0, SIZE).count(b"a"))
    assert len(seen) > 5


def test_replace_leaves_the_old_or_the_new() -> None:
    for calls in range(8):
        seen = set()
        for disk in disks(40):
            disk.replace("f", b"old")
            disk.cut_after(calls)
            try:
                disk.replace("f", b"newer")
            except PowerCut:
                disk.crash()
            disk.kill()
            assert disk.names() == ["f"]
            seen.add(disk.read("f", 0, 9))
        assert seen <= {b"old", b"newer"}
    assert seen == {b"newer"}


def test_a_removed_file_stays_removed() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.remove("f")

    assert outcomes(prepare) == {None}


def test_a_removal_cut_short_may_come_undone() -> None:
    seen = set()
    for disk in disks(50):
        disk.create("f", SIZE)
        disk.cut_after(1)
        with pytest.raises(PowerCut):
            disk.remove("f")
        disk.crash()
        seen.add("f" in disk.names())
    assert seen == {True, False}


def test_a_failed_sync_loses_what_readers_still_see() -> None:
    lost = 0
    for disk in disks(50):
        disk.create("f", SIZE)
        disk.write("f", 0, [b"a" * SIZE])
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(DiskFailed):
            disk.sync("f")
        assert disk.read("f", 0, SIZE) == b"a" * SIZE
        disk.sync("f")
        disk.crash()
        lost += disk.read("f", 0, SIZE) != b"a" * SIZE
    assert lost > 40


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_full_disk_refuses_a_new_file_and_leaves_none(operation: str) -> None:
    (disk,) = disks(1)
    disk.fail_next(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        disk.create("f", SIZE)
    assert disk.names() == []
    disk.create("f", SIZE)


def test_what_a_failed_sync_made_is_removed() -> None:
    (disk,) = disks(1)
    disk.replace("c", b"old")
    for make in (lambda: disk.create("f", SIZE), lambda: disk.replace("c", b"newer")):
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(DiskFailed):
            make()
    assert disk.names() == ["c"]
    assert disk.read("c", 0, 9) == b"old"


def test_a_zeroed_file_and_its_name_survive() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.cut_after(3)
        with pytest.raises(PowerCut):
            disk.create("f", SIZE)  # all but the folder's sync
        disk.kill()
        disk.write("f", 100, [b"a" * 600])
        disk.zero("f")

    assert outcomes(prepare) == {bytes(SIZE)}


def test_a_failed_write_is_the_end() -> None:
    (disk,) = disks(1)
    disk.create("f", SIZE)
    disk.fail_next("write", errno.EIO)
    with pytest.raises(DiskFailed):
        disk.write("f", 0, [b"a"])


def test_a_flipped_bit_is_read() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.create("f", SIZE)
        disk.flip("f", 700, bit=3)
        assert disk.read("f", 700, 1) == b"\x08"

    assert outcomes(prepare) == {bytes(700) + b"\x08" + bytes(SIZE - 701)}


def test_misuse_is_an_error() -> None:
    (disk,) = disks(1)
    disk.create("f", SIZE)
    with pytest.raises(FileExistsError):
        disk.create("f", SIZE)
    with pytest.raises(ValueError, match="past"):
        disk.write("f", SIZE - 1, [b"ab"])
    for call in (disk.size, disk.sync, disk.remove):
        with pytest.raises(FileNotFoundError):
            call("g")
    disk.close()


def test_the_same_seed_does_the_same() -> None:
    results = []
    for _ in range(2):
        disk = SimDisk(random.Random(5))
        disk.create("f", SIZE)
        disk.write("f", 0, [b"a" * SIZE])
        disk.crash()
        results.append(disk.read("f", 0, SIZE))
    assert results[0] == results[1]
