"""Mode `keyed`: the messages of a key go out in order, to one consumer at a time.

A window over the log says which messages may be granted so that those of a key keep their order. It
is per message, as those of a key cannot be told apart without looking at each (DESIGN §1.1): some
200 bytes and a few microseconds, of `KEYED_WINDOW` messages at most at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar

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
    KEYED_WINDOW,
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


class KeyedPicker(Picker):
    """Looks into messages ahead of what is granted, and remembers of which keys some are out."""

    __slots__ = ("_failure", "_freed", "_looked", "_looking", "_wait_until_ms",
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

    def pick(self, queue: PullQueue, request: Pull) -> Pick | None:
        """Take messages out, from the first one whose key is not out."""
        barred = Ranges(request.begun or ())
        self._look_ahead(request.max_messages, barred)
        window = self._window
        first = window.first(barred)
        self.is_barred = first is None and window.first() is not None
        if first is None:
            return None
        there = window.idle + max(self._context.state.decided_offset - self._looked, 0)
        most = share(request.max_messages, there, queue)
        runs = self._take(first, min(most, GRANT_RUNS_MAX), barred)
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        reading = self._context.read(first, runs[-1][1], size, self.unwanted.tags)
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
        self._look_ahead(WATCHED_MAX)
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
        self.unwanted.drop_below(start)

    # -- looking ahead -----------------------------------------------------------------------

    def _look_ahead(self, wanted: int, barred: Ranges | None = None) -> None:
        self._end_leases()
        state, cluster, window = self._context.state, self._cluster, self._window
        start = state.log_start if cluster is None else cluster.cursor
        self._looked = max(self._looked, start)
        now_ms = self._context.time.monotonic_ms()
        while (
            not self._looking
            and self._looked < state.decided_offset
            and now_ms >= self._wait_until_ms
            and (window.candidates < wanted or window.first(barred) is None)
            and (not window or window.room >= len(window) // _ROOM_PART)
            and not self._is_delayed()
            and not self.unwanted.is_urgent
        ):
            if not self._look():
                return

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
            if not out:
                self._window.add_all(start, keys[start - first : end - first])
                continue
            for offset in range(start, end):
                self._window.add(offset, keys[offset - first], out.covers(offset, offset + 1))
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


class KeyWindow:
    """Messages that were looked into and are not done: free, or out (granted, or held back).

    While one of a key is out, none of that key may be taken: so whoever has one has all that are
    out, and those that come back are in front of all others. A key is any whole number; a message
    without one has a key of its own.
    """

    __slots__ = ("_first", "_following", "_heads", "_keys", "_last", "_locks", "_most", "_out")

    def __init__(self, most: int = KEYED_WINDOW) -> None:
        """Begin with none of up to `most` messages."""
        self._most = most
        #: The key of each message that is not done.
        self._keys: dict[int, int] = {}
        #: A key's messages in a chain: the first, the last, and what follows each.
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._following: dict[int, int] = {}
        self._out: set[int] = set()
        #: How many of a key's messages are out.
        self._locks: dict[int, int] = {}
        #: A heap of each key's first message that could be taken, and some that cannot.
        self._heads: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def room(self) -> int:
        """How many more messages may be looked into."""
        return max(self._most - len(self._keys), 0)

    @property
    def idle(self) -> int:
        """How many are not out."""
        return len(self._keys) - len(self._out)

    @property
    def candidates(self) -> int:
        """How many keys may have something to take, at most."""
        return len(self._heads)

    def add(self, offset: int, key: int, out: bool) -> None:
        """Take note of the next message, behind all that are known."""
        self._keys[offset] = key
        last = self._last.get(key)
        self._last[key] = offset
        if last is None:
            self._first[key] = offset
        else:
            self._following[last] = offset
        if out:
            self._take_out(offset, key)
        elif last is None:
            self._heads.append(offset)  # the highest: the heap stays one

    def add_all(self, first: int, keys: Sequence[int]) -> None:
        """Take note of the next messages, from `first` on, which are free."""
        lasts, heads = self._last, self._heads
        self._keys.update(enumerate(keys, first))
        for offset, key in enumerate(keys, first):
            last = lasts.get(key)
            lasts[key] = offset
            if last is None:
                self._first[key] = offset
                heads.append(offset)
            else:
                self._following[last] = offset

    def first(self, barred: Ranges | None = None) -> int | None:
        """Return the first message that may be taken and is not `barred`."""
        heads, aside = self._heads, list[int]()
        found: int | None = None
        while heads and found is None:
            offset = heads[0]
            key = self._keys.get(offset)
            if key is None or key in self._locks or self._first[key] != offset:
                heapq.heappop(heads)
            elif barred and barred.covers(offset, offset + 1):
                aside.append(heapq.heappop(heads))
            else:
                found = offset
        for head in aside:
            heapq.heappush(heads, head)
        return found

    def take(self, behind: int, most: int, barred: Ranges | None = None) -> list[Run]:
        """Take up to `most` messages below `behind` out, in the order of their offsets; none that
        is `barred`, nor what follows it of its key.
        """
        runs: list[Run] = []
        aside: list[int] = []
        mine: set[int] = set()
        heads, keys, locks = self._heads, self._keys, self._locks
        while heads and most and (offset := heads[0]) < behind:
            key = keys.get(offset)
            if key is None or offset in self._out:
                heapq.heappop(heads)
                continue
            if key not in mine and (key in locks or self._first[key] != offset):
                heapq.heappop(heads)
                continue
            if barred and barred.covers(offset, offset + 1):
                heapq.heappop(heads)
                if key not in mine:
                    aside.append(offset)
                continue
            mine.add(key)
            self._out.add(offset)
            locks[key] = locks.get(key, 0) + 1
            following = self._next(offset) if offset in self._following else None
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, following)
            if runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            else:
                runs.append((offset, offset + 1))
            most -= 1
        for head in aside:
            heapq.heappush(heads, head)
        return runs

    def free(self, runs: Iterable[Run]) -> None:
        """These are not out any more, and not done."""
        for offset in self._known(runs):
            if offset in self._out:
                key = self._keys[offset]
                self._put_in(offset, key)
                self._offer(key)

    def done(self, runs: Iterable[Run]) -> None:
        """These are done, whether they were out or not."""
        keys, locks, firsts, heads = self._keys, self._locks, self._first, self._heads
        for offset in chain.from_iterable(range(*run) for run in runs):
            key = keys.pop(offset, None)
            if key is None:
                continue
            if offset in self._out:
                self._put_in(offset, key)
            first: int | None = firsts[key]
            if first == offset:  # the chain begins with the first message that is not done
                while first is not None and first not in keys:
                    first = self._following.pop(first, None)
                if first is None:
                    del firsts[key], self._last[key]
                    continue
                firsts[key] = first
            if key not in locks:
                heapq.heappush(heads, firsts[key])

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone."""
        gone = [(offset, offset + 1) for offset in self._keys if offset < start]
        self.done(gone)

    def _known(self, runs: Iterable[Run]) -> list[int]:
        keys = self._keys
        return [offset for a, b in runs for offset in range(a, b) if offset in keys]

    def _take_out(self, offset: int, key: int) -> None:
        self._out.add(offset)
        self._locks[key] = self._locks.get(key, 0) + 1

    def _put_in(self, offset: int, key: int) -> None:
        self._out.remove(offset)
        self._locks[key] -= 1
        if not self._locks[key]:
            del self._locks[key]

    def _offer(self, key: int) -> None:
        if key not in self._locks and key in self._first:
            heapq.heappush(self._heads, self._first[key])

    def _next(self, offset: int) -> int | None:
        """Return what follows a message of its key and is not done."""
        following = self._following.get(offset)
        while following is not None and following not in self._keys:
            following = self._following.get(following)
        return following


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
