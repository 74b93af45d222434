"""Which messages may be granted so that those of a key keep their order: a window over a log.

Per message, as those of a key cannot be told apart without looking at each (DESIGN §1.1): some 200
bytes and a few microseconds, of `KEYED_WINDOW` messages at most at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from weir.broker.state.ranges import Ranges
from weir.model.limits import KEYED_WINDOW

Run = tuple[int, int]


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
        #: (message, key) of each key's first message that could be taken, and some that cannot.
        self._heads: list[tuple[int, int]] = []

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
            heapq.heappush(self._heads, (offset, key))

    def first(self, barred: Ranges | None = None) -> int | None:
        """Return the first message that may be taken and is not `barred`."""
        heads, aside = self._heads, list[tuple[int, int]]()
        found: int | None = None
        while heads and found is None:
            offset, key = heads[0]
            if key in self._locks or self._first.get(key) != offset:
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
        aside: list[tuple[int, int]] = []
        mine: set[int] = set()
        heads = self._heads
        while heads and most and heads[0][0] < behind:
            offset, key = heapq.heappop(heads)
            if offset in self._out or offset not in self._keys:
                continue
            if key not in mine and (key in self._locks or self._first[key] != offset):
                continue
            if barred and barred.covers(offset, offset + 1):
                if key not in mine:
                    aside.append((offset, key))
                continue
            mine.add(key)
            self._take_out(offset, key)
            if (following := self._next(offset)) is not None:
                heapq.heappush(heads, (following, key))
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
        for offset in self._known(runs):
            key = self._keys.pop(offset)
            if offset in self._out:
                self._put_in(offset, key)
            self._shorten(key)
            self._offer(key)

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
            heapq.heappush(self._heads, (self._first[key], key))

    def _next(self, offset: int) -> int | None:
        """Return what follows a message of its key and is not done."""
        following = self._following.get(offset)
        while following is not None and following not in self._keys:
            following = self._following.get(following)
        return following

    def _shorten(self, key: int) -> None:
        """Let a key's chain begin with its first message that is not done."""
        first: int | None = self._first[key]
        while first is not None and first not in self._keys:
            first = self._following.pop(first, None)
        if first is None:
            del self._first[key], self._last[key]
        else:
            self._first[key] = first


def keys_of(first: int, validity: Sequence[int] | None, hashes: Sequence[int]) -> list[int]:
    """Return a key for each message of a batch that begins at offset `first`: its key's hash, or a
    negative number of its own.
    """
    if validity is None:
        return [-1 - first - i for i in range(len(hashes))]
    return [
        number if validity[i >> 3] & (1 << (i & 7)) else -1 - first - i
        for i, number in enumerate(hashes)
    ]
