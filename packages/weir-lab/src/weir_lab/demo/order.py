"""Whether all readers of a topic saw each plane's flights in the same order. Pure.

A message is known by its id: its place among all messages, airport after airport by offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weir_lab.demo.flights import ORIGINS, TOPIC
from weir_lab.demo.ledger import NEVER, Columns, Numbers, Sent
from weir_lab.demo.tasks import APART, READERS

#: A plane whose number is not known.
NO_PLANE = -1


class Runs:
    """What a reader got, in its order: runs of messages that lie behind each other."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.messages = 0
        self._runs: list[tuple[int, int, int]] = []

    def note(self, partition: int, offset: int, count: int) -> None:
        """Note that messages `offset`, `offset` + 1, ... came next."""
        self._runs.append((partition, offset, count))
        self.messages += count

    def column(self) -> Numbers:
        """Return (partition, offset, count) of all runs, one behind the other."""
        return np.array(self._runs, np.int64).reshape(-1)


@dataclass(frozen=True, slots=True)
class Example:
    """One plane as two readers saw it.

    `flights`: (airport's place in `ORIGINS`, place with the first reader, place with the other).
    """

    plane: str
    flights: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Sameness:
    """How far the readers of one topic agree.

    `messages`: how many each saw. `planes`: those with flights from more than one airport, whose
    order no partition keeps. `differing`: of all planes, those that not all readers saw in the same
    order. `complete`: whether each reader saw every message exactly once.
    """

    topic: str
    messages: Sequence[int]
    complete: bool
    planes: int
    differing: int
    example: Example | None

    @property
    def one_order(self) -> bool:
        """Whether every reader saw every message once, and every plane in the same order."""
        return self.complete and not self.differing


@dataclass(frozen=True, slots=True)
class Orders:
    """The flights' topic, in total order, and the copy that keeps but its partitions' orders."""

    total: Sameness
    apart: Sameness

    @property
    def kept(self) -> bool:
        """Whether weir kept what it promises: one order of the one, all messages of both."""
        return self.total.one_order and self.apart.complete


@dataclass(frozen=True, slots=True)
class _Flights:
    """By id: which plane, as its place in `names`, and from which airport."""

    names: Sequence[str]
    plane_of: Numbers
    airport_of: Numbers

    @classmethod
    def of(cls, sent: Mapping[str, Sent], planes: Sequence[str | None]) -> _Flights:
        """Join the airports' ledgers with the planes of all flights, both by number."""
        named = sorted({plane for plane in planes if plane is not None})
        place = {name: at for at, name in enumerate(named)}
        numbers = np.array([NO_PLANE if p is None else place[p] for p in planes], np.int64)
        counts = [len(sent[origin].sent_us) for origin in ORIGINS]
        plane_of = np.full(sum(counts), NO_PLANE, np.int64)
        begin = 0
        for origin, count in zip(ORIGINS, counts, strict=True):
            offsets = sent[origin].offsets
            known = (offsets != NEVER) & (offsets < count)
            plane_of[begin + offsets[known]] = numbers[begin : begin + count][known]
            begin += count
        return cls(named, plane_of, np.repeat(np.arange(len(ORIGINS)), counts))

    def count(self, ids: Numbers) -> Numbers:
        """Return how many of these messages are about each plane."""
        planes = self.plane_of[ids]
        return np.bincount(planes[planes != NO_PLANE], minlength=len(self.names))

    def away(self) -> Numbers:
        """Return of each plane how many flights left from another airport than most of them."""
        known = self.plane_of != NO_PLANE
        pairs = self.plane_of[known] * len(ORIGINS) + self.airport_of[known]
        counts = np.bincount(pairs, minlength=len(self.names) * len(ORIGINS))
        by_plane = counts.reshape(-1, len(ORIGINS))
        return np.asarray(by_plane.sum(axis=1) - by_plane.max(axis=1, initial=0), np.int64)

    def example(self, plane: int, first: Numbers, other: Numbers) -> Example:
        """Return one plane as two readers saw it."""
        mine = first[self.plane_of[first] == plane].tolist()
        theirs = other[self.plane_of[other] == plane].tolist()
        place = {id: at for at, id in enumerate(theirs)}
        flights = [(int(self.airport_of[id]), at, place[id]) for at, id in enumerate(mine)]
        return Example(self.names[plane], flights)


def settle(sent: Mapping[str, Sent], ledger: Columns, planes: Sequence[str | None]) -> Orders:
    """Compare what the readers noted, in columns named `topic.place`.

    `planes` are those of all flights, airport after airport, by number.
    """
    flights = _Flights.of(sent, planes)
    begins = np.cumsum([0, *(len(sent[origin].sent_us) for origin in ORIGINS)])
    total, apart = (
        _sameness(topic, flights, [_ids(ledger[f"{topic}.{n}"], begins) for n in range(READERS)])
        for topic in (TOPIC, APART)
    )
    return Orders(total, apart)


def _ids(column: Numbers, begins: Numbers) -> Numbers:
    """Return the ids of all messages of a reader's runs, in its order."""
    partitions, offsets, counts = column.reshape(-1, 3).T
    behind = np.cumsum(counts)
    firsts = begins[partitions] + offsets - (behind - counts)
    return np.repeat(firsts, counts) + np.arange(int(counts.sum()))


def _sameness(topic: str, flights: _Flights, readers: Sequence[Numbers]) -> Sameness:
    messages = [len(ids) for ids in readers]
    everything = np.arange(len(flights.plane_of))
    if not all(np.array_equal(np.sort(ids), everything) for ids in readers):
        return Sameness(topic, messages, False, 0, 0, None)
    # Plane after plane, each in the order in which the reader saw it.
    first, *others = (ids[np.argsort(flights.plane_of[ids], kind="stable")] for ids in readers)
    unlike = [flights.count(first[ids != first]) for ids in others]
    most = np.max(unlike, axis=0)
    away = flights.away()
    moving = away > 0
    example = None
    if moving.any():
        # One that the readers disagree about, if any; of these, the one that moved most.
        chosen = int(np.lexsort((away, moving & (most > 0)))[-1])
        other = others[int(np.argmax([column[chosen] for column in unlike]))]
        example = flights.example(chosen, first, other)
    return Sameness(topic, messages, True, int(moving.sum()), int(np.count_nonzero(most)), example)
