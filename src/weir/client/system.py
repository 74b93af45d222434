"""What a client takes from the machine that it runs on: clocks, dice and threads.

`connect` looks here once. A host of simulated clients sets `SYSTEM` in the context of each of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


def start_thread(work: Callable[[], None]) -> None:
    """Do something in a thread that a program which ends does not wait for."""
    threading.Thread(target=work, name="weir read", daemon=True).start()


@dataclass(frozen=True, slots=True)
class System:
    """Clocks that any thread may read, dice of one's own, and how to start a thread."""

    #: Seconds that never go back: that of the event loop.
    monotonic: Callable[[], float] = time.monotonic
    #: Microseconds since 1970.
    now_us: Callable[[], int] = now_us
    dice: Callable[[], Random] = Random
    thread: Callable[[Callable[[], None]], None] = start_thread


REAL = System()

SYSTEM: ContextVar[System] = ContextVar("weir system", default=REAL)
