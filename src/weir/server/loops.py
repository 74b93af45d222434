"""The event loop that nodes run on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, on uvloop if that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
