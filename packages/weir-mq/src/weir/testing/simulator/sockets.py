"""The connections of a process: each end is a transport, and what came waits until it is read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Protocol

from weir.codec import Buffer
from weir.host.connections import ClientConnection, Connections
from weir.host.greeting import DialedConnection
from weir.host.ports import Transport
from weir.host.shard_connections import ShardConnection
from weir.host.shard_loop import EventQueue
from weir.model.limits import KIB
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.running import RunningProcess
from weir.testing.simulator.world import MS

#: Above this much unsent a client is full, until a quarter of it is left.
_FULL_BYTES = 4 * KIB
#: From a dial to its connection, and from one that got lost on its way to the next.
_CONNECTING = (500, 8 * MS)
_AGAIN = (100 * MS, 1_000 * MS)
#: From a connection to the turn in which it is accepted, with all others that came meanwhile, and
#: read, with all that is there to be read: who connects has mostly said something by then.
_ACCEPTED = (0, 6 * MS)


class Told(Protocol):
    """Receives the bytes of a socket."""

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


class Serving(RunningProcess, Protocol):
    """A process that has sockets."""

    def turn(self) -> None:
        """Let the shard take what it was told, and do what comes of it."""

    def accept_link(self, socket: Socket, data: bytes) -> None:
        """Take a connection over that another node made, and that began with `data`."""


class Socket:
    """One end of a connection: of one that a process serves, or of one that it has dialled."""

    def __init__(
        self, sockets: Sockets, link: Link, told: Told, site: str, asks: bool = False
    ) -> None:
        """Read nothing before `accept`. `site` is the peer's place; the side that `asks`
        dialled.
        """
        self.site = site
        self.is_full = False
        self.link = link
        self.asks = asks
        #: Whether it may be a client's.
        self.is_client = isinstance(told, ClientConnection)
        self._sockets = sockets
        self._told = told
        self._came: deque[bytes] = deque()
        self._is_accepted = self._closing = self._over = False
        self._reads = True

    # -- its sockets call ---------------------------------------------------------------------

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
                self._sockets.process.accept_link(self, data)
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
            self._sockets.process.world.note("send", self._told.session, zlib.crc32(data))
        self.link.to_client(bytes(data))
        if not self.is_full and self.get_write_buffer_size() > _FULL_BYTES:
            self.is_full = True
            self._sockets.full.append(self)
            self._told.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send buffers as one."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are under way to the peer."""
        return self.link.requests_unsent if self.asks else self.link.replies_unsent

    def pause_reading(self) -> None:
        """Hand on no more bytes. A socket that asks always reads what comes back."""
        assert not self.asks
        self._reads = False
        self.link.hold(True)

    def resume_reading(self) -> None:
        """Hand bytes on again."""
        self.link.hold(False)
        if not self._reads:
            self._reads = True
            if self._came:
                self._sockets.read_soon(self)

    def can_write_eof(self) -> bool:
        """Links close both ways at once."""
        return False

    def write_eof(self) -> None:
        """Never called."""
        raise AssertionError("links close both ways at once")

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Close once all is sent."""
        self._closing = True
        if self.asks:
            self.link.finish_from(self._sockets)
        else:
            self.link.finish()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.link.cut(None if self.is_client else self._sockets)


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
    """A server that can be dialled."""

    def connect(self, client: End, up: Way, down: Way, site: str) -> Link:
        """Open a connection to a client that is at `site`."""


#: Returns who listens at a host and port, and the ways to there and back.
Dial = Callable[[str, int], tuple[list[Listening], Way, Way]]
#: Takes a transport that begins, and returns the connection that it is.
Begin = Callable[[Transport], ShardConnection]


class Wired:
    """Receives the bytes of a connection between shards."""

    def __init__(self, begin: Begin) -> None:
        """Tell the connection that `begin` returns."""
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


class Sockets:
    """All connections of a process: those that it serves, and those that it has dialled.

    A new connection is accepted in one turn with all others that came meanwhile, and then read.
    """

    def __init__(
        self,
        process: Serving,
        queue: EventQueue,
        connections: Connections[Socket],
        look_after: int,
    ) -> None:
        """Begin without any. It looks `look_after` µs after a turn whether peers take their
        replies, if that is not 0: then the process's own tick does as well.
        """
        self.process = process
        #: Those whose clients do not take their replies.
        self.full: list[Socket] = []
        self._world = process.world
        self._standstill = process.standstill
        self._queue = queue
        self._connections = connections
        self._look_after = look_after
        self._sockets: dict[Link, Socket] = {}
        #: Those to other nodes that the process has dialled.
        self._dialled: dict[Link, Socket] = {}
        #: Those that are accepted in the next turn, if there are any, and what is read then.
        self._accepting: list[Socket] = []
        self._readable: list[Socket] = []
        self._looks = self._over = False

    def peers(self) -> list[Link]:
        """Return the connections of clients that are open as far as this side knows."""
        return [link for link, socket in self._sockets.items() if socket.is_client]

    def connect(self, client: End, up: Way, down: Way, site: str = "") -> Link:
        """Open a connection; `site` is where the client is, if it is another node."""
        link = Link(self._world, client, self, up, down)
        site = site or type(client).__name__
        told = self._connections.connection()
        # Nobody reads along in a simulated network: it counts as encrypted, at both ends.
        self._connections.accept_queue.strangers.encrypted.add(told)
        socket = Socket(self, link, told, site)
        self._sockets[link] = socket
        if not self._accepting:
            self._world.after(self._world.between(*_ACCEPTED), self._accept)
        self._accepting.append(socket)
        return link

    def take(self, link: Link, begin: Begin, asks: bool = False, far: bool = False) -> None:
        """Take this end of a connection to another process, which is one of another node if it is
        `far`.
        """
        socket = self._sockets[link] = Socket(self, link, Wired(begin), "", asks)
        if far:
            self._dialled[link] = socket
        socket.accept()
        self.process.turn()

    def sever(self) -> None:
        """Break all connections to other nodes that the process has dialled."""
        for link in list(self._dialled):
            link.cut()

    def end(self, power: bool) -> None:
        """The process has ended; where the power went with it nobody is told."""
        self._over = True
        self._readable.clear()
        self._accepting.clear()
        links, self._sockets = list(self._sockets), {}
        for link in links:
            link.orphaned = link.open
            link.cut(silent=power)

    # -- an end of links -----------------------------------------------------------------------

    def received(self, link: Link, data: bytes) -> None:
        """Bytes of a peer are there to be read."""
        if self._standstill.lasts and self._standstill.asleep(self.received, link, data):
            return
        if (socket := self._sockets.get(link)) is not None:
            socket.came(data)
            self._read(socket)

    def lost(self, link: Link) -> None:
        """A peer is gone."""
        if self._standstill.asleep(self.lost, link):
            return
        self._dialled.pop(link, None)
        if (socket := self._sockets.pop(link, None)) is not None:
            socket.lost()
            self._read(socket)

    # -- turns ---------------------------------------------------------------------------------

    def read_soon(self, socket: Socket) -> None:
        """Read what is there, in a turn of its own."""
        self._world.after(0, self._read_again, socket)

    def _read_again(self, socket: Socket) -> None:
        if not self._over and not self._standstill.asleep(self._read_again, socket):
            self._read(socket)

    def _read(self, socket: Socket) -> None:
        """Read a socket, with others if some are to be accepted."""
        if self._accepting:
            self._readable.append(socket)
        else:
            socket.read()
            self.process.turn()

    def _accept(self) -> None:
        """Accept new connections, and read all their bytes: it is one turn to the shard."""
        if self._over or self._standstill.asleep(self._accept):
            return
        accepting, self._accepting = self._accepting, []
        readable, self._readable = self._readable, []
        self._queue.gather()
        for socket in accepting:
            socket.accept()
        for socket in readable:
            socket.read()
        self._queue.release()
        self.process.turn()

    def watch(self) -> None:
        """Look in a while at those who do not take their replies, if there are any."""
        if not self._looks and (self._connections.watched or self.full):
            self._looks = True
            if self._look_after:
                self._world.after(self._look_after, self._look)

    def _look(self) -> None:
        """Look whether peers take their replies, between two ticks."""
        if not self._standstill.asleep(self._look):
            self.check()
            self.process.turn()

    def check(self) -> None:
        """Let those go on who took enough of their replies, and hang up on those who take none."""
        self._looks = False
        if not self._over:
            self.full = [socket for socket in self.full if not socket.drain()]
            self._connections.check_connections()


class Dialer:
    """Makes connections from a process to those of other nodes."""

    def __init__(self, sockets: Sockets, dial: Dial, found: set[str]) -> None:
        """Add the names of other nodes to `found`."""
        self._sockets = sockets
        self._at = dial
        self._found = found

    def dial(self, host: str, port: int, tries: int, dialled: DialedConnection) -> None:
        """Connect, and tell `dialled` what comes of that."""
        self._found.add(host)
        world = self._sockets.process.world
        world.after(world.between(*_CONNECTING), self._connect, host, port, dialled)

    def _connect(self, host: str, port: int, dialled: DialedConnection) -> None:
        process, sockets = self._sockets.process, self._sockets
        if process.shard is None:
            return
        if process.standstill.asleep(self._connect, host, port, dialled):
            return
        listening, up, down = self._at(host, port)
        world = process.world
        if not (up.open and down.open):
            if not dialled.is_over:
                world.after(world.between(*_AGAIN), self._connect, host, port, dialled)
        elif listening:
            target = world.dice.choice(listening)
            link = target.connect(sockets, up, down, f"node{process.node}")
            sockets.take(link, dialled.connected, asks=True, far=True)
        else:
            process.behind(lambda: dialled.failed("Connection refused"))
