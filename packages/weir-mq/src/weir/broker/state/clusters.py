"""The replicated state of consumer clusters in one partition: messages that are done, and grants.

Everything here changes by committed entries only, so every replica has the same (*AckedOnce*). Time
is the stamp in an entry; nobody's clock decides.

A cluster that reads a whole topic in total order has one cursor instead, kept in partition 0's
group: a place in the one order, as a vector, the offset of each partition below which all is done.
The consumer that reads on from there holds a *turn*; its fencing number is the index of the entry
that gave it, and an entry with an older one changes nothing (counterexample 22).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec

from weir.broker.records.partition import (
    CursorMoved,
    CursorSought,
    CursorTaken,
    MessagesGranted,
    MessagesReturned,
)
from weir.broker.state.ranges import Ranges
from weir.model.topic import AckOutcome, Mode
from weir.order.clock import STAMP_MAX, milliseconds_of

#: The deadline of a grant whose consumer is gone: passed for every clock.
AT_ONCE = 0
#: The consumer of what was given back: a lease to nobody.
NOBODY = 0
#: The deadline of what undecided acks hold: it ends by their decision alone.
NEVER = STAMP_MAX
#: Of how many grants a cluster remembers what they lost; beyond that the oldest is forgotten.
LOST_GRANTS_MAX = 1_024

#: Runs that had an attempt of what is taken from consumers; None: all.
Counted = Sequence[tuple[int, int]] | None
#: Of how many turns that are over it is remembered what was done in them.
_ENDED_MAX = 16


class Holders:
    """A map from offsets to fencing numbers; lists in step, sorted by the first offset."""

    __slots__ = ("_fences", "_firsts", "_nexts")

    def __init__(self) -> None:
        """Begin with nothing held."""
        self._firsts: list[int] = []
        self._nexts: list[int] = []
        self._fences: list[int] = []

    def put(self, first: int, behind: int, fence: int) -> None:
        """Let grant `fence` hold [first, behind), which nobody holds."""
        at = bisect_left(self._firsts, first)
        self._firsts.insert(at, first)
        self._nexts.insert(at, behind)
        self._fences.insert(at, fence)

    def within(self, first: int, behind: int) -> list[tuple[int, int, int]]:
        """Return the runs held in [first, behind), cut off at its ends: (fence, first, next)."""
        if first >= behind:
            return []
        lo, hi = bisect_right(self._nexts, first), bisect_left(self._firsts, behind)
        return [
            (self._fences[at], max(self._firsts[at], first), min(self._nexts[at], behind))
            for at in range(lo, hi)
        ]

    def clear(self, first: int, behind: int) -> None:
        """Let nobody hold any of [first, behind)."""
        lo, hi = bisect_right(self._nexts, first), bisect_left(self._firsts, behind)
        if lo >= hi or first >= behind:
            return
        kept = [
            (self._firsts[lo], first, self._fences[lo]),
            (behind, self._nexts[hi - 1], self._fences[hi - 1]),
        ]
        kept = [run for run in kept if run[0] < run[1]]
        self._firsts[lo:hi] = [run[0] for run in kept]
        self._nexts[lo:hi] = [run[1] for run in kept]
        self._fences[lo:hi] = [run[2] for run in kept]


class Grant(msgspec.Struct):
    """A lease of the messages still in `left`; `deadline` is a stamp.

    `attempts` counts this grant; it was none of what is `untried`, once that is told.
    """

    consumer: int
    deadline: int
    attempts: int
    left: Ranges
    untried: Ranges = msgspec.field(default_factory=Ranges)

    @property
    def is_counted(self) -> bool:
        """Whether it was told which of its messages had an attempt."""
        return self.consumer == NOBODY or self.deadline == AT_ONCE or bool(self.untried)

    def count(self, counted: Iterable[tuple[int, int]]) -> None:
        """It ends, or loses messages: only those of `counted` had an attempt. Told once."""
        if self.is_counted:
            return
        for run in self.left:
            self.untried.add(*run)
        for run in counted:
            self.untried.discard(*run)

    def tries(self, first: int, behind: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of [first, behind), which it holds, and how many attempts they have had."""
        for begin, end in self.untried.within(first, behind):
            if first < begin:
                yield first, begin, self.attempts
            yield begin, end, self.attempts - 1
            first = end
        if first < behind:
            yield first, behind, self.attempts


@dataclass(slots=True)
class ClusterState:
    """All below `cursor` is done, and so is `done`; all from `frontier` on was never granted.

    What lies between and is neither done nor in a grant is a *hole*: nobody has it, and it is to be
    granted. `skipped` counts messages that went past retention before they were done. A `paused`
    cluster is granted nothing. Its `mode` is chosen by its first grant, or before; with it, the
    `tags` of which each of its messages has one, sorted (none: it takes all messages).

    `lost` has, by fence, what was taken from a grant before it was done, so that a repeated ack can
    be told from a late one. Below `unknown_below` that is not known of all grants: of those, what
    is done and not in the grant any more counts as done by another.
    """

    cursor: int = 0
    frontier: int = 0
    done: Ranges = field(default_factory=Ranges)
    grants: dict[int, Grant] = field(default_factory=dict)
    skipped: int = 0
    paused: bool = False
    mode: Mode | None = None
    lost: dict[int, Ranges] = field(default_factory=dict)
    unknown_below: int = NEVER
    tags: tuple[str, ...] = ()
    #: The fences of each consumer's grants: derived, so that one that goes costs what it held.
    held: dict[int, dict[int, None]] = field(init=False, compare=False, default_factory=dict)
    holders: Holders = field(init=False, compare=False, repr=False, default_factory=Holders)

    def __post_init__(self) -> None:
        """Derive the holders of messages."""
        for fence, grant in self.grants.items():
            self._note(fence, grant)

    @property
    def keeps_order(self) -> bool:
        """Whether it is keyed or ordered."""
        return self.mode is not None and self.mode is not Mode.SHARED

    def grant(self, fence: int, record: MessagesGranted) -> Grant | None:
        """Lease the first run of [first, next) that is not done, superseding grants it overlaps;
        or, of the record's runs, all that is not done.

        An ack may have come between the proposal of a grant and its commit: what is done is never
        granted, and None is returned if all of it is. What lies behind the run stays where it is.
        """
        self.unknown_below = min(self.unknown_below, fence)
        if self.mode is None:
            self.mode = Mode.SHARED
        if self.mode is Mode.ORDERED:
            if not self._is_next(record):
                return None
            self._depose(record.first, record.counted)
        runs, attempts = record.runs or [(record.first, record.next)], 1
        if record.first < self.frontier or self.tags:  # else nobody had any of it yet
            if record.runs:
                runs = [run for whole in runs for run in self.not_done(*whole)]
            else:
                run = self.done.gap_from(max(record.first, self.cursor), record.next)
                runs = [run] if run[0] < run[1] else []
            runs = _not_aside(self, runs, bool(record.runs))
            attempts = self._take_over(runs, record.counted)
        self.frontier = max(self.frontier, record.next)
        if not runs:
            return None
        return self.hold(fence, Grant(record.consumer, record.deadline, attempts, Ranges(runs)))

    def _is_next(self, record: MessagesGranted) -> bool:
        """Whether all in front of a grant is done or with the same consumer: since it was proposed,
        that may have been given back.
        """
        for first, behind in self.not_done(self.cursor, record.first):
            for fence, begin, end in self.holders.within(first, behind):
                if begin > first or self.grants[fence].consumer != record.consumer:
                    return False
                first = end
            if first < behind:
                return False
        return True

    def _depose(self, first: int, counted: Counted = None) -> None:
        """Take from all consumers what lies from `first` on: nobody is to do that before `first`.

        It is nobody's at once, with the attempts that it took, and its fencing numbers are void:
        late acks take nothing of it.
        """
        for fence, begin, behind in self.holders.within(first, self.frontier):
            grant = self.grants[fence]
            if grant.consumer != NOBODY:
                if counted is not None:
                    grant.count(counted)
                self._lose(fence, begin, behind)
                self.take(fence, grant, begin, behind)
                known = self.grants.get(-fence)
                if known is None:
                    rest = Ranges([(begin, behind)])
                    known = self.hold(-fence, Grant(NOBODY, AT_ONCE, grant.attempts, rest))
                else:
                    known.left.add(begin, behind)
                    self.holders.put(begin, behind, -fence)
                for run in grant.untried.within(begin, behind):
                    known.untried.add(*run)

    def _take_over(self, runs: Sequence[tuple[int, int]], counted: Counted) -> int:
        """Take runs from their holders; return their attempts, the new one included."""
        attempts = 1
        for run in runs:
            for old, first, behind in self.holders.within(*run):
                grant = self.grants[old]
                if counted is not None:
                    grant.count(counted)
                tries = max(known for *_, known in grant.tries(first, behind))
                attempts = max(attempts, tries + 1)
                if grant.consumer != NOBODY:
                    self._lose(old, first, behind)
                self.take(old, grant, first, behind)
        return attempts

    def not_done(self, first: int, behind: int) -> list[tuple[int, int]]:
        """Return the runs of [first, behind) that are not done."""
        found: list[tuple[int, int]] = []
        first = max(first, self.cursor)
        while first < behind:
            run = self.done.gap_from(first, behind)
            if run[0] < run[1]:
                found.append(run)
            first = run[1]
        return found

    def ack(self, fence: int, first: int, behind: int) -> bool:
        """Mark messages done that are of this grant; False if some are neither that nor done yet.

        Those went to another consumer and are done there: an ack takes nothing from anybody else.
        """
        grant = self.grants.get(fence)
        if grant is None:
            return self._is_done(first, behind)
        for run in grant.left.within(first, behind):
            self.done.add(*run)
            self.take(fence, grant, *run)
        self._advance()
        return self._is_done(first, behind)

    def late(self, fence: int, first: int, behind: int) -> Iterator[tuple[int, int, AckOutcome]]:
        """Yield runs [first, behind) that an ack of a grant, to be applied next, will find not to
        be that grant's work, in their order, and why.
        """
        grant, lost = self.grants.get(fence), self.lost.get(fence)
        mine = Ranges() if grant is None else grant.left
        is_known = fence >= self.unknown_below
        not_done = Ranges(self.not_done(first, behind))
        for begin, end in _outside(mine, first, behind):
            for undone in not_done.within(begin, end):
                yield (*undone, AckOutcome.EXPIRED)
            for done in _outside(not_done, begin, end):
                if not is_known:
                    yield (*done, AckOutcome.DONE_ELSEWHERE)
                elif lost is not None:
                    for run in lost.within(*done):
                        yield (*run, AckOutcome.DONE_ELSEWHERE)

    def _lose(self, fence: int, first: int, behind: int) -> None:
        """Remember that a grant lost messages that it had not done."""
        lost = self.lost.get(fence)
        if lost is not None:
            lost.add(first, behind)
            return
        self.lost[fence] = Ranges([(first, behind)])
        if len(self.lost) > LOST_GRANTS_MAX:
            oldest = next(iter(self.lost))
            del self.lost[oldest]
            self.unknown_below = max(self.unknown_below, oldest + 1)

    def give_back(self, fence: int, record: MessagesReturned) -> bool:
        """Let nobody have what a grant still holds of the record's ranges, under fencing number
        `fence`, until the record's deadline; False if some are neither that nor done.
        """
        grant, runs, whole = self.grants.get(record.fence), Ranges(), True
        for first, behind in record.ranges:
            for run in grant.left.within(first, behind) if grant is not None else ():
                whole = whole and self._is_done(first, run[0])
                first = run[1]
                runs.add(*run)
            whole = whole and self._is_done(first, behind)
        if grant is not None and runs:
            for run in runs:
                self._lose(record.fence, *run)
                self.take(record.fence, grant, *run)
            attempts = grant.attempts - record.untried
            self.hold(fence, Grant(NOBODY, record.deadline, attempts, runs))
            if self.mode is Mode.ORDERED:
                self._depose(next(iter(runs))[0])
        return whole

    def skip(self, first: int, behind: int) -> None:
        """Messages [first, behind) never were, and nobody was granted any of them."""
        self.done.add(max(first, self.cursor), behind)
        self._advance()

    def skip_unwanted(self, first: int, behind: int) -> None:
        """Messages [first, behind) have none of its tags: they are done, and nobody holds them."""
        first = max(first, self.cursor)
        for fence, begin, end in self.holders.within(first, behind):
            self.take(fence, self.grants[fence], begin, end)
        self.done.add(first, behind)
        self._advance()

    def extend(self, fence: int, deadline: int) -> bool:
        """Let a grant end no sooner than at `deadline`; False if it is over, or of nobody here."""
        grant = self.grants.get(fence)
        if grant is None or grant.consumer == NOBODY or grant.deadline == AT_ONCE:
            return False
        grant.deadline = max(grant.deadline, deadline)
        grant.untried = Ranges()  # it goes on: what counts is said when it ends
        return True

    def open(self, mode: Mode, tags: tuple[str, ...] = ()) -> None:
        """Choose the cluster's mode and its tags, unless that is done."""
        if self.mode is None:
            self.mode, self.tags = mode, tags

    def _advance(self) -> None:
        run = self.done.first_run()
        if run and run[0] <= self.cursor:
            self.cursor = max(self.cursor, run[1])
            # What was skipped lies ahead of all that was granted.
            self.frontier = max(self.frontier, self.cursor)
            self.done.discard(0, self.cursor)

    def seek(self, offset: int) -> None:
        """Go on at `offset`: nothing from there on is done, and nothing is with anybody."""
        self.cursor = self.frontier = offset
        self.done = Ranges()
        self.lost.clear()
        self.unknown_below = NEVER
        self.grants.clear()
        self.held.clear()
        self.holders = Holders()

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone: they are no longer granted, and their grants end."""
        if start <= self.cursor:
            return
        done = self.done.count
        self.done.discard(0, start)
        self.skipped += start - self.cursor - (done - self.done.count)
        self.cursor, self.frontier = start, max(self.frontier, start)
        for fence, first, behind in self.holders.within(0, start):
            self._lose(fence, first, behind)
            self.take(fence, self.grants[fence], first, behind)
        self._advance()

    def lag(self, behind: int) -> int:
        """Return how many messages below offset `behind` are not done."""
        return behind - self.cursor - self.done.count

    def holder(self, offset: int) -> tuple[int, int]:
        """Return the fence of the grant that holds a message, and how often that was granted; (0,
        0) if it is with nobody.
        """
        for fence, *_ in self.holders.within(offset, offset + 1):
            ((*_, attempts),) = self.grants[fence].tries(offset, offset + 1)
            return fence, attempts
        return 0, 0

    @property
    def granted(self) -> int:
        """How many messages are with consumers."""
        return sum(grant.left.count for grant in self.grants.values()) - self.held_back

    @property
    def held_back(self) -> int:
        """How many messages were given back and not granted again."""
        return sum(self.grants[fence].left.count for fence in self.held.get(NOBODY, ()))

    @property
    def attempts(self) -> int:
        """The most grants that a message took which is not done."""
        return max((grant.attempts for grant in self.grants.values()), default=0)

    def release(self, consumer: int, counted: Counted = None) -> bool:
        """Let a gone consumer's messages be granted at once; return whether it held any."""
        held = self.held.get(consumer, {})
        for fence in held:
            grant = self.grants[fence]
            if counted is not None:
                grant.count(counted)
            grant.deadline = AT_ONCE
        return bool(held)

    def _is_done(self, first: int, behind: int) -> bool:
        first = max(first, self.cursor)
        return first >= behind or self.done.covers(first, behind)

    # -- who holds what ----------------------------------------------------------------------

    def hold(self, fence: int, grant: Grant) -> Grant:
        """Let a grant hold what is left of it, which nobody holds."""
        self.grants[fence] = grant
        self._note(fence, grant)
        return grant

    def _note(self, fence: int, grant: Grant) -> None:
        self.held.setdefault(grant.consumer, {})[fence] = None
        for run in grant.left:
            self.holders.put(*run, fence)

    def take(self, fence: int, grant: Grant, first: int, behind: int) -> None:
        """Take [first, behind) from a grant that holds all of it; an empty one is over."""
        grant.left.discard(first, behind)
        self.holders.clear(first, behind)
        if grant.left:
            return
        del self.grants[fence]
        fences = self.held[grant.consumer]
        del fences[fence]
        if not fences:
            del self.held[grant.consumer]

    # -- snapshots ---------------------------------------------------------------------------

    def encode(self) -> tuple[object, ...]:
        """Return the state for a snapshot: what it holds changes no more."""
        grants = [
            (fence, g.consumer, g.deadline, g.attempts, list(g.left))
            for fence, g in self.grants.items()
        ]
        mode = -1 if self.mode is None else int(self.mode)
        fields = (
            self.cursor, self.frontier, self.done.encode(), grants, self.skipped, self.paused, mode,
            [(fence, list(runs)) for fence, runs in self.lost.items()], self.unknown_below,
            [(fence, list(g.untried)) for fence, g in self.grants.items() if g.untried],
        )  # fmt: skip
        return (*fields, self.tags) if self.tags else fields  # as releases before know it

    @classmethod
    def decode(
        cls,
        cursor: int,
        frontier: int,
        done: Any,
        grants: Any,
        skipped: int,
        paused: bool,
        mode: int,
        lost: Any = (),
        unknown_below: int = NEVER,
        untried: Any = (),
        tags: Sequence[str] = (),
    ) -> ClusterState:
        """Return the state of a snapshot; one of an earlier release does not say what was lost, or
        is untried, or which tags are wanted.
        """
        held = {
            fence: Grant(consumer, deadline, attempts, Ranges([(a, b) for a, b in left]))
            for fence, consumer, deadline, attempts, left in grants
        }
        for fence, runs in untried:
            held[fence].untried = Ranges([(a, b) for a, b in runs])
        chosen = Mode(mode) if mode >= 0 else None
        known = {fence: Ranges([(a, b) for a, b in runs]) for fence, runs in lost}
        return cls(
            cursor, frontier, Ranges.decode(*done), held, skipped, paused, chosen, known,
            unknown_below, tuple(tags),
        )  # fmt: skip


def _outside(ranges: Ranges, first: int, behind: int) -> Iterator[tuple[int, int]]:
    """Yield what of [first, behind) is not in `ranges`."""
    for begin, end in ranges.within(first, behind):
        if first < begin:
            yield first, begin
        first = end
    if first < behind:
        yield first, behind


def _not_aside(
    cluster: ClusterState, runs: list[tuple[int, int]], several: bool
) -> list[tuple[int, int]]:
    """Return what of `runs` is not with undecided acks; or the first of it."""
    if NOBODY not in cluster.held:
        return runs
    free = Ranges(runs)
    for run in runs:
        for fence, *held in cluster.holders.within(*run):
            if cluster.grants[fence].deadline == NEVER:
                free.discard(*held)
    return list(free) if several else list(free)[:1]


class EndedTurn(msgspec.Struct, frozen=True):
    """How far a turn came; if it was given back, for how many ms, and whether it was untried."""

    offsets: tuple[int, ...]
    given_back: tuple[int, bool] | None = None


@dataclass(slots=True)
class Cursor:
    """How far a cluster is, and whose turn it is until `deadline`, a stamp.

    `offsets` by partition; those of partitions that joined later are 0. `attempts` counts the turns
    that were taken here and did not get on. A `paused` one gives no turns.
    """

    offsets: tuple[int, ...] = ()
    fence: int = 0
    consumer: int = NOBODY
    deadline: int = AT_ONCE
    attempts: int = 0
    paused: bool = False
    #: By fencing number, turns that are over: so a repeat of what was done is told from what came
    #: too late. It decides nothing else, and no snapshot holds it.
    ended: dict[int, EndedTurn] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Take up what a snapshot says of the last turn, if that is over."""
        if self.consumer == NOBODY:
            self._end()

    def take(self, index: int, record: CursorTaken) -> bool:
        """Give the turn under fencing number `index`, unless another had it first."""
        if self.fence != record.after or self.paused:
            return False
        self._end()
        self.fence, self.consumer, self.deadline = index, record.consumer, record.deadline
        if not self.offsets:
            self.offsets = record.offsets
        self.attempts += 1
        return True

    def move(self, record: CursorMoved) -> bool:
        """Let the holder of the turn get on, or end it; False if it is another's by now.

        One that ends `untried` does not count. One that goes on untried has nothing to do: what
        comes next was never tried.
        """
        if self.fence != record.fence or self.consumer == NOBODY:
            return False
        # One that was sent before another may come behind it, over another connection.
        offsets = tuple(map(max, zip_longest(record.offsets, self.offsets, fillvalue=0)))
        if offsets != self.offsets:
            self.offsets, self.attempts = offsets, 1
        self.deadline = record.deadline
        if record.ends:
            self.consumer = NOBODY
            self.attempts = max(self.attempts - record.untried, 0)
            self._end(ending_of(record))
        elif record.untried:
            self.attempts = 0
        return True

    def _end(self, given_back: tuple[int, bool] | None = None) -> None:
        """Remember how far the turn came, unless that is known or a seek has ended it."""
        if self.fence > 0 and self.fence not in self.ended:
            self.ended[self.fence] = EndedTurn(self.offsets, given_back)
            if len(self.ended) > _ENDED_MAX:
                del self.ended[next(iter(self.ended))]

    def was_done(self, fence: int, offsets: Sequence[int], ending: tuple[int, bool] | None) -> bool:
        """Whether all below `offsets` was done in a turn that is over, which was given back so if
        there is an `ending`; False also where that is not known any more.
        """
        turn = self.ended.get(fence)
        if turn is None or ending not in (None, turn.given_back):
            return False
        return all(said <= done for said, done in zip_longest(offsets, turn.offsets, fillvalue=0))

    def seek(self, record: CursorSought) -> None:
        """Continue elsewhere: the present turn ends."""
        self.ended.clear()
        self.offsets = record.offsets
        self.consumer, self.deadline, self.attempts = NOBODY, AT_ONCE, 0
        self.fence = -abs(self.fence)

    def release(self, consumer: int) -> bool:
        """The holder is gone: the turn is anybody's at once."""
        if self.consumer != consumer:
            return False
        self.consumer, self.deadline = NOBODY, AT_ONCE
        self._end()
        return True


def ending_of(record: CursorMoved) -> tuple[int, bool] | None:
    """Return for how many ms a move gives its turn back, and whether untried; None: it keeps it."""
    if not record.ends:
        return None
    delay_ms = milliseconds_of(record.deadline) - milliseconds_of(record.stamp)
    return max(delay_ms, 0), record.untried


class Cursors(dict[str, Cursor]):
    """The cursors of a topic's clusters, by name."""

    def done_in(self, partition: int) -> dict[str, int]:
        """Return the offset of a partition below which each cluster is done; 0 where it has not
        come to that partition.
        """
        return {
            name: cursor.offsets[partition] if partition < len(cursor.offsets) else 0
            for name, cursor in self.items()
        }

    def release(self, consumer: int) -> bool:
        """A consumer is gone; return whether it had a turn."""
        released = [cursor.release(consumer) for cursor in self.values()]
        return any(released)

    def encode(self) -> list[tuple[object, ...]]:
        """Return what `decode` makes the same cursors of."""
        return [
            (name, c.offsets, c.fence, c.consumer, c.deadline, c.attempts, c.paused)
            for name, c in self.items()
        ]

    @classmethod
    def decode(cls, rows: Iterable[Sequence[object]]) -> Cursors:
        """Return the cursors that gave these rows."""
        cursors = cls()
        for name, offsets, *fields in rows:
            cursors[name] = Cursor(tuple(offsets), *fields)  # type: ignore[index,arg-type]
        return cursors
