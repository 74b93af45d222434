"""Which of the messages at hand may begin: those of one lane go one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items in order of arrival. One that has a lane waits until all before it there are done."""

    __slots__ = ("_behind", "_lane_of", "_ready", "_waiting")

    def __init__(self, lane_of: Callable[[T], Hashable] | None = None) -> None:
        """Take what names an item's lane (None: it waits for nobody); without it there are none."""
        self._lane_of = lane_of
        self._ready: deque[T] = deque()
        #: Of each lane with an item that may begin, or has: those behind it, so many in all.
        self._behind: dict[Hashable, deque[T]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many did not begin, those included that may not yet."""
        return len(self._ready) + self._waiting

    def __bool__(self) -> bool:
        """Whether one may begin."""
        return bool(self._ready)

    def add(self, items: Iterable[T]) -> None:
        """Put items behind all others."""
        if self._lane_of is None:
            self._ready.extend(items)
            return
        for item in items:
            lane = self._lane_of(item)
            behind = None if lane is None else self._behind.get(lane)
            if behind is not None:
                behind.append(item)
                self._waiting += 1
                continue
            self._ready.append(item)
            if lane is not None:
                self._behind[lane] = deque()

    def next(self) -> T | None:
        """Take out the first item that may begin; None if there is none. Tell `done` of it."""
        return self._ready.popleft() if self._ready else None

    def put_back(self, item: T) -> None:
        """Take back, to the front, what `next` returned: it did not begin."""
        self._ready.appendleft(item)

    def done(self, item: T) -> None:
        """Say that an item is over; the next of its lane may begin, before all others."""
        if self._lane_of is None:
            return
        lane = self._lane_of(item)
        behind = self._behind.get(lane)
        if behind:
            self._ready.appendleft(behind.popleft())
            self._waiting -= 1
        elif behind is not None:
            del self._behind[lane]

    def taken_out(self) -> list[T]:
        """Return all that did not begin, and forget them. What began must still come to `done`."""
        found: list[T] = []
        for item in self._ready:
            found.append(item)
            if self._lane_of is not None:
                found += self._behind.pop(self._lane_of(item), ())
        for behind in self._behind.values():
            found += behind
            behind.clear()
        self._ready.clear()
        self._waiting = 0
        return found
