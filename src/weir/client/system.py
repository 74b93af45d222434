"""What a client takes from the machine that it runs on: clocks, and seeds of dice.

`connect` looks here once. A host of simulated clients sets `SYSTEM` in the context of each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class System:
    """Clocks that any thread may read, and dice of one's own."""

    #: Seconds that never go back: that of the event loop.
    monotonic: Callable[[], float] = time.monotonic
    #: Microseconds since 1970.
    now_us: Callable[[], int] = now_us
    dice: Callable[[], Random] = Random


REAL = System()

SYSTEM: ContextVar[System] = ContextVar("weir system", default=REAL)
