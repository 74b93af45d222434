"""What keeps a node from being late: at an interval of 1 ms, silence of 10 ms is a death."""

from __future__ import annotations

import contextlib
import gc
import os
import threading

#: The nice value of a thread that sends beacons, where the system allows it.
NICE = -10


def be_prompt() -> None:
    """Let the calling thread run soon whenever it has something to do.

    Where several busy threads share a processor, it would wait for all others: it gets a higher
    priority than they have, if this program may do that (CAP_SYS_NICE). The garbage collector stops
    all threads, for 10 ms if it goes through all modules of a small program: it leaves out what
    exists by now.
    """
    gc.freeze()
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) > NICE:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
