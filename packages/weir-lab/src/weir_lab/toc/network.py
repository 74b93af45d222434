"""A simulated datagram network: time, and links that lose, repeat, delay and reorder packets.

Everything is decided by the dice of one seed. Links are FIFO unless a fault says otherwise: a
packet that is reordered comes later than those behind it. Packets of one size that are sent at once
can travel in one piece, as those of `UDP_SEGMENT` do; each of them has faults of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import TypeVarTuple

from weir_toc.packet import split

#: A kernel sends so many packets in one piece at most.
PIECE_PACKETS_MAX = 64
#: In so many of all cases a shorter packet may end a piece.
ENDS_SHORTER = 0.1
#: In so many of all cases a piece arrives as two.
_SPLITS = 0.3
#: So many of the packets that are repeated or overtaken in a piece stay in it.
_NEAR = 0.5

_Given = TypeVarTuple("_Given")
#: Called with the sender, what arrives, and the size of each of its packets.
Deliver = Callable[[int, bytearray, int], None]


@dataclass(frozen=True, slots=True)
class Faults:
    """What links do to packets: shares of one, and nanoseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    damage: float = 0.0
    delay: int = 50_000
    #: The delay of each packet is up to so much longer.
    jitter: int = 20_000
    #: A packet that is repeated or reordered comes up to so much later.
    lag: int = 3_000_000


class Link:
    """One direction of a cable: packets from one node to another."""

    __slots__ = ("barriers", "busy_until", "deliver", "ends", "source", "told")

    def __init__(self, source: int, to: int, deliver: Deliver) -> None:
        self.source = source
        self.ends = source, to
        self.deliver = deliver
        #: When the last packet arrives that none behind it may overtake.
        self.busy_until = 0
        #: The newest barriers that it was given: their bytes, and both of them.
        self.told = bytearray()
        self.barriers = 0, 0


class Network:
    """Virtual time and the links between nodes, which are named by integers."""

    def __init__(self, random: Random, start: int, faults: Faults) -> None:
        self.random = random
        self._dice = random.random
        #: True time in nanoseconds. No node can read it.
        self.now = start
        self.faults = faults
        #: Links that carry nothing, by both ends.
        self.cut: set[tuple[int, int]] = set()
        #: Pairs of a sender and a receiver whose packets are all lost, while beacons pass.
        self.severed: set[tuple[int, int]] = set()
        #: Links whose packets all come so much later, in nanoseconds, by both ends.
        self.late: dict[tuple[int, int], int] = {}
        #: How many packets were given to links.
        self.packets = 0
        #: The links from each node that have carried anything, by their other ends.
        self.links: dict[int, dict[int, Link]] = defaultdict(dict)
        #: How what arrives is given to each node.
        self._delivers: dict[int, Deliver] = {}
        #: What happens, by time: what to call, and with what.
        self._calendar: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._serial = 0

    @property
    def faults(self) -> Faults:
        """What links do to packets from now on."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._is_quiet = not (
            faults.loss or faults.duplication or faults.damage or faults.reordering
        )

    def at(self, time: int, call: Callable[[*_Given], None], *given: *_Given) -> None:
        """Call with what is given at a time, after all that was planned for that time before."""
        self._serial += 1
        due = time if time > self.now else self.now
        heappush(self._calendar, (due, self._serial, call, given))

    def run(self, until: int) -> None:
        """Let time pass."""
        calendar = self._calendar
        while calendar and calendar[0][0] <= until:
            self.now, _, call, given = heappop(calendar)
            call(*given)
        self.now = until

    def attach(self, node: int, deliver: Deliver) -> None:
        """Let a node take what arrives for it."""
        self._delivers[node] = deliver

    def link(self, source: int, to: int) -> Link | None:
        """Return the link from one node to another, None if that one was never attached."""
        deliver = self._delivers.get(to)
        if deliver is None:
            return None
        return self.links[source].setdefault(to, Link(source, to, deliver))

    def send(self, link: Link, data: bytearray) -> None:
        """Carry a packet; if it arrives, its source, its bytes and its size are delivered."""
        faults, dice, size = self._faults, self._dice, len(data)
        self.packets += 1
        if (self.cut and link.ends in self.cut) or (faults.loss and dice() < faults.loss):
            return
        arrival = self.now + faults.delay + int(dice() * faults.jitter)
        if self.late:
            arrival += self.late.get(link.ends, 0)
        is_held_up = False
        if not self._is_quiet:
            if faults.duplication and dice() < faults.duplication:
                later = arrival + int(dice() * faults.lag)
                self.at(later, link.deliver, link.source, bytearray(data), size)
            if faults.damage and dice() < faults.damage:
                self._damage(data)
            is_held_up = faults.reordering > 0 and dice() < faults.reordering
        if is_held_up:
            arrival += int(dice() * faults.lag)
        elif link.busy_until > arrival:
            arrival = link.busy_until
        else:
            link.busy_until = arrival
        self._serial += 1  # as by `at`: most of what a world does goes through here
        heappush(self._calendar, (arrival, self._serial, link.deliver, (link.source, data, size)))

    def send_piece(self, link: Link, data: bytearray, size: int) -> None:
        """Carry packets of `size` bytes that are sent at once, the last one perhaps shorter.

        Each is lost, repeated, damaged or overtaken by itself. Those that are not held up arrive as
        one piece or as two, which a receiver reads at once; all of them can be held up, too.
        """
        faults, random = self.faults, self.random
        packets = [bytearray(one) for one in split(data, size)]
        self.packets += len(packets)
        if link.ends in self.cut:
            return
        arrival = self.now + faults.delay + int(random.random() * faults.jitter)
        if self.late:
            arrival += self.late.get(link.ends, 0)
        together = self._kept(link, packets, arrival)
        is_held_up, is_repeated = (
            random.random() < share for share in (faults.reordering, faults.duplication)
        )
        at = random.randint(1, len(together)) if together and random.random() < _SPLITS else 0
        for some in (together[:at], together[at:]):
            due = arrival
            if some and not is_held_up:
                due = link.busy_until = max(arrival, link.busy_until)
            arrival = due + int(random.random() * faults.jitter)
            for piece, each in _merged(some):
                if is_repeated:
                    self._late(link, bytearray(piece), each, due)
                if is_held_up:
                    self._late(link, piece, each, due)
                else:
                    self.at(due, link.deliver, link.source, piece, each)

    def _kept(self, link: Link, packets: Iterable[bytearray], arrival: int) -> list[bytearray]:
        """Return the packets of a piece that arrive in it, in that order; others come alone."""
        faults, random = self.faults, self.random
        together: list[bytearray] = []
        overtaken: list[tuple[int, bytearray]] = []
        for one in packets:
            if random.random() < faults.loss:
                continue
            is_repeated = random.random() < faults.duplication
            twin = bytearray(one)
            if faults.damage and random.random() < faults.damage:
                self._damage(one)
            if random.random() >= faults.reordering:
                together.append(one)
            elif random.random() < _NEAR:
                overtaken.append((len(together), one))
            else:
                self._late(link, one, len(one), arrival)
            if is_repeated and random.random() < _NEAR:
                overtaken.append((len(together), twin))
            elif is_repeated:
                self._late(link, twin, len(twin), arrival)
        for after, one in overtaken:
            together.insert(random.randint(after, len(together)), one)
        return together

    def _late(self, link: Link, data: bytearray, size: int, arrival: int) -> None:
        late = arrival + int(self.random.random() * self.faults.lag)
        self.at(late, link.deliver, link.source, data, size)

    def _damage(self, data: bytearray) -> None:
        # Barriers have the checksum of their link alone, since every switch rewrites them.
        at = self.random.randrange(len(data) - 12)
        data[at if at < 6 else at + 12] ^= 1 << self.random.randrange(8)


def _merged(packets: Iterable[bytearray]) -> Iterator[tuple[bytearray, int]]:
    """Yield packets in pieces of one size each, as `UDP_GRO` does: a shorter one ends a piece."""
    piece, size = bytearray(), 0
    for one in packets:
        if piece and (len(piece) % size or len(one) > size):
            yield piece, size
            piece = bytearray()
        if not piece:
            size = len(one)
        piece += one
    if piece:
        yield piece, size


#: What a node sends: to which neighbour, the bytes, and the size of each packet; 0 for one packet.
Sent = tuple[int, bytearray, int]


def gathered(sent: Iterable[Sent], ends_shorter: bool) -> Iterator[Sent]:
    """Yield what is sent at once in pieces, as `UDP_SEGMENT` carries it.

    A piece goes to one neighbour, and its packets have one size. If `ends_shorter`, a shorter one
    may end it, as it may end what `UDP_GRO` merges.
    """
    to, size, piece = 0, 0, bytearray()
    for target, data, given_size in sent:
        each = given_size or len(data)
        is_next = each == size or (ends_shorter and len(data) <= each < size)
        fits = len(piece) + len(data) <= PIECE_PACKETS_MAX * size
        if piece and target == to and is_next and fits and not len(piece) % size:
            piece += data
            continue
        if piece:
            yield to, piece, size
        to, size, piece = target, each, bytearray(data)
    if piece:
        yield to, piece, size
