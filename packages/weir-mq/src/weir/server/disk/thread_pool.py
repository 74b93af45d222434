"""Threads that do what a shard wants of its disks besides flushes, and what it is told of it."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.codec import Buffer
from weir.errors import DiskFailed
from weir.server.config import in_mib
from weir.server.disk.file_disk import die
from weir.server.status import Reminder
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.scrub import Scrubbed

log = logging.getLogger(__name__)

R = TypeVar("R")
#: What a thread is asked to do.
J = TypeVar("J", ef.StartRead, ef.MakeSpare, ef.SaveCheckpoint, ef.StartChore)

#: What was written in one unit of time is followed by so many in which others have the disk: also
#: one that takes a lot at first, and lets everybody wait for that afterwards.
_REST = 10.0
_REST_SECONDS = (0.02, 0.1)
#: A segment that would be filled in less is one of many; that is known once this part of it is.
_RUSH_SECONDS = 4.0
_KNOWN_FROM = 0.1


class Throttle:
    """The pace of one file in reserve: slow, but no slower than the segment before it fills.

    Confirms share the disk, and do not wait for it. Zeros that are written ahead make small flushes
    several times as quick. Where segments fill within seconds flushes are large, the disk is the
    limit, and zeros would take half of it: then a file is merely allocated.
    """

    def __init__(self, filled: Callable[[], float], wait: Callable[[float], object]) -> None:
        """`filled` tells how much of that segment is used, from 0 to 1; `wait` lets seconds pass,
        or says at once that nobody needs the file any more.
        """
        self._filled = filled
        self._wait = wait
        #: When, and how full, the segment was seen first.
        self._seen = self._began = time.perf_counter()
        self._seen_filled = filled()

    def __call__(self, done: float) -> bool:
        """Wait after a step, unless the log would be at its end before the file is; return whether
        to write on.

        Raises `OSError` if the file is not needed any more.
        """
        now, filled = time.perf_counter(), self._filled()
        if filled < self._seen_filled:  # the log has gone on to the next
            self._seen, self._seen_filled = now, filled
        if filled >= 1.0 > self._seen_filled:
            return False  # a flush waits for this very file
        grown = filled - self._seen_filled
        if grown >= _KNOWN_FROM and grown * _RUSH_SECONDS > now - self._seen:
            return False
        if done > filled:
            least, most = _REST_SECONDS
            if self._wait(min(max(_REST * (now - self._began), least), most)):
                raise OSError(errno.ECANCELED, "the node stops, and needs no files ahead")
        self._began = time.perf_counter()
        return True


class ThreadPool:
    """Reads, checkpoints and chores of all logs; and a thread a log that makes files ahead.

    These take long on purpose, and there may be many of them after a start: were they done by the
    same threads, reads and checkpoints would stand behind them.
    """

    def __init__(self, disks: Mapping[int, Disk], tell: Callable[[ev.Event], None]) -> None:
        """Work on these disks, by the log's number; `tell` what became of it, in any thread."""
        self._disks = disks
        self._tell = tell
        # Three, so that neither a scrub nor a copy stands in front of a read.
        self._pool = ThreadPoolExecutor(3, "weir-disk")
        self._makers = {n: ThreadPoolExecutor(1, f"weir-spare-{n}") for n in disks}
        self._reminder = Reminder()
        #: Set when the files that are not made yet are wanted no more.
        self._ended = threading.Event()

    def run(
        self, effect: J, run: Callable[[Disk], R], became: Callable[[J, Future[R]], ev.Event]
    ) -> None:
        """Let a thread `run` something on the effect's disk; the shard is told what it `became`."""
        self._submit(self._pool, effect, run, became)

    def make(self, effect: ef.MakeSpare, filled: Callable[[], float]) -> None:
        """Make a file ahead of its use, no slower than the segment before it is `filled`."""
        pace = Throttle(filled, self._ended.wait)
        self._submit(
            self._makers[effect.log],
            effect,
            partial(effect.spare.run, pace=pace),
            partial(spare_made, self._reminder),
        )

    def shutdown(self) -> None:
        """Return when what was asked for is done; the next start makes the files ahead."""
        self._ended.set()
        for maker in self._makers.values():
            maker.shutdown(wait=False, cancel_futures=True)
        for pool in (*self._makers.values(), self._pool):
            pool.shutdown(wait=True)

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        effect: J,
        run: Callable[[Disk], R],
        became: Callable[[J, Future[R]], ev.Event],
    ) -> None:
        def done(future: Future[R]) -> None:
            if not (self._ended.is_set() and isinstance(effect, ef.MakeSpare)):
                self._tell(became(effect, future))

        pool.submit(run, self._disks[effect.log]).add_done_callback(done)


def read_done(effect: ef.StartRead, future: Future[Sequence[Buffer]]) -> ev.ReadDone:
    """Return what became of a read."""
    error = future.exception()
    if error is None:
        return ev.ReadDone(effect.ticket, future.result())
    log.error("log %d: a read failed: %s", effect.log, error)
    at = error.position if isinstance(error, LogDamaged) else -1
    return ev.ReadDone(effect.ticket, (), f"the read failed: {error}", at)


def spare_made(reminder: Reminder, effect: ef.MakeSpare, future: Future[None]) -> ev.SpareMade:
    """Return what became of a segment in reserve; does not return if the disk failed.

    It is tried each second; the `reminder` says when to tell of it again.
    """
    error = _error(effect.log, future)
    if reminder.is_due(effect.log, error is not None):
        log.error(
            "log %d: no room for a segment in reserve: %s; free %s or more on that disk",
            effect.log,
            error,
            in_mib(effect.spare.size),
        )
    return ev.SpareMade(effect.log, effect.spare, made=error is None)


def checkpoint_saved(effect: ef.SaveCheckpoint, future: Future[int]) -> ev.CheckpointSaved:
    """Return what became of a checkpoint; does not return if the disk failed."""
    if (error := _error(effect.log, future)) is not None:
        # The log has everything; only the next start takes longer.
        log.error("log %d: the checkpoint was not saved: %s", effect.log, error)
        return ev.CheckpointSaved(effect.log, saved=False)
    return ev.CheckpointSaved(effect.log, saved=True, size=future.result())


def chore_done(effect: ef.StartChore, future: Future[Scrubbed | None]) -> ev.ChoreDone:
    """Return what became of a chore; does not return if the disk failed."""
    if (error := _error(effect.log, future)) is not None:
        log.warning("log %d: a background task failed: %s", effect.log, error)
    found = future.result() if error is None else None
    for bad in found.bad if found is not None else ():
        log.error("found by the scrub: %s", bad)
    return ev.ChoreDone(effect.log, effect.chore, found)


def _error(number: int, future: Future[Any]) -> BaseException | None:
    error = future.exception()
    if isinstance(error, DiskFailed):
        die(number, error)
    return error
