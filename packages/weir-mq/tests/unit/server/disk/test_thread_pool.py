"""What a shard wants of its disks besides flushes, and what may stand in front of what."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from errno import ENOSPC
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.server import status
from weir.server.disk.file_disk import FileDisk
from weir.server.disk.thread_pool import ThreadPool
from weir.storage.disk import Disk
from weir.storage.segment_files import Spare

SIZE = 4 << 20


@pytest.fixture
def disks(tmp_path: Path) -> dict[int, FileDisk]:
    return {n: FileDisk(tmp_path / f"log-{n}") for n in range(2)}


def test_nothing_stands_behind_files_that_are_made_ahead(disks: dict[int, FileDisk]) -> None:
    """A start that found spares of an earlier life zeroed them in all threads there were, for
    minutes: reads that were not cached, and the checkpoint of a stop, waited behind them.
    """
    told: SimpleQueue[ev.Event] = SimpleQueue()
    pool = ThreadPool(disks, told.put)
    asked, over = Event(), Event()

    def filled() -> float:
        """No file gets any further before the checkpoint is told."""
        if asked.is_set():
            over.wait(60)
        return 0.0

    for n in range(8):
        pool.make(ef.MakeSpare(n % 2, Spare(f"segment-{n:08}", 16 * SIZE)), filled)
    asked.set()

    def save(disk: Disk) -> None:
        disk.replace("checkpoint", b"all")

    def saved(effect: ef.SaveCheckpoint, future: Future[None]) -> ev.CheckpointSaved:
        return ev.CheckpointSaved(effect.log, saved=future.exception() is None)

    pool.run(ef.SaveCheckpoint(1, "checkpoint", b"all"), save, saved)
    assert told.get(timeout=30) == ev.CheckpointSaved(1, saved=True)
    over.set()
    pool.shutdown()


def test_a_stop_leaves_files_that_are_not_made_yet(disks: dict[int, FileDisk]) -> None:
    """It wrote them all first: a second for each on a good disk."""
    told: SimpleQueue[ev.Event] = SimpleQueue()
    pool = ThreadPool(disks, told.put)
    begun = Event()

    def filled() -> float:
        begun.set()
        return 0.0

    for n in range(40):
        pool.make(ef.MakeSpare(0, Spare(f"segment-{n:08}", 64 * SIZE)), filled)
    assert begun.wait(10)
    began = time.monotonic()
    pool.shutdown()
    assert time.monotonic() - began < 15, "one file alone takes 20 s at that pace"
    assert disks[0].names() == []
    assert told.empty()


def test_what_is_made_is_told(disks: dict[int, FileDisk]) -> None:
    told: SimpleQueue[ev.Event] = SimpleQueue()
    pool = ThreadPool(disks, told.put)
    spare = Spare("segment-00000001", SIZE)
    hurries: Callable[[], float] = lambda: 1.0  # noqa: E731
    pool.make(ef.MakeSpare(1, spare), hurries)
    assert told.get(timeout=10) == ev.SpareMade(1, spare, made=True)
    assert disks[1].size(spare.name) == SIZE
    pool.shutdown()


def test_a_disk_without_room_is_told_once_a_minute_and_anew_when_it_fills_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: now))
    room = 0

    class Small(FileDisk):
        def _check_room(self, size: int) -> None:
            if size > room:
                raise OSError(ENOSPC, "No space left on device")

    told: SimpleQueue[ev.Event] = SimpleQueue()
    pool = ThreadPool({0: Small(tmp_path / "log")}, told.put)

    def tries(seconds: int) -> list[str]:
        """Let it be tried each second; return what was told."""
        nonlocal now
        caplog.clear()
        for _ in range(seconds):
            now += 1.0
            pool.make(ef.MakeSpare(0, Spare(f"segment-{now:08.0f}", SIZE)), lambda: 1.0)
            told.get(timeout=10)
        return list(caplog.messages)

    (said,) = tries(60)
    assert said.startswith("log 0: no room for a segment in reserve: [Errno 28] No space left")
    assert said.endswith("free 4 MiB or more on that disk")
    assert len(tries(60)) == 1
    room = SIZE
    assert tries(1) == []
    room = 0
    assert len(tries(2)) == 1
    pool.shutdown()
