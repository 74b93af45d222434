"""Leases that are kept up while work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from weir.client.connection.metadata import Places
from weir.client.consumer.delivery import Held, Holding
from weir.errors import StaleGrant, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.protocol.client import messages as m

#: A lease is looked at so many times before it ends, and extended once half of it is over.
_LOOKS = 8


class Extending:
    """Extends the leases of what is held, by one timer."""

    def __init__(
        self,
        cluster: str,
        places: Places,
        lease: float,
        held: Held,
        monotonic: Callable[[], float],
    ) -> None:
        """Take how many seconds a lease has from its extension on."""
        self._cluster = cluster
        self._places = places
        self._lease = lease
        self._held = held
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look after leases from now on, until `end`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="weir leases")

    async def end(self) -> None:
        """Extend nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def extend(self, holdings: Sequence[Holding]) -> bool:
        """Let leases last from now on; False if one of them had ended.

        Raises `Disconnected`.
        """
        in_time = True
        for partition in {holding.partition for holding in holdings}:
            some = [holding for holding in holdings if holding.partition == partition]
            for at in range(0, len(some), ACK_RANGES_MAX):
                in_time &= await self._together(partition, some[at : at + ACK_RANGES_MAX])
        return in_time

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._lease / _LOOKS)
            soon = self._monotonic() + self._lease / 2
            due = [one for one in self._held.values() if one.ends <= soon and not one.over]
            try:
                await self.extend(due)
            except WeirError:
                continue  # whoever pulls is told of what is wrong; the leases may still run

    async def _together(self, partition: int, holdings: Sequence[Holding]) -> bool:
        try:
            await self._ask(partition, holdings)
        except StaleGrant:
            if len(holdings) > 1:  # some are over, and the others must not suffer for it
                each = [await self._together(partition, [one]) for one in holdings]
                return all(each)
            holdings[0].ends = self._monotonic()
            return False
        return True

    async def _ask(self, partition: int, holdings: Sequence[Holding]) -> None:
        fences = [holding.fence for holding in holdings]
        lease_ms = int(self._lease * 1_000)
        begun = self._held.begun(holdings[0].partition)

        def request(address: Address) -> m.Request:
            return m.Extend(address, self._cluster, fences, lease_ms, begun)

        now = self._monotonic()
        await self._places.ask(partition, request, m.Extended)
        for holding in holdings:
            holding.ends = max(holding.ends, now + self._lease)
