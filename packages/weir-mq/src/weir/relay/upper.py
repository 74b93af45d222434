"""Serves the pulls of children: the upper side of a hop, in a relay and in the core alike.

A child has one pull under way. It is answered once there is something to tell, or after
`PULL_WAIT_MS` with nothing. Each is checked against the filters of the entries that it covers, not
against the newest one. What children need is held (`weir.relay.holds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from weir.model.ids import LIMIT_MAX
from weir.model.limits import HOLDS_MAX, RETRY_AFTER_MS, ROSTER_ENTRIES_TOLD_MAX
from weir.relay.holds import Child, HoldLimits, Holds
from weir.relay.messages import (
    UNKNOWN,
    Answer,
    AnyRefusal,
    AskFilter,
    Behind,
    FilterFrom,
    FilterNotCovered,
    LineageEnded,
    Mark,
    OffsetOutOfRange,
    Overloaded,
    Pull,
)
from weir.relay.portion import Plan, Portion
from weir.relay.ports import (
    FilterAsked,
    HoldSaid,
    LinkClosed,
    LogCut,
    LogMoved,
    PortionLost,
    PortionRead,
    PullCame,
    ReadPortion,
    SendToChild,
    Ticked,
    UpperEffect,
    UpperEvent,
)
from weir.relay.rows import RosterEntry, Tags, unpack_tags

#: A pull for which there is nothing is answered after this long.
PULL_WAIT_MS = 1_000
#: A relay that has heard nothing of the core for ten such waits serves only what it has.
STALE_MS = 10 * PULL_WAIT_MS


class Source(Protocol):
    """What the upper side serves from: the log of a relay, or a partition of the core.

    Offsets [start, end) may be served: in the core only what is committed and decided.
    """

    @property
    def is_open(self) -> bool:
        """Whether the log has begun."""

    @property
    def lineage(self) -> int:
        """The lineage that the log is of."""

    @property
    def forks(self) -> Sequence[tuple[int, int]]:
        """All changes of lineage: (lineage, its first offset)."""

    @property
    def start(self) -> int:
        """What lies below was reclaimed."""

    @property
    def log_start(self) -> int:
        """What lies below is past retention in the core; -1 where nobody has said so yet."""

    @property
    def end(self) -> int:
        """Up to where the log may be served."""

    @property
    def roster(self) -> Sequence[RosterEntry]:
        """The entries about the roster, by number."""

    @property
    def mark(self) -> Mark | None:
        """The newest mark."""

    def age_ms(self, now_ms: int) -> int:
        """Return how old the last news of the core are."""

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages than this one took; -1 if there is none."""

    def next_kept(self, offset: int) -> int:
        """Return the offset itself if it is here or is to come, else the next one that is."""

    def reach(self, offset: int, tags: Tags) -> int:
        """Return up to where all from `offset` on may be served for tags; `offset` if nothing."""

    def covered_from(self, tags: Tags) -> int:
        """Return from where on all is kept for tags, durably; -1 if that is not known yet."""

    def plan(self, pull: Pull, until: int) -> Plan:
        """Return what is to be read for a pull, up to `until`."""

    def affordable(self, bytes_max: int) -> int:
        """Return the offset from which on no more than so many bytes are held."""


class _Waiting(msgspec.Struct):
    """The pull of a child, from which link it came, and when; the ticket of what is read for it."""

    link: int
    pull: Pull
    since_ms: int
    ticket: int = 0


class Upper:
    """The upper side of one partition."""

    __slots__ = ("_group", "_source", "_stale_ms", "_tickets", "_waiting", "holds")

    def __init__(
        self, group: int, source: Source, limits: HoldLimits, stale_ms: int = STALE_MS
    ) -> None:
        """Serve a group from a source. A source of which the last news is older than `stale_ms`
        does not let anybody wait: there may be more elsewhere.
        """
        self._group = group
        self._stale_ms = stale_ms
        self._source = source
        self.holds = Holds(limits)
        self._waiting: dict[Child, _Waiting] = {}
        self._tickets = 0

    def handle(self, event: UpperEvent, now_ms: int) -> list[UpperEffect]:
        """Take an event; return what is to be done, in order."""
        match event:
            case PullCame(link, pull):
                return self._take(link, pull, now_ms)
            case FilterAsked(link, asked):
                return [SendToChild(link, self._cover(asked))]
            case HoldSaid(said):
                source = self._source
                if source.is_open and said.lineage == source.lineage:
                    child = (said.brokerset, said.node)
                    # No child has more than there is: else what comes next would not be kept.
                    self.holds.say_again(child, min(said.durable_through, source.end), now_ms)
                return []
            case LinkClosed(link):
                for child in [c for c, one in self._waiting.items() if one.link == link]:
                    del self._waiting[child]
                return []
            case PortionRead(ticket, portion):
                return self._answer(ticket, portion, now_ms)
            case PortionLost(ticket, behind):
                return self._lose(ticket, behind)
            case LogCut(offset):
                self.holds.cut(offset)
                return self.look(now_ms)
            case LogMoved() | Ticked():
                return self.look(now_ms)

    def look(self, now_ms: int) -> list[UpperEffect]:
        """Serve those who wait, as the source is now."""
        effects: list[UpperEffect] = []
        for child in list(self._waiting):
            effects += self._serve(child, now_ms)
        return effects

    @property
    def source(self) -> Source:
        """What is served from."""
        return self._source

    @property
    def _log_start(self) -> int:
        """What lies below is past retention in the core, as far as is known here."""
        return max(self._source.start, self._source.log_start)

    @property
    def awaited(self) -> int:
        """The lowest stamp at which a child waits for a mark; a number above all if none does."""
        return min((one.pull.awaited for one in self._waiting.values()), default=LIMIT_MAX)

    def _cover(self, asked: AskFilter) -> FilterFrom:
        found = self._source.covered_from(unpack_tags(asked.tags))
        return FilterFrom(self._group, asked.number, found)

    def _take(self, link: int, pull: Pull, now_ms: int) -> list[UpperEffect]:
        child = (pull.brokerset, pull.node)
        if child not in self._waiting and len(self._waiting) >= HOLDS_MAX:
            return [SendToChild(link, self._overloaded(pull))]
        source, tags = self._source, unpack_tags(pull.tags)
        if source.is_open and pull.lineage == source.lineage:
            begins = pull.offset == UNKNOWN  # then it is told where, and nothing may go meanwhile
            needed = source.start if begins else min(pull.durable_through, pull.offset, source.end)
            if not self.holds.say(child, needed, tags, now_ms):
                return [SendToChild(link, self._overloaded(pull))]
        self._waiting[child] = _Waiting(link, pull, now_ms)
        return self._serve(child, now_ms)

    def _overloaded(self, pull: Pull) -> Overloaded:
        return Overloaded(self._group, pull.number, RETRY_AFTER_MS)

    def _serve(self, child: Child, now_ms: int) -> list[UpperEffect]:
        waiting = self._waiting[child]
        if waiting.ticket:
            return []
        pull, source = waiting.pull, self._source
        tags = unpack_tags(pull.tags)
        if (refusal := self._refusal(child, pull)) is not None:
            return self._end(child, refusal)
        until, untold = (
            min(source.reach(pull.offset, tags), pull.until),
            source.roster[pull.roster :],
        )
        if len(untold) > ROSTER_ENTRIES_TOLD_MAX:  # messages come behind the entries they need
            until = min(until, untold[ROSTER_ENTRIES_TOLD_MAX].offset)
        if until > pull.offset:
            self._tickets += 1
            waiting.ticket = self._tickets
            return [ReadPortion(self._tickets, source.plan(pull, until), waiting.link)]
        if untold and untold[0].offset <= pull.offset:
            return self._tell(child, _nothing(pull.offset), now_ms)
        if source.age_ms(now_ms) > self._stale_ms:
            return self._end(child, Overloaded(self._group, pull.number, PULL_WAIT_MS))
        waited = now_ms - waiting.since_ms
        marks = self._marks(pull.offset, not untold)
        if waited >= PULL_WAIT_MS or (marks and marks[0].stamp >= pull.awaited):
            return self._tell(child, _nothing(pull.offset), now_ms)
        return []

    def _refusal(self, child: Child, pull: Pull) -> AnyRefusal | None:
        """Return why a pull cannot be served now; None if it can, or may wait."""
        source, group, number = self._source, self._group, pull.number
        if not source.is_open or pull.lineage > source.lineage:
            return Behind(group, number, source.end)
        if pull.lineage < source.lineage:
            fork = max(source.fork_of(pull.lineage), 0)
            return LineageEnded(group, number, source.lineage, fork, tuple(source.forks))
        if pull.offset == UNKNOWN:
            return OffsetOutOfRange(group, number, source.start, self._log_start)
        if pull.offset > source.end:
            return Behind(group, number, source.end)
        if pull.offset < source.start:
            return OffsetOutOfRange(group, number, source.start, self._log_start)
        if (kept := source.next_kept(pull.offset)) > pull.offset:
            return OffsetOutOfRange(group, number, kept, self._log_start)
        tags = unpack_tags(pull.tags)
        if pull.offset < source.end and source.reach(pull.offset, tags) == pull.offset:
            return FilterNotCovered(group, number, source.covered_from(tags))
        return None

    def _answer(self, ticket: int, portion: Portion | None, now_ms: int) -> list[UpperEffect]:
        child = next((c for c, one in self._waiting.items() if one.ticket == ticket), None)
        if child is None:
            return []  # it pulled again meanwhile, or hung up
        waiting = self._waiting[child]
        waiting.ticket = 0
        # The log may have been cut meanwhile, or retention has passed what was to be read.
        refusal = self._refusal(child, waiting.pull)
        if refusal is not None:
            return self._end(child, refusal)
        if portion is None:
            return self._end(child, self._overloaded(waiting.pull))
        if portion.next > self._source.end:
            return self._serve(child, now_ms)
        return self._tell(child, portion, now_ms)

    def _lose(self, ticket: int, behind: int) -> list[UpperEffect]:
        """Tell a child from where on there is something again, so that it goes on there."""
        child = next((c for c, one in self._waiting.items() if one.ticket == ticket), None)
        if child is None:
            return []
        waiting = self._waiting[child]
        waiting.ticket = 0
        lost = OffsetOutOfRange(self._group, waiting.pull.number, behind, self._log_start)
        return self._end(child, self._refusal(child, waiting.pull) or lost)

    def _tell(self, child: Child, portion: Portion, now_ms: int) -> list[UpperEffect]:
        waiting = self._waiting.pop(child)
        pull, source = waiting.pull, self._source
        roster: list[RosterEntry] = []
        for entry in source.roster[pull.roster : pull.roster + ROSTER_ENTRIES_TOLD_MAX]:
            if entry.offset <= portion.next:
                roster.append(entry)
        is_all = pull.roster + len(roster) >= len(source.roster)
        head = max(source.end, portion.next)
        answer = Answer(
            self._group, pull.number, source.lineage, portion.first, portion.next, portion.rows,
            min(self._log_start, head), head, tuple(roster),
            self._marks(portion.next, is_all), portion.chunks, source.age_ms(now_ms),
            source.log_start >= 0,
        )  # fmt: skip
        return [SendToChild(waiting.link, answer, portion.data)]

    def _marks(self, reached: int, is_all: bool) -> tuple[Mark, ...]:
        """Return the newest mark, if a child that has reached an offset, and has all of the roster,
        has all before it.
        """
        mark = self._source.mark
        return (mark,) if mark is not None and mark.through <= reached and is_all else ()

    def _end(self, child: Child, refusal: AnyRefusal) -> list[UpperEffect]:
        return [SendToChild(self._waiting.pop(child).link, refusal)]


def _nothing(offset: int) -> Portion:
    return Portion(offset, offset, (), (), ())
