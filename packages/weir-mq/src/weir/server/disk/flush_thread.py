"""One thread a log runs its flushes, but for lone ones: syncs are the budget."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from weir.broker.api.counts import Histogram
from weir.server.config.quantity import in_mib
from weir.server.reminder import Reminder
from weir.storage.disk import Disk
from weir.storage.segments.flush import Flush

Done = Callable[[Flush, BaseException | None], None]

log = logging.getLogger(__name__)

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
        #: How long each write and sync took. One flush is in flight at a time, so whoever runs it
        #: adds to this, before anybody is told.
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
                        "a flush waits for room: %s; free %s or more on that disk, and it goes "
                        "on; it is tried again every %g s",
                        error,
                        in_mib(flush.missing_bytes),
                        self._retry_seconds,
                    )
                if self._stopping.wait(self._retry_seconds):
                    return None
            else:
                return time.perf_counter() - began
