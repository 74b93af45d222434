"""What becomes of packets on links between places: a state machine with a clock that is given.

Each direction of a link has a rate, a queue in front of it, a delay with jitter, and losses. It can
be cut in one direction alone. Times are seconds of one monotonic clock, sizes are bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

#: Numbers of places: from the first to the second one.
Way = tuple[int, int]
_BITS = 8
_MEGA = 1e6
_MS = 1e-3
_DELAY_MS_MAX = 60_000.0
_RATE_MBIT_MAX = 1e6


class Dice(Protocol):
    """What `random.Random` has."""

    def random(self) -> float:
        """Return a number from 0 to 1, without 1."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a number of a normal distribution."""


class Link(msgspec.Struct, frozen=True):
    """One direction between two places."""

    delay_ms: float = 0.0
    #: The standard deviation of the delay. Packets keep their order all the same.
    jitter_ms: float = 0.0
    #: Shares of packets, from 0 to 1. One that is reordered does not wait for those before it.
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    #: Megabits a second; 0 stands for no limit.
    rate_mbit: float = 0.0
    #: A packet that would wait for longer in front of the link is dropped.
    queue_ms: float = 200.0

    def check(self) -> None:
        """Raise `ValueError` for what no link can be."""
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share from 0 to 1")
        for name in ("delay_ms", "jitter_ms", "queue_ms"):
            if not 0 <= getattr(self, name) <= _DELAY_MS_MAX:
                raise ValueError(f"{name}={getattr(self, name)} is not 0 to {_DELAY_MS_MAX:,.0f}")
        if not 0 <= self.rate_mbit <= _RATE_MBIT_MAX:
            raise ValueError(f"rate_mbit={self.rate_mbit} is not 0 to {_RATE_MBIT_MAX:,.0f}")


class Count(msgspec.Struct):
    """What came to one direction of a link: packets and bytes that got through, and packets that
    were lost by chance, dropped by a full queue, and stopped by a cut.
    """

    packets: int = 0
    bytes: int = 0
    lost: int = 0
    dropped: int = 0
    cut: int = 0


class Wire:
    """One direction of a link: when each packet arrives, if it does."""

    def __init__(self, link: Link, dice: Dice) -> None:
        """Begin with an empty queue. Raises `ValueError`."""
        link.check()
        self.link = link
        self.count = Count()
        self.is_cut = False
        self._dice = dice
        #: Until when the link is busy with what was offered, and when the latest packet arrives.
        self._busy_until = 0.0
        self._latest = 0.0

    def offer(self, now: float, size: int) -> tuple[float, ...]:
        """Return when a packet arrives: never, once, or twice if it is duplicated."""
        link, dice = self.link, self._dice
        if self.is_cut:
            self.count.cut += 1
            return ()
        begins = max(now, self._busy_until)
        if begins - now > link.queue_ms * _MS:
            self.count.dropped += 1
            return ()
        if link.rate_mbit:
            begins += size * _BITS / (link.rate_mbit * _MEGA)
            self._busy_until = begins
        if link.loss and dice.random() < link.loss:  # it took its time on the link all the same
            self.count.lost += 1
            return ()
        first = self._arrival(begins)
        if link.duplicate and dice.random() < link.duplicate:
            return first, self._arrival(begins)
        return (first,)

    def _arrival(self, begins: float) -> float:
        link, dice = self.link, self._dice
        delay = link.delay_ms
        if link.jitter_ms:
            delay = max(dice.gauss(delay, link.jitter_ms), 0.0)
        at = begins + delay * _MS
        if link.reorder and dice.random() < link.reorder:
            return at
        self._latest = max(at, self._latest)
        return self._latest

    def arrived(self, size: int) -> bool:
        """A packet is at the far end; return whether it gets out: not if the link is cut now."""
        if self.is_cut:
            self.count.cut += 1
            return False
        self.count.packets += 1
        self.count.bytes += size
        return True


class _Held(NamedTuple):
    """A packet on its way. Numbers differ, so that packets are never compared."""

    due: float
    number: int
    way: Way
    packet: bytes


class Switch:
    """All links between places, and the packets that are on their way."""

    def __init__(self, links: Mapping[Way, Link], dice: Dice) -> None:
        """Begin with empty links. Raises `ValueError`."""
        self._wires = {way: Wire(link, dice) for way, link in links.items()}
        self._held: list[_Held] = []
        self._numbers = 0

    def take(self, now: float, way: Way, packet: bytes) -> None:
        """A packet came from a place; one for which there is no link is thrown away."""
        wire = self._wires.get(way)
        if wire is None:
            return
        for due in wire.offer(now, len(packet)):
            self._numbers += 1
            heapq.heappush(self._held, _Held(due, self._numbers, way, packet))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield packets that have arrived by now, each with the number of its place."""
        while self._held and self._held[0].due <= now:
            _, _, way, packet = heapq.heappop(self._held)
            if self._wires[way].arrived(len(packet)):
                yield way[1], packet

    @property
    def next_at(self) -> float | None:
        """When the next packet arrives."""
        return self._held[0].due if self._held else None

    def cut(self, way: Way, is_cut: bool) -> None:
        """Let nothing through in one direction, or let packets through again. What is on its way at
        a cut is lost if it arrives before the link is healed. Raises `KeyError`.
        """
        self._wires[way].is_cut = is_cut

    def counts(self) -> dict[Way, Count]:
        """Return what came to each direction since the beginning."""
        return {way: wire.count for way, wire in self._wires.items()}
