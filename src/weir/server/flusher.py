"""One thread a log runs its flushes: syncs are the budget, and the loop never waits for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from weir.log.disk import Disk
from weir.log.flush import Flush

Done = Callable[[Flush, BaseException | None], None]


class Flusher:
    """Runs one flush after another; `done` is called in this thread after each."""

    def __init__(self, name: str, disk: Disk, done: Done) -> None:
        """Start the thread."""
        self._disk = disk
        self._done = done
        self._queue: SimpleQueue[Flush | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, flush: Flush) -> None:
        """Hand over a flush."""
        self._queue.put(flush)

    def stop(self) -> None:
        """End the thread once it has run what it was given."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (flush := self._queue.get()) is not None:
            try:
                flush.run(self._disk)
            except BaseException as error:  # whatever it is, the host must hear of it
                self._done(flush, error)
            else:
                self._done(flush, None)
