"""Connections between simulated processes: who dials, and the ends of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weir.host.connections import Transport
from weir.host.links.greeting import DialedConnection
from weir.host.shard_connections import Wire
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.ports import RunningProcess
from weir.testing.simulator.sockets import Socket
from weir.testing.simulator.world import MS

#: From a dial to its connection, and from one that got lost on its way to the next.
_CONNECTING = (500, 8 * MS)
_AGAIN = (100 * MS, 1_000 * MS)


class Listening(Protocol):
    """Who can be dialled."""

    def connect(self, client: End, up: Way, down: Way, site: str) -> Link:
        """Open a connection to a client that is at `site`."""


#: Returns who listens at a host and port, and the ways to there and back.
Dial = Callable[[str, int], tuple[list[Listening], Way, Way]]
#: Takes a transport that begins, and returns the wire that it is.
Begin = Callable[[Transport], Wire]


class LinkKeeper(RunningProcess, Protocol):
    """A process that asks others for connections."""

    def take(self, link: Link, begin: Begin, asks: bool = False, far: bool = False) -> None:
        """Take this end of a connection to another process, which is one of another node if it is
        `far`.
        """


class Wired:
    """Whom the socket of a wire tells what it says."""

    def __init__(self, begin: Begin) -> None:
        """Tell the wire that `begin` returns."""
        self._begin = begin
        self._wire: Wire | None = None

    def open(self, transport: Transport) -> bool:
        """Begin."""
        self._wire = self._begin(transport)
        return True

    def receive(self, data: bytes) -> bool:
        """Hand bytes on: all are a link's, or a trunk's, already."""
        assert self._wire is not None  # it was opened
        self._wire.end.receive(data)
        return True

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""
        assert self._wire is not None  # it was opened
        self._wire.end.pause_writing()

    def resume_writing(self) -> None:
        """It took it."""
        assert self._wire is not None  # it was opened
        self._wire.end.resume_writing()

    def close(self) -> None:
        """The connection is over."""
        assert self._wire is not None  # it was opened
        self._wire.end.lost("")


class Dialer:
    """Makes connections from a process to those of other nodes."""

    def __init__(self, process: LinkKeeper, dial: Dial, found: set[str]) -> None:
        """Add the names of other nodes to `found`."""
        self._process = process
        self._at = dial
        self._found = found

    def dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        """Connect, and tell `dialled` what comes of that."""
        self._found.add(host)
        world = self._process.world
        world.after(world.between(*_CONNECTING), self._connect, host, port, dialled)

    def _connect(self, host: str, port: int, dialled: DialedConnection) -> None:
        process = self._process
        if process.shard is None or process.asleep(self._connect, host, port, dialled):
            return
        listening, up, down = self._at(host, port)
        world = process.world
        if not (up.open and down.open):
            if not dialled.is_over:
                world.after(world.between(*_AGAIN), self._connect, host, port, dialled)
        elif listening:
            target = world.dice.choice(listening)
            link = target.connect(process, up, down, f"node{process.node}")
            process.take(link, dialled.connected, asks=True, far=True)
        else:
            process.behind(lambda: dialled.failed("Connection refused"))


def adopt(socket: Socket, begin: Begin) -> None:
    """Take a connection over that was thought to be a client's."""
    socket.change(Wired(begin))
