"""A consumer cluster's replicated state in one partition: what is done, and who holds what.

Everything here changes by committed entries only, so every replica has the same (*AckedOnce*).
Time is the stamp in an entry; nobody's clock decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.broker.control import MessagesGranted
from weir.broker.ranges import Ranges

#: The deadline of a grant whose consumer is gone: passed for every clock.
AT_ONCE = 0


@dataclass(slots=True)
class Grant:
    """A lease of the messages still in `left`; `deadline` is a stamp."""

    consumer: int
    deadline: int
    attempts: int
    left: Ranges


@dataclass(slots=True)
class ClusterState:
    """All below `cursor` is done, and so is `done`; all from `frontier` on was never granted.

    `skipped` counts messages that went past retention before they were done. A `paused` cluster is
    granted nothing.
    """

    cursor: int = 0
    frontier: int = 0
    done: Ranges = field(default_factory=Ranges)
    grants: dict[int, Grant] = field(default_factory=dict)
    skipped: int = 0
    paused: bool = False
    #: The fences of each consumer's grants: derived, so that one that goes costs what it held.
    held: dict[int, dict[int, None]] = field(init=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Derive who holds what."""
        for fence, grant in self.grants.items():
            self.held.setdefault(grant.consumer, {})[fence] = None

    def grant(self, fence: int, record: MessagesGranted) -> Grant | None:
        """Lease the first run of [first, next) that is not done, superseding grants it overlaps.

        An ack may have come between the proposal of a grant and its commit: what is done is never
        granted, and None is returned if all of it is. What lies behind the run stays where it is.
        """
        run, attempts = (record.first, record.next), 1
        if record.first < self.frontier:  # else nobody had any of it yet
            run, attempts = self._take_over(*run)
        self.frontier = max(self.frontier, record.next)
        if run[0] >= run[1]:
            return None
        granted = Grant(record.consumer, record.deadline, attempts, Ranges([run]))
        self.grants[fence] = granted
        self.held.setdefault(record.consumer, {})[fence] = None
        return granted

    def _take_over(self, first: int, behind: int) -> tuple[tuple[int, int], int]:
        """Take the first run that is not done from whoever holds it; return it and its attempts."""
        run = self.done.gap_from(max(first, self.cursor), behind)
        attempts = 1
        for old, grant in list(self.grants.items()):
            before = list(grant.left)
            grant.left.discard(*run)
            if list(grant.left) != before:
                attempts = max(attempts, grant.attempts + 1)
                self._drop_if_empty(old, grant)
        return run, attempts

    def ack(self, fence: int, first: int, behind: int) -> bool:
        """Mark messages done that are of this grant; False if some are neither that nor done yet.

        Those went to another consumer and are done there: an ack takes nothing from anybody else.
        """
        grant = self.grants.get(fence)
        if grant is None:
            return self._is_done(first, behind)
        for run in grant.left.within(first, behind):
            self.done.add(*run)
        grant.left.discard(first, behind)
        self._drop_if_empty(fence, grant)
        self._advance()
        return self._is_done(first, behind)

    def _advance(self) -> None:
        run = self.done.first_run()
        if run and run[0] <= self.cursor:
            self.cursor = max(self.cursor, run[1])
            self.done.discard(0, self.cursor)

    def seek(self, offset: int) -> None:
        """Go on at `offset`: nothing from there on is done, and nothing is with anybody."""
        self.cursor = self.frontier = offset
        self.done = Ranges()
        self.grants.clear()
        self.held.clear()

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone: nobody is granted them any more, who holds them ends."""
        if start <= self.cursor:
            return
        self.skipped += start - self.cursor - _count(self.done.within(self.cursor, start))
        self.cursor, self.frontier = start, max(self.frontier, start)
        self.done.discard(0, start)
        for fence, grant in list(self.grants.items()):
            grant.left.discard(0, start)
            self._drop_if_empty(fence, grant)
        self._advance()

    def lag(self, behind: int) -> int:
        """Return how many messages below offset `behind` are not done."""
        return behind - self.cursor - self.done.count

    @property
    def granted(self) -> int:
        """How many messages are with consumers."""
        return sum(grant.left.count for grant in self.grants.values())

    @property
    def attempts(self) -> int:
        """The most grants that a message took which is with a consumer now."""
        return max((grant.attempts for grant in self.grants.values()), default=0)

    def release(self, consumer: int) -> bool:
        """Let a gone consumer's messages be granted at once; return whether it held any."""
        held = self.held.get(consumer, {})
        for fence in held:
            self.grants[fence].deadline = AT_ONCE
        return bool(held)

    def _is_done(self, first: int, behind: int) -> bool:
        return behind <= self.cursor or self.done.covers(max(first, self.cursor), behind)

    def _drop_if_empty(self, fence: int, grant: Grant) -> None:
        if grant.left:
            return
        del self.grants[fence]
        fences = self.held[grant.consumer]
        del fences[fence]
        if not fences:
            del self.held[grant.consumer]

    def encode(self) -> tuple[object, ...]:
        """Return the state for a snapshot."""
        grants = [
            (fence, g.consumer, g.deadline, g.attempts, list(g.left))
            for fence, g in self.grants.items()
        ]
        return (self.cursor, self.frontier, list(self.done), grants, self.skipped, self.paused)

    @classmethod
    def decode(
        cls,
        cursor: int,
        frontier: int,
        done: list[tuple[int, int]],
        grants: list[tuple[int, int, int, int, list[tuple[int, int]]]],
        skipped: int,
        paused: bool,
    ) -> ClusterState:
        """Return the state of a snapshot."""
        held = {
            fence: Grant(consumer, deadline, attempts, Ranges(left))
            for fence, consumer, deadline, attempts, left in grants
        }
        return cls(cursor, frontier, Ranges(done), held, skipped, paused)


def _count(runs: Iterable[tuple[int, int]]) -> int:
    return sum(behind - first for first, behind in runs)
