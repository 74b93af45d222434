"""The event loop of a measurement: the fast one where it is installed, as in a node."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop without it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
