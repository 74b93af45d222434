"""The thread that saves how far a log is durable: beside its flushes, never before a confirm."""

from __future__ import annotations

import logging
import threading
import time

from weir.errors import DiskFailed
from weir.storage.format.durable_position import DurablePosition

log = logging.getLogger(__name__)

#: From the beginning of one save to that of the next at the least: 50 saves a second at most.
EVERY_SECONDS = 0.02
#: How long a save waits for more flushes when none was under way: who waits for the confirm of the
#: first one has it by then. What is left of 20 ms is for the save itself.
GATHER_SECONDS = 0.012
#: How long a disk that could not take one is left alone.
RETRY_SECONDS = 1.0
#: How often a folder that cannot be written is told of.
SAYS_EVERY_SECONDS = 60.0


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
        self._says_after = 0.0
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
        began = -EVERY_SECONDS
        while True:
            self._wake.acquire()
            pause = GATHER_SECONDS
            while self._has_news():
                left = began + EVERY_SECONDS - time.monotonic()
                self._ended.wait(max(pause, left))  # a stop cuts it short
                began = time.monotonic()
                is_saved = self._save()
                pause = 0.0 if is_saved else RETRY_SECONDS
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
            if time.monotonic() >= self._says_after:
                self._says_after = time.monotonic() + SAYS_EVERY_SECONDS
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
