"""Connections to the shards of a node: each has a port of its own, where nothing is passed on.

They are dialled when they are first needed. Where one cannot be reached, be it behind a firewall or
starting again, requests go by the connection that was dialled first: any shard passes them on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from weir.client.connection import Connection
from weir.errors import WeirError
from weir.wire import messages as m

#: Long enough for a port that can be reached; requests wait for it, but only the first time.
DIAL_TIMEOUT = 2.0
_REST_FIRST = 0.2
_REST_MOST = 30.0

#: Dials a host and port, says hello, and returns the connection and its welcome.
Dial = Callable[[str, int, float], Awaitable[tuple[Connection, m.Welcome]]]


class Way:
    """The way to one shard's own port; `connection` while it is open."""

    def __init__(
        self, host: str, port: int, shard: int, dial: Dial, changed: Callable[[], None]
    ) -> None:
        """Dial nothing yet; `changed` is called whenever requests go another way from then on."""
        self.connection: Connection | None = None
        self._place = host, port
        self.shard = shard
        self._dial = dial
        self._changed = changed
        self._keeper: asyncio.Task[None] | None = None
        #: Set once it is known whether the port can be reached.
        self._tried = asyncio.Event()

    @property
    def undecided(self) -> bool:
        """Whether it is being dialled for the first time, so that requests should wait."""
        return not self._tried.is_set()

    def begin(self) -> None:
        """Dial, unless that was begun already."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="weir way")

    async def decided(self) -> None:
        """Return once it is known whether the port can be reached; that is soon."""
        await self._tried.wait()

    async def close(self) -> None:
        """End the connection."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._tried.set()  # nobody will try any more
        if self.connection is not None:
            await self.connection.close()

    async def _keep(self) -> None:
        rest = _REST_FIRST
        while True:
            try:
                connection, welcome = await self._dial(*self._place, DIAL_TIMEOUT)
            except (OSError, WeirError, TimeoutError):
                rest = min(2 * rest, _REST_MOST)
            else:
                if welcome.shard == self.shard:
                    rest = _REST_FIRST
                    await self._use(connection)
                else:  # another one's port by now
                    connection.abort()
                    rest = _REST_MOST
            self._tried.set()
            self._changed()
            await asyncio.sleep(rest)

    async def _use(self, connection: Connection) -> None:
        self.connection = connection
        self._tried.set()
        self._changed()
        await connection.over.wait()
        self.connection = None


class Ways:
    """The ways to all shards of the node that answered last."""

    def __init__(self, dial: Dial, changed: Callable[[], None]) -> None:
        """Know of none yet."""
        self._dial = dial
        self._changed = changed
        self._host = ""
        self._welcome: m.Welcome | None = None
        self._ways: dict[int, Way] = {}

    async def welcomed(self, host: str, welcome: m.Welcome) -> None:
        """Take the ports that a node told; ways to another node's are closed."""
        known, self._welcome = self._welcome, welcome
        if known is not None and (host, known.node, known.ports) == (
            self._host,
            welcome.node,
            welcome.ports,
        ):
            return
        self._host = host
        await self.close()
        self._ways = {
            shard: Way(host, port, shard, self._dial, self._changed)
            for shard, port in enumerate(welcome.ports)
        }

    def toward(self, request: m.Request) -> Way | None:
        """Return the way to the shard that a request is for; None if that is where one is."""
        address = getattr(request, "address", None)
        if address is None or self._welcome is None or address.shard == self._welcome.shard:
            return None
        way = self._ways.get(address.shard)
        if way is not None:
            way.begin()
        return way

    async def close(self) -> None:
        """End all connections."""
        ways, self._ways = self._ways, {}
        await asyncio.gather(*(way.close() for way in ways.values()))
