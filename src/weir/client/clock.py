"""The broker's clock, as far as it is known here: what is delayed from now on is due by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from weir.client.link import Link
from weir.errors import WeirError
from weir.model.stamp import milliseconds_of


class BrokerClock:
    """Microseconds since 1970, as the broker has them."""

    def __init__(self, link: Link, now: Callable[[], int]) -> None:
        """Go by this machine's clock, `now`, until the broker was asked."""
        self._link = link
        self._now = now
        self._ahead = 0
        self._asking: asyncio.Task[None] | None = None

    def guess(self) -> int:
        """Return what it says by the last answer, and by what the broker has stamped since."""
        return max(self._now() + self._ahead, milliseconds_of(self._link.seen) * 1_000)

    async def learn(self) -> None:
        """Ask, and go by this machine's clock for now if nobody answers."""
        with contextlib.suppress(WeirError):
            await self.ask()

    async def ask(self) -> int:
        """Return what it says; those who ask at the same time share an answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="weir clock")
        await asyncio.shield(self._asking)
        return self.guess()

    async def _ask(self) -> None:
        self._ahead = await self._link.wall_ms() * 1_000 - self._now()
