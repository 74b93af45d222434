"""The leader's side of consumer clusters in mode `shared`: pull, grant, ack (DESIGN §5 Consume).

A pull picks a range, the grant is an entry, and messages leave only after it is committed: so no
grant is made after an ack committed, whoever leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.broker.clusters import ClusterState, Grant
from weir.broker.control import GrantsReleased, MessagesAcked, MessagesGranted
from weir.broker.entries import of_control
from weir.broker.group import Group
from weir.broker.intake import Intake
from weir.broker.leases import Leases
from weir.broker.outbox import Caller, Outbox
from weir.broker.reads import Reads
from weir.broker.state import PartitionState
from weir.codec.fields import Buffer
from weir.errors import BadRequest, Overloaded, StaleGrant, Unavailable, UnknownCluster
from weir.log.reading import Reading
from weir.model.limits import (
    ACK_RANGES_MAX,
    CLUSTERS_PER_TOPIC_MAX,
    FETCH_BYTES_MAX,
    GRANT_MS_MAX,
    GRANTS_PER_CLUSTER_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.model.stamp import milliseconds_of, stamp_at
from weir.model.topic import check_name
from weir.order.clock import Time
from weir.wire.messages import Ack, Acked, Granted, Pull


@dataclass(slots=True)
class _Waiting:
    """A pull that found nothing to grant yet."""

    caller: Caller
    request: Pull
    deadline_ms: int


@dataclass(slots=True)
class _Queue:
    """One cluster's pulls in line, and the ranges of its grants that are proposed."""

    pulls: deque[_Waiting] = field(default_factory=deque)
    proposed: list[tuple[int, int]] = field(default_factory=list)


class Grants:
    """Grants messages of one partition to consumers while this node leads it."""

    __slots__ = ("_acks", "_group", "_intake", "_leases", "_outbox", "_promised", "_queues",
                 "_reads", "_state", "_time")  # fmt: skip

    def __init__(
        self,
        group: Group,
        state: PartitionState,
        intake: Intake,
        reads: Reads,
        outbox: Outbox,
        time: Time,
    ) -> None:
        """Begin to lead; grants of earlier leaders are in the state."""
        self._group = group
        self._state = state
        self._intake = intake
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._leases = Leases(state.clusters, state.last_stamp, time.monotonic_ms())
        self._queues: dict[str, _Queue] = {}
        self._promised: dict[int, tuple[_Waiting, Reading]] = {}
        self._acks: dict[int, Caller] = {}

    @property
    def waiting(self) -> bool:
        """Whether somebody waits."""
        return any(queue.pulls for queue in self._queues.values())

    def pull(self, caller: Caller, request: Pull) -> None:
        """Put a pull in line, and grant what can be granted. Raises `BadRequest`, `BadName`."""
        check_name(request.cluster, "cluster")
        if request.max_messages < 1 or not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(
                f"a pull asks for 1 or more messages and a lease of 1 to {GRANT_MS_MAX:,} ms"
            )
        clusters = self._state.clusters.keys() | self._queues.keys()
        if request.cluster not in clusters and len(clusters) >= CLUSTERS_PER_TOPIC_MAX:
            raise Overloaded(f"{CLUSTERS_PER_TOPIC_MAX} clusters read this topic", RETRY_AFTER_MS)
        state = self._state.clusters.get(request.cluster)
        if state is not None and len(state.grants) >= GRANTS_PER_CLUSTER_MAX:
            raise Overloaded(
                f"cluster {request.cluster} holds {GRANTS_PER_CLUSTER_MAX:,} grants: ack some",
                RETRY_AFTER_MS,
            )
        deadline = self._time.monotonic_ms() + min(max(request.wait_ms, 0), WAIT_MS_MAX)
        queue = self._queues.setdefault(request.cluster, _Queue())
        queue.pulls.append(_Waiting(caller, request, deadline))
        self._serve(request.cluster, queue)
        if request.wait_ms <= 0:
            self.tick()

    def ack(self, caller: Caller, request: Ack) -> None:
        """Propose acks; they are confirmed once committed. Raises `UnknownCluster`."""
        if request.cluster not in self._state.clusters:
            raise UnknownCluster(f"cluster {request.cluster!r} was never granted anything here")
        if not 1 <= len(request.ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.ranges)} ranges in an ack: 1 to {ACK_RANGES_MAX:,}")
        behind = self._state.next_offset
        if any(not 0 <= first < next_ <= behind for _, first, next_ in request.ranges):
            raise BadRequest("an acked range is empty or holds offsets that do not exist")
        record = MessagesAcked(request.cluster, request.ranges)
        self._acks[self._propose(record)] = caller

    def wake(self) -> None:
        """New messages are committed: serve the clusters in turn, none waits for another."""
        for name, queue in self._queues.items():
            self._serve(name, queue)

    def tick(self) -> None:
        """Grant again what expired; answer pulls whose time is up with nothing."""
        now = self._time.monotonic_ms()
        for name, queue in self._queues.items():
            self._serve(name, queue)
            for waiter in [w for w in queue.pulls if w.deadline_ms <= now]:
                queue.pulls.remove(waiter)
                nothing = Granted(waiter.request.address, 0, 0, 0, 0)
                self._outbox.reply(waiter.caller, nothing)

    def closed(self, session: int) -> None:
        """A consumer is gone: its grants go to others at once."""
        for queue in self._queues.values():
            queue.pulls = deque(w for w in queue.pulls if w.caller.session != session)
        held = any(
            grant.consumer == session
            for cluster in self._state.clusters.values()
            for grant in cluster.grants.values()
        )
        if held or any(w.caller.session == session for w, _ in self._promised.values()):
            self._propose(GrantsReleased(session))

    def granted(self, index: int, record: MessagesGranted, grant: Grant | None) -> None:
        """A grant is committed: its messages may leave, if an ack before it left any."""
        promise = self._promised.pop(index, None)
        if promise is None:
            return  # proposed by an earlier leader
        waiter, reading = promise
        queue = self._queues[record.cluster]
        queue.proposed.remove((record.first, record.next))
        if grant is None:
            if self._outbox.knows(waiter.caller.session):
                queue.pulls.appendleft(waiter)
                self._serve(record.cluster, queue)
            return
        self._leases.begin(
            record.cluster, index, self._time.monotonic_ms() + waiter.request.lease_ms
        )
        # As of the commit: an ack behind it takes from `left` while the messages are being read.
        ((first, behind),) = grant.left
        attempts = grant.attempts

        def answer(payloads: Sequence[Buffer], failure: str) -> None:
            if failure:
                self._outbox.refuse(waiter.caller, Unavailable(failure))
                return
            reply = Granted(
                waiter.request.address, index, record.deadline, first, behind, attempts,
                tuple(payloads),
            )  # fmt: skip
            self._outbox.reply(waiter.caller, reply)

        self._reads.start(reading, answer)

    def released(self) -> None:
        """A consumer that is gone is known to be: what it held goes to those who wait."""
        for name, cluster in self._state.clusters.items():
            self._leases.end(name, cluster)
        self.wake()

    def acked(self, index: int, cluster: ClusterState, refused: list[tuple[int, int, int]]) -> None:
        """An ack is committed."""
        caller = self._acks.pop(index, None)
        if caller is None:
            return
        if refused:
            fence, first, behind = refused[0]
            self._outbox.refuse(
                caller,
                StaleGrant(
                    f"{len(refused)} of the ranges, first [{first}, {behind}) of grant {fence}, "
                    "went to another consumer; the rest is done",
                    fence,
                ),
            )
        else:
            self._outbox.reply(caller, Acked(cluster.cursor))

    def _serve(self, name: str, queue: _Queue) -> None:
        while queue.pulls:
            request = queue.pulls[0].request
            reading, first, behind = self._pick(name, queue, request)
            if reading is None:
                return
            waiter = queue.pulls.popleft()
            wall = self._time.wall_ms()
            stamp = self._intake.clock.stamp(wall)
            deadline = stamp_at(milliseconds_of(stamp) + request.lease_ms)
            record = MessagesGranted(name, waiter.caller.session, first, behind, deadline, stamp)
            queue.proposed.append((first, behind))
            self._promised[self._propose(record)] = (waiter, reading)

    def _pick(self, name: str, queue: _Queue, request: Pull) -> tuple[Reading | None, int, int]:
        """Return the first range to grant: an expired grant's rest before what is new."""
        first, limit = self._expired(name, queue) or (self._frontier(name, queue), None)
        if limit is None:
            limit = self._state.next_offset
        if first >= limit:
            return None, 0, 0
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        committed = self._group.node.commit_index
        reading = self._group.log.read(self._group.id, first, size, committed)
        if reading is None:
            return None, 0, 0
        return reading, first, min(first + request.max_messages, reading.next_offset, limit)

    def _expired(self, name: str, queue: _Queue) -> tuple[int, int] | None:
        state = self._state.clusters.get(name)
        if state is None:
            return None
        for grant in self._leases.ended(name, state, self._time.monotonic_ms()):
            for first, behind in grant.left:
                if all(behind <= a or first >= b for a, b in queue.proposed):
                    return first, behind
        return None

    def _frontier(self, name: str, queue: _Queue) -> int:
        state = self._state.clusters.get(name)
        frontier = state.frontier if state is not None else 0
        return max([frontier, *(behind for _, behind in queue.proposed)])

    def _propose(self, record: MessagesGranted | MessagesAcked | GrantsReleased) -> int:
        return self._group.propose(of_control(record))
