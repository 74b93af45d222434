"""Grants as a consumer sees them: how much it asks for, what it was granted, what is done of it,
and its place in the one order of a topic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace

from weir.client.core.delivered_batches import Delivered, Picked, SlicedDelivered
from weir.errors import BadBatch
from weir.model.batch import Columns
from weir.model.limits import ACK_RANGES_MAX
from weir.model.message import Message

#: Offsets [first, next). A grant is made of runs that rise and do not touch.
Run = tuple[int, int]

_EXPIRES = int(Columns.EXPIRES)

#: Seconds of work that a grant may hold: messages that wait in it are kept from other consumers.
WORK = 1.0
#: Of a lease, the part that the work of one grant may take.
_OF_LEASE = 0.125
#: Seconds of work that are remembered: a message or two that are quick by chance say little.
_REMEMBERED = 5.0
#: So many messages, and as many seconds of work, are assumed before the first one is measured.
_ASSUMED = 0.25


def within(runs: Iterable[Run], first: int, behind: int) -> Iterator[Run]:
    """Yield what of the runs lies in [first, behind)."""
    for begin, end in runs:
        begin, end = max(begin, first), min(end, behind)
        if begin < end:
            yield begin, end


def without(runs: Iterable[Run], holes: Sequence[Run]) -> list[Run]:
    """Return the runs without all that lies in the holes, which rise too."""
    left: list[Run] = []
    for begin, end in runs:
        for first, behind in holes:
            if behind <= begin:
                continue
            if first >= end:
                break
            if begin < first:
                left.append((begin, first))
            begin = behind
        if begin < end:
            left.append((begin, end))
    return left


def joined(offsets: Iterable[int]) -> list[Run]:
    """Return the runs of offsets that come in any order, each once."""
    runs: list[Run] = []
    first = behind = -1
    for offset in sorted(offsets):
        if offset != behind:
            if behind > first:
                runs.append((first, behind))
            first = offset
        behind = offset + 1
    if behind > first:
        runs.append((first, behind))
    return runs


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return runs that come in any order as rising ones; those that touch become one."""
    found: list[Run] = []
    for first, behind in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(behind, found[-1][1]))
        else:
            found.append((first, behind))
    return found


def covers(runs: Iterable[Run], offset: int) -> bool:
    """Return whether one of the runs holds an offset."""
    return any(first <= offset < behind for first, behind in runs)


class Grant(msgspec.Struct, frozen=True):
    """A lease of messages [offset, next_offset), or of their `runs`, until `deadline`, a stamp.

    `expired` are those whose lifetime was over when they were granted: no batch here holds them,
    and the consumer says by itself that they are done.
    """

    topic: str
    partition: int
    fence: int
    deadline: int
    offset: int
    next_offset: int
    attempts: int
    batches: tuple[Delivered, ...]
    runs: tuple[Run, ...] = ()
    expired: tuple[Run, ...] = ()

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        return chain.from_iterable(delivered.messages() for delivered in self.batches)

    @property
    def leased(self) -> tuple[Run, ...]:
        """What of [offset, next_offset) was granted, what had expired included."""
        return self.runs or ((self.offset, self.next_offset),)


def text_of(grant: Grant) -> str:
    """Return what was granted, to be shown: not by which objects it is settled."""
    values = ", ".join(f"{name}={getattr(grant, name)!r}" for name in Grant.__struct_fields__)
    return f"{type(grant).__name__}({values})"


def sorted_out(
    delivered: Sequence[Delivered], runs: Sequence[Run], now: int
) -> tuple[list[Delivered], list[Run]]:
    """Return what of some batches is to be handled, and the runs that had expired `now` (µs).

    Without `runs` all of the batches is granted.
    """
    left: list[Delivered] = []
    expired: list[Run] = []
    for one in delivered:
        pieces: Sequence[Run] = [(one.offset, one.next_offset)]
        if runs:
            pieces = [*within(runs, one.offset, one.next_offset)]
        if one.batch.header.columns & _EXPIRES and (over := _expired(one, now)):
            expired += [run for piece in pieces for run in within(over, *piece)]
            pieces = without(pieces, over)
        if pieces and (trimmed := _trimmed(one, pieces)) is not None:
            left.append(trimmed)
    return left, expired


def _trimmed(one: Delivered, pieces: Sequence[Run]) -> Delivered | None:
    (first, _), (_, behind) = pieces[0], pieces[-1]
    if isinstance(one, SlicedDelivered):
        lies = one.batch.offsets
        ends = ((bisect_left(lies, a), bisect_left(lies, b)) for a, b in pieces)
        picked = tuple(chain.from_iterable(range(*run) for run in ends))
        if not picked:
            return None
        return Picked(one.topic, one.partition, one.batch, first, behind, picked)
    if len(pieces) == 1:
        if (first, behind) == (one.offset, one.next_offset):
            return one
        return replace(one, offset=first, next_offset=behind)
    base = one.batch.header.first_offset
    rows = tuple(chain.from_iterable(range(a - base, b - base) for a, b in pieces))
    return Picked(one.topic, one.partition, one.batch, first, behind, rows)


def _expired(delivered: Delivered, now: int) -> list[Run]:
    try:
        expires = delivered.batch.numbers(Columns.EXPIRES)
    except BadBatch:
        return []  # splitting it raises the error
    assert expires is not None  # the header said so
    offsets = zip(delivered.batch.offsets, expires, strict=True)
    return joined(offset for offset, at in offsets if 0 < at <= now)


class Acks:
    """Ranges (fence, first, next) of one partition that are done and not yet told to the broker."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._ranges: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Return the number of ranges that wait."""
        return len(self._ranges)

    @property
    def fences(self) -> set[int]:
        """The grants of which something is done."""
        return {fence for fence, *_ in self._ranges}

    def done(self, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done; a range that goes on grows."""
        if self._ranges:
            last_fence, last_first, last_behind = self._ranges[-1]
            if last_fence == fence and last_behind == first:
                self._ranges[-1] = (fence, last_first, behind)
                return
        self._ranges.append((fence, first, behind))

    def take(self) -> list[tuple[int, int, int]]:
        """Return the ranges for one request, oldest first, and forget them."""
        taken = self._ranges[:ACK_RANGES_MAX]
        del self._ranges[:ACK_RANGES_MAX]
        return taken

    def put_back(self, ranges: list[tuple[int, int, int]]) -> None:
        """Take back ranges whose request got no answer, before all others."""
        self._ranges[:0] = ranges


class Prefetch:
    """How many messages to ask for at a time: what the consumer handles in about a second.

    Begins with single messages, as if each took all of a second, which counts as little as a
    quarter of a message; and follows what was measured in the last few seconds of work. `most` is
    the user's bound.
    """

    __slots__ = ("_done", "_fits", "_most", "_work", "_worked", "size")

    def __init__(self, most: int, lease: float) -> None:
        """Take the most messages of a grant, and the seconds of a lease."""
        self._most = most
        self._work = min(WORK, lease * _OF_LEASE)
        self.restart()

    @property
    def ahead(self) -> bool:
        """Whether to have the next grant here before the last one is done: the work is quick."""
        return self._fits >= 1.0

    def restart(self) -> None:
        """Begin with single messages again."""
        #: Messages to ask for.
        self.size = 1
        #: How many may be asked for, in parts of a message too; none before it is known.
        self._fits = 0.0
        #: Messages, and the seconds that they took. Both fade.
        self._done = self._worked = _ASSUMED

    def took(self, messages: int, seconds: float, partitions: int) -> None:
        """Learn that so many messages took so long; each of the `partitions` may grant some."""
        if messages < 1:
            return
        fading = math.exp(-seconds / _REMEMBERED)
        self._done = self._done * fading + messages
        self._worked = self._worked * fading + max(seconds, 1e-6)
        self._fits = self._done / self._worked * self._work / max(partitions, 1)
        self.size = max(1, min(int(self._fits), self._most))


class Vector:
    """By partition, below which offset all is done.

    Takes what is handed out and what is done, in any order; says what to keep.

    Nothing of a later place is handed out before all of the earlier is done, so the offsets below
    which all is done are one place in the order, or lie in the batch that is worked on.
    """

    def __init__(self, offsets: Sequence[int] = ()) -> None:
        """Begin where all below `offsets` is done."""
        self._cursor = dict(enumerate(offsets))
        #: By partition, what was handed out and is not done; and what of it was given back.
        self._open: dict[int, list[Run]] = {}
        self._back: dict[int, list[Run]] = {}
        self._behind = dict(self._cursor)

    @property
    def offsets(self) -> tuple[int, ...]:
        """All below is done, by partition."""
        return tuple(self._cursor.get(p, 0) for p in range(max(self._cursor, default=-1) + 1))

    @property
    def has_open(self) -> bool:
        """Whether something that was handed out is neither done nor given back."""
        return any(without(runs, self._back.get(p, [])) for p, runs in self._open.items())

    def hand_out(self, partition: int, first: int, behind: int) -> None:
        """Messages [first, behind) are worked on; there is none before them but what was done."""
        self._open.setdefault(partition, []).append((first, behind))
        self._behind[partition] = behind
        self._settle(partition)

    def back(self, partition: int, first: int, behind: int) -> None:
        """No task works on messages [first, behind) any more; they are not done."""
        self._back[partition] = merged([*self._back.get(partition, []), (first, behind)])

    def done(self, partition: int, first: int, behind: int) -> None:
        """Messages [first, behind) are done."""
        self._open[partition] = without(self._open.get(partition, []), [(first, behind)])
        self._settle(partition)

    def _settle(self, partition: int) -> None:
        runs = self._open[partition]
        self._cursor[partition] = min((first for first, _ in runs), default=self._behind[partition])


class Ending:
    """How a turn is to end: at once, or once nothing is worked on.

    A caller that gives messages back or pauses asks for it; several callers cause one end.
    """

    def __init__(self) -> None:
        """Begin with none wanted."""
        self.clear()

    def clear(self) -> None:
        """Forget what was wanted: the turn is over."""
        self._wanted = self._waits = False
        self._delay_ms = 0
        self._untried = True

    def want(self, delay_ms: int, untried: bool, waits: bool = False) -> None:
        """Let the next turn begin in `delay_ms`; no attempt counts if all was `untried`.

        Where the first to want it `waits`, who works on something has time for it, until some fail.
        """
        self._waits = self._waits if self._wanted else waits
        self._wanted = True
        self._delay_ms = max(self._delay_ms, delay_ms)
        self._untried = self._untried and untried

    def due(self, working: bool) -> tuple[int, bool] | None:
        """Return the delay, and whether all was untried, if the turn is to end now."""
        if not self._wanted or (working and self._waits and self._untried):
            return None
        return self._delay_ms, self._untried
