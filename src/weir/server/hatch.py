"""Hatches: connections of devices, handed to the shard of this node that leads their partition.

The shards of a node listen on one port, and the system says which of them a connection comes to. A
device says in its first packet where it belongs. From the hatch on it is that shard's own: it costs
no two shards anything, as what is passed on by trunks does for as long as it lasts. What cannot be
handed on is served where it came in, by way of a trunk.

A message is a few connections, as file descriptors, and of each: u16 family of its address, u16
size of what it has said, and that. The
other end says with one byte whether it has room for more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from weir.model.limits import KIB
from weir.server.crowd import Crowd
from weir.server.doors import Doors
from weir.wire.connection import first_hello
from weir.wire.device import DeviceHello

log = logging.getLogger(__name__)

_SAID = struct.Struct("<HH")
#: What a device may have said by then; most say hello, and one thing more.
SAID_BYTES_MAX = KIB
#: Connections of one message: the system takes 253.
_TOGETHER_MAX = 64
_MESSAGE_BYTES_MAX = _TOGETHER_MAX * (_SAID.size + SAID_BYTES_MAX)
_ROOM, _FULL = b"\x00", b"\x01"

#: Connections, and what each has said.
Connections = Sequence[tuple[socket.socket, bytes]]
Take = Callable[[Connections], None]


class Counting(Protocol):
    """A lobby: it counts how fast connections come in."""

    def admits(self, now: float) -> bool:
        """Return whether who comes now may come in at once."""

    def take(self) -> None:
        """Count one who came in, and went on to another shard."""


class Handing(Protocol):
    """A driver, as its hatches use it."""

    @property
    def connections(self) -> int:
        """How many peers are connected."""

    @property
    def doors(self) -> Doors:
        """How many may be."""

    @property
    def lobby(self) -> Counting:
        """Where those wait who come too fast."""

    def now(self) -> float:
        """Seconds since whenever; never falls."""

    def place_of(self, hello: DeviceHello) -> int:
        """Return the shard that leads what a hello names; this one if that is not sure."""

    def protocol(self, handed: bool = False) -> asyncio.Protocol:
        """Return the protocol of a new connection, which another shard let in if it was `handed`
        over.
        """

    def gather(self) -> None:
        """Keep all events until `settle`: they are one to the shard."""

    def settle(self) -> None:
        """Feed what was gathered."""


class Outgoing:
    """This end of a hatch gives."""

    def __init__(self, end: socket.socket, back: Take) -> None:
        """Give to whom has the other end; or `back`, if that takes none."""
        end.setblocking(False)
        self._end = end
        self._back = back
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[socket.socket, bytes]] = []
        #: Whether the other end takes more.
        self.is_open = True
        self._loop.add_reader(end, self._told)

    def add(self, sock: socket.socket, data: bytes) -> None:
        """Hand a connection over, behind this turn of the loop, with what came of it."""
        if not self._gathered:
            self._loop.call_soon(self._give)
        self._gathered.append((sock, data))

    def close(self) -> None:
        """Give no more."""
        self._give()
        self.is_open = False
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _give(self) -> None:
        gathered, self._gathered = self._gathered, []
        for at in range(0, len(gathered), _TOGETHER_MAX):
            some = gathered[at : at + _TOGETHER_MAX]
            said = [_SAID.pack(sock.family, len(data)) + data for sock, data in some]
            try:
                socket.send_fds(self._end, said, [sock.fileno() for sock, _ in some])
            except OSError:  # nobody is there, or busy for long: a message is sent whole, or not
                self._back(some)
            else:
                for sock, _ in some:
                    sock.close()

    def _told(self) -> None:
        try:
            told = self._end.recv(1)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        if told:
            self.is_open = told == _ROOM
        else:
            self.close()


class Incoming:
    """This end of a hatch takes."""

    def __init__(self, end: socket.socket, take: Take) -> None:
        """Let `take` have each connection, and what it has said."""
        end.setblocking(False)
        self._end = end
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._room = True
        self._loop.add_reader(end, self._read)

    @property
    def closed(self) -> bool:
        """Whether nothing comes any more."""
        return self._end.fileno() < 0

    def tell(self, room: bool) -> None:
        """Say whether there is room, if that is news."""
        if room != self._room and not self.closed:
            try:
                self._end.send(_ROOM if room else _FULL)
            except OSError:  # said again, or the end is near
                return
            self._room = room

    def close(self) -> None:
        """Take no more."""
        if not self.closed:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _read(self) -> None:
        try:
            data, handles, *_ = socket.recv_fds(self._end, _MESSAGE_BYTES_MAX, _TOGETHER_MAX)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        if not data:
            self.close()
        taken: list[tuple[socket.socket, bytes]] = []
        at, lost = 0, 0
        for handle in handles:
            family, size = _SAID.unpack_from(data, at)
            at += _SAID.size + size
            sock = socket.socket(family, socket.SOCK_STREAM, 0, handle)
            taken.append((sock, data[at - size : at]))
        if taken:
            self._take(taken)
        while at < len(data):  # no file descriptor was free for the rest
            at += _SAID.size + _SAID.unpack_from(data, at)[1]
            lost += 1
        if lost:
            log.error("%d connections were handed over in vain: no file descriptor is free", lost)


class Hatches:
    """The hatches of a shard, to and from the other shards of its node."""

    def __init__(self, driver: Handing) -> None:
        """Begin without any."""
        self._driver = driver
        self._to: dict[int, Outgoing] = {}
        self._from: dict[int, Incoming] = {}
        self._crowd: Crowd | None = None

    def join(self, end: socket.socket, shard: int, gives: bool) -> None:
        """Take an end of a hatch whose other end `shard` has; a new one replaces an old."""
        if self._crowd is None:
            self._crowd = Crowd(partial(self._driver.protocol, handed=True), self._driver)
        if gives:
            self._end(self._to.pop(shard, None))
            self._to[shard] = Outgoing(end, self._crowd.take)
        else:
            self._end(self._from.pop(shard, None))
            self._from[shard] = Incoming(end, self._crowd.take)

    def leave(self, shards: Sequence[int]) -> None:
        """Hand nothing to shards that stand still."""
        for shard in shards:
            self._end(self._to.pop(shard, None))

    def admits(self) -> bool:
        """Whether a connection that comes now may be handed on: it need not wait."""
        return bool(self._to) and self._driver.lobby.admits(self._driver.now())

    def hand_on(self, sock: socket.socket, data: bytes, counted: bool) -> bool:
        """Hand a new connection to the shard that its first bytes name; False if it is to stay.

        It counts for how fast connections come in, unless it is `counted` already.
        """
        if not self._to or len(data) > SAID_BYTES_MAX or (hello := first_hello(data)) is None:
            return False
        to = self._to.get(self._driver.place_of(hello))
        if to is None or not to.is_open:
            return False
        if not counted:
            self._driver.lobby.take()
        to.add(sock, data)
        return True

    def tick(self) -> None:
        """Say whether there is room: some is left for those who come by themselves."""
        room = self._driver.connections < self._driver.doors.connections_max // 4 * 3
        for one in self._from.values():
            one.tell(room)

    def close(self) -> None:
        """Hand on and take nothing any more."""
        self.leave(list(self._to))
        for end in self._from.values():
            end.close()
        self._from.clear()
        if self._crowd is not None:
            self._crowd.shut()

    @staticmethod
    def _end(end: Outgoing | Incoming | None) -> None:
        if end is not None:
            end.close()
