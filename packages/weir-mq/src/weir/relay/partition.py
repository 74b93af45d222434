"""A relay's partition: it pulls from above, stores, serves below, and reclaims what nobody needs.

`RelayPartition.handle` takes an event and the clock, and returns effects in order. What was checked
is served at once, before it is durable here: entries never change, lie at their offsets, and are
held above until `durable_through` passes them. Only that waits for the sync (docs/RELAYS.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from weir.codec import Buffer, total
from weir.model.ids import LIMIT_MAX
from weir.model.limits import FILTERS_KEPT_MAX, HOLDS_STORED_EVERY_MS
from weir.relay.entries import (
    AnyRecord,
    ChunkStored,
    FilterSet,
    Forked,
    GapTold,
    HoldsStored,
    Relayed,
    StartMoved,
    encode_entry,
)
from weir.relay.holds import HoldLimits
from weir.relay.lower import SAY_EVERY_MS, Lower, Me
from weir.relay.messages import (
    Answer,
    AnyRefusal,
    LineageEnded,
    Mark,
    OffsetOutOfRange,
    Pull,
    TopicGone,
)
from weir.relay.portion import Plan
from weir.relay.ports import (
    Alarm,
    AnswerCame,
    AppendEntry,
    ChildrenSet,
    DemandSet,
    Effect,
    Event,
    FilterAsked,
    FilterToldFrom,
    HoldSaid,
    InterestSet,
    LinkClosed,
    Moved,
    PortionRead,
    PullCame,
    ReclaimBelow,
    RefusalCame,
    RetentionSet,
    Setting,
    Synced,
    Ticked,
    TopicEnded,
    UpperNode,
    UppersSet,
)
from weir.relay.rows import Batches, RosterEntry, Tags, covers, merged, pack_tags, unpack_tags
from weir.relay.state import RelayState
from weir.relay.upper import STALE_MS, Upper


class Settings(NamedTuple):
    """What a relay's partition is told when it is made."""

    me: Me
    holds: HoldLimits = HoldLimits()
    #: Pulls are numbered from here on: above all that were used before a restart.
    first_number: int = 0
    #: How often upper nodes are told what is needed that are not pulled from.
    say_every_ms: int = SAY_EVERY_MS
    #: After so long without news of the core children are sent elsewhere.
    stale_ms: int = STALE_MS


class RelaySource:
    """What the upper side serves from a relay's log."""

    __slots__ = ("_state", "durable_index", "heard_ms", "log_start", "mark")

    def __init__(self, state: RelayState, now_ms: int) -> None:
        """Serve what a state says, which is durable as it was read back."""
        self._state = state
        self.durable_index = state.index
        self.mark: Mark | None = None
        #: Of the core, as upper nodes said it: -1 before they did.
        self.log_start = -1
        #: Of when the last news of the core are; of the start before there were any.
        self.heard_ms = now_ms

    @property
    def is_open(self) -> bool:
        """Whether the log has begun."""
        return self._state.begun

    @property
    def lineage(self) -> int:
        """The lineage that the log is of."""
        return self._state.lineage

    @property
    def forks(self) -> Sequence[tuple[int, int]]:
        """All changes of lineage: (lineage, its first offset)."""
        return self._state.forks

    @property
    def start(self) -> int:
        """What lies below was reclaimed."""
        return self._state.start

    @property
    def end(self) -> int:
        """Up to where the log goes; the last of it may not be durable yet."""
        return self._state.end

    @property
    def roster(self) -> Sequence[RosterEntry]:
        """The entries about the roster, by number."""
        return self._state.roster

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages than this one took; -1 if there is none."""
        return self._state.fork_of(lineage)

    def age_ms(self, now_ms: int) -> int:
        """Return how old the last news of the core are."""
        return max(now_ms - self.heard_ms, 0)

    def next_kept(self, offset: int) -> int:
        """Return the offset itself, or the end of the gap that it lies in."""
        return next((b for a, b in self._state.gaps if a <= offset < b), offset)

    def reach(self, offset: int, tags: Tags) -> int:
        """Return up to where all from `offset` on may be served for tags; `offset` if nothing."""
        return self._state.reach(offset, tags)

    def covered_from(self, tags: Tags) -> int:
        """Return from where on all is kept for tags, durably; -1 if that is not known yet."""
        return self._state.covered_from(tags, self.durable_index)

    def plan(self, pull: Pull, until: int) -> Plan:
        """Return what is to be read for a pull, up to `until`."""
        indexes = self._state.entries_from(pull.offset, until, pull.credit)
        return Plan(
            pull.group, pull.offset, until, unpack_tags(pull.tags), pull.credit, pull.last_chunk,
            indexes,
        )  # fmt: skip

    def affordable(self, bytes_max: int) -> int:
        """Return the offset from which on no more than so many bytes are held."""
        found = self._state.ranges.affordable(bytes_max)
        return self._state.end if found < 0 else found


class _Wishes(msgspec.Struct):
    """What the host told: which tags are wanted, what no consumer needs, and which mark."""

    tags: Tags = frozenset()
    is_known: bool = False
    retention: int = 0
    awaited: int = LIMIT_MAX


class RelayPartition:
    """One partition of a relay."""

    __slots__ = (
        "_durable", "_lower", "_settings", "_source", "_stored_ms", "_synced", "_wishes", "state",
        "upper",
    )  # fmt: skip

    def __init__(
        self, settings: Settings, state: RelayState, batches: Batches, now_ms: int
    ) -> None:
        """Go on from the state that the log on disk makes, all of which is durable; a log that is
        lost is a new state.
        """
        self._settings = settings
        self.state = state
        self._source = RelaySource(state, now_ms)
        self.upper = Upper(
            settings.me.group, self._source, settings.holds, settings.stale_ms
        )  # fmt: skip
        self._lower = Lower(settings.me, batches, settings.first_number, settings.say_every_ms)
        self._wishes = _Wishes()
        #: Ends of the log by index, of entries that are not durable yet; then the durable end.
        self._synced: list[tuple[int, int]] = []
        self._durable = state.end
        self._stored_ms = now_ms
        held = state.holds
        self.upper.holds.restore(held.rows, held.begun_ms, held.begun_at)
        if state.begun:
            # A child may have come since the holds were stored.
            self.upper.holds.begin(state.start, now_ms)

    @property
    def log_start(self) -> int:
        """What lies below is past retention in the core; -1 where nobody has said so yet."""
        return self._source.log_start

    @property
    def durable_end(self) -> int:
        """Up to where the log is durable."""
        return self._durable

    def durable_through(self, now_ms: int) -> int:
        """What this relay tells above that it needs no more: what is durable here, as far as no
        child needs it. A relay whose disk is lost gets again what its children lack.
        """
        return min(self._durable, self.upper.holds.lowest(now_ms, self.state.end))

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event; return what is to be done, in order. `now_ms` is in ms since 1970."""
        match event:
            case PullCame() | FilterAsked() | HoldSaid() | PortionRead() | LinkClosed():
                effects = self._serve(event, now_ms)
            case AnswerCame() | RefusalCame() | FilterToldFrom():
                effects = self._hear(event, now_ms)
            case Synced(index):
                effects = self._sync(index)
            case Ticked():
                effects = [*self.upper.look(now_ms), *self._reclaim(now_ms)]
                effects += self._lower.say_holds(self.state, self.durable_through(now_ms), now_ms)
                if now_ms - self._stored_ms >= HOLDS_STORED_EVERY_MS:
                    effects += self._store_holds(now_ms)
            case _:
                effects = self._set(event)
        return effects + self._go_on(now_ms)

    def _set(self, event: Setting) -> list[Effect]:
        match event:
            case UppersSet(uppers):
                self._lower.use(uppers)
            case InterestSet(tags):
                self._wishes.tags, self._wishes.is_known = tags, True
            case ChildrenSet(children, limits):
                self.upper.holds.await_children(children)
                if limits is not None:
                    self.upper.holds.limit(limits)
            case RetentionSet(offset):
                self._wishes.retention = offset
            case DemandSet(stamp):
                self._wishes.awaited = stamp
        return []

    def _hear(self, event: AnswerCame | RefusalCame | FilterToldFrom, now_ms: int) -> list[Effect]:
        match event:
            case AnswerCame(upper, answer, data):
                return self._take(upper, answer, data, now_ms)
            case RefusalCame(upper, refusal):
                found = self._lower.refused(upper, refusal, self.state, now_ms)
                return [] if found is None else self._heed(found, now_ms)
            case FilterToldFrom(upper, told):
                wanted = self._wanted(now_ms)
                first = self._lower.filter_told(upper, told, wanted)
                return self._set_filter(wanted, first) if first >= 0 else []

    def _go_on(self, now_ms: int) -> list[Effect]:
        effects = self._refilter(now_ms)
        if self._wishes.is_known and not self._lower.is_waiting(now_ms):
            mark = self._source.mark
            awaited = min(self._wishes.awaited, self.upper.awaited)
            if mark is not None and awaited <= mark.stamp:
                awaited = LIMIT_MAX
            effects += self._lower.pull(self.state, self.durable_through(now_ms), awaited, now_ms)
        return effects

    # -- the log -----------------------------------------------------------------------------

    def _append(self, record: AnyRecord, *data: Buffer) -> AppendEntry:
        encoded = encode_entry(record, *data)
        index = self.state.apply(record, total(encoded))
        self._synced.append((index, self.state.end))
        return AppendEntry(index, record, data, encoded)

    def _sync(self, index: int) -> list[Effect]:
        while self._synced and self._synced[0][0] <= index:
            self._durable = self._synced.pop(0)[1]
        self._source.durable_index = max(self._source.durable_index, index)
        return []

    def _take(
        self, upper: UpperNode, answer: Answer, data: memoryview, now_ms: int
    ) -> list[Effect]:
        verified, effects = self._lower.check(upper, answer, data, self.state, now_ms)
        if verified is None:
            return effects
        state = self.state
        for chunk, piece in zip(answer.chunks, verified.chunks, strict=True):
            effects.append(self._append(ChunkStored(chunk.core_index, state.end), piece))
        if answer.next > answer.first or answer.roster:
            now = state.filter_at(state.end)
            assert now is not None  # `check` found one
            record = Relayed(
                answer.lineage, answer.first, answer.next, now.version, now_ms, answer.rows,
                answer.roster,
            )  # fmt: skip
            effects.append(self._append(record, *verified.batches))
        self._source.heard_ms = max(self._source.heard_ms, now_ms - answer.age_ms)
        if answer.knows_log_start:
            self._source.log_start = max(self._source.log_start, answer.log_start)
        held = self._source.mark
        marks = tuple(
            mark for mark in answer.marks
            if mark.through <= state.end and (held is None or mark.stamp > held.stamp)
        )  # fmt: skip
        if marks:
            self._source.mark = marks[-1]
        if marks or answer.roster or answer.next > answer.first:
            effects.append(Moved(state.start, state.end, marks))
            effects += self.upper.look(now_ms)
        return effects

    # -- what upper nodes refuse -------------------------------------------------------------

    def _heed(self, refusal: AnyRefusal, now_ms: int) -> list[Effect]:
        state = self.state
        match refusal:
            case TopicGone():
                return [TopicEnded()]
            case LineageEnded(lineage=lineage, fork=fork, forks=forks):
                return self._fork(lineage, fork, forks, now_ms)
            case OffsetOutOfRange(start=start) if not state.begun:
                return self._begin(start, now_ms)
            case OffsetOutOfRange(start=start, log_start=log_start):
                gap = (state.end, start)
                self._source.log_start = max(self._source.log_start, log_start)
                entry = self._append(GapTold(*gap, "reclaimed or damaged in the core"))
                text = f"group {self._settings.me.group} lacks offsets [{gap[0]}, {gap[1]})"
                return [entry, Alarm("relay-gap", text), Moved(state.start, start, (), -1, gap)]
        return []

    def _begin(self, start: int, now_ms: int) -> list[Effect]:
        self.upper.holds.begin(start, now_ms)
        return [self._append(StartMoved(start)), *self._store_holds(now_ms)]

    def _fork(
        self, lineage: int, fork: int, forks: tuple[tuple[int, int], ...], now_ms: int
    ) -> list[Effect]:
        end = self.state.end
        entry = self._append(Forked(lineage, fork, forks))
        self._lower.forget()
        self._source.mark = None
        cut = self.state.end
        self.upper.holds.cut(cut)
        self._durable = min(self._durable, cut)
        self._synced = [(index, min(reached, cut)) for index, reached in self._synced]
        effects: list[Effect] = [entry]
        if self.state.end < end:
            effects.append(Moved(self.state.start, self.state.end, (), self.state.end))
        return effects + list(self.upper.look(now_ms))

    # -- filters -----------------------------------------------------------------------------

    def _wanted(self, now_ms: int) -> Tags:
        """Which tags are to be kept: those of interest, and of what is kept those that a child
        still pulls. So filters narrow from the bottom up.
        """
        if self._wishes.tags is None:
            return None
        now = self.state.filters[-1].tags if self.state.filters else frozenset()
        pulled = self.upper.holds.tags(now_ms)
        still = pulled if now is None else now if pulled is None else now & pulled
        return merged(self._wishes.tags, still)

    def _refilter(self, now_ms: int) -> list[Effect]:
        """Widen the filter once an upper node says from where on that can be; narrow it at once."""
        if not self.state.begun or not self._wishes.is_known:
            return []
        if not self.state.filters:  # the log has just begun
            return [self._append(FilterSet(1, pack_tags(self._wishes.tags), self.state.end))]
        wanted, newest = self._wanted(now_ms), self.state.filters[-1].tags
        if wanted == newest:
            return []
        if covers(newest, wanted):
            return self._set_filter(wanted, 0)
        return self._lower.ask_filter(wanted, now_ms)

    def _set_filter(self, tags: Tags, first: int) -> list[Effect]:
        """Keep these tags from the larger of both on: an offset above, and the own end."""
        newest = self.state.filters[-1]
        if len(self.state.filters) >= FILTERS_KEPT_MAX or tags == newest.tags:
            return []
        begin = max(first, self.state.end, newest.first)
        return [self._append(FilterSet(newest.version + 1, pack_tags(tags), begin))]

    # -- children ----------------------------------------------------------------------------

    def _serve(
        self,
        event: PullCame | FilterAsked | HoldSaid | PortionRead | LinkClosed,
        now_ms: int,
    ) -> list[Effect]:
        holds = self.upper.holds
        known = len(holds)
        effects: list[Effect] = list(self.upper.handle(event, now_ms))
        # A new child is to be known after a restart, and one that is gone as it was last.
        if len(holds) > known or isinstance(event, LinkClosed):
            effects += self._store_holds(now_ms)
        return effects

    def _store_holds(self, now_ms: int) -> list[Effect]:
        holds = self.upper.holds
        if not holds.changed or not self.state.begun:
            return []
        holds.changed = False
        self._stored_ms = now_ms
        return [self._append(HoldsStored(*holds.stored()))]

    def _reclaim(self, now_ms: int) -> list[Effect]:
        """Let go what no child and no consumer needs, as far as it is durable."""
        state, holds = self.state, self.upper.holds
        if not state.begun:
            return []
        floor, told = holds.keep(now_ms, state.end, self._source.affordable)
        effects: list[Effect] = [
            Alarm("relay-hold-passed", f"more is needed by {child} than may be kept")
            for child in told
        ]
        floor = min(floor, self._durable, self._wishes.retention)
        if floor > state.start:
            effects.append(self._append(StartMoved(floor)))
            effects.append(ReclaimBelow(state.kept_index()))
        return effects
