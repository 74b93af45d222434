"""The inside of a consumer's turn at a cursor."""

from __future__ import annotations

import asyncio
from typing import Any, cast


def begin(turns: Any, fence: int) -> None:
    """Give it a turn at message 0, which is in hand."""
    turns._turn.begin(fence, 1, [0])
    turns._turn.vector.hand_out(0, 0, 1)


def hand_out(turns: Any, first: int, behind: int) -> None:
    """Let more of partition 0 be in hand."""
    turns._turn.vector.hand_out(0, first, behind)


def fence_of(turns: Any) -> int:
    """Return the fence of its turn; 0 while it has none."""
    return cast(int, turns._turn.fence)


async def take(turns: Any) -> bool:
    """Take a turn, if there is one; whether there was."""
    return cast(bool, await turns._take())


def offsets_of(turns: Any) -> tuple[int, ...]:
    """Return where its turn began."""
    return cast("tuple[int, ...]", turns._turn.vector.offsets)


def read_by(turns: Any, reading: Any) -> None:
    """Let it get messages from here."""
    turns._reading = reading


async def next_piece(turns: Any) -> Any:
    """Return what it hands out next; None where its turn is over."""
    return await turns._piece(asyncio.Semaphore())


def ending_of(turns: Any) -> tuple[int, bool] | None:
    """Return how its turn is given back, if it is: the delay, and whether nothing was tried."""
    return cast("tuple[int, bool] | None", turns._turn.ending.due(False))
