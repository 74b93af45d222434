"""The event loop that nodes run on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")

#: Thresholds of the garbage collector's three generations. What passes through a broker is freed by
#: counting; looking for cycles after every 700 objects, as is the default, goes through all
#: sessions again and again while thousands of peers connect.
_COLLECT_AFTER = (50_000, 20, 10)


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, on uvloop if that is installed. The process is for it alone."""
    gc.set_threshold(*_COLLECT_AFTER)
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
