"""What a consumer has asked for and was not answered yet, and how that is withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from weir.client.connection.metadata import Places
from weir.errors import UnknownOpcode
from weir.model.ids import Address
from weir.protocol.client import messages as m

#: What was withdrawn and is not answered is withdrawn again so often, in seconds: it may have been
#: asked for anew where a partition moved.
_AGAIN = 0.25


class Withdrawing:
    """Pulls, or turns, of one cluster that are under way: one a partition."""

    def __init__(self, cluster: str, places: Places) -> None:
        """Begin with none."""
        self._cluster = cluster
        self._places = places
        self._asking: set[int] = set()
        self._answered = asyncio.Event()

    @contextlib.contextmanager
    def asks(self, partition: int) -> Iterator[None]:
        """Something is asked for; it is seen to what comes within."""
        self._asking.add(partition)
        try:
            yield
        finally:
            self._asking.discard(partition)
            self._answered.set()

    async def withdraw(self) -> None:
        """Return when nothing is under way; call it while nothing is asked for anew.

        A broker of an earlier release lets nothing be withdrawn: what comes, comes. Raises what a
        request does.
        """
        while self._asking:
            self._answered.clear()
            try:
                await asyncio.gather(*map(self._withdraw, self._asking))
            except UnknownOpcode:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN):
                    await self._answered.wait()

    async def _withdraw(self, partition: int) -> None:
        def request(address: Address) -> m.Request:
            return m.Withdraw(address, self._cluster)

        await self._places.ask(partition, request, m.Withdrawn)
