"""Grants that a consumer keeps when it goes from one relay to another (docs/adr/0171).

Each has another fencing number then. What the consumer holds keeps the number that it came with;
what is said of it to the broker names the one of now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import Held, Holding
from weir.errors import Disconnected, Overloaded, Unavailable, UnknownOpcode
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX, CONSUMER_TOKEN_BYTES
from weir.protocol.client import messages as m

#: Grants that are settled are forgotten once there are so many beyond those that are not.
_SLACK = 64


class KeptGrants:
    """What was granted to a consumer of one topic, and under which number it is held now."""

    def __init__(self, cluster: str, home: NetworkClient) -> None:
        """Begin with nothing; the token is a secret of this consumer."""
        self._cluster = cluster
        self._token = home.system.secret_bytes(CONSUMER_TOKEN_BYTES)
        self._home = home
        #: By partition and fence, as they came.
        self._came: dict[tuple[int, int], Holding] = {}
        self._most = _SLACK
        #: By partition and fence, the one of now, and the way back.
        self._now: dict[tuple[int, int], int] = {}
        self._first: dict[tuple[int, int], int] = {}
        #: How many requests to move were sent.
        self._moves = 0
        #: By partition, how many moves have begun, and the end of the one that is under way.
        self._times: dict[int, int] = {}
        self._under_way: dict[int, asyncio.Event] = {}

    @property
    def token(self) -> bytes:
        """What a pull shows; nothing where there is nowhere else to go, and so nothing to keep."""
        return self._token if self._home.home.is_of_several else b""

    def came(self, holding: Holding) -> None:
        """A grant came."""
        if len(self._came) >= self._most:
            self._came = {key: one for key, one in self._came.items() if one.left and not one.over}
            self._most = 2 * len(self._came) + _SLACK
        self._came[holding.partition, holding.fence] = holding

    def now(self, partition: int, fence: int) -> int:
        """Return the number of now of a grant."""
        return self._now.get((partition, fence), fence)

    def first(self, partition: int, fence: int) -> int:
        """Return the number with which a grant came that has this one now."""
        return self._first.get((partition, fence), fence)

    def times(self, partition: int) -> int:
        """Return how many moves of a partition have begun."""
        return self._times.get(partition, 0)

    async def unmoved(self, partition: int) -> int:
        """Return, once nothing of a partition is being moved, how many moves of it have begun. If
        more have when an answer comes, it may say of what was moved meanwhile that it is nobody's.
        """
        while (moved := self._under_way.get(partition)) is not None:
            await moved.wait()
        return self.times(partition)

    def clear(self) -> None:
        """Nothing that came is held any more."""
        self._came.clear()

    async def move(
        self, places: Places, partition: int, settled: Iterable[int], held: Held
    ) -> None:
        """Keep what is held of a partition, by the connection of now; also what is `settled` and
        not told yet, by fence. Nothing is told meanwhile. Raises what a request does.
        """
        self._times[partition] = self.times(partition) + 1
        moved = self._under_way[partition] = asyncio.Event()
        try:
            await self._move(places, partition, settled, held)
        finally:
            del self._under_way[partition]
            moved.set()

    async def _move(
        self, places: Places, partition: int, settled: Iterable[int], held: Held
    ) -> None:
        came = [
            fence
            for (at, fence), one in self._came.items()
            if at == partition and one.left and not one.over
        ]
        fences = [*dict.fromkeys([*came, *settled])][:ACK_RANGES_MAX]
        asked = [self.now(partition, fence) for fence in fences]

        def request(address: Address) -> m.Request:
            self._moves += 1
            begun = held.begun(partition)
            return m.MoveGrants(address, self._cluster, self._token, self._moves, asked, begun)

        with suppress(UnknownOpcode):  # the broker is of an earlier release
            moved = dict((await self._ask(places, partition, request)).fences)
            for fence, former in zip(fences, asked, strict=True):
                later = moved.get(former, former)
                if later != former:
                    self._first.pop((partition, former), None)
                    self._now[partition, fence] = later
                    self._first[partition, later] = fence
            self._forget()

    async def leave(self, places: Places, partition: int, has_moved: bool) -> None:
        """Nobody comes back for what was granted of a partition: others get it with the end of the
        connection of now. Unless all `has_moved` there, what earlier connections were granted goes
        to others by this. Raises what a request does.
        """

        def nothing(address: Address) -> m.Request:
            self._moves += 1
            return m.MoveGrants(address, self._cluster, self._token, self._moves, [], [])

        def no_token(address: Address) -> m.Request:
            return m.MoveGrants(address, self._cluster, b"", 0, [])

        with suppress(UnknownOpcode):  # the broker is of an earlier release
            await places.ask(partition, no_token, m.GrantsMoved)
            if not has_moved:
                await self._ask(places, partition, nothing)

    async def _ask(
        self, places: Places, partition: int, request: Callable[[Address], m.Request]
    ) -> m.GrantsMoved:
        """Ask until there is an answer, for as long as a request may take; each time under another
        number, for what was sent before may still come, by a connection that is lost.
        """
        loop, tries = asyncio.get_running_loop(), 0
        until = loop.time() + self._home.request_timeout
        while True:
            try:
                return await places.ask(partition, request, m.GrantsMoved, again=False)
            except (Disconnected, Overloaded, Unavailable) as error:
                tries += 1
                pause = self._home.pause(tries, error)
                if loop.time() + pause >= until:
                    raise
                await asyncio.sleep(pause)

    def _forget(self) -> None:
        """Forget the numbers of what is settled, as far as there is much of it."""
        if len(self._now) > 2 * len(self._came) + _SLACK:
            self._now = {key: now for key, now in self._now.items() if key in self._came}
            self._first = {(at, now): fence for (at, fence), now in self._now.items()}
