"""Mode `ordered`: one consumer at a time gets everything, in order; the others stand by.

A grant at an offset ends all other grants from there on (`ClusterState.grant`), so the next
consumer begins at the first message that is not done, and a late ack of the former one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from weir.broker.consumers.picker import (
    ANYBODY,
    Pick,
    Picker,
    PickerContext,
    PullQueue,
    Run,
    runs_of,
)
from weir.broker.runtime.outbox import Wait
from weir.broker.state.clusters import AT_ONCE, ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.model.limits import FETCH_BYTES_MAX, WATCHED_MAX
from weir.model.topic import Mode
from weir.protocol.client.messages import Pull

_NOTHING = (0, 0)
#: Beyond twice those that are live and so many, grants that ended are forgotten.
_SLACK = 256


class OrderedPicker(Picker):
    """Knows whose turn it is, and up to where that one was granted messages."""

    __slots__ = ("_active", "_is_granting", "_lease_ms", "_left", "_until_ms")

    mode: ClassVar[Mode] = Mode.ORDERED

    def __init__(self, context: PickerContext, name: str, tags: frozenset[str]) -> None:
        """Begin without an active consumer; grants of an earlier leader are found in the state."""
        super().__init__(context, name, tags)
        self._active = ANYBODY
        #: Whether something is being granted, or read: nothing leaves before it has left.
        self._is_granting = False
        #: By grant, the offset below which its messages have left. The others rest until the lease
        #: ends, and nothing behind them is to be done before them: they could not be read, or an
        #: earlier leader's answer may have died with it.
        self._left: dict[int, int] = {}
        #: An active one that holds nothing and asks for nothing is given up then: a lease after it
        #: asked last.
        self._until_ms = self._lease_ms = 0

    # -- what to grant -----------------------------------------------------------------------

    def next_peer(self, queue: PullQueue) -> int | None:
        """Return the active consumer, if it pulls; without one, the first in the queue will be."""
        active = self._active_of(queue)
        return active if active == ANYBODY or queue.pulls.holds(active) else None

    def pick(self, queue: PullQueue, request: Pull) -> Pick | None:
        """Return what follows all that is done or with the active one."""
        self.is_barred = False
        first, behind = self._next(request.max_messages)
        if first >= behind:
            return None
        begin, behind = Ranges(request.begun or ()).gap_from(first, behind)
        self.is_barred = begin > first  # what follows is not to be done before it
        if self.is_barred:
            return None
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        among = self.unwanted.leave(first, behind, size) if self.unwanted.tags else Ranges()
        reading = self._context.read(first, behind, size, self.unwanted.tags)
        if reading is None:
            return None
        behind = min(behind, reading.next_offset)
        runs = runs_of(among, first, behind, request.max_messages)
        if len(runs) < 2:
            return Pick(first, min(behind, runs[0][1]) if runs else behind, reading)
        return Pick(first, runs[-1][1], reading, runs)

    def offered(self, queue: PullQueue) -> Run:
        """Return what the active consumer could be granted."""
        return self._next(WATCHED_MAX)

    def pop_watches(self, queue: PullQueue) -> tuple[Run, Sequence[Wait[Pull]]]:
        """Tell the active one alone; without anybody, the first in line."""
        active = self._active_of(queue)
        found = self.offered(queue)
        if found[0] >= found[1] or (active != ANYBODY and not queue.watches.holds(active)):
            return _NOTHING, ()
        return found, (queue.watches.pop(active),)

    def _next(self, most: int) -> Run:
        """Return the first messages that may be granted now: none while one in front of them is
        held back, or with somebody else.
        """
        state, cluster = self._context.state, self._cluster
        first, done = state.log_start, state.voids
        if cluster is not None:
            first, done = cluster.cursor, cluster.done
        if self._is_granting:
            return _NOTHING
        mine, others = self._shares()
        limit = state.decided_offset
        while first < limit:
            first, behind = done.gap_from(first, limit)
            free, _ = mine.gap_from(first, limit)
            free, _ = self.unwanted.known.gap_from(free, limit)
            if free == first < limit:
                if not self._passes_by(first, behind):
                    break
                if self.unwanted.is_urgent:
                    return _NOTHING
            first = free
        else:
            return _NOTHING
        start, end = others.gap_from(first, behind)
        if start > first:
            return _NOTHING
        most = self._portion(first, most)
        return first, min(end, first + most, self._due_from(first, behind))

    def _passes_by(self, first: int, behind: int) -> bool:
        """Whether the message at `first` proves to be unwanted."""
        if not self.unwanted.tags:
            return False
        self.unwanted.leave(first, behind, 1)
        return self.unwanted.known.covers(first, first + 1)

    def _due_from(self, first: int, behind: int) -> int:
        """Return where the first messages begin that are not due: the cluster waits for them."""
        delays = self._context.state.delays
        row = delays.live(first, behind, self._context.due_ms()) if len(delays) else None
        return behind if row is None else max(row.first, first)

    # -- whose turn it is --------------------------------------------------------------------

    def _active_of(self, queue: PullQueue) -> int:
        if self._active != ANYBODY and not self._is_granting and self._is_over(queue):
            self._active = ANYBODY
        if self._active == ANYBODY:
            holders = {consumer for consumer, *_ in self._held()} - {ANYBODY}
            self._active = next(iter(holders), ANYBODY)
        return self._active

    def _is_over(self, queue: PullQueue) -> bool:
        """Whether a grant of the active one has ended, or it does nothing: it may stand still."""
        if self._active in self._ended():
            return True
        now_ms = self._context.time.monotonic_ms()
        if queue.holds(self._active):
            self._until_ms = now_ms + self._lease_ms
        if now_ms < self._until_ms:
            return False
        return all(consumer != self._active for consumer, *_ in self._held())

    def _ended(self) -> set[int]:
        """Return the consumers that have a grant which has ended."""
        cluster = self._cluster
        return set() if cluster is None else {g.consumer for g in self._over(cluster).values()}

    def _held(self) -> Iterator[tuple[int, int, Grant]]:
        """Yield what is held back (with 0), or with consumers of whom no grant has ended; and what
        such a one is giving back: it is on its way to nobody (simulated set 860).
        """
        cluster = self._cluster
        if cluster is not None:
            over = self._over(cluster)
            ended = {grant.consumer for grant in over.values()} - {ANYBODY}
            is_pinned = self._context.leases.is_pinned
            for fence, grant in cluster.grants.items():
                if fence not in over and grant.consumer not in ended:
                    yield grant.consumer, fence, grant
                elif is_pinned(self._name, fence):
                    yield ANYBODY, fence, grant

    def _shares(self) -> tuple[Ranges, Ranges]:
        """Return what the active one holds and was sent, and what is held besides."""
        mine, others = Ranges(), Ranges()
        for consumer, fence, grant in self._held():
            left = self._left.get(fence, 0) if consumer == self._active != ANYBODY else 0
            for first, behind in grant.left:
                if first < left:
                    mine.add(first, min(behind, left))
                if behind > left:
                    others.add(max(first, left), behind)
        return mine, others

    def _over(self, cluster: ClusterState) -> dict[int, Grant]:
        context = self._context
        over = context.leases.over(self._name, cluster, context.time.monotonic_ms())
        return {
            fence: grant
            for fence, grant in cluster.grants.items()
            if fence in over or grant.deadline == AT_ONCE
        }

    @property
    def is_looking(self) -> bool:
        """Whether it is to be seen what is next."""
        return self._is_granting

    # -- what became of it -------------------------------------------------------------------

    def took(self, session: int, request: Pull, pick: Pick) -> None:
        """From here on this one is active."""
        self._active = session
        self._is_granting = True
        self._lease_ms = request.lease_ms
        self._until_ms = self._context.time.monotonic_ms() + request.lease_ms

    def granted(self, pick: Pick, grant: Grant | None) -> None:
        """It is with the active one now, unless it cannot be any more."""
        self._is_granting = grant is not None

    def handed_out(self, fence: int, behind: int) -> None:
        """What of it lies below an offset has left."""
        self._is_granting = False
        grants = self._cluster.grants if self._cluster is not None else {}
        if len(self._left) > 2 * len(grants) + _SLACK:
            self._left = {known: at for known, at in self._left.items() if known in grants}
        self._left[fence] = behind

    def has_left(self, fence: int, behind: int) -> None:
        """What of a grant lies below an offset is with its consumer already."""
        self._left[fence] = behind

    def closed(self, session: int) -> None:
        """The next in line takes over, once what a peer held that is gone is released."""
        if session == self._active:
            self._until_ms = 0

    def moved(self, session: int) -> None:
        """The next in line takes over once what the active one holds is done, unless that asks for
        more: a client that was forwarded and has a way of its own now pulls by that.
        """
        self.closed(session)
