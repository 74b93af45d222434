"""A broker that goes while a command runs is waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from weir.client.client import Client

R = TypeVar("R")

#: Between two looks at the connection, in seconds.
_LOOK = 0.5


async def for_ever(
    client: Client, work: Callable[[Client], Awaitable[R]], tell: Callable[[bool], None]
) -> R:
    """Return what `work` does with a client; tell when its broker is away (True), and is back."""
    client.wait_without_end()
    telling = asyncio.create_task(_tell_when_away(client, tell))
    try:
        return await work(client)
    finally:
        telling.cancel()


async def _tell_when_away(client: Client, tell: Callable[[bool], None]) -> None:
    away = False
    while True:
        await asyncio.sleep(_LOOK)
        if client.is_connected == away:
            away = not away
            tell(away)
