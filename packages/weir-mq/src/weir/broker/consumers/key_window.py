"""Which messages of a log may be granted so that those of a key go out in order, one consumer at a
time.

Messages lie in blocks of columns, and all that is asked of many at once is asked of a column: whose
keys are out is told by one look into a set for each, without a step of the interpreter. So grants
that hold messages next to each other cost little, whatever keys they have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, count, filterfalse, islice, repeat
from operator import eq, not_

from weir.broker.state.ranges import Ranges
from weir.model.ids import LIMIT_MAX
from weir.model.limits import KEYED_WINDOW

Run = tuple[int, int]

#: So many messages are in a block at most.
_BLOCK_MAX = 1_024
#: Keys of which nothing is out any more are looked through once there are so many.
_READY_MAX = 8 * _BLOCK_MAX
#: What stands in the row of a message that is done: no key. Higher numbers stand for who took it.
_DONE = 1 << 64


class _Taken:
    """Messages that were taken out together: which keys they lock until they are done, or free."""

    __slots__ = ("counts", "keys", "left", "mark", "spans")

    def __init__(self, mark: int) -> None:
        """Begin with none; `mark` stands in their rows."""
        self.mark = mark
        #: Their keys, as far as some of a key are out.
        self.keys: set[int] = set()
        #: How many are out.
        self.left = 0
        #: Where they lie: block, first row, row behind the last one.
        self.spans: list[tuple[_Block, int, int]] = []
        #: How many of each key are out; None while all are.
        self.counts: Counter[int] | None = None

    def take(self, block: _Block, lo: int, hi: int) -> None:
        """Take rows of a block, which are free."""
        keys = block.keys[lo:hi]
        self.keys.update(keys)
        self.left += hi - lo
        if self.counts is not None:
            self.counts.update(keys)
        else:
            self.spans.append((block, lo, hi))
        block.rows[lo:hi] = [self.mark] * (hi - lo)

    def give(self, keys: Sequence[int]) -> set[int]:
        """Some with these keys are not out any more, and their rows say so; return of which keys
        none is.
        """
        self.left -= len(keys)
        if not self.left:
            self.counts = None if self.counts is None else Counter()
            unlocked, self.keys = self.keys, set()
            self.spans.clear()
            return unlocked
        if self.counts is None:
            self.counts = Counter()
            for block, lo, hi in self.spans:
                mine = map(eq, block.rows[lo:hi], repeat(self.mark))
                self.counts.update(compress(block.keys[lo:hi], mine))
            self.spans.clear()
            unlocked = set(keys).difference(self.counts)
        else:
            unlocked = set()
            counts = self.counts
            for key in keys:
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
                    unlocked.add(key)
        self.keys -= unlocked
        return unlocked


class _Block:
    """Up to `_BLOCK_MAX` messages, row by row; `keys` stay as they are.

    A row has the message's key while it is free; while it is out, the mark of who took it; `_DONE`
    behind that.
    """

    __slots__ = ("done", "head", "keys", "names", "offsets", "rows", "seen")

    def __init__(self) -> None:
        """Begin with none."""
        self.offsets: list[int] = []
        self.keys: list[int] = []
        self.rows: list[int] = []
        #: All rows below are done.
        self.head = 0
        self.done = 0
        #: Rows below were looked at: those that are free have a key that is locked or `ready`, and
        #: is in `names`.
        self.seen = 0
        self.names: set[int] = set()

    def add(self, first: int, keys: Sequence[int]) -> None:
        """Add messages that are free, from offset `first` on."""
        self.offsets.extend(range(first, first + len(keys)))
        self.keys += keys
        self.rows += keys

    def see(self, start: int, stop: int) -> None:
        """Rows from `start` on, where all below it were seen or are done, are seen up to `stop`."""
        if stop >= self.seen:
            some = set(self.rows[start:stop])
            self.names = some if start <= self.head else self.names | some
            self.seen = stop

    def span(self, first: int, behind: int) -> tuple[int, int]:
        """Return the rows of the messages in [first, behind)."""
        return bisect_left(self.offsets, first), bisect_left(self.offsets, behind)

    def runs(self, lo: int, hi: int) -> Iterator[Run]:
        """Yield where the messages of some rows lie."""
        offsets = self.offsets
        while lo < hi:
            first = offsets[lo]
            # Most rows in a row lie in a row.
            end = hi if offsets[hi - 1] - first == hi - 1 - lo else lo + 1
            while end < hi and offsets[end] - first == end - lo:
                end += 1
            yield first, first + end - lo
            lo = end

    def pass_done(self) -> None:
        """Begin behind the rows that are done."""
        rows, head = self.rows, self.head
        while head < len(rows) and rows[head] == _DONE:
            head += 1
        self.head = head


#: Some rows of a block: from the first up to the last one.
_Rows = tuple[_Block, int, int]


class KeyWindow:
    """Messages that were looked into and are not done: free, or out (granted, or held back).

    While one message of a key is out, none of that key may be taken: so one consumer has all of a
    key that are out, and those that come back are in front of all others. A key is any whole number
    below 2**64; a message without one has a key of its own.
    """

    __slots__ = ("_blocks", "_firsts", "_inherited", "_length", "_locks", "_marks", "_most", "_out",
                 "_prune_at", "_ready", "_takers")  # fmt: skip

    def __init__(self, most: int = KEYED_WINDOW) -> None:
        """Begin with none of up to `most` messages."""
        self._most = most
        self._blocks: list[_Block] = []
        #: The first offset of each block.
        self._firsts: list[int] = []
        #: What no row may be to be free: the keys that are out, and all marks.
        self._locks: set[int] = {_DONE}
        #: Keys that are not locked and may have free rows in blocks that were looked at.
        self._ready: set[int] = set()
        #: By their marks; the first one has what was out before it was looked into.
        self._takers: dict[int, _Taken] = {}
        self._marks = count(_DONE + 1)
        self._inherited = self._taker()
        self._inherited.counts = Counter()
        self._length = self._out = 0
        self._prune_at = _READY_MAX

    def __len__(self) -> int:
        return self._length

    def _taker(self) -> _Taken:
        taker = _Taken(next(self._marks))
        self._takers[taker.mark] = taker
        self._locks.add(taker.mark)
        return taker

    @property
    def room(self) -> int:
        """How many more messages may be looked into."""
        return max(self._most - self._length, 0)

    @property
    def idle(self) -> int:
        """How many are not out."""
        return self._length - self._out

    def add_all(self, first: int, keys: Sequence[int]) -> None:
        """Take note of the next messages, from `first` on, which are free."""
        self._length += len(keys)
        at = 0
        while at < len(keys):
            block = self._blocks[-1] if self._blocks else None
            if block is None or len(block.rows) >= _BLOCK_MAX:
                block = _Block()
                self._blocks.append(block)
                self._firsts.append(first + at)
            some = keys[at : at + _BLOCK_MAX - len(block.rows)]
            block.add(first + at, some)
            at += len(some)

    def hold(self, runs: Iterable[Run]) -> None:
        """Of these, what is free is out: it was granted before it was looked into."""
        for block, lo, hi in self._spans(runs):
            for row in range(lo, hi):
                if block.rows[row] < _DONE:
                    key = block.keys[row]
                    self._inherited.take(block, row, row + 1)
                    self._locks.add(key)
                    self._ready.discard(key)
                    self._out += 1

    def first(self, barred: Ranges | None = None) -> int | None:
        """Return the first message that may be taken and is not `barred`."""
        if barred and self._meets(barred):
            rows = self._find_unbarred(LIMIT_MAX, 1, barred)
            return rows[0][0].offsets[rows[0][1]] if rows else None
        is_locked = self._locks.__contains__
        for block, start in self._unlocked():
            some = map(not_, map(is_locked, islice(block.rows, start, None)))
            if (at := next(compress(count(start), some), None)) is not None:
                return block.offsets[at]
            block.see(start, len(block.rows))
        self._ready.clear()
        return None

    def keys_ready(self, most: int) -> int:
        """Return of how many keys a message may be taken, `most` at most."""
        found: set[int] = set()
        for block, start in self._unlocked():
            found.update(filterfalse(self._locks.__contains__, islice(block.rows, start, None)))
            if len(found) >= most:
                return most
        return len(found)

    def takeable(self, behind: int, most: int) -> int:
        """Return how many messages below `behind` may be taken, `most` at most."""
        return sum(hi - lo for _, lo, hi in self._find(behind, most)[0])

    def known(self, first: int, behind: int) -> int:
        """Return how many messages in [first, behind) lie in blocks of which some are not done."""
        return sum(hi - lo for _, lo, hi in self._spans([(first, behind)]))

    def take(self, behind: int, most: int, barred: Ranges | None = None) -> list[Run]:
        """Take up to `most` messages below `behind` out, in the order of their offsets; none that
        is `barred`, nor what follows it of its key.
        """
        seen: list[_Rows] = []
        if barred and self._meets(barred):
            found = self._find_unbarred(behind, most, barred)
        else:
            found, seen = self._find(behind, most)
        runs: list[Run] = []
        if not found:
            return runs
        taker = self._taker()
        for block, lo, hi in found:
            taker.take(block, lo, hi)
            for run in block.runs(lo, hi):
                if runs and runs[-1][1] == run[0]:
                    runs[-1] = (runs[-1][0], run[1])
                else:
                    runs.append(run)
        for block, start, stop in seen:
            block.see(start, stop)
        self._out += taker.left
        self._locks |= taker.keys
        self._ready -= taker.keys
        return runs

    def free(self, runs: Iterable[Run]) -> None:
        """These are not out any more, and not done."""
        given: dict[int, list[int]] = {}
        for block, lo, hi in self._spans(runs):
            for mark, start, end in _alike(block.rows, lo, hi):
                if mark > _DONE:
                    keys = block.keys[start:end]
                    given.setdefault(mark, []).extend(keys)
                    block.rows[start:end] = keys
                    block.names.update(keys)
        self._unlock(given)

    def done(self, runs: Iterable[Run]) -> None:
        """These are done, whether they were out or not."""
        given: dict[int, list[int]] = {}
        ended = False
        for block, lo, hi in self._spans(runs):
            for mark, start, end in _alike(block.rows, lo, hi):
                if mark == _DONE:
                    continue
                if mark > _DONE:
                    given.setdefault(mark, []).extend(block.keys[start:end])
                block.rows[start:end] = [_DONE] * (end - start)
                block.done += end - start
                self._length -= end - start
            if block.done == len(block.rows):
                ended = True
            elif block.rows[block.head] == _DONE:
                block.pass_done()
        if ended:
            self._blocks = [one for one in self._blocks if one.done < len(one.rows)]
            self._firsts = [one.offsets[0] for one in self._blocks]
        self._unlock(given)

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone."""
        if self._firsts and self._firsts[0] < start:
            self.done([(self._firsts[0], start)])

    # -- rows --------------------------------------------------------------------------------

    def _spans(self, runs: Iterable[Run]) -> Iterator[_Rows]:
        """Yield the rows of the messages in some runs."""
        for first, behind in runs:
            at = max(bisect_right(self._firsts, first) - 1, 0)
            while at < len(self._firsts) and self._firsts[at] < behind:
                block = self._blocks[at]
                lo, hi = block.span(first, behind)
                if lo < hi:
                    yield block, lo, hi
                at += 1

    def _unlocked(self) -> Iterator[tuple[_Block, int]]:
        """Yield the blocks with rows that may be free and not locked, and the first such row."""
        ready = self._ready
        for block in self._blocks:
            if ready and not ready.isdisjoint(block.names):
                yield block, block.head
            elif block.seen < len(block.rows):
                yield block, max(block.seen, block.head)

    def _meets(self, barred: Ranges) -> bool:
        """Whether something of what is `barred` is free."""
        return any(
            one < _DONE
            for block, lo, hi in self._spans(barred)
            for one in islice(block.rows, lo, hi)
        )

    def _find(self, behind: int, most: int) -> tuple[list[_Rows], list[_Rows]]:
        """Return the rows of up to `most` messages below `behind` that may be taken, and those that
        are seen once that is done.
        """
        found: list[_Rows] = []
        seen: list[_Rows] = []
        is_locked = self._locks.__contains__
        for block, start in self._unlocked():
            if block.offsets[start] >= behind or not most:
                break
            stop = bisect_left(block.offsets, behind)
            locked = bytes(map(is_locked, islice(block.rows, start, stop)))
            lo = locked.find(0)
            while lo >= 0:
                hi = locked.find(1, lo)
                hi = min(len(locked) if hi < 0 else hi, lo + most)
                found.append((block, start + lo, start + hi))
                most -= hi - lo
                if not most:
                    stop = start + hi
                    break
                lo = locked.find(0, hi)
            seen.append((block, start, stop))
        return found, seen

    def _find_unbarred(self, behind: int, most: int, barred: Ranges) -> list[_Rows]:
        """Return the same, row by row, of what is not `barred` nor behind that of its key."""
        found: list[_Rows] = []
        aside: set[int] = set()
        for block in self._blocks:
            for at, key in enumerate(block.rows):
                offset = block.offsets[at]
                if not most or offset >= behind:
                    return found
                if key in self._locks or key in aside:
                    continue
                if barred.covers(offset, offset + 1):
                    aside.add(key)
                    continue
                found.append((block, at, at + 1))
                most -= 1
        return found

    def _unlock(self, given: dict[int, list[int]]) -> None:
        """Some messages are not out any more: by the mark of who took them, their keys."""
        for mark, keys in given.items():
            taker = self._takers[mark]
            self._out -= len(keys)
            unlocked = taker.give(keys)
            if taker is self._inherited:
                for other in self._takers.values():
                    if other is not taker:
                        unlocked -= other.keys
            elif self._inherited.keys:
                unlocked -= self._inherited.keys
            self._locks -= unlocked
            self._ready |= unlocked
            if len(self._ready) > self._prune_at:
                self._prune()
            if not taker.left and taker is not self._inherited:
                del self._takers[mark]
                self._locks.discard(mark)

    def _prune(self) -> None:
        """Forget keys of which nothing is known to be free: one may be new with each message."""
        self._ready.intersection_update(chain.from_iterable(one.names for one in self._blocks))
        self._prune_at = max(2 * len(self._ready), _READY_MAX)


def _alike(rows: Sequence[int], lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
    """Yield [lo, hi) in parts whose rows are the same: what they are, first row, row behind."""
    while lo < hi:
        one = rows[lo]
        same = hi - lo if rows[lo:hi].count(one) == hi - lo else 1  # most were taken together
        while lo + same < hi and rows[lo + same] == one:
            same += 1
        yield one, lo, lo + same
        lo += same
