"""The flushes of a shard, as they are run, and the threads that save how far each log is durable.

A flush is run by a thread a log, or by the loop if it is a lone one. Syncs are the budget. What a
thread has done is told in the loop by way of an event file, which wakes it sooner than
`call_soon_threadsafe` does. How far a log is durable is saved beside its flushes, never before a
confirm.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.counts import Histogram
from weir.errors import DiskFailed
from weir.host.logs import FlushSchedule
from weir.server.config import in_mib
from weir.server.disk.file_disk import die
from weir.server.status import Reminder
from weir.storage.disk import Disk
from weir.storage.format.durable_position import DurablePosition
from weir.storage.log import Flush

log = logging.getLogger(__name__)

#: From the beginning of one save to that of the next at the least: 50 saves a second at most.
SAVE_EVERY_SECONDS = 0.02
#: How long a save waits for more flushes when none was under way: the confirm of the first one is
#: sent by then. What is left of 20 ms is for the save itself.
GATHER_SECONDS = 0.012
#: How long a disk that could not take one is left alone.
SAVE_RETRY_SECONDS = 1.0
Done = Callable[[Flush, BaseException | None], None]

RETRY_SECONDS = 1.0
#: Upper ends of the classes of how long a flush takes, in seconds.
FLUSH_SECONDS = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)


class PositionSaver:
    """Saves the newest position that it was told, within 20 ms, on a disk that takes no longer.

    A save that fails ends nothing: a confirm never waits for one, and what the file says stays
    true. It is told in the node's log, and the next position is saved like any other.
    """

    def __init__(self, number: int, file: DurablePosition) -> None:
        """Save to the file of log `number`; start the thread."""
        self._number = number
        self._file = file
        self._newest = file.position
        self._guard = threading.Lock()
        #: Whether the thread has been woken for what it has not saved yet.
        self._is_awake = False
        self._stops = False
        self._wake = threading.Semaphore(0)
        self._ended = threading.Event()
        self._reminder = Reminder()
        #: How many saves were tried.
        self.saves = 0
        self._thread = threading.Thread(
            target=self._run, name=f"weir-position-{number}", daemon=True
        )
        self._thread.start()

    def reached(self, position: int) -> None:
        """All of the log below a position is durable: a flush up to there has returned."""
        with self._guard:
            self._newest = max(self._newest, position)
            wakes, self._is_awake = not self._is_awake, True
        if wakes:
            self._wake.release()

    def stop(self) -> None:
        """Save what was told last, and end the thread."""
        self._stops = True
        self._ended.set()
        self._wake.release()
        self._thread.join()

    def _run(self) -> None:
        began = -SAVE_EVERY_SECONDS
        while True:
            self._wake.acquire()
            pause = GATHER_SECONDS
            while self._has_news():
                left = began + SAVE_EVERY_SECONDS - time.monotonic()
                self._ended.wait(max(pause, left))  # a stop cuts it short
                began = time.monotonic()
                is_saved = self._save()
                pause = 0.0 if is_saved else SAVE_RETRY_SECONDS
                if not is_saved and self._stops:
                    return
            if self._stops:
                return

    def _has_news(self) -> bool:
        """Whether there is something to save; else the thread is to be woken again."""
        with self._guard:
            self._is_awake = self._newest > self._file.position
            return self._is_awake

    def _save(self) -> bool:
        self.saves += 1
        try:
            self._file.save(self._newest)
        except (OSError, DiskFailed) as error:
            if self._reminder.is_due("save"):
                log.error(
                    "log %d: its durable position is not saved: %s. Messages are confirmed as "
                    "before, but a tail of this log that vanishes would not be noticed: mend the "
                    "disk, or set another log.position_folder",
                    self._number,
                    error,
                    extra={"fields": {"log": self._number}},
                )
            return False
        return True


class LoopWakeup:
    """Calls back in the loop, in order, what other threads ask for.

    A lone confirm waits for this. The loop's own way wakes it, lets it look at all its sockets once
    more, and only then calls; an event file is one of those sockets.
    """

    __slots__ = ("_asked", "_file", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen until `close`."""
        self._asked: deque[Callable[[], None]] = deque()
        self._loop = loop
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._file, self._woken)

    def call(self, act: Callable[[], None]) -> None:
        """Let the loop call `act`. For any thread; not after `close`."""
        self._asked.append(act)
        os.eventfd_write(self._file, 1)

    def close(self) -> None:
        """Call nothing any more. No thread may use it from here on."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _woken(self) -> None:
        os.eventfd_read(self._file)
        asked = self._asked
        for _ in range(len(asked)):
            asked.popleft()()


class Flusher:
    """Runs one flush after another; `done` is called in this thread after each.

    A flush that finds no room for a new segment is run again until it does, or until `stop`: what
    it holds was promised to nobody yet, and everything behind it has to wait.
    """

    def __init__(
        self,
        name: str,
        disk: Disk,
        done: Done,
        retry_seconds: float = RETRY_SECONDS,
        reached: Callable[[int], None] = lambda position: None,
    ) -> None:
        """Start the thread. `reached` is told how far the log is durable, after each flush, in the
        thread that ran it; it must not block.
        """
        self._disk = disk
        self._reached = reached
        self._done = done
        self._retry_seconds = retry_seconds
        #: How long each write and sync took. One flush is in flight at a time, so its runner adds
        #: to this, before the shard is told.
        self.seconds = Histogram(FLUSH_SECONDS)
        #: How long the last one took.
        self.took_seconds = 0.0
        self._queue: SimpleQueue[Flush | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, flush: Flush) -> None:
        """Hand over a flush."""
        self._queue.put(flush)

    def run(self, flush: Flush) -> bool:
        """Run a flush in the caller's thread, and return whether it is durable: one that finds no
        room is handed over. What was handed over before must be done. Raises as `Flush.run` does,
        but no `OSError`.
        """
        began = time.perf_counter()
        try:
            flush.run(self._disk)
        except OSError:
            self.start(flush)
            return False
        self._took(flush, time.perf_counter() - began)
        return True

    def stop(self) -> None:
        """End the thread once it has run what it was given, or given up what finds no room."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (flush := self._queue.get()) is not None:
            try:
                took = self._write(flush)
            except BaseException as error:  # whatever it is, the host must hear of it
                self._done(flush, error)
            else:
                if took is not None:
                    self._took(flush, took)
                    self._done(flush, None)

    def _took(self, flush: Flush, seconds: float) -> None:
        self.seconds.add(seconds)
        self.took_seconds = seconds
        self._reached(flush.end)

    def _write(self, flush: Flush) -> float | None:
        """Run a flush until it has found room; return how long that took in the end, in seconds,
        or None if told to stop before.
        """
        reminder = Reminder()
        while True:
            began = time.perf_counter()
            try:
                flush.run(self._disk)
            except OSError as error:
                if reminder.is_due("room"):
                    log.error(
                        "a flush waits for room: %s; free %s or more on that disk; "
                        "it is retried every %g s",
                        error,
                        in_mib(flush.missing_bytes),
                        self._retry_seconds,
                    )
                if self._stopping.wait(self._retry_seconds):
                    return None
            else:
                return time.perf_counter() - began


class FlushHost(Protocol):
    """Takes what comes of flushes, now or later."""

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it."""

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""


class Flushes:
    """Has flushes run where the schedule says: by a thread a log, or by the loop."""

    def __init__(
        self,
        disks: Mapping[int, Disk],
        host: FlushHost,
        schedule: FlushSchedule,
        positions: Mapping[int, PositionSaver] | None = None,
    ) -> None:
        """Flush log number n on `disks[n]`. How far it is durable is saved by `positions[n]`, if
        there is one.
        """
        self._positions = positions or {}
        self._host = host
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._wakeup = LoopWakeup(self._loop)
        self._flushers = {n: self._flusher(n, disk) for n, disk in disks.items()}

    def _flusher(self, number: int, disk: Disk) -> Flusher:
        name, done = f"weir-flush-{number}", self._in_loop(number)
        if (saver := self._positions.get(number)) is None:
            return Flusher(name, disk, done)
        return Flusher(name, disk, done, reached=saver.reached)

    @property
    def seconds(self) -> dict[int, Histogram]:
        """By the log's number, how long its flushes took."""
        return {number: flusher.seconds for number, flusher in self._flushers.items()}

    def start(self, effect: ef.StartFlush) -> None:
        """Run a flush; `Flushed` comes when it is durable, never before this returns."""
        if self._schedule.start(effect):
            self._loop.call_soon(self._run, effect.log)  # what this turn sends is out first
        else:
            self._flushers[effect.log].start(effect.flush)

    def stop(self) -> None:
        """Return once all that was started has run, or is given up; nobody hears of it."""
        for number, flush in self._schedule.inline.items():
            self._flushers[number].start(flush)
        self._schedule.inline.clear()
        for flusher in self._flushers.values():
            flusher.stop()
        for saver in self._positions.values():
            saver.stop()
        self._wakeup.close()

    def _run(self, number: int) -> None:
        flush = self._schedule.inline.pop(number, None)
        if flush is None:  # `stop` gave it to the thread
            return
        try:
            is_durable = self._flushers[number].run(flush)
        except Exception as error:
            die(number, error)
        if is_durable:
            self._flushed(number, flush)

    def _in_loop(self, number: int) -> Callable[[Flush, BaseException | None], None]:
        def done(flush: Flush, error: BaseException | None) -> None:
            if error is not None:
                die(number, error)
            self._wakeup.call(partial(self._flushed, number, flush))

        return done

    def _flushed(self, number: int, flush: Flush) -> None:
        event, rest = self._schedule.flushed(number, flush, self._flushers[number].took_seconds)
        if rest:
            self._host.later(rest, partial(self._host.handle, ev.Rested(number)))
        self._host.handle(event)
