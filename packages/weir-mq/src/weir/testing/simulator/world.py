"""Virtual time: one heap of (time, counter, event), one source of dice, one trace.

Whatever happens in a simulation happens because an event was popped from this heap, so that a seed
replays to the byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import xxhash

MS = 1_000
SECOND = 1_000 * MS
#: Where virtual wall clocks begin, in ms since 1970.
EPOCH_MS = 1_700_000_000_000
_RECENT = 200
#: So many notes are kept at most; they are hashed together.
_NOTES_MAX = 2_000

Do = Callable[..., None]


class World:
    """Runs events in the order of their virtual times, in microseconds from 0."""

    def __init__(self, seed: int) -> None:
        """Begin at time 0; every choice of the simulation is drawn from `dice`."""
        self.now = 0
        self.dice = random.Random(seed)
        self._random = self.dice.random
        #: The last notes, those that are not hashed yet among them.
        self._notes: list[tuple[Any, ...]] = []
        self._hashed = 0
        self._heap: list[tuple[int, int, Do, tuple[Any, ...]]] = []
        self._count = 0
        self._trace = xxhash.xxh3_64()

    def after(self, delay: int, do: Do, *arguments: Any) -> None:
        """Call `do(*arguments)` `delay` microseconds from now; equal times keep their order."""
        self._count += 1
        heappush(self._heap, (self.now + delay, self._count, do, arguments))

    def between(self, least: int, most: int) -> int:
        """Draw a delay in microseconds: mostly near the least, now and then near the most."""
        return least + int((most - least) * self._random() ** 3)

    def chance(self, probability: float) -> bool:
        """Toss a coin."""
        return self._random() < probability

    def run(self, until: int, done: Callable[[], bool] | None = None) -> None:
        """Run events up to and at virtual time `until`, or until `done` says so."""
        heap, pop = self._heap, heappop
        while heap and heap[0][0] <= until:
            if done is not None and done():
                return
            self.now, _, do, arguments = pop(heap)
            do(*arguments)
        self.now = max(self.now, until)

    def note(self, *what: Any) -> None:
        """Put one line of numbers and texts into the trace; what is equal must print equally."""
        self._notes.append((self.now, *what))
        if len(self._notes) == _NOTES_MAX:
            self._hash()
            del self._notes[:-_RECENT]
            self._hashed = _RECENT

    def _hash(self) -> None:
        self._trace.update("".join(map(repr, self._notes[self._hashed :])).encode())
        self._hashed = len(self._notes)

    @property
    def recent(self) -> list[tuple[Any, ...]]:
        """The last notes, for the report of a run that failed."""
        return self._notes[-_RECENT:]

    @property
    def trace_hash(self) -> str:
        """The hash of all notes so far, in hexadecimal."""
        self._hash()
        return str(self._trace.hexdigest())


class SkewedTime:
    """A node's clocks behind `weir.order.clock.Time`; its wall clock can be pushed about."""

    def __init__(self, world: World) -> None:
        """Begin in step with the world."""
        self._world = world
        self._skew_ms = 0
        #: Whether it was ever out of step.
        self.pushed = False

    @property
    def skew_ms(self) -> int:
        """How far the wall clock is ahead, in milliseconds."""
        return self._skew_ms

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self.pushed = self.pushed or bool(skew_ms)

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as wrong as `skew_ms`."""
        return EPOCH_MS + self._world.now // MS + self._skew_ms

    def monotonic_ms(self) -> int:
        """Virtual milliseconds since the world began."""
        return self._world.now // MS
