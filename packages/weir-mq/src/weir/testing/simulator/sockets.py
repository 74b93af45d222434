"""A process's end of a connection, as a transport: what came waits until it is read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Protocol

from weir.codec.fields import Buffer
from weir.host.connections import ClientConnection
from weir.host.greeting import DialedConnection
from weir.host.ports import Transport
from weir.host.shard_connections import ShardConnection
from weir.model.limits import KIB
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.ports import RunningProcess
from weir.testing.simulator.world import MS

#: Above this much unsent a client is full, until a quarter of it is left.
_FULL_BYTES = 4 * KIB
#: From a dial to its connection, and from one that got lost on its way to the next.
_CONNECTING = (500, 8 * MS)
_AGAIN = (100 * MS, 1_000 * MS)


class Told(Protocol):
    """Whom a socket tells what it says."""

    def open(self, transport: Socket, /) -> bool:
        """Begin."""

    def receive(self, data: bytes) -> bool:
        """Take bytes as they come; False for those of another node that makes a link."""

    def pause_writing(self) -> None:
        """The peer does not take what it is sent."""

    def resume_writing(self) -> None:
        """It took it."""

    def close(self) -> None:
        """The connection is over."""


class Reading(RunningProcess, Protocol):
    """A process that reads sockets when it has time for them."""

    #: Those whose peer does not take what it is sent.
    full: list[Socket]

    def read_soon(self, socket: Socket) -> None:
        """Read a socket in one of the next turns."""

    def accept_link(self, socket: Socket, data: bytes) -> None:
        """Take a connection over that another node made, and that began with `data`."""


class Socket:
    """One end of a connection: of one that a process serves, or of one that it has dialled."""

    def __init__(
        self, process: Reading, link: Link, told: Told, site: str, asks: bool = False
    ) -> None:
        """Read nothing before `accept`. `site` is where the peer is. Who `asks` has dialled."""
        self.site = site
        self.is_full = False
        self.link = link
        self.asks = asks
        #: Whether it may be a client's.
        self.is_client = isinstance(told, ClientConnection)
        self._process = process
        self._told = told
        self._came: deque[bytes] = deque()
        self._is_accepted = self._closing = self._over = False
        self._reads = True

    # -- its process calls --------------------------------------------------------------------

    def accept(self) -> None:
        """Begin, and read what is there: who connects has mostly said something by then."""
        self._is_accepted = True
        self._told.open(self)
        self.read()

    def change(self, told: Told) -> None:
        """Tell somebody else from now on."""
        self.is_client = False
        self._told = told
        told.open(self)

    def came(self, data: bytes) -> None:
        """Bytes have come, which are there to be read."""
        self._came.append(data)

    def lost(self) -> None:
        """The connection is gone, with what was not read."""
        self._over = True

    def read(self) -> None:
        """Hand on what may be read."""
        if not self._is_accepted:
            return
        while self._came and self._reads and not self._closing:
            data = self._came.popleft()
            if not self._told.receive(data):
                self._process.accept_link(self, data)
        if self._over:
            self._is_accepted = False
            self._told.close()

    def drain(self) -> bool:
        """Let a full client go on once it has taken enough; return whether it has."""
        if self.get_write_buffer_size() > _FULL_BYTES // 4:
            return False
        self.is_full = False
        self._told.resume_writing()
        return True

    # -- a transport --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        if self._closing:
            return
        if self.asks:
            self.link.to_host(bytes(data))
            return
        if isinstance(self._told, ClientConnection):
            self._process.world.note("send", self._told.session, zlib.crc32(data))
        self.link.to_client(bytes(data))
        if not self.is_full and self.get_write_buffer_size() > _FULL_BYTES:
            self.is_full = True
            self._process.full.append(self)
            self._told.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send buffers as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are under way to the peer."""
        return self.link.requests_unsent if self.asks else self.link.replies_unsent

    def pause_reading(self) -> None:
        """Hand on no more bytes. Who asks always reads what comes back."""
        assert not self.asks
        self._reads = False
        self.link.hold(True)

    def resume_reading(self) -> None:
        """Hand bytes on again."""
        self.link.hold(False)
        if not self._reads:
            self._reads = True
            if self._came:
                self._process.read_soon(self)

    def can_write_eof(self) -> bool:
        """Links close both ways at once."""
        return False

    def write_eof(self) -> None:
        """Nobody asks for this."""
        raise AssertionError("links close both ways at once")

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Close once all is sent."""
        self._closing = True
        if self.asks:
            self.link.finish_client()
        else:
            self.link.finish()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.link.cut(None if self.is_client else self._process)


class Network:
    """What a simulated process knows of its network."""

    def __init__(self, found: Container[str]) -> None:
        """`found` are the names of other nodes."""
        self.found = found

    def address(self, transport: Socket) -> str:
        """Return where a peer is."""
        return transport.site

    def is_gone(self, transport: Socket) -> bool:
        """Return whether a peer has hung up."""
        return not transport.link.open


class Listening(Protocol):
    """Who can be dialled."""

    def connect(self, client: End, up: Way, down: Way, site: str) -> Link:
        """Open a connection to a client that is at `site`."""


#: Returns who listens at a host and port, and the ways to there and back.
Dial = Callable[[str, int], tuple[list[Listening], Way, Way]]
#: Takes a transport that begins, and returns the connection that it is.
Begin = Callable[[Transport], ShardConnection]


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
        self._connection: ShardConnection | None = None

    def open(self, transport: Transport) -> bool:
        """Begin."""
        self._connection = self._begin(transport)
        return True

    def receive(self, data: bytes) -> bool:
        """Hand bytes on: all are a link's, or a trunk's, already."""
        assert self._connection is not None  # it was opened
        self._connection.handler.receive(data)
        return True

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""
        assert self._connection is not None  # it was opened
        self._connection.handler.pause_writing()

    def resume_writing(self) -> None:
        """It took it."""
        assert self._connection is not None  # it was opened
        self._connection.handler.resume_writing()

    def close(self) -> None:
        """The connection is over."""
        assert self._connection is not None  # it was opened
        self._connection.handler.lost("")


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
