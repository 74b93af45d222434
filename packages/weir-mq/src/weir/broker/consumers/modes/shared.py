"""Mode `shared`: each message to one consumer, those that were granted before in front of new ones.

The frontier passes over messages that are not due: they become holes, and go out when they are due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from weir.broker.consumers.modes.due_times import DueTimes
from weir.broker.consumers.modes.picker import Pick, Picker, PickerContext, PullQueue, Run, share
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.model.ids import LIMIT_MAX
from weir.model.limits import FETCH_BYTES_MAX, GRANT_RUNS_MAX, WATCHED_MAX
from weir.model.topic import Mode
from weir.protocol.client.messages import Pull

#: So many runs of holes of earlier leaders' are looked for at a time.
_HOLES_AT_ONCE = 1_000
#: A grant of several runs spans at most so many times the messages that were asked for.
_SPAN = 16
#: What a watch would be granted, were it a pull.
_ANY = (WATCHED_MAX, 1)


class SharedPicker(Picker):
    """Picks ranges: what was freed, what is due, what ended, what is new."""

    __slots__ = ("_delayed", "_due_times", "_freed", "_holes", "_reached")

    mode: ClassVar[Mode] = Mode.SHARED

    def __init__(self, context: PickerContext, name: str, due_times: DueTimes) -> None:
        """Begin where earlier leaders stopped; what they passed by is found out by and by."""
        super().__init__(context, name)
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
            reading = self._context.read(first, behind, room)
            if reading is None:
                continue
            behind = min(behind, reading.next_offset)
            runs = None if among is None else _runs(among, first, reading.next_offset, some)
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
            yield *new, None

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


def _runs(among: Ranges, first: int, behind: int, most: int) -> tuple[Run, ...]:
    """Return the runs from `first` on that make up to `most` messages."""
    found: list[Run] = []
    for start, end in among.within(first, min(behind, first + _SPAN * most)):
        found.append((start, min(end, start + most)))
        most -= found[-1][1] - start
        if not most or len(found) == GRANT_RUNS_MAX:
            break
    return tuple(found)
