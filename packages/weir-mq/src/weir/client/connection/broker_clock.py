"""The broker's clock, as far as it is known here: what is delayed from now on is due by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from weir.client.connection.link import Link
from weir.errors import WeirError
from weir.model.stamp import milliseconds_of

#: By so much, in µs, this machine's clocks may differ in how long it is since the broker was asked.
_DIFFER = 1_000_000


class BrokerClock:
    """Microseconds since 1970, as the broker has them."""

    def __init__(self, link: Link, now: Callable[[], int]) -> None:
        """Go by this machine's clock, `now`, until the broker was asked."""
        self._link = link
        self._now = now
        #: What it said when it was asked last, and two clocks of this machine just before that.
        self._asked: tuple[int, int, int] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None

    def guess(self) -> int:
        """Return what it says by the last answer, and by what the broker has stamped since.

        Of this machine's clocks one is set, also back; the other one stands still while the machine
        sleeps. The later one counts: what comes late is late, what comes early breaks a promise.
        """
        seen = milliseconds_of(self._link.seen) * 1_000
        if self._asked is None:
            return max(self._now(), seen)
        said, steady, wall = self._asked
        steadily, by_wall = self._steady() - steady, self._now() - wall
        passed = max(steadily, by_wall)
        if abs(steadily - by_wall) > _DIFFER and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self.learn())
        return max(said + passed, seen)

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
        steady, wall = self._steady(), self._now()
        said = await self._link.wall_ms() * 1_000
        # Since before it was asked: its answer was on its way for some of the time.
        self._asked = said, steady, wall

    def _steady(self) -> int:
        return round(self._link.system.monotonic() * 1_000_000)
