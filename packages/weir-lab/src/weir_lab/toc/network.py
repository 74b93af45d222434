"""A simulated datagram network: time, and links that lose, repeat, delay and reorder packets.

Everything is decided by the dice of one seed. Links are FIFO unless a fault says otherwise: a
packet that is reordered comes later than those behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random


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


class Network:
    """Virtual time and the links between nodes, which are named by integers."""

    def __init__(self, random: Random, start: int, faults: Faults) -> None:
        self.random = random
        #: True time in nanoseconds. No node can read it.
        self.now = start
        self.faults = faults
        #: Links that carry nothing, by both ends.
        self.cut: set[tuple[int, int]] = set()
        #: How many packets were given to links.
        self.packets = 0
        self._calendar: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._busy_until: dict[tuple[int, int], int] = {}

    def at(self, time: int, call: Callable[[], None]) -> None:
        """Call at a time, and after all that was planned for that time before."""
        self._serial += 1
        heappush(self._calendar, (max(time, self.now), self._serial, call))

    def run(self, until: int) -> None:
        """Let time pass."""
        calendar = self._calendar
        while calendar and calendar[0][0] <= until:
            self.now, _, call = heappop(calendar)
            call()
        self.now = until

    def send(
        self, source: int, to: int, data: bytearray, deliver: Callable[[int, bytearray], None]
    ) -> None:
        """Carry a packet; `deliver` is called with `source` and its bytes, if it arrives."""
        faults, random = self.faults, self.random
        self.packets += 1
        if (source, to) in self.cut or (faults.loss and random.random() < faults.loss):
            return
        arrival = self.now + faults.delay + int(random.random() * faults.jitter)
        if faults.duplication and random.random() < faults.duplication:
            twin, later = bytearray(data), int(random.random() * faults.lag)
            self.at(arrival + later, lambda: deliver(source, twin))
        if faults.damage and random.random() < faults.damage:
            # Barriers have the checksum of their link alone, since every switch rewrites them.
            at = random.randrange(len(data) - 12)
            data[at if at < 6 else at + 12] ^= 1 << random.randrange(8)
        if faults.reordering and random.random() < faults.reordering:
            arrival += int(random.random() * faults.lag)
        else:
            link = (source, to)
            arrival = max(arrival, self._busy_until.get(link, 0))
            self._busy_until[link] = arrival
        self.at(arrival, lambda: deliver(source, data))
