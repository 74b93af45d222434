"""What a partition knows of scatterings (docs/adr/0024): prepared, decided, prevented, void.

Changed by committed entries only, so every replica has the same. Undecided acks hold messages that
they took from grants, and give them back if the attempt is aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from weir.broker.state.clusters import NEVER, NOBODY, ClusterState, Grant
from weir.broker.state.producers import Answer
from weir.broker.state.ranges import Ranges
from weir.model.columns import Publication, StagedRun
from weir.model.ids import Attempt


class Outcome(IntEnum):
    """What is written of an attempt, once it is known."""

    ABORTED = 0
    COMMITTED = 1
    #: Every part has decided to commit: nobody will ask any more.
    CLOSED = 2


class PreparedBatch(NamedTuple):
    """An undecided batch: all parts, and what its producer is told if it comes to count."""

    parts: tuple[int, ...]
    answer: Answer
    #: Which staged batches it publishes, if that is what it does.
    publication: Publication | None = None

    @property
    def behind(self) -> int:
        """The offset behind its last message."""
        return self.answer.offset + self.answer.messages


class Taken(NamedTuple):
    """Messages [first, behind) that undecided acks took from a grant, and what it was."""

    cluster: str
    fence: int
    consumer: int
    deadline: int
    attempts: int
    first: int
    behind: int


class PreparedAcks(NamedTuple):
    """Acks that are undecided: what they took lies in grants of nobody, with this `fence`. Or, in
    their place, which batch of a query is being published: the `sink`.
    """

    parts: tuple[int, ...]
    fence: int
    taken: tuple[Taken, ...]
    sink: tuple[str, int] | None = None


class Scatterings:
    """The parts of scatterings in one partition.

    No attempt at or below stamp `barred` is prepared any more, and none of `alone`. Messages in
    `voids` are of attempts that were aborted: they never were, for anybody.
    """

    __slots__ = ("acks", "alone", "barred", "batches", "committed", "producers", "voids")

    def __init__(self) -> None:
        """Know of none."""
        #: Undecided, in the order of their offsets.
        self.batches: dict[Attempt, PreparedBatch] = {}
        self.acks: dict[Attempt, PreparedAcks] = {}
        #: Decided to be committed and not closed: (attempt, whether it is acks) and all parts.
        self.committed: dict[tuple[Attempt, bool], tuple[int, ...]] = {}
        self.barred = 0
        #: Barred each by itself, for their stamps lie far ahead: all are above `barred`.
        self.alone: set[Attempt] = set()
        self.voids = Ranges()
        #: The undecided attempt of each producer that has one here.
        self.producers: dict[int, Attempt] = {}

    @property
    def undecided(self) -> int:
        """The lowest stamp of messages that are undecided; 0 if there are none."""
        for attempt in self.batches:
            return attempt.stamp
        return 0

    @property
    def kept(self) -> int:
        """How many attempts are remembered."""
        return len(self.batches) + len(self.acks) + len(self.committed)

    def first_offset(self, behind: int) -> int:
        """Return the offset of the first undecided message; `behind` if there is none."""
        for prepared in self.batches.values():
            return prepared.answer.offset
        return behind

    def unfinished(self) -> Iterator[tuple[Attempt, bool, tuple[int, ...], bool]]:
        """Yield what is remembered: attempt, whether it is acks, all parts, whether undecided."""
        for attempt, batch in self.batches.items():
            yield attempt, False, batch.parts, True
        for attempt, acks in self.acks.items():
            yield attempt, True, acks.parts, True
        for (attempt, is_acks), parts in self.committed.items():
            yield attempt, is_acks, parts, False

    def is_prepared(self, attempt: Attempt, is_acks: bool) -> bool:
        """Return whether a part is prepared and undecided."""
        return attempt in (self.acks if is_acks else self.batches)

    def is_barred(self, attempt: Attempt) -> bool:
        """Return whether an attempt is not prepared any more, if it was not before."""
        return attempt.stamp <= self.barred or attempt in self.alone

    def bar(self, stamp: int) -> None:
        """Let no attempt at or below `stamp` be prepared any more."""
        self.barred = max(self.barred, stamp)
        self.alone = {one for one in self.alone if one.stamp > self.barred}

    def bar_alone(self, attempt: Attempt) -> None:
        """Let this attempt not be prepared any more."""
        if not self.is_barred(attempt):
            self.alone.add(attempt)

    def prepare(self, attempt: Attempt, prepared: PreparedBatch, is_there: bool = True) -> bool:
        """Take a batch's entry; False if it is void: it came too late, or its producer has another
        one that is undecided, or what it publishes is not there.
        """
        if not is_there or self.is_barred(attempt) or attempt.producer in self.producers:
            self.voids.add(prepared.answer.offset, prepared.behind)
            return False
        self.batches[attempt] = prepared
        self.producers[attempt.producer] = attempt
        return True

    def decide_batch(self, attempt: Attempt, committed: bool) -> PreparedBatch | None:
        """Let a batch count, or make it void; return it if it was undecided."""
        prepared = self.batches.pop(attempt, None)
        if prepared is None:
            return None
        del self.producers[attempt.producer]
        if committed:
            self.committed[attempt, False] = prepared.parts
        else:
            self.voids.add(prepared.answer.offset, prepared.behind)
        return prepared

    def decide_acks(self, attempt: Attempt, committed: bool) -> PreparedAcks | None:
        """Take acks out that are decided; return them if they were undecided."""
        prepared = self.acks.pop(attempt, None)
        if prepared is not None and committed:
            self.committed[attempt, True] = prepared.parts
        return prepared

    def encode(self) -> tuple[object, ...]:
        """Return the state for a snapshot."""
        return (
            self.barred,
            sorted(self.alone),
            # The last fields only where there is something in them.
            [(key, one if one.publication else one[:-1]) for key, one in self.batches.items()],
            [(key, one if one.sink else one[:-1]) for key, one in self.acks.items()],
            list(self.committed.items()),
            self.voids.encode(),
        )

    @classmethod
    def decode(
        cls, barred: int, alone: Any, batches: Any, acks: Any, committed: Any, voids: Any
    ) -> Scatterings:
        """Return the state of a snapshot."""
        self = cls()
        self.barred = barred
        self.alone = {Attempt(*key) for key in alone}
        for key, (parts, answer, *more) in batches:
            attempt = Attempt(*key)
            published = _publication(*more[0]) if more else None
            self.batches[attempt] = PreparedBatch(tuple(parts), Answer(*answer), published)
            self.producers[attempt.producer] = attempt
        for key, (parts, fence, taken, *sink) in acks:
            rows = tuple(Taken(*row) for row in taken)
            named = (sink[0][0], sink[0][1]) if sink else None
            self.acks[Attempt(*key)] = PreparedAcks(tuple(parts), fence, rows, named)
        for (key, is_acks), parts in committed:
            self.committed[Attempt(*key), is_acks] = tuple(parts)
        self.voids = Ranges.decode(*voids)
        return self


def put_aside(
    cluster: ClusterState, name: str, fence: int, ranges: Sequence[tuple[int, int, int]]
) -> list[Taken] | None:
    """Move ranges (fence, first, next) of grants into one of nobody's under `fence` that never
    ends; return what they were. None, and nothing is done, unless those grants hold all of it.
    """
    taken, runs = [], Ranges()
    for old, first, behind in ranges:
        grant = cluster.grants.get(old)
        if grant is None or grant.consumer == NOBODY or not grant.left.covers(first, behind):
            return None
        runs.add(first, behind)
        row = Taken(name, old, grant.consumer, grant.deadline, grant.attempts, first, behind)
        taken.append(row)
    if not taken or runs.count != sum(one.behind - one.first for one in taken):
        return None
    for one in taken:
        cluster.take(one.fence, cluster.grants[one.fence], one.first, one.behind)
    attempts = max(one.attempts for one in taken)
    cluster.hold(fence, Grant(NOBODY, NEVER, attempts, runs))
    return taken


def give_again(cluster: ClusterState, fence: int, one: Taken) -> bool:
    """Put back what `put_aside` took, as far as it is there; return whether some of it is."""
    aside = cluster.grants.get(fence)
    if aside is None:
        return False
    runs = aside.left.within(one.first, one.behind)
    for run in runs:
        cluster.take(fence, aside, *run)
        grant = cluster.grants.get(one.fence)
        if grant is None:
            rest = Ranges([run])
            cluster.hold(one.fence, Grant(one.consumer, one.deadline, one.attempts, rest))
        else:
            grant.left.add(*run)
            cluster.holders.put(*run, one.fence)
    return bool(runs)


def _publication(query: str, batch: int, runs: Any) -> Publication:
    return Publication(query, batch, tuple(StagedRun(*run) for run in runs))
