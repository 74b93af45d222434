"""The threads that do what a shard wants of its disks besides flushes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.server.disk.jobs import spare_made
from weir.server.disk.throttle import Gently
from weir.server.reminder import Reminder
from weir.storage.disk import Disk

R = TypeVar("R")
#: What a thread is asked to do.
J = TypeVar("J", ef.StartRead, ef.MakeSpare, ef.SaveCheckpoint, ef.StartChore)


class DiskPool:
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
        pace = Gently(filled, self._ended.wait)
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
