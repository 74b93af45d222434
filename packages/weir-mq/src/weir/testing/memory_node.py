"""`Node`: a broker that a test starts, cuts off, crashes, and whose time it moves on."""

from __future__ import annotations

import asyncio
from types import TracebackType

from weir.broker.api import events as ev
from weir.client.connection.system import Background, BackgroundThread
from weir.testing.disk import MemoryDisk
from weir.testing.host import Host, ShiftedTime

_HOST = "127.0.0.1"
#: Far above what a start takes; it is there so that nothing waits for ever.
_START_WITHIN = 30.0
#: What is accepted just then gets a protocol, which hangs up; else nobody would ever close it.
_ACCEPTING_TURNS = 3


def node(port: int = 0) -> Node:
    """Return a node to enter with `with` or `async with`; `port` 0 takes a free one."""
    return Node(port)


class Node:
    """A broker in memory, in a thread of its own. Every method returns once it has taken effect."""

    def __init__(self, port: int = 0) -> None:
        """Be down, with an empty disk; entering starts it."""
        self.port = port
        self._disk = MemoryDisk()
        self._clock = ShiftedTime()
        self._lives = 0
        self._background: Background | None = None
        self._host: Host | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where to connect to; the same after a restart."""
        return f"weir://{_HOST}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether it is running."""
        return self._host is not None and self._host.error is None

    def start(self) -> Node:
        """Start from what the disk holds. Raises `OSError` if the port is taken."""
        if self._background is None:
            self._background = BackgroundThread("weir-node")
        if self._host is None:
            self._background.run(self._start())
        return self

    def crash(self) -> None:
        """Cut the power: connections end, and what was not synced is lost. `start` brings it back.

        Everything that was confirmed was synced. What was under way may be there or not.
        """
        if self._background is not None:
            self._background.run(self._crash())

    def restart(self) -> None:
        """Cut the power, and start again on the same port."""
        self.crash()
        self.start()

    def cut(self) -> None:
        """Cut all connections, as a firewall does; clients may connect again at once."""
        if self._background is not None:
            self._background.run(self._cut())

    def advance(self, seconds: float) -> None:
        """Move the node's clocks forward: leases end, waits run out, "-10m" moves.

        From then on its stamps are ahead of the machine's clock. The application's own clock does
        not move, nor do times made from it, like `datetime.now()`. Raises `ValueError` below 0.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}): give 0 or more seconds")
        self._clock.shift_ms += int(seconds * 1_000)
        if self._background is not None:
            self._background.run(self._look())

    def close(self) -> None:
        """End the node and discard its disk. Raises the exception that broke it, if any.

        Connections are cut: close clients first.
        """
        background, self._background = self._background, None
        if background is None:
            return
        broken = self._host.error if self._host is not None else None
        try:
            background.run(self._crash())
        finally:
            background.stop()
            self._disk = MemoryDisk()
        if broken is not None:
            raise broken

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Node:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    # -- in the thread -------------------------------------------------------------------------

    async def _start(self) -> None:
        self._lives += 1
        host = Host(self._disk, self._clock, self._lives)
        try:
            async with asyncio.timeout(_START_WITHIN):
                await host.start()
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(host.protocol, _HOST, self.port)
        except BaseException as error:
            host.end()
            self._disk.crash()
            raise host.error or error from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._host = host

    async def _crash(self) -> None:
        server, self._server = self._server, None
        host, self._host = self._host, None
        loop = asyncio.get_running_loop()
        for listening in server.sockets if server is not None else ():
            loop.remove_reader(listening)
        if host is not None:
            host.end()
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        if server is not None:
            server.close()
        self._disk.crash()

    async def _cut(self) -> None:
        if self._host is not None:
            self._host.cut()

    async def _look(self) -> None:
        if self._host is not None:
            self._host.handle(ev.Ticked())
