"""The alarm of old commit barriers: which process holds back its own, and what it waits for.

A process promises by its commit barrier that no later reliable stamp lies at or below it, so it
holds it below the oldest scattering that is not settled. The barrier of all is the least one: one
receiver that does not answer makes all others wait. Every process tells its promise and what it
waits for each ten intervals. A promise is *old* that is more than five intervals behind the clock
of its process, and also that far behind the median of all processes, or has not risen since the
reading before. One that is old in all readings of twenty intervals is reported.

Readings are no entries of the log: a new leader starts with the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median_high
from typing import NamedTuple

from weir_toc.controller.lag import (
    LAG_INTERVALS,
    LASTING_INTERVALS,
    READ_INTERVALS,
    LagAlarm,
    Lagging,
)
from weir_toc.topology import Topology


class Wait(Enum):
    """What the oldest scattering of a process waits for."""

    NOTHING = 0
    #: A receiver has not acknowledged its part.
    ACK = 1
    #: A receiver has not answered that it has discarded its part.
    RECALL = 2
    #: The controller has not noted what failed receivers must not deliver.
    NOTE = 3


class Promise(NamedTuple):
    """What a process tells of its own commit barrier, the last one that it sent."""

    commit: int
    #: How far it was behind the clock of the process at least since the reading before, in
    #: nanoseconds: one that lags now and again, and comes up in between, holds nobody back.
    age: int = 0
    wait: Wait = Wait.NOTHING
    #: The receiver that it waits for, or whose failure is to be noted; 0 without one.
    process: int = 0


class Reason(Enum):
    """Why a promise is old."""

    #: What it waits for has stopped, or pauses at times.
    STOPPED = "stopped process"
    ACK = "no acknowledgement"
    RECALL = "no answer to a recall"
    NOTE = "no note of the controller"
    #: It waits for nothing: its own clock stands, or it sends nothing.
    SENDER = "sender"


_REASONS = {Wait.NOTHING: Reason.SENDER, Wait.ACK: Reason.ACK, Wait.RECALL: Reason.RECALL,
            Wait.NOTE: Reason.NOTE}  # fmt: skip


class Held(NamedTuple):
    """A process begins to hold commit barriers back, or ceases to."""

    process: int
    #: For which process it waits; 0 if for none.
    waits_for: int
    reason: Reason
    #: How far its promise is behind its clock, in nanoseconds, and since when it is old.
    behind: int
    since: int
    is_over: bool = False


@dataclass(slots=True)
class _Told:
    """The last reading of a process, by the leader's clock."""

    at: int
    promise: Promise
    #: Since when its promise is old; None while it is not.
    since: int | None = None
    held: Held | None = None


@dataclass(slots=True)
class PromiseAlarm:
    """Promises of one leadership. Times are those of the leader's clock, in nanoseconds.

    `lag` is the alarm that reads the links of the same nodes: it knows who has stopped.
    """

    lag: LagAlarm
    interval: int
    #: How many processes were reported since the start.
    reported: int = 0
    _told: dict[int, _Told] = field(default_factory=dict)

    @property
    def held(self) -> list[Held]:
        """The processes that hold commit barriers back now."""
        return [one.held for one in self._told.values() if one.held is not None]

    def read(self, process: int, at: int, promise: Promise) -> list[Held]:
        """Take what a process tells at `at`; return what is reported because of it."""
        found = self.expire(at)
        age = promise.age
        last = self._told.get(process)
        told = self._told[process] = _Told(at, promise)
        limit = LAG_INTERVALS * self.interval
        stands = last is not None and promise.commit <= last.promise.commit
        if age <= limit or not (stands or age - self._usual() > limit):
            if last is not None and last.held is not None:
                found.append(last.held._replace(is_over=True))
            return found
        told.since = last.since if last is not None and last.since is not None else at
        told.held = last.held if last is not None else None
        # Readings come a little sooner or later than they are due.
        lasting = (LASTING_INTERVALS - READ_INTERVALS // 2) * self.interval
        if told.held is None and at - told.since >= lasting:
            reason = self._reason(promise, at)
            told.held = Held(process, promise.process, reason, age, told.since)
            self.reported += 1
            found.append(told.held)
        return found

    def expire(self, now: int) -> list[Held]:
        """Forget processes that tell nothing any more; return those that hold nothing back so."""
        oldest = self.lag.oldest(now)
        return self._forget([process for process, one in self._told.items() if one.at < oldest])

    def forget(self) -> list[Held]:
        """Forget what all processes told; return those that hold nothing back so."""
        return self._forget([*self._told])

    def _forget(self, gone: Sequence[int]) -> list[Held]:
        over = [self._told.pop(process).held for process in gone]
        return [one._replace(is_over=True) for one in over if one is not None]

    def _usual(self) -> int:
        """The median age; of two processes that of the fresher one."""
        return -median_high(-one.promise.age for one in self._told.values())

    def _reason(self, promise: Promise, now: int) -> Reason:
        if promise.wait in (Wait.ACK, Wait.RECALL) and self.lag.pauses(promise.process, now):
            return Reason.STOPPED
        return _REASONS[promise.wait]


class Alarms:
    """Both alarms of one leadership."""

    def __init__(self, topology: Topology, interval: int) -> None:
        """Watch a network of this interval, in nanoseconds."""
        self.lag = LagAlarm(topology, interval)
        self.promises = PromiseAlarm(self.lag, interval)

    def expire(self, now: int) -> list[Lagging | Held]:
        """Return what is over by `now`: its nodes tell nothing any more, or have failed."""
        return [*self.lag.expire(now), *self.promises.expire(now)]

    def forget(self) -> list[Lagging | Held]:
        """Forget all that nodes told; return what is over so. What was reported stays counted."""
        return [*self.lag.forget(), *self.promises.forget()]
