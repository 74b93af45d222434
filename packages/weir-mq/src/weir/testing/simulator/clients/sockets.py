"""Sockets of a simulated client process: what lies below asyncio."""

from __future__ import annotations

from random import Random

from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.loop import Source, VirtualLoop
from weir.testing.simulator.network import Link
from weir.testing.simulator.process import Process

#: What the machine takes of a connection's bytes before they have arrived.
_TAKES = (600, 8_000, 64 * 1024)


class Socket:
    """One connection below asyncio: what has come and was not read, and how much may be sent."""

    def __init__(self, loop: VirtualLoop, dice: Random, peer: tuple[str, int]) -> None:
        """Be on its way; `join` connects it."""
        self.came = bytearray()
        #: Whether nothing comes any more behind that.
        self.ended = False
        self.dice = dice
        self.peer = peer
        self._loop = loop
        self._takes = dice.choice(_TAKES)
        self._link: Link | None = None
        self._source: Source | None = None
        self._gone = False

    def join(self, net: BrokerSet, process: Process, site: int) -> None:
        """Be connected to a process."""
        up, down = net.net.way(site, process.node), net.net.way(process.node, site)
        self._link = process.connect(self, up, down)
        self._link.on_arrival(self._arrived)

    def serve(self, source: Source) -> None:
        """Tell of what has come, and comes, from now on."""
        self._source = source
        if self.came or self.ended:
            self._loop.notice(source)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes; return how many."""
        if self._gone or self._link is None:
            return len(data)  # as into a connection that is broken: that is heard of later
        size = min(max(self._takes - self._link.unsent, 0), len(data))
        if size:
            self._link.to_host(bytes(data[:size]))
        return size

    def finish(self) -> None:
        """End once all that was sent has arrived."""
        self._gone = True
        if self._link is not None:
            self._link.finish_client()

    def cut(self, silent: bool = False) -> None:
        """End at once; nobody here hears of it."""
        self._gone = True
        if self._link is not None:
            self._link.cut(self, silent)

    def received(self, link: Link, data: bytes) -> None:
        """Keep what came until it is read."""
        if not self._gone:
            self.came += data
            self._notice()

    def lost(self, link: Link) -> None:
        """Nothing comes any more."""
        if not self._gone:
            self.ended = self._gone = True
            self._notice()

    def _arrived(self) -> None:
        if not self._gone:
            self._notice()

    def _notice(self) -> None:
        if self._source is not None:
            self._loop.notice(self._source)
