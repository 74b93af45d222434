"""How many processes a cluster's work needs: a decision without clock, processes or broker.

What waits is to be done within `DRAIN` seconds, beside what comes. How quick a process is, is
measured only while all have enough to do: an idle one tells nothing about what it could do.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

#: Seconds within which what waits is to be done.
DRAIN = 10.0
#: Parts of its time that a process is to be at work: above, there are too few; below, too many.
BUSY_MOST = 0.9
BUSY_LEAST = 0.6
#: Seconds that new processes need until they show what they can do.
SETTLE = 2.0
#: Seconds without anything done after which it is not for lack of processes.
STUCK = 5.0
#: Seconds that a rate remembers; that of a process remembers so many messages at least, because
#: a few slow ones come in waves.
_REMEMBERED = 5.0
_REMEMBERED_MESSAGES = 20.0


class Look(msgspec.Struct, frozen=True):
    """A cluster, seen at `at` seconds of some clock.

    In its `partitions`, `published` messages have been counted so far, and `left` are not done; of
    these `waiting` might be handed out and are not: they are with nobody, not held back, and due.
    `present` processes are at work, of which no more than `useful` could do something (None: any).
    """

    at: float
    published: int
    left: int
    waiting: int
    present: int
    partitions: int
    useful: int | None = None


class Decision(msgspec.Struct, frozen=True):
    """How many processes there should be, and a sentence that says why."""

    wanted: int
    why: str


class Scaling:
    """Wants more processes at once, and fewer only when they were too many for `cool_down` s."""

    def __init__(self, least: int, most: int, cool_down: float = 30.0) -> None:
        """Begin with `least`. Raises `ValueError` for bounds that cannot be kept."""
        if not 1 <= least <= most:
            raise ValueError(
                f"{least} to {most} processes: the least is 1 or more, the most no less"
            )
        self.wanted = least
        self._least = least
        self._most = most
        self._cool_down = cool_down
        self._last: Look | None = None
        self._comes = 0.0
        # A process's rate is messages by seconds, both of which fade.
        self._messages = 0.0
        self._seconds = 0.0
        #: When processes last came or went, or more were wanted; and when something was last done.
        self._settling = self._moved = 0.0
        #: Of the last `cool_down` seconds: when, and how many would have been enough.
        self._enough: deque[tuple[float, int]] = deque()

    def decide(self, look: Look) -> Decision:
        """Return what is wanted from now on; call it about once a second."""
        last, self._last = self._last, look
        if last is None or look.present != last.present:
            self._settling = look.at
        if last is None or look.partitions != last.partitions:
            self._moved = look.at
            return self._so("there is nothing to compare with yet")
        if look.at <= last.at:
            return self._so("no time has gone by")
        self._learn(last, look)
        if not self._messages:
            return self._so("it is not known yet how much a process does")
        return self._judge(look, self._messages / self._seconds)

    def _learn(self, last: Look, look: Look) -> None:
        passed = look.at - last.at
        came = max(look.published - last.published, 0)
        done = max(came - (look.left - last.left), 0)
        self._comes += (came / passed - self._comes) * -math.expm1(-passed / _REMEMBERED)
        if done or not look.waiting:
            self._moved = look.at
        waited = min(last.waiting, look.waiting)
        full = look.present and waited and 2 * waited >= done
        if full and look.at - self._settling >= SETTLE:
            fading = math.exp(-passed / _REMEMBERED)
            if self._messages * fading >= _REMEMBERED_MESSAGES:
                self._messages *= fading
                self._seconds *= fading
            self._messages += done
            self._seconds += look.present * passed

    def _judge(self, look: Look, each: float) -> Decision:
        most = self._most if look.useful is None else max(min(self._most, look.useful), self._least)
        load = (self._comes + look.waiting / DRAIN) / each
        needed = math.ceil(load / BUSY_MOST)
        self._enough.append((look.at, min(max(math.ceil(load / BUSY_LEAST), self._least), most)))
        # One from before those seconds stays: looks may have been impossible for a while.
        while len(self._enough) > 1 and self._enough[1][0] <= look.at - self._cool_down:
            self._enough.popleft()
        seen = f"{look.waiting:,} wait, {_rate(self._comes)}/s come, a process does {_rate(each)}/s"
        if look.waiting and look.at - self._moved >= STUCK:
            return self._so(f"{look.waiting:,} wait, but none is done: more would not help")
        if min(needed, most) > self.wanted:
            if look.at - self._settling < SETTLE:
                return self._so(f"{seen}: those that began last are waited for")
            short = f": {needed:,} are needed, {most} are the most" if needed > most else ""
            self._settling = look.at
            self.wanted = min(needed, most)
            return self._so(seen + short)
        enough = max(count for _, count in self._enough)
        if enough < self.wanted:
            self.wanted = enough
            return self._so(f"{seen}: fewer were enough for {self._cool_down:g} s")
        return self._so(seen)

    def _so(self, why: str) -> Decision:
        return Decision(self.wanted, why)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
