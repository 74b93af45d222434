"""Mode `keyed`: the messages of a key go out in order, to one consumer at a time.

A window over the log says which messages may be granted so that those of a key keep their order. It
is per message, as those of a key cannot be told apart without looking at each (DESIGN §1.1): some
100 bytes, of `KEYED_WINDOW` messages at most at a time (`weir.broker.consumers.key_window`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from weir.broker.consumers.key_window import KeyWindow
from weir.broker.consumers.leases import Attempts
from weir.broker.consumers.picker import (
    Pick,
    Picker,
    PickerContext,
    PullQueue,
    Run,
    fewer,
    share,
)
from weir.broker.runtime.filtering import matching_runs
from weir.broker.runtime.reads import batches_in
from weir.broker.state.clusters import Grant
from weir.broker.state.ranges import Ranges
from weir.codec import Buffer
from weir.errors import BadBatch, MissingLibrary, Refused, Unavailable
from weir.model.batch import Batch
from weir.model.columns import are_set
from weir.model.ids import LIMIT_MAX
from weir.model.limits import (
    FETCH_BYTES_MAX,
    GRANT_RUNS_MAX,
    MIB,
    RETRY_AFTER_MS,
    WATCHED_MAX,
)
from weir.model.topic import Mode
from weir.protocol.client.messages import Pull

#: So much of the log is looked into at a time, and not before there is room for so many messages:
#: a batch that is looked into in parts is opened for each of them.
_LOOK_BYTES = MIB // 4
_ROOM_PART = 4
#: A grant spans at most so many times the messages that were asked for, or so many.
_SPAN, _SPAN_LEAST = 16, 1_024
#: A consumer that asks for so many messages, and waits for them so long, is granted so large a part
#: of them within a span of so many times their number, if nearly as many are there; otherwise it
#: waits while keys become free, each within so long after the other, and so long at most. If that
#: did not help, no consumer waits like this for a while.
_MANY, _PATIENT_MS = 64, 500
_DENSE_PART, _DENSE, _THERE = 0.75, 3, 2
_GATHER_MS, _GATHER_MOST_MS, _GATHER_AGAIN_MS = 50, 400, 2_000


class _Gathering:
    """Whether pulls wait until more keys are free, so that messages of one grant lie close.

    Where each of many consumers has a few of the keys, each is sent nearly all there is. So they
    wait while keys become free, and not for those of a consumer that is slow.
    """

    __slots__ = ("_began_ms", "_freed_ms", "_paused_until_ms", "_waiting")

    def __init__(self) -> None:
        """Begin without waiters."""
        #: When the first one began to wait; None while nobody does. When a key became free last.
        self._began_ms: int | None = None
        self._freed_ms = 0
        self._paused_until_ms = 0
        #: How many messages the last one that waits asks for, and when that was found.
        self._waiting = (0, 0)

    def helped(self) -> None:
        """What may be granted lies close."""
        self._began_ms = None

    def freed(self, now_ms: int) -> None:
        """Keys may have become free."""
        self._freed_ms = now_ms
        self._waiting = (0, 0)

    def is_known(self, most: int, now_ms: int) -> bool:
        """Return whether a pull of so many waits as one does that asks for no more: many may, and
        each would have to look at what there is.
        """
        least, found_ms = self._waiting
        return found_ms == now_ms and 0 < least <= most

    def goes_on(self, most: int, now_ms: int) -> bool:
        """Return whether a pull of so many waits, as what there is lies apart."""
        if now_ms < self._paused_until_ms:
            return False
        if self._began_ms is None:
            self._began_ms = self._freed_ms = now_ms
        if now_ms - self._freed_ms < _GATHER_MS and now_ms - self._began_ms < _GATHER_MOST_MS:
            self._waiting = (most, now_ms)
            return True
        self._began_ms, self._paused_until_ms = None, now_ms + _GATHER_AGAIN_MS
        return False


class KeyedPicker(Picker):
    """Looks into messages ahead of what is granted, and remembers of which keys some are out."""

    __slots__ = ("_failure", "_freed", "_gathering", "_looked", "_looking", "_wait_until_ms",
                 "_window")  # fmt: skip

    mode: ClassVar[Mode] = Mode.KEYED

    def __init__(self, context: PickerContext, name: str, tags: frozenset[str]) -> None:
        """Begin at the cluster's cursor."""
        super().__init__(context, name, tags)
        self._window = KeyWindow()
        #: All below was looked into.
        self._looked = 0
        self._looking = False
        #: Grants that have ended, and of which nothing is out any more.
        self._freed: set[int] = set()
        self._failure: Refused | None = None
        self._wait_until_ms = 0
        self._gathering = _Gathering()

    def pick(self, queue: PullQueue, request: Pull) -> Pick | None:
        """Take messages out, from the first one whose key is not out."""
        barred = Ranges(request.begun or ())
        first = self._look_ahead(_DENSE * request.max_messages, barred)
        window = self._window
        self.is_barred = first is None and bool(barred) and window.first() is not None
        if first is None:
            return None
        there = window.idle + max(self._context.state.decided_offset - self._looked, 0)
        most = min(share(request.max_messages, there, queue), GRANT_RUNS_MAX)
        if self._gathers(first, most, request):
            self.is_barred = True
            return None
        runs = self._take(first, most, barred)
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        reading = self._context.read(first, runs[-1][1], size, self.unwanted.tags)
        if reading is None:
            window.free(runs)
            self._fail(f"the messages from offset {first} on are lost on this node")
            return None
        kept, rest = _cut(runs, reading.next_offset)
        window.free(rest)
        return Pick(first, kept[-1][1], reading, tuple(kept) if len(kept) > 1 else ())

    def _gathers(self, first: int, most: int, request: Pull) -> bool:
        """Whether a pull waits for keys that are out (`_Gathering`); if it does not, as much is
        looked into as it may be granted of.
        """
        gathering, window = self._gathering, self._window
        behind, now_ms = first + _DENSE * most, self._context.time.monotonic_ms()
        is_patient = most >= _MANY and request.wait_ms >= _PATIENT_MS
        if is_patient and gathering.is_known(most, now_ms):
            return True
        found = window.takeable(behind, most)
        if (
            is_patient
            and found < _DENSE_PART * most
            and self._looked >= behind
            and window.known(first, behind) >= _THERE * most
        ):
            if gathering.goes_on(most, now_ms):
                return True
        elif is_patient:
            gathering.helped()
        if found < most:
            self._look_ahead(max(_SPAN * most, _SPAN_LEAST))
        return False

    def _take(self, first: int, most: int, barred: Ranges) -> list[Run]:
        """Take messages out, none that were tried more or less often than the first."""
        cluster, window = self._cluster, self._window
        if cluster is None or first >= cluster.frontier:
            return window.take(first + max(_SPAN * most, _SPAN_LEAST), most, barred)
        tries = Attempts(self._context.begun, self._name, cluster)
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

    def offered(self, queue: PullQueue) -> Run:
        """Return where the first message lies that may be taken, and how many keys may have one."""
        first = self._look_ahead(WATCHED_MAX)
        return (0, 0) if first is None else (first, first + self._window.keys_ready(WATCHED_MAX))

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
        self._gathering.freed(self._context.time.monotonic_ms())

    def start_moved(self, start: int) -> None:
        """What is gone is looked into no more."""
        self._window.drop_below(start)
        self.unwanted.drop_below(start)

    # -- looking ahead -----------------------------------------------------------------------

    def _look_ahead(self, span: int, barred: Ranges | None = None) -> int | None:
        """Return where the first message lies that may be taken and is not `barred`. What lies
        within `span` behind it is looked into, as far as there is room.
        """
        self._end_leases()
        state, cluster, window = self._context.state, self._cluster, self._window
        start = state.log_start if cluster is None else cluster.cursor
        self._looked = max(self._looked, start)
        now_ms = self._context.time.monotonic_ms()
        first = window.first(barred)
        while (
            not self._looking
            and self._looked < state.decided_offset
            and now_ms >= self._wait_until_ms
            and (first is None or self._looked < first + span)
            and (not window or window.room >= len(window) // _ROOM_PART)
            and not self._is_delayed()
            and not self.unwanted.is_urgent
        ):
            if not self._look():
                break
            first = window.first(barred) if first is None else first
        return first

    def _is_delayed(self) -> bool:
        """Whether the next message may be one that is not due: the cluster waits for it."""
        delays = self._context.state.delays
        if not len(delays):
            return False
        return delays.live(self._looked, self._looked + 1, self._context.due_ms()) is not None

    def _end_leases(self) -> None:
        cluster = self._cluster
        if cluster is None:
            return
        for fence in self._context.leases.over(
            self._name, cluster, self._context.time.monotonic_ms()
        ):
            if fence not in self._freed:
                self._freed.add(fence)
                self._window.free(cluster.grants[fence].left)
        if len(self._freed) > len(cluster.grants):
            self._freed.intersection_update(cluster.grants)

    def _look(self) -> bool:
        """Look into the next messages; return whether that is done."""
        context = self._context
        tags, limit = self.unwanted.tags, context.state.decided_offset
        reading = context.read(self._looked, limit, _LOOK_BYTES, tags)
        if reading is None:
            self._fail(f"the messages from offset {self._looked} on are lost on this node")
            return False
        before = self._looked
        self._looking = asked = True

        def looked(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            self._looking = False
            skipped = [(first, min(behind, limit)) for first, behind in reading.skipped]
            for run in skipped:
                self.unwanted.add(*run)
            self._note(payloads, failure, Ranges(skipped))
            if skipped and not payloads and self._looked < limit:
                self.unwanted.is_urgent = True
            if not asked:
                self._context.granter.serve(self._name)

        context.reads.start(reading, looked)
        asked = False
        return self._looked > before

    def _note(self, payloads: Sequence[Buffer], failure: Refused | None, skipped: Ranges) -> None:
        self._looked = _behind(self._looked, skipped)
        if failure is not None:
            self._fail(str(failure))
            return
        try:
            for batch in batches_in(payloads):
                if batch.piece is None and batch.header.next_offset > self._looked:
                    if self._is_delayed():
                        return
                    self._add(batch)
                    self._looked = _behind(self._looked, skipped)
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
        for start, end in self._wanted(batch, first, behind):
            self._window.add_all(start, keys[start - first : end - first])
            self._window.hold(out.within(start, end))
        self._looked = behind

    def _wanted(self, batch: Batch, first: int, behind: int) -> Iterator[Run]:
        """Yield the runs of [first, behind), of a batch, that are wanted and not done."""
        tags = self.unwanted.tags
        if not tags:
            yield from self._not_done(first, behind)
            return
        matching = Ranges(matching_runs(batch, tags))
        for run in self._not_done(first, behind):
            yield from matching.within(*run)
            for unwanted in _without([run], matching):
                self.unwanted.add(*unwanted)

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
                run = self._context.state.voids.gap_from(first, behind)
            else:
                run = cluster.done.gap_from(max(first, cluster.cursor), behind)
            if run[0] < run[1]:
                yield run
            first = run[1]

    def _fail(self, text: str) -> None:
        self._failure = Unavailable(text)
        self._wait_until_ms = self._context.time.monotonic_ms() + RETRY_AFTER_MS


def _behind(offset: int, runs: Ranges) -> int:
    """Return the first offset from there on that lies in none of the runs."""
    return offset if not runs.covers(offset, offset + 1) else runs.gap_from(offset, LIMIT_MAX)[0]


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


def keys_of(first: int, validity: memoryview | None, hashes: Sequence[int]) -> list[int]:
    """Return a key for each message of a batch that begins at offset `first`: its key's hash, or a
    negative number of its own.
    """
    if validity is None:
        return [-1 - first - i for i in range(len(hashes))]
    if are_set(validity, 0, len(hashes)):
        return [*hashes]
    return [
        number if validity[i >> 3] & (1 << (i & 7)) else -1 - first - i
        for i, number in enumerate(hashes)
    ]
