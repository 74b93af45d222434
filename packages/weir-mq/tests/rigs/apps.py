"""The inside of an app that runs: its breaker, its dispatcher, and what its supervisor sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from weir import Backoff


def dispatcher_of(running: Any) -> Any:
    """Return what runs the only handler of an app."""
    (one,) = running._all
    return one._dispatcher


def pause_by(breaker: Any, pauses: Backoff) -> None:
    """Let a breaker pause like this, from now on."""
    breaker._pauses = pauses


def end_pause(handling: Any) -> None:
    """Let the pause of a breaker be over, however long it was."""
    handling.breaker._until = 0.0
    handling._known.set()


def bury_by(handling: Any, bury: Callable[..., Awaitable[None]]) -> None:
    """Let this put messages among the dead."""
    handling._bury = bury


async def look(supervisor: Any, client: Any) -> Any:
    """Return what a supervisor sees when it looks how many processes have use."""
    return await supervisor._look(client)
