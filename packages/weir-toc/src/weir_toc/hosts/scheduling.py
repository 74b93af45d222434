"""What keeps a node from being late: at an interval of 1 ms, silence of 10 ms is a death."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

#: The nice value of a thread that sends beacons, where the system allows it.
NICE = -10


@contextlib.contextmanager
def promptly() -> Iterator[None]:
    """Let the calling thread run soon whenever it has something to do, until the block ends.

    Where several busy threads share a processor, it would wait for all others: it gets a higher
    priority than they have, if this program may do that (CAP_SYS_NICE). The garbage collector stops
    all threads, for 10 ms if it goes through all modules of a small program: it leaves out what
    exists by now, also behind the block.
    """
    gc.freeze()
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, min(before, NICE))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, before)
