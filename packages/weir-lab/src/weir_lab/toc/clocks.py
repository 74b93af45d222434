"""Clocks of the nodes of a world: wrong, drifting, set by somebody, or stopped.

A switch has one, too, and a socket in which packets wait until it reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from random import Random

from weir_toc import packet as wire
from weir_toc.clock import Clock
from weir_toc.node import Effect, SwitchNode

_MILLION = 1_000_000
#: A timer rings after so many nanoseconds at least: a stopped clock may be due all the time.
_WAIT, _WAIT_STOPPED = 1_000, 250_000

#: A neighbour, the bytes that came from it, and the size of one packet of them.
Arrived = tuple[int, bytearray, int]


class HostClock:
    """The clock of one node, over a raw one."""

    __slots__ = (
        "_clock", "_drift", "_is_untouched", "_offset", "_read_at", "_started", "_stopped_at",
    )  # fmt: skip

    def __init__(self, random: Random, true: int, skew: int, drift: int) -> None:
        """Begin at a true time, wrong by up to `skew` ns and `drift` parts per million."""
        self._offset = random.randint(-skew, skew) if skew else 0
        self._drift = random.randint(-drift, drift) if drift else 0
        self._started = true
        self._clock = Clock(true + self._offset)
        self._stopped_at: int | None = None
        #: Whether the raw clock only went on: the node reads it as it is. When it did so last.
        self._is_untouched, self._read_at = True, true

    def now(self, true: int) -> int:
        """The time that the node reads at a true time."""
        if self._is_untouched:  # most of what a world does reads a clock
            self._read_at = true
            return self._raw(true) if self._drift else true + self._offset
        if self._stopped_at is not None:
            true = self._stopped_at
        return self._clock.read(self._raw(true))

    def _raw(self, true: int) -> int:
        return true + self._offset + (true - self._started) * self._drift // _MILLION

    def _touch(self) -> None:
        """From now on the clock over the raw one decides what the node reads."""
        if self._is_untouched:
            self._is_untouched = False
            self._clock.read(self._raw(self._read_at))

    def wait(self, now: int, deadline: int) -> int:
        """How long a timer waits that is set when this clock shows `now`. It does not need it."""
        least = _WAIT if self._stopped_at is None else _WAIT_STOPPED
        return max(least, deadline - now)

    def set(self, step: int) -> None:
        """Set the raw clock forward, or back if `step` is negative, by so many nanoseconds."""
        self._touch()
        self._offset += step

    def stop(self, true: int) -> None:
        """Let the raw clock stand still from a true time on."""
        self._touch()
        self._stopped_at = true

    def restart(self, true: int) -> None:
        """Begin anew, as a node does that starts again: the time may be less than before."""
        self._touch()
        self._clock = Clock(true + self._offset)


class SwitchHosts:
    """The hosts of the switches of a world."""

    def __init__(
        self, seed: int, switches: Iterable[int], true: int, skew: int, drift: int
    ) -> None:
        #: Dice of their own: those of the world fall as if all clocks of switches were right.
        self.dice = Random(f"clocks {seed}")
        self.clocks = {id: HostClock(self.dice, true, skew, drift) for id in switches}
        #: What has come to each and is not read.
        self.unread: dict[int, list[Arrived]] = {id: [] for id in self.clocks}

    def read(self, switch: int) -> list[Arrived]:
        """Return what has come to a switch, the oldest first, once."""
        found = self.unread[switch][:]
        self.unread[switch].clear()
        return found

    @staticmethod
    def take(now: int, node: SwitchNode, burst: Iterable[Arrived]) -> list[Effect]:
        """Let a switch take a burst, as `Aggregator` does: beacons at once."""
        effects: list[Effect] = []
        for is_of_beacons, some in groupby(burst, lambda one: wire.is_beacon(one[1])):
            if is_of_beacons:
                neighbours, beacons, _ = zip(*some, strict=True)
                effects += node.receive_beacons(now, neighbours, [bytes(one) for one in beacons])
                continue
            for source, data, size in some:
                if len(data) > size:
                    effects += node.receive_run(now, source, data, size)
                else:
                    effects += node.receive(now, source, data)
        return effects
