"""Connections in memory: bytes arrive late, in order, cut up anew; a cut loses those under way.

Between nodes, and between clients and nodes, bytes go along *ways*, one for each direction, which
can be closed, and be slow. TCP hides that for a while: what was sent waits until the way is open
again, or until one side gives the connection up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weir.testing.simulator.world import MS, World

_LEAST, _MOST = 50, 4 * MS
_NOTICED = (100, 60 * MS)
#: How long a side waits for what does not get through before it gives the connection up.
_PATIENCE = (1_000 * MS, 3_000 * MS)
#: How often a side whose peer is gone looks whether it has heard of that.
_LOOKS = 300 * MS
_LOOKS_MAX = 10
#: How likely what was under way when a connection broke arrives still, with what a new one brings.
_LATE = 0.3


class End(Protocol):
    """One side of a link: a host's session or a client program."""

    def received(self, link: Link, data: bytes) -> None:
        """Bytes came, cut where chance would have it."""

    def lost(self, link: Link) -> None:
        """The connection is gone; nothing comes any more."""


class Way:
    """One direction between two places; all connections between them use it."""

    __slots__ = ("_stalled", "far", "open", "slow")

    def __init__(self, far: bool = False) -> None:
        """Be open and quick. On a `far` one that breaks things get lost without a word, or arrive
        late.
        """
        self.far = far
        self.open = True
        #: How many times longer than usual everything takes.
        self.slow = 1
        self._stalled: list[_Stream] = []

    def wait(self, stream: _Stream) -> None:
        """Let a stream go on when the way is open again."""
        self._stalled.append(stream)

    def reopen(self) -> None:
        """Let through what waits."""
        self.open = True
        stalled, self._stalled = self._stalled, []
        for stream in stalled:
            stream.move()


class Net:
    """The ways between all places: nodes, from 1 on, and sites of clients, from -1 down."""

    def __init__(self, far: bool) -> None:
        """Begin with every way open; with `far`, those between different places are."""
        self._far = far
        self._ways: dict[tuple[int, int], Way] = {}

    def way(self, source: int, target: int) -> Way:
        """Return the way from one place to another."""
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = Way(self._far and source != target)
        return way

    def joined(self, one: int, other: int) -> bool:
        """Whether a new connection can be made between two places."""
        ways = self._ways
        there = ways.get((one, other)) or self.way(one, other)
        return there.open and (ways.get((other, one)) or self.way(other, one)).open

    def close(self, source: int, target: int) -> None:
        """Let nothing through any more, in this direction."""
        self.way(source, target).open = False

    def heal(self) -> None:
        """Open every way, and make it quick."""
        for way in list(self._ways.values()):
            way.slow = 1
            way.reopen()


class _Stream:
    """One direction of a link."""

    __slots__ = ("_buffer", "_deliver", "_give_up", "_moving", "_stalls", "_then", "_waits", "_way",
                 "_world", "arrived", "held")  # fmt: skip

    def __init__(
        self, world: World, way: Way, deliver: Callable[[bytes], None], give_up: Callable[[], None]
    ) -> None:
        self._world = world
        self._way = way
        self._deliver = deliver
        self._give_up = give_up
        self._buffer = bytearray()
        self._moving = False
        self._waits = False
        self._stalls = 0
        self._then: Callable[[], None] | None = None
        self.held = False
        #: Called whenever something of it has arrived.
        self.arrived: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    def send(self, data: bytes) -> None:
        self._buffer += data
        if not self._moving:
            self.move()

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` once all that was sent has arrived."""
        self._then = then
        self.move()

    def move(self) -> None:
        if self._moving or self.held or not (self._buffer or self._then):
            return
        way = self._way
        if way.open:
            self._waits = False
            self._moving = True
            world = self._world
            world.after(world.between(_LEAST, _MOST) * way.slow, self._arrive)
        elif not self._waits:
            self._waits = True
            self._stalls += 1
            way.wait(self)
            self._world.after(self._world.between(*_PATIENCE), self._lose_patience, self._stalls)

    def _lose_patience(self, stall: int) -> None:
        if self._waits and self._stalls == stall:
            self._give_up()

    def _arrive(self) -> None:
        self._moving = False
        if self.held:
            return
        buffer = self._buffer
        if self._way.open:
            if buffer:
                dice, size = self._world.dice, len(buffer)
                if dice.random() >= 0.8:
                    size = dice.randint(1, size)
                if size == len(buffer):
                    data = bytes(buffer)
                    buffer.clear()
                else:
                    data = bytes(buffer[:size])
                    del buffer[:size]
                self._deliver(data)
                if self.arrived is not None:
                    self.arrived()
            elif self._then is not None:
                then, self._then = self._then, None
                then()
        if buffer or self._then:
            self.move()


class Link:
    """A connection between a client program and a host, or between hosts."""

    def __init__(
        self,
        world: World,
        client: End,
        host: End,
        up: Way | None = None,
        down: Way | None = None,
    ) -> None:
        """Be open at once; both ends keep the link as the name of the connection."""
        self.open = True
        #: When it broke, and whether that was because the host's process was gone.
        self.broke = -1
        self.orphaned = False
        self._world = world
        self._client = client
        self._host = host
        self._up_way = up or Way()
        self._down_way = down or Way()
        self._up = _Stream(world, self._up_way, self._to_host, lambda: self.cut(client))
        self._down = _Stream(world, self._down_way, self._to_client, lambda: self.cut(host))
        #: Which ends may still get what was under way when the connection broke.
        self._late: list[End] = []

    def to_host(self, data: bytes) -> None:
        """Send bytes from the client."""
        if self.open:
            self._up.send(data)

    def to_client(self, data: bytes) -> None:
        """Send bytes from the host."""
        if self.open:
            self._down.send(data)

    @property
    def replies_unsent(self) -> int:
        """How many bytes that the host sent are under way."""
        return self._down.waiting if self.open else 0

    @property
    def requests_unsent(self) -> int:
        """How many bytes that the client sent are under way."""
        return self._up.waiting if self.open else 0

    def hold(self, held: bool) -> None:
        """Let the host read nothing for a while."""
        self._up.held = held
        self._up.move()

    def send(self, by: End, data: bytes) -> None:
        """Send bytes from one of its ends."""
        if self.open:
            self._stream(by).send(data)

    def unsent(self, by: End) -> int:
        """How many bytes that an end sent are on their way."""
        return self._stream(by).waiting

    def on_arrival(self, by: End, then: Callable[[], None]) -> None:
        """Call `then` whenever some of what an end sent has arrived."""
        self._stream(by).arrived = then

    def finish_from(self, by: End) -> None:
        """Close once all that an end sent has arrived."""
        self._stream(by).finish(lambda: self.cut(by))

    def finish(self) -> None:
        """Close once all that the host sent has arrived."""
        self._down.finish(self.cut)

    def _stream(self, by: End) -> _Stream:
        return self._up if by is self._client else self._down

    def cut(self, by: End | None = None, silent: bool = False) -> None:
        """Lose what is under way, or most of it. The side that does it notices soon, the other when
        a word of it gets through; of what ends in silence there is none.
        """
        if not self.open:
            return
        self.open, self.broke = False, self._world.now
        for end, way in ((self._client, self._down_way), (self._host, self._up_way)):
            if way.far and not silent and self._world.chance(_LATE):
                self._late.append(end)
            delay = _PATIENCE if silent and way.far else _NOTICED
            looks = 0 if end is by or silent else _LOOKS_MAX
            self._world.after(self._world.between(*delay), self._notice, end, way, looks)

    def _notice(self, end: End, way: Way, looks: int) -> None:
        if way.open or not looks:
            if end in self._late:
                self._late.remove(end)
            end.lost(self)
        else:
            self._world.after(_LOOKS, self._notice, end, way, looks - 1)

    def _to_host(self, data: bytes) -> None:
        if self.open or self._host in self._late:
            self._host.received(self, data)

    def _to_client(self, data: bytes) -> None:
        if self.open or self._client in self._late:
            self._client.received(self, data)
