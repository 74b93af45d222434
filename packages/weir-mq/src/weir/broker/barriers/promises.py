"""What the leaders of a shard promise not to stamp any more, and how far its voters stand by what
others promised (DESIGN §5 Barrier safety).

A promise is one number for all groups that are led over a link. Nothing flows but while somebody
asks: many who ask share a question, and the next one goes out once all have answered the last, or
after `PROMISE_EVERY_MS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import weir_raft as raft
from weir.model.limits import MAX_AHEAD_MS, PROMISE_EVERY_MS
from weir.model.stamp import stamp_at
from weir.order.barrier import Bound
from weir.order.clock import HighestStamp, Time

_AHEAD = stamp_at(MAX_AHEAD_MS)


class Bounded(Protocol):
    """A log of this shard: promises of its voters are bounded by what lies in it."""

    @property
    def bound(self) -> Bound:
        """How far they may go."""

    def extend_bound(self) -> None:
        """Write how far promises may go, unless there is enough in hand."""


class Promises:
    """Lets all clocks of this shard go above a stamp, and asks the voters to remember that."""

    __slots__ = ("_asked_ms", "_highest", "_logs", "_multi", "_next", "_time", "is_pending",
                 "wanted")  # fmt: skip

    def __init__(
        self, multi: raft.Multi, highest: HighestStamp, logs: Sequence[Bounded], time: Time
    ) -> None:
        """Nobody asks for anything yet; what was promised before this start holds."""
        self._multi = multi
        self._highest = highest
        self._logs = logs
        self._time = time
        #: What is to be promised next, and when the last question went out.
        self._next = 0
        self._asked_ms = -PROMISE_EVERY_MS
        #: The highest fence that anybody asked for, when bounds were last looked at; and whether
        #: something waits for answers, or for a bound.
        self.wanted = 0
        self.is_pending = False
        multi.raise_bound(self._bound())

    def ask(self, stamp: int) -> None:
        """Promise that nothing is stamped at or below `stamp`, or the time if that is later, by any
        leader here from now on. What lies too far ahead is promised as far as a client may see.
        """
        now = stamp_at(self._time.wall_ms())
        self._next = max(now, min(stamp, now + _AHEAD), self._next)
        self._ask_next(now)

    @property
    def unheard(self) -> int:
        """The lowest stamp that no clock here gave, and that nobody was asked for."""
        return max(self._highest.stamp, self._multi.fence_asked) + 1

    def ask_again(self) -> None:
        """Somebody waits for what was asked: the answers may have been less than that, or lost."""
        now = stamp_at(self._time.wall_ms())
        self._next = max(self._next, now, self._multi.fence_asked + 1)
        self._ask_next(now)

    def pursue(self) -> None:
        """Ask what waited for answers to the last question, and extend bounds that are needed."""
        multi = self._multi
        if self._next > multi.fence_asked:
            self._ask_next(stamp_at(self._time.wall_ms()))
        wanted = multi.fence_wanted
        # A bound follows this clock, so it may take several to come to what a clock that is ahead
        # asked for; later questions may ask for less than that, and for more than the bound.
        if wanted > self.wanted or wanted > multi.fence_bound:
            self.wanted = wanted
            for log in self._logs:
                log.extend_bound()
        if multi.fence_bound < self.wanted:
            self._raise_bound()
        self.is_pending = self._next > multi.fence_asked or wanted > multi.fence_bound

    def _raise_bound(self) -> None:
        bound = self._bound()
        if bound > self._multi.fence_bound:
            self._multi.raise_bound(bound)

    def _bound(self) -> int:
        return min((log.bound.durable for log in self._logs), default=0)

    def _ask_next(self, now: int) -> None:
        """Ask for what is to be promised next, or the stamp of `now` if that is higher."""
        now_ms, multi = self._time.monotonic_ms(), self._multi
        if self._next <= multi.fence_asked:
            return
        self.is_pending = True
        if now_ms - self._asked_ms < PROMISE_EVERY_MS and not multi.all_answered:
            return
        self._next = max(self._next, now)
        self._asked_ms = now_ms
        self._highest.promised = max(self._highest.promised, self._next)
        multi.ask(self._next)
