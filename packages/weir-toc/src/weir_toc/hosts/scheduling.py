"""What keeps a node from being late: at an interval of 1 ms, silence of 10 ms is a death."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

#: The nice value of a thread that sends beacons, where the system allows it; and that of the other
#: threads of its program, which is between this and the usual one.
NICE, OTHERS_NICE = -10, -5


class _Others:
    """Threads of this program that have a higher priority while any of them sends beacons."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        #: The nice values of threads as they were found, and that of the first calling thread.
        self._former: dict[int, int] = {}
        self._usual = 0

    def raise_all(self) -> None:
        """Raise all threads that are there; one of them calls this, for one block."""
        with self._lock:
            if not self._blocks:
                self._usual = nice_of(threading.get_native_id())
                self._former.clear()
            self._blocks += 1
            for thread in _threads():
                with contextlib.suppress(OSError):  # it has ended, or this program may not do that
                    nice = nice_of(thread)
                    if nice > OTHERS_NICE:
                        os.setpriority(os.PRIO_PROCESS, thread, OTHERS_NICE)
                    self._former.setdefault(thread, nice)

    def lower_all(self) -> None:
        """End one block. Behind the last one all threads have their former priorities, and those
        that were started meanwhile, whose priority was that of their starters, have the usual one.
        """
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            for thread in _threads():
                is_new = thread not in self._former
                with contextlib.suppress(OSError):
                    if nice_of(thread) in ((NICE, OTHERS_NICE) if is_new else (OTHERS_NICE,)):
                        former = self._former.get(thread, self._usual)
                        os.setpriority(os.PRIO_PROCESS, thread, former)


_others = _Others()


@contextlib.contextmanager
def promptly() -> Iterator[None]:
    """Let the calling thread run soon whenever it has something to do, until the block ends.

    Where several busy threads share a processor, it would wait for all others: it gets a higher
    priority than they have, if this program may do that (CAP_SYS_NICE). So do the other threads of
    this program, if less: one of them may have Python's lock while others have the processor, and
    this one waits for the lock then, however high its own priority is.

    The garbage collector stops all threads, for 10 ms if it goes through all modules of a small
    program: it leaves out what exists by now, also behind the block.
    """
    gc.freeze()
    _others.raise_all()
    thread = threading.get_native_id()
    before = nice_of(thread)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, min(before, NICE))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, before)
        _others.lower_all()


def nice_of(thread: int) -> int:
    """Return the nice value of a thread by its native id. Raises OSError if it has ended."""
    return os.getpriority(os.PRIO_PROCESS, thread)


def _threads() -> list[int]:
    """The threads that may have Python's lock."""
    return [one.native_id for one in threading.enumerate() if one.native_id is not None]
