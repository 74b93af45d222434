"""Deficit round robin: waiting items are served by turns of their keys, each key equally.

What one turn costs is known only behind it. So a key is served while it has some of its quantum
left, and what it took beyond that is missing in its next turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items that wait, by key; those of one key in the order in which they came."""

    __slots__ = ("_credit", "_items", "_quantum", "_size")

    def __init__(self, quantum: int) -> None:
        """Let each key have so much in its turn."""
        self._quantum = quantum
        self._items: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        #: By key, what is left of its quantum; below 0 what it took beyond.
        self._credit: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """Yield the items, those of each key together."""
        return chain.from_iterable(self._items.values())

    def add(self, key: str, item: T) -> None:
        """Let an item wait, unless it does."""
        items = self._items.get(key)
        if items is None:
            items = self._items[key] = OrderedDict()
            self._credit.setdefault(key, self._quantum)
        if item not in items:
            items[item] = None
            self._size += 1

    def take(self) -> tuple[str, T] | None:
        """Take out the item whose turn it is, and its key; None if none waits. `charge` must say
        what it cost before the next is taken.
        """
        if not self._size:
            return None
        key = next(iter(self._items))
        while self._credit[key] <= 0:
            self._credit[key] += self._quantum
            self._items.move_to_end(key)
            key = next(iter(self._items))
        item, _ = self._items[key].popitem(last=False)
        self._size -= 1
        return key, item

    def charge(self, key: str, cost: int) -> None:
        """What was taken out last, of this key, cost so much of its quantum."""
        if not self._items[key]:
            del self._items[key], self._credit[key]  # a key without items begins anew
        elif len(self._items) > 1:  # else no other key waits
            self._credit[key] -= cost
