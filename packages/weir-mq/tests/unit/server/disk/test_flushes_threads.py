"""The thread that runs flushes: a full disk makes one wait, a failed one ends the host."""

from __future__ import annotations

import errno
import logging
import random
from itertools import count
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from weir.errors import DiskFailed
from weir.server import status
from weir.server.disk.flushes import Flusher
from weir.storage.log import Flush, Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SETTINGS = Settings(1, 1, segment_bytes=8192, entry_bytes_max=1000, spares=0)
Results = SimpleQueue[tuple[Flush, BaseException | None]]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
def log(disk: SimDisk) -> Log:
    return recover(disk, SETTINGS).log


def flush_of(log: Log) -> Flush:
    flush = log.next_flush()
    assert flush is not None
    return flush


def test_a_roll_on_a_full_disk_waits_for_room_and_tells_once_a_minute(
    disk: SimDisk, log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(step=25)  # each try comes 25 s after the one before
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: next(now)))
    told: Results = SimpleQueue()
    flusher = Flusher("f", disk, lambda *result: told.put(result), retry_seconds=0.001)
    for _ in range(7):
        disk.fail_next("create", errno.ENOSPC)
    flush = flush_of(log)
    with caplog.at_level(logging.ERROR, "weir.server.disk.flushes"):
        flusher.start(flush)
        assert told.get(timeout=5) == (flush, None)
    flusher.stop()
    assert len(caplog.messages) == 3
    assert all("free 1 MiB or more on that disk; it is retried" in m for m in caplog.messages)
    log.flushed(flush)
    assert len(disk.names()) == 1


def test_a_stop_does_not_wait_for_room(disk: SimDisk, log: Log) -> None:
    told: Results = SimpleQueue()
    flusher = Flusher("f", disk, lambda *result: told.put(result), retry_seconds=600)
    disk.fail_next("create", errno.ENOSPC)
    flusher.start(flush_of(log))
    flusher.stop()
    assert told.empty(), "nothing is durable, and nothing failed for good"
    assert disk.names() == []


def test_a_failed_disk_is_told_at_once(disk: SimDisk, log: Log) -> None:
    told: Results = SimpleQueue()
    flusher = Flusher("f", disk, lambda *result: told.put(result), retry_seconds=600)
    disk.fail_next("sync", errno.EIO)
    flush = flush_of(log)
    flusher.start(flush)
    which, error = told.get(timeout=5)
    flusher.stop()
    assert which is flush
    assert isinstance(error, DiskFailed)


class Noted(SimDisk):
    """Notes its syncs in the same list as what is told of positions."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.order: list[object] = []

    def sync(self, name: str) -> None:
        super().sync(name)
        self.order.append("synced")


@pytest.mark.parametrize("by_loop", [False, True])
def test_a_position_is_told_once_its_flush_has_returned(by_loop: bool) -> None:
    disk = Noted()
    log = recover(disk, SETTINGS).log
    told: Results = SimpleQueue()
    flusher = Flusher("f", disk, lambda *result: told.put(result), reached=disk.order.append)
    flush = flush_of(log)
    disk.order.clear()
    if by_loop:
        assert flusher.run(flush)
    else:
        flusher.start(flush)
        told.get(timeout=5)
    flusher.stop()
    assert disk.order == ["synced", flush.end]


def test_a_flush_that_fails_tells_no_position(disk: SimDisk, log: Log) -> None:
    told: Results = SimpleQueue()
    reached: list[int] = []
    flusher = Flusher("f", disk, lambda *result: told.put(result), reached=reached.append)
    disk.fail_next("sync", errno.EIO)
    flusher.start(flush_of(log))
    assert isinstance(told.get(timeout=5)[1], DiskFailed)
    flusher.stop()
    assert not reached
