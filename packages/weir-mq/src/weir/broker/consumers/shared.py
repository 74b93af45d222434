"""Mode `shared`: each message to one consumer, those that were granted before in front of new ones.

The frontier passes over messages that are not due: they become holes, and go out when they are due.
That is known by alarms, which all clusters of a partition share: when the first message of a batch
is due, its DUE column is read from the log, once for all clusters that wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import ClassVar

from weir.broker.consumers.picker import (
    Pick,
    Picker,
    PickerContext,
    PullQueue,
    Run,
    runs_of,
    share,
)
from weir.broker.runtime.reads import batches_in
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import DelayRow
from weir.codec import Buffer
from weir.errors import BadBatch, Refused
from weir.model.batch import Columns
from weir.model.ids import LIMIT_MAX
from weir.model.limits import (
    BATCH_MESSAGES_MAX,
    FETCH_BYTES_MAX,
    MIB,
    RETRY_AFTER_MS,
    WATCHED_MAX,
)
from weir.model.topic import Mode
from weir.protocol.client.messages import Pull

#: An alarm is one number, for there may be a million: due time, first offset, messages - 1.
_COUNT_BITS = BATCH_MESSAGES_MAX.bit_length() - 1
_FIRST_BITS = 63
#: How many columns are read at a time, and how many bytes of those that were are kept.
_OPENING_MAX = 16
_COLUMNS_BYTES_MAX = 8 * MIB
#: So many runs of holes of earlier leaders' are looked for at a time.
_HOLES_AT_ONCE = 1_000
#: What a watch would be granted, were it a pull.
_ANY = (WATCHED_MAX, 1)


class DelayedMessages:
    """What one cluster passed by: messages that are not due, and those that have become so."""

    __slots__ = ("due", "waiting")

    def __init__(self) -> None:
        """Begin with none."""
        self.waiting = Ranges()
        self.due = Ranges()

    def let_go(self, first: int, behind: int) -> None:
        """Messages are due: what waits of them may be granted."""
        for run in self.waiting.within(first, behind):
            self.due.add(*run)
        self.waiting.discard(first, behind)

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone."""
        self.waiting.discard(0, start)
        self.due.discard(0, start)


class DueTimes:
    """Alarms for batches of which some cluster waits for messages."""

    __slots__ = (
        "_alarms", "_columns", "_columns_bytes", "_context", "_delayed", "_opening",
    )  # fmt: skip

    def __init__(self, context: PickerContext) -> None:
        """Begin with no alarm; when a column comes late, all clusters are served."""
        self._context = context
        self._alarms: list[int] = []
        self._delayed: dict[str, DelayedMessages] = {}
        #: The batches whose columns are being read, by first offset.
        self._opening: set[int] = set()
        #: The DUE columns that were read last.
        self._columns: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._columns_bytes = 0

    @property
    def is_opening(self) -> bool:
        """Whether a DUE column is being read."""
        return bool(self._opening)

    def join(self, name: str) -> DelayedMessages:
        """Return what the cluster `name` passes by, which is nothing yet."""
        delayed = self._delayed[name] = DelayedMessages()
        return delayed

    def leave(self, name: str) -> None:
        """Forget a cluster."""
        self._delayed.pop(name, None)

    def wait(self, delayed: DelayedMessages, row: DelayRow, first: int, behind: int) -> None:
        """Let [first, behind), some of a row's messages, wait until they are due."""
        known = row.least > self._context.due_ms() and self._is_awaited(row)
        delayed.waiting.add(first, behind)
        if not known:
            self._set(row.least, row.first, row.next)

    def fire(self) -> None:
        """Let messages go that have become due."""
        now_ms = self._context.due_ms() if self._alarms else 0
        while self._alarms and len(self._opening) < _OPENING_MAX:
            least, first, behind = _parts(self._alarms[0])
            if least > now_ms:
                return
            rung = heapq.heappop(self._alarms)
            while self._alarms and self._alarms[0] == rung:
                heapq.heappop(self._alarms)  # set by another cluster that came late to it
            row = self._context.state.delays.of(first)
            if row is None or row.greatest <= now_ms:
                self._let_go(first, behind)  # a row that is gone is past, or its messages are gone
            elif first not in self._opening and self._is_awaited(row):
                self._open(row)

    def _open(self, row: DelayRow) -> None:
        column = self._columns.get(row.first)
        if column is not None:
            self._columns.move_to_end(row.first)
            self._sort(row, column)
            return
        reading = self._context.read(row.first, row.first + 1, 1)
        if reading is None:  # it is lost on this node
            self._again(row)
            return
        self._opening.add(row.first)
        asked = True

        def opened(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            self._opening.discard(row.first)
            found = None if failure else _dues_in(payloads, row.first)
            if found is None:
                self._again(row)
                return
            self._keep(row.first, found)
            self._sort(row, found)
            if not asked:
                self._context.granter.serve_all()

        self._context.reads.start(reading, opened)
        asked = False

    def _again(self, row: DelayRow) -> None:
        self._set(self._context.due_ms() + RETRY_AFTER_MS, row.first, row.next)

    def _sort(self, row: DelayRow, dues: Sequence[int]) -> None:
        """Let go what is due of a batch; for the rest, set the alarm anew."""
        now_us = self._context.due_ms() * 1000
        for first, behind in _runs_of_ones(bytes(map(now_us.__ge__, dues))):
            self._let_go(row.first + first, row.first + behind)
        if self._is_awaited(row):
            following = min(filter(now_us.__lt__, dues))
            self._set(_ceiling_ms(following), row.first, row.next)

    def _let_go(self, first: int, behind: int) -> None:
        for delayed in self._delayed.values():
            delayed.let_go(first, behind)

    def _is_awaited(self, row: DelayRow) -> bool:
        return any(one.waiting.within(row.first, row.next) for one in self._delayed.values())

    def _set(self, at_ms: int, first: int, behind: int) -> None:
        alarm = (at_ms << _FIRST_BITS | first) << _COUNT_BITS | (behind - first - 1)
        heapq.heappush(self._alarms, alarm)

    def _keep(self, first: int, column: Sequence[int]) -> None:
        self._columns[first] = column
        self._columns_bytes += 8 * len(column)
        while self._columns_bytes > _COLUMNS_BYTES_MAX and len(self._columns) > 1:
            _, oldest = self._columns.popitem(last=False)
            self._columns_bytes -= 8 * len(oldest)


def _ceiling_ms(due_us: int) -> int:
    return -(-due_us // 1000)


def _parts(alarm: int) -> tuple[int, int, int]:
    count = (alarm & ((1 << _COUNT_BITS) - 1)) + 1
    alarm >>= _COUNT_BITS
    first = alarm & ((1 << _FIRST_BITS) - 1)
    return alarm >> _FIRST_BITS, first, first + count


def _dues_in(payloads: Sequence[Buffer], first: int) -> Sequence[int] | None:
    """Return the DUE column of the batch that begins at offset `first`."""
    try:
        for batch in batches_in(payloads):
            if batch.header.first_offset == first and batch.piece is None:
                column = batch.numbers(Columns.DUE)
                return None if column is None else memoryview(bytes(column)).cast("q")
    except BadBatch:
        return None
    return None


def _runs_of_ones(flags: bytes) -> Iterator[Run]:
    """Yield the runs of ones."""
    at = flags.find(b"\1")
    while at >= 0:
        end = flags.find(b"\0", at)
        end = len(flags) if end < 0 else end
        yield at, end
        at = flags.find(b"\1", end)


class SharedPicker(Picker):
    """Picks ranges: what was freed, what is due, what ended, what is new."""

    __slots__ = ("_delayed", "_due_times", "_freed", "_holes", "_reached")

    mode: ClassVar[Mode] = Mode.SHARED

    def __init__(
        self, context: PickerContext, name: str, tags: frozenset[str], due_times: DueTimes
    ) -> None:
        """Begin where earlier leaders stopped; what they passed by is found out by and by."""
        super().__init__(context, name, tags)
        cluster = self._cluster
        self._due_times = due_times
        self._delayed = due_times.join(name)
        #: Was granted and could not be read: it may be granted again before its lease ends.
        self._freed = Ranges()
        #: All from here on was neither granted nor passed by.
        self._reached = cluster.frontier if cluster is not None else 0
        self._holes = None if cluster is None else _Holes(cluster)

    def pick(self, queue: PullQueue, request: Pull) -> Pick | None:
        """Return the first range to grant: what was granted before comes before what is new."""
        self.is_barred = False
        return self._pick(queue, request.max_messages, request.max_bytes, request.begun)

    def offered(self, queue: PullQueue) -> Run:
        """Return the first range that may be granted."""
        pick = self._pick(queue, *_ANY)
        return (0, 0) if pick is None else (pick.first, pick.behind)

    def _pick(
        self, queue: PullQueue, most: int, max_bytes: int, begun: Sequence[Run] | None = None
    ) -> Pick | None:
        if self._holes is not None:
            self._look_back(self._holes)
        self._due_times.fire()
        size = min(max(max_bytes, 1), FETCH_BYTES_MAX)
        barred = Ranges(begun or ())
        for first, limit, among in self._candidates(queue, most, barred):
            there = limit - first if among is None else among.count
            some = share(most, there, queue)
            behind, room = min(first + some, limit), size
            if self._context.doubtful.covers(first, first + 1):
                among, room = None, 1  # this entry alone
            else:
                _, behind = self._context.doubtful.gap_from(first, behind)
            tags = self.unwanted.tags if among is not None else frozenset()
            if among is not None and tags:
                behind = runs_of(among, first, LIMIT_MAX, some)[-1][1]
            reading = self._context.read(first, behind, room, tags)
            if reading is None:
                continue
            behind = min(behind, reading.next_offset, limit)
            runs = None if among is None else runs_of(among, first, reading.next_offset, some)
            if runs is None or len(runs) < 2:
                return Pick(first, behind, reading)
            return Pick(first, runs[-1][1], reading, runs)
        return None

    def _candidates(
        self, queue: PullQueue, most: int, barred: Ranges
    ) -> Iterator[tuple[int, int, Ranges | None]]:
        """Yield ranges that may be granted, and what they are of, if that may go on behind them:
        freed ones, those that are due, those of ended leases but `barred` ones, new messages.
        """
        context, cluster = self._context, self._cluster
        new = self._new(most)  # what is passed by may prove to be due
        among = None
        if self.unwanted.tags and new[0] < new[1]:
            among = self._wanted(*new)
            new = next(iter(among), (0, 0))
        for run in self._freed:
            if not queue.is_proposed(*run):
                yield *run, None
        while (due := self._delayed.due.first_run()) is not None:
            yield *due, self._delayed.due
            self._delayed.due.discard(*due)  # nothing can be read there: it is lost
        if cluster is not None:
            for grant in context.leases.ended(self._name, cluster, context.time.monotonic_ms()):
                for first, behind in self._outside(grant.left, barred):
                    if not queue.is_proposed(first, behind):
                        yield first, min(behind, first + self._portion(first, most)), None
        if new[0] < new[1]:
            yield *new, among

    def _wanted(self, first: int, limit: int) -> Ranges:
        """Return what may be wanted of the next entries of new messages; pass by what is not."""
        while first < limit:
            first = self.unwanted.passed(first, limit)
            self._reached = max(self._reached, first)
            if first < limit:
                wanted = self.unwanted.leave(first, limit, FETCH_BYTES_MAX)
                if wanted or self.unwanted.is_urgent:
                    return wanted
        return Ranges()

    def _outside(self, left: Ranges, barred: Ranges) -> Iterator[Run]:
        if not barred:
            yield from left
            return
        for first, behind in left:
            while first < behind:
                begin, end = barred.gap_from(first, behind)
                self.is_barred = self.is_barred or begin > first
                if begin < end:
                    yield begin, end
                first = end

    def _new(self, most: int) -> Run:
        """Return the first messages that nobody had and that are due; pass by what is not."""
        state, cluster = self._context.state, self._cluster
        frontier = state.log_start if cluster is None else cluster.frontier
        first, limit = state.voids.gap_from(max(self._reached, frontier), state.decided_offset)
        if len(state.delays):
            now_ms = self._context.due_ms()
            while (row := state.delays.live(first, first + most, now_ms)) is not None:
                if row.first > first:
                    break
                self._due_times.wait(self._delayed, row, first, row.next)
                self._due_times.fire()
                first = row.next
            self._reached = first
            if row is not None:
                return first, min(row.first, limit)
        return first, limit

    def _look_back(self, holes: _Holes) -> None:
        """Find some more of what earlier leaders passed by."""
        state, now_ms = self._context.state, self._context.due_ms()
        for first, behind in holes.some():
            while first < behind:
                row = state.delays.live(first, behind, now_ms)
                if row is None:
                    self._delayed.due.add(first, behind)
                    break
                self._delayed.due.add(first, row.first)
                end = min(row.next, behind)
                self._due_times.wait(self._delayed, row, max(first, row.first), end)
                first = end
        if holes.over:
            self._holes = None

    # -- what became of it -------------------------------------------------------------------

    def took(self, session: int, request: Pull, pick: Pick) -> None:
        """It is neither free any more, nor new, nor to be granted as due again."""
        for first, behind in pick.parts:
            self._freed.discard(first, behind)
            self._delayed.due.discard(first, behind)
        self._reached = max(self._reached, pick.behind)

    def granted(self, pick: Pick, grant: Grant | None) -> None:
        """What an ack left of it, and nobody got, may be granted again at once."""
        cluster = self._cluster
        left = grant.left if grant is not None else Ranges()
        if cluster is None or list(left) == list(pick.parts):
            return
        for first, behind in pick.parts:
            for run in _Holes(cluster, first, behind).some():
                self._delayed.due.add(*run)

    def unread(self, fence: int, first: int, behind: int) -> None:
        """Offsets of a grant could not be read from `first` on: let them be granted again now.

        The entry at `first` is to blame. What fails alone again rests until its lease ends, so
        that those behind it have their turn.
        """
        doubtful, cluster = self._context.doubtful, self._cluster
        grant = cluster.grants.get(fence) if cluster is not None else None
        entry = self._context.read(first, behind, 1)
        suspect = behind if entry is None else min(entry.next_offset, behind)
        known = doubtful.covers(first, suspect)
        doubtful.add(first, suspect)
        first = suspect if known else first
        for run in grant.left.within(first, behind) if grant is not None else ():
            self._freed.add(*run)

    def start_moved(self, start: int) -> None:
        """Messages below `start` are gone: nobody is granted them again."""
        self._freed.discard(0, start)
        self._delayed.drop_below(start)
        self.unwanted.drop_below(start)

    @property
    def is_looking(self) -> bool:
        """Whether it is being found out what is due."""
        return bool(self._delayed.waiting) and self._due_times.is_opening

    @property
    def delayed(self) -> int:
        """How many messages wait until they are due."""
        return self._delayed.waiting.count


class _Holes:
    """Messages below a cluster's frontier that are neither done nor with anybody, run by run."""

    __slots__ = ("_at", "_behind", "_cluster", "_held")

    def __init__(self, cluster: ClusterState, first: int = 0, behind: int = -1) -> None:
        """Look in [first, behind), or below the frontier as it is now."""
        self._cluster = cluster
        self._at = max(first, cluster.cursor)
        self._behind = cluster.frontier if behind < 0 else behind
        held = sum(grant.left.count for grant in cluster.grants.values())
        ahead = sum(b - a for a, b in cluster.done.within(self._behind, LIMIT_MAX))  # voids
        if behind < 0 and self._behind - self._at == cluster.done.count - ahead + held:
            self._at = self._behind  # as it is where nothing was ever delayed
        self._held = Ranges()
        if not self.over:
            for _, *run in cluster.holders.within(self._at, self._behind):
                self._held.add(*run)

    @property
    def over(self) -> bool:
        """Whether all was looked at."""
        return self._at >= self._behind

    def some(self) -> Iterator[Run]:
        """Yield the next runs, not too many at once."""
        for _ in range(_HOLES_AT_ONCE):
            first = max(self._at, self._cluster.cursor)
            first, behind = self._cluster.done.gap_from(first, self._behind)
            self._at = behind
            while first < behind:
                free, end = self._held.gap_from(first, behind)
                if free < end:
                    yield free, end
                first = end
            if self.over:
                return
