"""Connections in memory: bytes arrive late, in order, cut up anew; a cut loses those under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from weir.sim.world import MS, World

_DELAY = (50, 4 * MS)
_NOTICED = (100, 60 * MS)


class End(Protocol):
    """One side of a link: a host's session or a client program."""

    def received(self, link: Link, data: bytes) -> None:
        """Bytes came, cut where chance would have it."""

    def lost(self, link: Link) -> None:
        """The connection is gone; nothing comes any more."""


class _Stream:
    """One direction of a link."""

    __slots__ = ("_buffer", "_deliver", "_moving", "_then", "_world", "held")

    def __init__(self, world: World, deliver: Callable[[bytes], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._buffer = bytearray()
        self._moving = False
        self._then: Callable[[], None] | None = None
        self.held = False

    def send(self, data: bytes) -> None:
        self._buffer += data
        self.move()

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` once all that was sent has arrived."""
        self._then = then
        self.move()

    def move(self) -> None:
        if not self._moving and not self.held and (self._buffer or self._then):
            self._moving = True
            self._world.after(self._world.between(*_DELAY), self._arrive)

    def _arrive(self) -> None:
        self._moving = False
        if self.held:
            return
        buffer, dice = self._buffer, self._world.dice
        if buffer:
            size = len(buffer) if dice.random() < 0.8 else dice.randint(1, len(buffer))
            data = bytes(buffer[:size])
            del buffer[:size]
            self._deliver(data)
        elif self._then is not None:
            self._then()
        self.move()


class Link:
    """A connection between a client program and a host."""

    def __init__(self, world: World, client: End, host: End) -> None:
        """Be open at once; both ends keep the link as the name of the connection."""
        self.open = True
        self._world = world
        self._client = client
        self._host = host
        self._up = _Stream(world, self._to_host)
        self._down = _Stream(world, self._to_client)

    def to_host(self, data: bytes) -> None:
        """Send bytes from the client."""
        if self.open:
            self._up.send(data)

    def to_client(self, data: bytes) -> None:
        """Send bytes from the host."""
        if self.open:
            self._down.send(data)

    def hold(self, held: bool) -> None:
        """Let the host read nothing for a while."""
        self._up.held = held
        self._up.move()

    def finish(self) -> None:
        """Close once all that the host sent has arrived."""
        self._down.finish(self.cut)

    def cut(self) -> None:
        """Lose everything under way; each side notices when it does."""
        if not self.open:
            return
        self.open = False
        for end in (self._client, self._host):
            self._world.after(self._world.between(*_NOTICED), end.lost, self)

    def _to_host(self, data: bytes) -> None:
        if self.open:
            self._host.received(self, data)

    def _to_client(self, data: bytes) -> None:
        if self.open:
            self._client.received(self, data)
