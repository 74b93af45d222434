"""The leader's side of what consumers say of their grants: acks, nacks, and more time.

Each is an entry, and its sender is answered once it is applied. A message that is given back
becomes a lease of nobody: when that ends, the next pull gets the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.consumers.grants import Grants
from weir.broker.records.entries import ControlRecord, Payload, of_control
from weir.broker.records.partition import GrantsExtended, MessagesAcked, MessagesReturned
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState
from weir.broker.state.state import PartitionState
from weir.errors import BadRequest, Overloaded, Refused, StaleGrant, Unavailable, UnknownCluster
from weir.model.limits import (
    ACK_RANGES_MAX,
    DELAY_MS_MAX,
    GRANT_MS_MAX,
    GRANTS_PER_CLUSTER_MAX,
    RETRY_AFTER_MS,
)
from weir.model.topic import AckOutcome
from weir.order.clock import HybridClock, Time, milliseconds_of, stamp_at
from weir.protocol.client.messages import Ack, Acked, Extend, Extended, Nack, Nacked

#: Rows in an answer, so that it fits into a frame.
_ROWS_MAX = ACK_RANGES_MAX


class Commands:
    """Commands of one kind to one partition, while this node leads it."""

    __slots__ = ("_draining", "_outbox", "_proposals")

    def __init__(self, group: Group, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._proposals: Proposals[Payload, Caller] = Proposals(group)
        self._outbox = outbox
        self._draining = False

    def check_open(self) -> None:
        """Raise `Unavailable` once the node stops."""
        if self._draining:
            raise Unavailable("this node is stopping: ask another, or again shortly")

    def propose(self, record: ControlRecord, caller: Caller) -> None:
        """Propose what a client asked for. Raises `NotLeader`, `Unavailable` or `Overloaded`."""
        self._proposals.propose(of_control(record), caller)

    def applied(self, index: int) -> Caller | None:
        """Return the caller to answer now that the entry at `index` is applied, or None."""
        return self._proposals.applied(index)

    def drain(self) -> None:
        """Take no more: the node stops."""
        self._draining = True

    def lose(self, error: Refused) -> None:
        """This node leads no more: another will know whether these were committed."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)


class Acks:
    """Takes acks of one partition while this node leads it."""

    __slots__ = ("_exact", "_outbox", "_state", "commands")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._outbox = outbox
        #: Callers that are told what became of each message, instead of a refusal.
        self._exact: set[Caller] = set()
        self.commands = Commands(group, outbox)

    def ack(self, caller: Caller, request: Ack) -> None:
        """Propose acks; they are confirmed once committed.

        Raises `UnknownCluster`, `BadRequest`, and `Unavailable` near the end of a stop.
        """
        self.commands.check_open()
        if request.cluster not in self._state.clusters:
            raise UnknownCluster(f"cluster {request.cluster!r} was never granted anything here")
        if not 1 <= len(request.ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.ranges)} ranges in an ack: 1 to {ACK_RANGES_MAX:,}")
        behind = self._state.next_offset
        if any(not 0 <= first < next_ <= behind for _, first, next_ in request.ranges):
            raise BadRequest("an acked range is empty or holds offsets that do not exist")
        self.commands.propose(MessagesAcked(request.cluster, request.ranges), caller)
        if request.exact:
            self._exact.add(caller)

    def applied(
        self,
        index: int,
        cluster: ClusterState | None,
        refused: list[tuple[int, int, int]],
        late: list[tuple[int, int, int, AckOutcome]],
    ) -> None:
        """Answer for an ack that is committed; its cluster may have been deleted meanwhile.

        `refused` are the ranges that are not done, and `late` what their grants did not do.
        """
        caller = self.commands.applied(index)
        if caller is None:
            return
        is_exact = caller in self._exact
        self._exact.discard(caller)
        if cluster is None:
            self._outbox.refuse(caller, UnknownCluster("the cluster was deleted"))
        elif is_exact:
            self._outbox.reply(caller, Acked(cluster.cursor, _rows(late) if late else ()))
        elif refused:
            fence, first, behind = refused[0]
            self._outbox.refuse(
                caller,
                StaleGrant(
                    f"{len(refused)} of the ranges, first [{first}, {behind}) of grant {fence}, "
                    "are not that grant's any more; the rest is done",
                    fence,
                ),
            )
        else:
            self._outbox.reply(caller, Acked(cluster.cursor))


def _rows(
    late: Sequence[tuple[int, int, int, AckOutcome]],
) -> tuple[tuple[int, int, int, int], ...]:
    """Return the rows of an answer. Beyond `_ROWS_MAX`, one row for each grant covers its rest."""
    rows = [(*row[:3], int(row[3])) for row in late[:_ROWS_MAX]]
    rest: dict[int, tuple[int, int]] = {}
    for fence, first, behind, _ in late[_ROWS_MAX:]:
        low, high = rest.get(fence, (first, behind))
        rest[fence] = min(low, first), max(high, behind)
    rows += [(fence, *run, int(AckOutcome.PARTLY)) for fence, run in rest.items()]
    return tuple(rows)


class Returns:
    """Takes nacks and extensions of one partition while this node leads it."""

    __slots__ = ("_clock", "_grants", "_outbox", "_state", "_time", "commands")

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, grants: Grants,
        outbox: Outbox, time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._clock = clock
        self._grants = grants
        self._outbox = outbox
        self._time = time
        self.commands = Commands(group, outbox)

    def nack(self, caller: Caller, request: Nack) -> None:
        """Propose to take messages back; that is confirmed once it is committed.

        Raises `UnknownCluster`, `BadRequest`, `Overloaded`, and `Unavailable` near the end of a
        stop.
        """
        cluster = self._cluster(request.cluster)
        if not 1 <= len(request.ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.ranges)} ranges in a nack: 1 to {ACK_RANGES_MAX:,}")
        if request.delay_ms > DELAY_MS_MAX:
            raise BadRequest(f"a nack holds back for {DELAY_MS_MAX:,} ms at most")
        behind = self._state.next_offset
        if any(not 0 <= first < next_ <= behind for first, next_ in request.ranges):
            raise BadRequest("a range given back is empty or holds offsets that do not exist")
        if len(cluster.grants) >= GRANTS_PER_CLUSTER_MAX and not _is_whole(cluster, request):
            raise Overloaded(
                f"cluster {request.cluster} holds {GRANTS_PER_CLUSTER_MAX:,} grants: ack some, or "
                "give whole grants back",
                RETRY_AFTER_MS,
            )
        self._grants.pickers.check_live(request.cluster, [request.fence])
        stamp, deadline = self._deadline(request.delay_ms)
        record = MessagesReturned(
            request.cluster, request.fence, request.ranges,
            deadline if request.delay_ms else AT_ONCE, stamp, request.untried,
        )  # fmt: skip
        leases = self._grants.leases
        leases.pin(request.cluster, request.fence)
        try:
            self.commands.propose(record, caller)
        except Refused:
            leases.unpin(request.cluster, request.fence)
            raise

    def extend(self, caller: Caller, request: Extend) -> None:
        """Propose to let grants last longer; that is confirmed once it is committed.

        They do not end meanwhile, whichever way it goes. Raises as `nack` does.
        """
        self._cluster(request.cluster)
        if not 1 <= len(request.fences) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.fences)} grants to extend: 1 to {ACK_RANGES_MAX:,}")
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a grant is extended by 1 to {GRANT_MS_MAX:,} ms")
        stamp, deadline = self._deadline(request.lease_ms)
        record = GrantsExtended(request.cluster, request.fences, deadline, stamp)
        self._grants.pickers.check_live(request.cluster, request.fences)
        self._grants.begun.report(request.cluster, caller.session, request.begun)
        due_ms = self._time.monotonic_ms() + request.lease_ms
        for fence in request.fences:
            self._grants.leases.extend(request.cluster, fence, due_ms)
        self.commands.propose(record, caller)

    def returned(
        self, index: int, record: MessagesReturned, cluster: ClusterState | None, whole: bool
    ) -> None:
        """Messages are given back by the entry at `index`: answer, and let their time run."""
        self._grants.leases.unpin(record.cluster, record.fence)
        caller = self.commands.applied(index)
        if cluster is not None and index in cluster.grants:
            delay_ms = max(milliseconds_of(record.deadline) - milliseconds_of(record.stamp), 0)
            session = caller.session if caller is not None else NOBODY
            self._grants.returned(record.cluster, index, delay_ms, session)
        stale = [] if whole else [record.fence]
        self._answer(caller, cluster, stale, Nacked(record.deadline))

    def extended(
        self, index: int, record: GrantsExtended, cluster: ClusterState | None, stale: list[int]
    ) -> None:
        """Grants were extended, but for those that are `stale`: answer."""
        caller = self.commands.applied(index)
        self._answer(caller, cluster, stale, Extended(record.deadline))

    def _answer(
        self,
        caller: Caller | None,
        cluster: ClusterState | None,
        stale: list[int],
        reply: Nacked | Extended,
    ) -> None:
        if caller is None:
            return
        if cluster is None:
            self._outbox.refuse(caller, UnknownCluster("the cluster was deleted"))
        elif stale:
            text = f"{len(stale)} grants, first {stale[0]}, are over or hold less; the rest is done"
            self._outbox.refuse(caller, StaleGrant(text, stale[0]))
        else:
            self._outbox.reply(caller, reply)

    def _cluster(self, name: str) -> ClusterState:
        self.commands.check_open()
        cluster = self._state.clusters.get(name)
        if cluster is None:
            raise UnknownCluster(f"cluster {name!r} was never granted anything here")
        return cluster

    def _deadline(self, duration_ms: int) -> tuple[int, int]:
        """Return the stamp of now, and the one of so many milliseconds later."""
        stamp = self._clock.stamp(self._time.wall_ms())
        return stamp, stamp_at(milliseconds_of(stamp) + duration_ms)


def _is_whole(cluster: ClusterState, request: Nack) -> bool:
    """Return whether a nack takes all that its grant holds, and so leaves no more grants."""
    grant = cluster.grants.get(request.fence)
    if grant is None:
        return True
    returned = sum(b - a for span in request.ranges for a, b in grant.left.within(*span))
    return returned >= grant.left.count
