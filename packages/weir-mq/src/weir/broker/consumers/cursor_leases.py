"""The leader's side of clusters that read a topic in total order: whose turn it is.

One consumer of a cluster has the turn; the others wait in line and go on at the cursor. A turn is
an entry, and nobody works before it is committed; so is every move of the cursor. It ends by being
given back, with its holder's connection, or by a lease that this leader times by its own clock.
"""

from __future__ import annotations

from weir.broker.consumers.grants import Grants
from weir.broker.consumers.leases import left_of
from weir.broker.records.entries import Payload, of_control
from weir.broker.records.partition import CursorMoved, CursorSought, CursorTaken, GrantsReleased
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller, Outbox, Wait, Waits
from weir.broker.state.clusters import NOBODY, Cursor, ending_of
from weir.broker.state.state import PartitionState
from weir.errors import BadRequest, Overloaded, Refused, StaleGrant, Unavailable, UnknownCluster
from weir.model.limits import (
    CLUSTERS_PER_TOPIC_MAX,
    DELAY_MS_MAX,
    GRANT_MS_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.model.topic import check_name
from weir.order.clock import HybridClock, Time, milliseconds_of, stamp_at
from weir.protocol.client.consumers import MoveCursor, Moved, SeekCursor, TakeTurn, Turn


class CursorLeases:
    """Gives turns of one topic's clusters while this node leads its partition 0."""

    __slots__ = (
        "_clock",
        "_draining",
        "_due",
        "_grants",
        "_group",
        "_moves",
        "_outbox",
        "_paused",
        "_queues",
        "_state",
        "_takes",
        "_taking",
        "_time",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, outbox: Outbox, time: Time,
        grants: Grants,
    ) -> None:  # fmt: skip
        """Begin to lead: turns that earlier leaders gave last as long as their log says.

        Of a cluster that consumers pull for by `grants` none may take its turn.
        """
        self._grants = grants
        self._group = group
        self._state = state
        self._clock = clock
        self._outbox = outbox
        self._time = time
        self._queues: dict[str, Waits[TakeTurn]] = {}
        #: Clusters that the registry says are paused.
        self._paused: frozenset[str] = frozenset()
        self._takes: Proposals[Payload, Wait[TakeTurn]] = Proposals(group)
        self._moves: Proposals[Payload, Caller] = Proposals(group)
        #: Clusters of which a turn is being given.
        self._taking: set[str] = set()
        self._draining = False
        #: By cluster, the monotonic time before which its turn goes to nobody else.
        self._due = {
            name: left_of(cursor.deadline, cursor.consumer, state.last_stamp, time)
            for name, cursor in state.cursors.items()
        }

    def left_ms(self, name: str, now_ms: int) -> int:
        """Return for how long the turn of a cluster lasts; 0 if it is over."""
        return max(self._due.get(name, 0) - now_ms, 0)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._queues)

    @property
    def due_ms(self) -> int | None:
        """The monotonic time in ms before which no tick can answer those who wait for a turn; 0 if
        the next tick may, None if nobody waits.
        """
        dues: list[int] = []
        for name, queue in self._queues.items():
            if name in self._taking or not self._group.accepts:
                return 0
            dues.append(queue.due_ms)
            cursor = self._state.cursors.get(name)
            if name not in self._paused and not (cursor is not None and cursor.paused):
                dues.append(self._due.get(name, 0))
        return min(dues, default=None)

    def consumers(self, name: str) -> int:
        """How many have the turn of a cluster or wait for it."""
        cursor = self._state.cursors.get(name)
        queue = self._queues.get(name)
        holds = cursor is not None and cursor.consumer != NOBODY and not self._is_over(name)
        return (0 if queue is None else len(queue)) + holds

    def is_read(self, name: str) -> bool:
        """Whether a cluster reads the topic in total order, or is about to."""
        return name in self._state.cursors or name in self._queues or name in self._taking

    # -- requests ----------------------------------------------------------------------------

    def take(self, caller: Caller, request: TakeTurn) -> None:
        """Put a consumer in line for the turn.

        Raises `BadName`, `BadRequest`, `Overloaded`, and `Unavailable` once the node stops.
        """
        if self._draining:
            raise _stopping()
        name = check_name(request.cluster, "cluster")
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a turn lasts 1 to {GRANT_MS_MAX:,} ms, until it is kept longer")
        if name in self._state.clusters or name in self._grants.pickers:
            raise BadRequest(
                f"cluster {name!r} reads this topic partition by partition: use another name"
            )
        if name not in self._state.cursors and name not in self._queues:
            names = self._state.cursors.keys() | self._queues.keys()
            if len(names) >= CLUSTERS_PER_TOPIC_MAX:
                raise Overloaded(f"{CLUSTERS_PER_TOPIC_MAX} clusters read this topic",
                                 RETRY_AFTER_MS)  # fmt: skip
        queue = self._queues.get(name) or Waits()
        queue.check_room()
        self._queues[name] = queue
        deadline = self._time.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        queue.add(Wait(caller, request, deadline))
        self._serve(name)
        self._end(name)

    def withdraw(self, session: int, name: str) -> None:
        """Answer a consumer that waits for a turn with none; one that is being given comes."""
        if (queue := self._queues.get(name)) is not None:
            for waiter in queue.withdrawn(session):
                self._outbox.reply(waiter.caller, Turn(0))
            self._retire(name)

    def move(self, caller: Caller, request: MoveCursor) -> None:
        """Propose to move the cursor, keep the turn, or give it back.

        Raises `UnknownCluster`, `StaleGrant`, `BadRequest`, and `Unavailable` once the node stops.
        """
        if self._draining and not request.ends:
            raise _stopping()
        cursor = self._cursor(request.cluster)
        most = DELAY_MS_MAX if request.ends else GRANT_MS_MAX
        if not (0 if request.ends else 1) <= request.lease_ms <= most:
            raise BadRequest(f"a turn is kept or held back for at most {most:,} ms")
        if cursor.fence != request.fence or cursor.consumer == NOBODY:
            ending = (request.lease_ms, request.untried) if request.ends else None
            raise _over(request.fence, cursor.was_done(request.fence, request.offsets, ending))
        stamp, deadline = self._deadline(request.lease_ms)
        record = CursorMoved(
            request.cluster, request.fence, request.offsets, deadline, stamp, request.ends,
            request.untried,
        )  # fmt: skip
        due = self._time.monotonic_ms() + request.lease_ms
        if not request.ends:  # it lasts from now on, whenever the entry is committed
            self._due[request.cluster] = max(self._due.get(request.cluster, 0), due)
        self._moves.propose(of_control(record), caller)

    def seek(self, caller: Caller, request: SeekCursor) -> None:
        """Propose that a cluster goes on elsewhere; one that is new begins there.

        Raises `BadName`, `BadRequest`, and `Unavailable` once the node stops.
        """
        if self._draining:
            raise _stopping()
        name = check_name(request.cluster, "cluster")
        if name in self._state.clusters:
            raise BadRequest(f"cluster {name!r} reads this topic partition by partition")
        self._moves.propose(of_control(CursorSought(name, request.offsets)), caller)

    def _cursor(self, name: str) -> Cursor:
        cursor = self._state.cursors.get(name)
        if cursor is None:
            raise UnknownCluster(f"cluster {name!r} never had a turn here")
        return cursor

    def _by_wall(self, record: CursorTaken | CursorMoved) -> int:
        """Return a deadline as consumers are told it, who learn the time by it: stamps may be ahead
        of that, and what is to be handled expires by the time.
        """
        now = stamp_at(self._time.wall_ms())
        return min(record.deadline, now + record.deadline - record.stamp)

    def _deadline(self, duration_ms: int) -> tuple[int, int]:
        stamp = self._clock.stamp(self._time.wall_ms())
        return stamp, stamp_at(milliseconds_of(stamp) + duration_ms)

    # -- entries -----------------------------------------------------------------------------

    def taken(self, index: int, record: CursorTaken, given: bool) -> None:
        """A turn is committed, or void for another came first."""
        waiter = self._takes.applied(index)
        if waiter is None:
            return  # proposed by an earlier leader
        self._taking.discard(record.cluster)
        if not given:
            self._due.pop(record.cluster, None)
        is_gone = not self._outbox.knows(waiter.caller.session)
        if given and is_gone:
            self._release(record.consumer)
        elif given:
            cursor = self._state.cursors[record.cluster]
            turn = Turn(index, self._by_wall(record), cursor.offsets, cursor.attempts)
            self._outbox.reply(waiter.caller, turn)
        elif self._draining:
            self._outbox.refuse(waiter.caller, _stopping())
        elif not is_gone:
            self._queues.setdefault(record.cluster, Waits()).add(waiter, front=True)
            self._serve(record.cluster)
            self._end(record.cluster)

    def moved(self, index: int, record: CursorMoved, kept: bool) -> None:
        """A move is committed; not `kept`, the turn was over before."""
        caller = self._moves.applied(index)
        ending, cursor = ending_of(record), self._state.cursors.get(record.cluster)
        if kept and ending is not None:
            self._free(record.cluster, ending[0])
        if caller is None:
            return
        if kept:
            self._outbox.reply(caller, Moved(self._by_wall(record)))
        else:
            done = cursor is not None and cursor.was_done(record.fence, record.offsets, ending)
            self._outbox.refuse(caller, _over(record.fence, done))

    def sought(self, index: int, record: CursorSought) -> None:
        """A seek is committed: the turn is anybody's."""
        if (caller := self._moves.applied(index)) is not None:
            self._outbox.reply(caller, Moved(0))
        self._free(record.cluster)

    def steered(self, name: str) -> None:
        """A cluster was paused or goes on, which takes the turn from nobody, or it is gone."""
        if name in self._state.cursors:
            self._serve(name)
        else:
            self._free(name)

    def pause(self, names: frozenset[str]) -> None:
        """Give no turns of these, and of others as their own state says."""
        self._paused = names

    def _free(self, name: str, delay_ms: int = 0) -> None:
        """The turn is anybody's by an entry, in so many ms; but one is being given already, if that
        was proposed before.
        """
        if name not in self._taking:
            self._due[name] = self._time.monotonic_ms() + delay_ms
        self._serve(name)

    def released(self) -> None:
        """A consumer that is gone has no turn any more."""
        for name, cursor in self._state.cursors.items():
            if cursor.consumer == NOBODY and not cursor.deadline:
                self._free(name)

    # -- time and peers ----------------------------------------------------------------------

    def serve_all(self) -> None:
        """Give turns that are over to others; answer those whose time is up."""
        for name in list(self._queues):
            self._serve(name)
            self._end(name)

    def closed(self, session: int) -> None:
        """A consumer is gone: its turn goes to others at once."""
        for name, queue in list(self._queues.items()):
            queue.closed(session)
            self._retire(name)
        if any(cursor.consumer == session for cursor in self._state.cursors.values()):
            self._release(session)

    def drain(self) -> None:
        """Give no turns any more: the node stops."""
        self._draining = True
        self._refuse_all(_stopping())

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait."""
        self._refuse_all(error)

    def lose(self, error: Refused) -> None:
        """This node leads no more: another knows what became of what was proposed."""
        self._refuse_all(error)
        for caller in (*(one.caller for one in self._takes.lose()), *self._moves.lose()):
            self._outbox.refuse(caller, error)

    def _refuse_all(self, error: Refused) -> None:
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            while queue:
                self._outbox.refuse(queue.pop().caller, error)

    def _release(self, session: int) -> None:
        """Give back the turn of a peer that is gone; where that cannot be, its lease ends it."""
        if self._group.accepts:
            self._group.propose(of_control(GrantsReleased(session)))

    def _is_over(self, name: str) -> bool:
        return self._time.monotonic_ms() >= self._due.get(name, 0)

    def _serve(self, name: str) -> None:
        queue, cursor = self._queues.get(name), self._state.cursors.get(name)
        if not queue or name in self._taking or not self._is_over(name):
            return
        if name in self._paused or not self._group.accepts:
            return
        if cursor is not None and cursor.paused:
            return
        waiter = queue.pop()
        self._retire(name)
        request = waiter.request
        stamp, deadline = self._deadline(request.lease_ms)
        after = 0 if cursor is None else cursor.fence
        record = CursorTaken(name, waiter.caller.session, after, request.offsets, deadline, stamp)
        try:
            self._takes.propose(of_control(record), waiter)
        except Refused as error:
            self._outbox.refuse(waiter.caller, error)
            return
        self._taking.add(name)
        self._due[name] = self._time.monotonic_ms() + request.lease_ms

    def _end(self, name: str) -> None:
        queue = self._queues.get(name)
        if queue is None:
            return
        for waiter in queue.ended(self._time.monotonic_ms()):
            self._outbox.reply(waiter.caller, Turn(0))
        self._retire(name)

    def _retire(self, name: str) -> None:
        if not self._queues.get(name):
            self._queues.pop(name, None)


def _over(fence: int, done: bool) -> StaleGrant:
    """Refuse a move; the number is negative if all that it says was `done` in that turn before."""
    text = "the turn is over: another consumer, or none, has it now"
    if done:
        return StaleGrant(f"{text}: all of that was done in it", -fence)
    return StaleGrant(text, fence)


def _stopping() -> Unavailable:
    return Unavailable("this node is stopping: ask another, or again shortly")
