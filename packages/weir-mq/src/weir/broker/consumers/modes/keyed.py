"""Mode `keyed`: the messages of a key go out in order, to one consumer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from weir.broker.consumers.attempts import Tries
from weir.broker.consumers.modes.key_window import KeyWindow, keys_of
from weir.broker.consumers.modes.picking import Ground, Pick, Picking, Run, fewer, share
from weir.broker.consumers.waiting import Line
from weir.broker.runtime.reads import batches_in
from weir.broker.state.clusters import Grant
from weir.broker.state.ranges import Ranges
from weir.codec.fields import Buffer
from weir.errors import BadBatch, MissingLibrary, Refused, Unavailable
from weir.model.batch import Batch
from weir.model.clusters import Mode
from weir.model.limits import FETCH_BYTES_MAX, GRANT_RUNS_MAX, MIB, RETRY_AFTER_MS, WATCHED_MAX
from weir.protocol.client.messages import Pull

#: So much of the log is looked into at a time, and not before there is room for so many messages:
#: a batch that is looked into in parts is opened for each of them.
_LOOK_BYTES = MIB // 4
_ROOM_PART = 4
#: A grant spans at most so many times the messages that were asked for, or so many.
_SPAN, _SPAN_LEAST = 16, 1_024


class Keyed(Picking):
    """Looks into messages ahead of what is granted, and remembers of which keys some are out."""

    __slots__ = ("_failure", "_freed", "_looked", "_looking", "_serve", "_wait_until_ms",
                 "_window")  # fmt: skip

    mode: ClassVar[Mode] = Mode.KEYED

    def __init__(self, ground: Ground, name: str, serve: Callable[[], None]) -> None:
        """Begin at the cluster's cursor. `serve` is called when messages were looked into that had
        to be read from the disk.
        """
        super().__init__(ground, name)
        self._serve = serve
        self._window = KeyWindow()
        #: All below was looked into.
        self._looked = 0
        self._looking = False
        #: Grants that have ended, and of which nothing is out any more.
        self._freed: set[int] = set()
        self._failure: Refused | None = None
        self._wait_until_ms = 0

    def pick(self, line: Line, request: Pull) -> Pick | None:
        """Take messages out, from the first one whose key is not out."""
        barred = Ranges(request.begun or ())
        self._advance(request.max_messages, barred)
        window = self._window
        first = window.first(barred)
        self.is_barred = first is None and window.first() is not None
        if first is None:
            return None
        there = window.idle + max(self._ground.state.decided_offset - self._looked, 0)
        most = share(request.max_messages, there, line)
        runs = self._take(first, min(most, GRANT_RUNS_MAX), barred)
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        reading = self._ground.read(first, runs[-1][1], size)
        if reading is None:
            window.free(runs)
            self._fail(f"the messages from offset {first} on are lost on this node")
            return None
        kept, rest = _cut(runs, reading.next_offset)
        window.free(rest)
        return Pick(first, kept[-1][1], reading, tuple(kept) if len(kept) > 1 else ())

    def _take(self, first: int, most: int, barred: Ranges) -> list[Run]:
        """Take messages out, none that were tried more or less often than the first."""
        cluster, window = self._cluster, self._window
        if cluster is None or first >= cluster.frontier:
            return window.take(first + max(_SPAN * most, _SPAN_LEAST), most, barred)
        tries = Tries(self._ground.begun, self._name, cluster)
        attempts, _ = tries.alike(first, first + 1)
        behind = first + max(_SPAN * most, _SPAN_LEAST)
        runs = window.take(behind, fewer(most, attempts), barred)
        for start, behind in runs:
            others, end = tries.alike(start, behind)
            if others != attempts or end < behind:
                kept, rest = _cut(runs, start if others != attempts else end)
                window.free(rest)
                return kept
        return runs

    def offered(self, line: Line) -> Run:
        """Return where the first message lies that may be taken, and how many keys may have one."""
        self._advance(WATCHED_MAX)
        first = self._window.first()
        return (0, 0) if first is None else (first, first + self._window.candidates)

    @property
    def failure(self) -> Refused | None:
        """Why the next messages cannot be looked into."""
        failure, self._failure = self._failure, None
        return failure

    @property
    def is_looking(self) -> bool:
        """Whether messages are being looked into."""
        return self._looking

    # -- what became of it -------------------------------------------------------------------

    def gave_up(self, pick: Pick) -> None:
        """It is free again."""
        self._window.free(pick.parts)

    def granted(self, pick: Pick, grant: Grant | None) -> None:
        """What is neither granted nor done is free again."""
        left = grant.left if grant is not None else Ranges()
        if list(left) != list(pick.parts):
            self._window.free(_without(pick.parts, left))

    def done(self, runs: Sequence[Run]) -> None:
        """The keys of these may have others to take."""
        self._window.done(runs)

    def start_moved(self, start: int) -> None:
        """What is gone is looked into no more."""
        self._window.drop_below(start)

    # -- looking ahead -----------------------------------------------------------------------

    def _advance(self, wanted: int, barred: Ranges | None = None) -> None:
        self._end_leases()
        state, cluster, window = self._ground.state, self._cluster, self._window
        start = state.log_start if cluster is None else cluster.cursor
        self._looked = max(self._looked, start)
        now_ms = self._ground.time.monotonic_ms()
        while (
            not self._looking
            and self._looked < state.decided_offset
            and now_ms >= self._wait_until_ms
            and (window.candidates < wanted or window.first(barred) is None)
            and (not window or window.room >= len(window) // _ROOM_PART)
            and not self._is_delayed()
        ):
            if not self._look():
                return

    def _is_delayed(self) -> bool:
        """Whether the next message may be one that is not due: the cluster waits for it."""
        delays = self._ground.state.delays
        if not len(delays):
            return False
        return delays.live(self._looked, self._looked + 1, self._ground.due_ms()) is not None

    def _end_leases(self) -> None:
        cluster = self._cluster
        if cluster is None:
            return
        for fence in self._ground.leases.over(
            self._name, cluster, self._ground.time.monotonic_ms()
        ):
            if fence not in self._freed:
                self._freed.add(fence)
                self._window.free(cluster.grants[fence].left)
        if len(self._freed) > len(cluster.grants):
            self._freed.intersection_update(cluster.grants)

    def _look(self) -> bool:
        """Look into the next messages; return whether that is done."""
        ground = self._ground
        reading = ground.read(self._looked, ground.state.decided_offset, _LOOK_BYTES)
        if reading is None:
            self._fail(f"the messages from offset {self._looked} on are lost on this node")
            return False
        before = self._looked
        self._looking = asked = True

        def looked(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            self._looking = False
            self._note(payloads, failure)
            if not asked:
                self._serve()

        ground.reads.start(reading, looked)
        asked = False
        return self._looked > before

    def _note(self, payloads: Sequence[Buffer], failure: Refused | None) -> None:
        if failure is not None:
            self._fail(str(failure))
            return
        try:
            for batch in batches_in(payloads):
                if batch.piece is None and batch.header.next_offset > self._looked:
                    if self._is_delayed():
                        return
                    self._add(batch)
                if not self._window.room:
                    return
        except (BadBatch, MissingLibrary) as error:
            self._fail(f"the keys from offset {self._looked} on cannot be read: {error}")

    def _add(self, batch: Batch) -> None:
        """Look into a batch from where nothing was looked into, as far as there is room."""
        begin = batch.header.first_offset
        first = max(self._looked, begin)
        behind = min(batch.header.next_offset, first + self._window.room)
        column = batch.key_column
        lo, hi = first - begin, behind - begin
        if column is None:
            keys = keys_of(first, None, range(hi - lo))
        else:
            keys = keys_of(begin, column[0], column[2].tolist())[lo:hi]
        out = self._out_in(first, behind)
        for run in self._not_done(first, behind):
            for offset in range(*run):
                is_out = bool(out) and out.covers(offset, offset + 1)
                self._window.add(offset, keys[offset - first], is_out)
        self._looked = behind

    def _out_in(self, first: int, behind: int) -> Ranges:
        """Return what of [first, behind) was granted by earlier leaders, in leases that go on."""
        found, cluster = Ranges(), self._cluster
        if cluster is not None and first < cluster.frontier:
            for fence, *run in cluster.holders.within(first, behind):
                if fence not in self._freed:
                    found.add(*run)
        return found

    def _not_done(self, first: int, behind: int) -> Iterator[Run]:
        cluster = self._cluster
        while first < behind:
            if cluster is None:
                run = self._ground.state.voids.gap_from(first, behind)
            else:
                run = cluster.done.gap_from(max(first, cluster.cursor), behind)
            if run[0] < run[1]:
                yield run
            first = run[1]

    def _fail(self, text: str) -> None:
        self._failure = Unavailable(text)
        self._wait_until_ms = self._ground.time.monotonic_ms() + RETRY_AFTER_MS


def _cut(runs: Sequence[Run], at: int) -> tuple[list[Run], list[Run]]:
    """Return what of `runs` lies below an offset, and the rest."""
    below = [(a, min(b, at)) for a, b in runs if a < at]
    return below, [(max(a, at), b) for a, b in runs if b > at]


def _without(runs: Sequence[Run], left: Ranges) -> Iterator[Run]:
    """Yield what of `runs` is not in `left`."""
    for first, behind in runs:
        while first < behind:
            start, end = left.gap_from(first, behind)
            if start < end:
                yield start, end
            first = end
