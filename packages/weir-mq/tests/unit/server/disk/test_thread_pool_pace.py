"""Files are made ahead of their use at a pace that leaves the disk to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.server.disk import file_disk
from weir.server.disk.file_disk import FileDisk
from weir.server.disk.thread_pool import Throttle
from weir.storage.segment_files import Spare

STEP = file_disk._STEP


def test_it_rests_after_each_step_while_the_log_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [0.0], []
    monkeypatch.setattr("weir.server.disk.thread_pool.time.perf_counter", lambda: now[0])
    gently = Throttle(lambda: 0.5, waits.append)
    for done, took in ((0.2, 0.004), (0.5, 0.004), (0.6, 0.004), (0.7, 60.0), (0.8, 0.0)):
        now[0] += took
        assert gently(done)
    # Behind what the log has filled it does not rest; nor ever for long.
    assert waits == [pytest.approx(0.04), 0.1, 0.02]


def test_zeros_are_for_segments_that_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they fill within seconds, zeros ahead took as much of the disk as all that was told."""
    now, filled = [0.0], [0.5]
    monkeypatch.setattr("weir.server.disk.thread_pool.time.perf_counter", lambda: now[0])
    gently = Throttle(lambda: filled[0], lambda seconds: None)

    def after(seconds: float, part: float) -> bool:
        now[0] += seconds
        filled[0] = part
        return gently(0.0)

    assert after(0.1, 0.59)  # that may be one burst
    assert after(0.4, 0.61)
    assert after(0.1, 0.02)  # the next segment: all is measured anew
    assert after(0.5, 0.13)
    assert not after(0.01, 0.16)


def test_a_flush_does_not_wait_for_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk it waited for most of a segment's zeros if the one before had lasted."""
    now, filled = [0.0], [0.1]
    monkeypatch.setattr("weir.server.disk.thread_pool.time.perf_counter", lambda: now[0])
    gently = Throttle(lambda: filled[0], lambda seconds: None)
    now[0], filled[0] = 60.0, 0.99
    assert gently(0.3)
    filled[0] = 1.0
    assert not gently(0.31)


def test_the_files_of_a_log_without_a_segment_are_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    gently = Throttle(lambda: 1.0, waits.append)
    assert gently(0.1)
    assert gently(0.9)
    assert waits == []


def test_what_is_not_written_of_a_file_is_there_all_the_same(tmp_path: Path) -> None:
    disk, size = FileDisk(tmp_path / "log"), 8 * STEP
    Spare("segment-00000001", size).run(disk, lambda done: done < 0.5)
    assert disk.read("segment-00000001", 0, size + 1) == bytes(size)
    assert (tmp_path / "log" / "segment-00000001").stat().st_blocks * 512 >= size
    disk.close()


def test_all_is_written_where_nothing_can_be_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, at: int, size: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(file_disk.os, "posix_fallocate", refuse)
    disk, size = FileDisk(tmp_path / "log"), 8 * STEP
    Spare("segment-00000001", size).run(disk, lambda done: False)
    assert disk.read("segment-00000001", 0, size + 1) == bytes(size)
    disk.close()


@pytest.mark.parametrize("there", [False, True], ids=["made", "zeroed"])
def test_a_spare_is_made_in_steps_that_are_synced(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, size, synced = FileDisk(tmp_path / "log"), 3 * STEP + 512, []
    whole = file_disk.os.fsync
    if there:
        disk.create("segment-00000001", size)
        disk.write("segment-00000001", 5, [b"x" * 2 * STEP])
    monkeypatch.setattr(file_disk.os, "fsync", lambda handle: (synced.append(0), whole(handle)))
    paces: list[tuple[float, int]] = []

    def pace(done: float) -> bool:
        paces.append((done, len(synced)))
        return True

    Spare("segment-00000001", size).run(disk, pace)
    assert paces == [(min(n * STEP / size, 1.0), n) for n in (1, 2, 3, 4)]
    assert disk.read("segment-00000001", 0, size + 1) == bytes(size)
    disk.close()


def test_one_that_finds_no_room_half_way_leaves_nothing(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "log")

    def full(done: float) -> bool:
        if done > 0.5:
            raise OSError(28, "No space left on device")
        return True

    with pytest.raises(OSError, match="No space"):
        Spare("segment-00000001", 4 * STEP).run(disk, full)
    assert disk.names() == []
    disk.close()
