"""What a receiver knows of one sender: which packets have come, and what of it is in memory."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from weir_toc import packet as wire
from weir_toc.endpoint.events import Service
from weir_toc.packet import Packet


class Seen:
    """A set of sequence numbers as disjoint intervals, the lowest first."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number < self._ends[at]

    @property
    def top(self) -> int:
        """One more than the highest number; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    @property
    def through(self) -> int:
        """All numbers below are in the set."""
        return self._ends[0] if self._firsts and not self._firsts[0] else 0

    def add(self, first: int, count: int = 1) -> None:
        """Add `count` numbers from `first` on."""
        firsts, ends = self._firsts, self._ends
        end = first + count
        if ends and ends[-1] == first:
            ends[-1] = end  # nearly all packets come in order
            return
        lo = bisect_right(ends, first - 1)
        hi = bisect_right(firsts, end)
        if lo < hi:
            first, end = min(first, firsts[lo]), max(end, ends[hi - 1])
        firsts[lo:hi], ends[lo:hi] = [first], [end]

    def newest(self, count: int, span: int) -> tuple[tuple[int, int], ...]:
        """Return the highest `count` intervals as pairs of a first number and a length.

        Of these, only what lies among the `span` numbers below `top` is returned.
        """
        least = self.top - span
        if len(self._firsts) == 1:  # nearly always
            first = max(self._firsts[0], least)
            return ((first, self._ends[0] - first),)
        pairs = zip(self._firsts[-count:], self._ends[-count:], strict=True)
        found = ((max(first, least), end) for first, end in pairs if end > least)
        return tuple((first, end - first) for first, end in found)

    def oldest(self, count: int) -> tuple[tuple[int, int], ...]:
        """Return the lowest `count` intervals above the first one that begins at 0."""
        skip = 1 if self.through else 0
        if len(self._firsts) == skip:  # nearly always
            return ()
        pairs = zip(self._firsts[skip : skip + count], self._ends[skip : skip + count], strict=True)
        return tuple((first, end - first) for first, end in pairs)

    def forget(self, keep: int) -> None:
        """Drop all but the highest `keep` intervals."""
        del self._firsts[:-keep], self._ends[:-keep]


@dataclass(slots=True, eq=False)
class Assembly:
    """A message of which not all fragments have come: all lie between the first and the last."""

    fragments: dict[int, bytes] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    #: The lowest and the highest PSN that it has.
    low: int = 0
    high: int = 0

    @property
    def cost(self) -> int:
        """What its fragments take of the budget, in bytes."""
        return sum(len(one) + wire.PACKET_COST for one in self.fragments.values())

    @property
    def is_whole(self) -> bool:
        """Whether all fragments from the first to the last are here."""
        if self.first is None or self.last is None:
            return False
        return len(self.fragments) == self.last - self.first + 1

    def takes(self, psn: int, flags: int) -> bool:
        """Whether another fragment can be of the same message as those that have come."""
        if flags & wire.BEGIN:
            return self.first is None and psn < self.low
        if flags & wire.END:
            return self.last is None and psn > self.high
        return (self.first is None or psn > self.first) and (self.last is None or psn < self.last)

    def add(self, psn: int, flags: int, payload: bytes) -> None:
        """Add a fragment that it takes; the first one that comes is always taken."""
        self.low = min(self.low, psn) if self.fragments else psn
        self.high = max(self.high, psn)
        self.fragments[psn] = payload
        if flags & wire.BEGIN:
            self.first = psn
        if flags & wire.END:
            self.last = psn


@dataclass(slots=True)
class Stream:
    """What one sender sent by one service."""

    seen: Seen = field(default_factory=Seen)
    #: All packets below are out of memory.
    released: int = 0
    #: Recalled messages above `released`: the end of each by its first packet.
    gone: dict[int, int] = field(default_factory=dict)
    assemblies: dict[int, Assembly] = field(default_factory=dict)
    #: The highest stamp of what came.
    newest: int = 0
    packets: int = 0
    marked: int = 0
    #: Whether an ACK is due at the end of this burst, and whether one is by the next tick.
    ack_now: bool = False
    ack_soon: bool = False
    #: When the controller was last given an ACK of it; 0 before.
    answered_at: int = 0

    @classmethod
    def beginning(cls, first_psn: int) -> Stream:
        """Return a stream of which all packets below `first_psn` are gone."""
        stream = cls(released=first_psn)
        if first_psn:
            stream.seen.add(0, first_psn)
        return stream

    def is_ahead(self, psn: int, count: int, packets_max: int) -> bool:
        """Whether these reliable packets end further ahead than a window of `packets_max` goes.

        That is above what is released, and if they leave a hole, above the first missing one.
        """
        end = psn + count - packets_max
        return end > self.released or (psn != self.seen.top and end > self.seen.through)

    def takes(self, packet: Packet, psn: int) -> bool:
        """Whether a packet can be one of a message, beside the fragments that have come."""
        flags = packet.flags & wire.WHOLE
        assembly = self.assemblies.get(packet.stamp)
        if flags == wire.WHOLE:
            return psn >= 0 and assembly is None
        # All but the last one are full: else several would take more than their message does.
        size = len(packet.payload)
        if size < wire.PAYLOAD_BYTES_MAX and not (size and flags == wire.END):
            return False
        return psn >= 0 and (assembly is None or assembly.takes(psn, flags))


@dataclass(slots=True)
class Source:
    """One sender as its receiver sees it."""

    process: int
    best_effort: Stream
    reliable: Stream
    #: The window it was told, and the largest one that it may still use.
    told: int = 0
    granted: int = 0
    asked_at: int = 0
    #: How often it was asked to confirm a smaller one.
    asked: int = 0
    #: How many ACKs it was sent, and which one was the first to tell it this window.
    acks: int = 0
    told_since: int = 0
    #: Bytes in memory, and bytes released since the last ACK.
    buffered: int = 0
    unreported: int = 0
    #: When the controller last brought a packet of it, or was used to ask it; 0 before.
    forwarded_at: int = 0

    @classmethod
    def beginning(cls, process: int, first_psn: int) -> Source:
        """Return a sender of which nothing has come yet."""
        streams = Stream.beginning(first_psn), Stream.beginning(first_psn)
        return cls(process, *streams, acks=first_psn)

    def stream(self, service: Service) -> Stream:
        """Return what came by one service."""
        return self.best_effort if service is Service.BEST_EFFORT else self.reliable
