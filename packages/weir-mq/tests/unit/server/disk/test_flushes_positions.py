"""The thread that saves how far a log is durable: soon, not too often, and in nobody's way."""

from __future__ import annotations

import logging
import random
import threading
import time

import pytest

from rigs.logs import ended_of
from weir.codec import Buffer
from weir.server.disk import flushes
from weir.server.disk.flushes import SAVE_EVERY_SECONDS, PositionSaver
from weir.storage.format.durable_position import DurablePosition, Owner, look
from weir.testing.simulator.disk import SimDisk

OWNER = Owner(1, 1, 1)


class Watched(SimDisk):
    """Notes what it made durable, and may take long for it."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.synced: list[tuple[float, int]] = []
        self.told = threading.Condition()
        self.free = threading.Event()
        self.free.set()

    def sync(self, name: str) -> None:
        self.free.wait(10)
        super().sync(name)
        self.note()

    def replace(self, name: str, data: Buffer) -> None:
        self.free.wait(10)
        super().replace(name, data)
        self.note()

    def note(self) -> None:
        with self.told:
            self.synced.append((time.monotonic(), look(self, OWNER).position))
            self.told.notify_all()

    def until(self, position: int) -> None:
        with self.told:
            done = lambda: any(at == position for _, at in self.synced)  # noqa: E731
            assert self.told.wait_for(done, timeout=10)


@pytest.fixture
def disk() -> Watched:
    return Watched()


def test_the_last_flush_of_a_burst_is_saved_by_itself(disk: Watched) -> None:
    saver = PositionSaver(1, DurablePosition(disk, OWNER))
    disk.free.clear()  # the first save takes as long as the burst, on any machine
    for position in range(1, 1_001):
        saver.reached(position)
    disk.free.set()
    disk.until(1_000)
    assert saver.saves <= 2
    saver.reached(1_001)
    disk.until(1_001)
    saver.stop()


def test_saves_are_as_far_apart_as_is_said(disk: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    saver = PositionSaver(1, DurablePosition(disk, OWNER))
    honest = ended_of(saver).wait

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout or 0.0)
        return honest(timeout)

    monkeypatch.setattr(ended_of(saver), "wait", wait)
    began = time.monotonic()
    for position in range(1, 41):
        saver.reached(position)
        disk.until(position)
    took = time.monotonic() - began
    saver.stop()
    assert saver.saves == 40
    assert took >= 39 * SAVE_EVERY_SECONDS * 0.95
    assert max(waits) <= SAVE_EVERY_SECONDS, "none begins later than 20 ms after its flush"


def test_who_tells_of_a_flush_never_waits_for_the_disk(disk: Watched) -> None:
    disk.free.clear()
    saver = PositionSaver(1, DurablePosition(disk, OWNER))
    told = threading.Event()

    def tell() -> None:
        for position in range(1, 101):
            saver.reached(position)
        told.set()

    threading.Thread(target=tell).start()
    assert told.wait(10), "it waited for the save"
    disk.free.set()
    disk.until(100)
    saver.stop()


def test_a_stop_saves_what_was_told_last(disk: Watched) -> None:
    saver = PositionSaver(1, DurablePosition(disk, OWNER))
    saver.reached(7)
    saver.stop()
    disk.crash()
    assert DurablePosition(disk, OWNER).position == 7


def test_a_disk_that_fails_is_told_of_once_and_tried_again(
    disk: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushes, "SAVE_RETRY_SECONDS", 0.001)
    for operation in ("replace", "replace", "write"):
        disk.fail_next(operation, 28)
    with caplog.at_level(logging.ERROR, flushes.__name__):
        saver = PositionSaver(4, DurablePosition(disk, OWNER))
        saver.reached(9)
        disk.until(9)
        saver.stop()
    (record,) = caplog.records
    assert "log 4: its durable position is not saved" in record.message


def test_a_stop_does_not_wait_for_a_disk_that_fails(disk: Watched) -> None:
    for _ in range(100):
        disk.fail_next("replace", 28)
    saver = PositionSaver(4, DurablePosition(disk, OWNER))
    saver.reached(9)
    saver.stop()
    assert saver.saves <= 3
