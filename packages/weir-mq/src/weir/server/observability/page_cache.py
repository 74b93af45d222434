"""A page that costs something to make: once at a time, and its text serves all who ask soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: How old a text may be, in seconds: figures are asked for every 5 s or more.
KEPT_SECONDS = 1.0


class Recent:
    """The newest text of a page; any number of people who ask cost as much as one."""

    def __init__(self, make: Callable[[], Awaitable[str]]) -> None:
        """Have nothing yet; `make` returns the page as of now."""
        self._make = make
        self._making = asyncio.Lock()
        self._text = ""
        self._until = 0.0

    async def text(self) -> str:
        """Return the page, at most `KEPT_SECONDS` old."""
        async with self._making:
            now = asyncio.get_running_loop().time
            if not self._text or now() >= self._until:
                self._text = await self._make()
                self._until = now() + KEPT_SECONDS
            return self._text
