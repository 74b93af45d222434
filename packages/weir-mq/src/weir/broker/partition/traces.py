"""Where one message is: whether its partition holds it, and how far each cluster is with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weir.broker.partition.partition import Partition, PartitionLeader
from weir.broker.partition.topics import Topics
from weir.broker.replica.requests import assured
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.broker.state.clusters import AT_ONCE, NEVER, NOBODY, ClusterState, Cursor
from weir.broker.state.state import PartitionState
from weir.model.topic import Presence, Progress
from weir.order.clock import Time
from weir.protocol.client.admin import ClusterTrace, TracedMessage, TraceMessage


class MessageTraces:
    """Tells where messages are of the partitions that this shard leads."""

    __slots__ = ("_outbox", "_sessions", "_time", "_topics")

    def __init__(
        self, topics: Topics, sessions: Mapping[int, Session], outbox: Outbox, time: Time
    ) -> None:
        """Trace messages of `topics`, and name the principals of `sessions`."""
        self._topics = topics
        self._sessions = sessions
        self._outbox = outbox
        self._time = time

    def handlers(self) -> dict[type[Any], Any]:
        """Return what answers requests, by their kind."""
        return {TraceMessage: self._trace}

    def _trace(self, session: Session, caller: Caller, request: TraceMessage) -> None:
        _, partition = self._topics.partition(request.address.group)
        partition.led()

        def tell() -> None:
            self._outbox.reply(caller, self._traced(partition, request.offset))

        assured(partition.group, self._outbox, caller, tell)

    def _traced(self, partition: Partition, offset: int) -> TracedMessage:
        """Return where a message is. Raises `NotLeader`, if another node leads by now."""
        leader, group, state = partition.led(), partition.group, partition.state
        start, end, now_ms = state.log_start, state.decided_offset, self._time.wall_ms()
        presence = _presence(state, offset)
        if presence is not Presence.STORED:
            return TracedMessage(presence, start, end, 0, 0, now_ms)
        stamp = group.log.reader.stamp_of(group.id, offset) or 0
        names = sorted({*state.clusters, *state.cursors})
        clusters = [self._cluster(leader, state, name, offset) for name in names]
        return TracedMessage(presence, start, end, stamp, 0, now_ms, clusters)

    def _cluster(
        self, leader: PartitionLeader, state: PartitionState, name: str, offset: int
    ) -> ClusterTrace:
        cursor = state.cursors.get(name)
        if cursor is not None:
            return self._turn(leader, name, cursor, offset)
        cluster, leases = state.clusters[name], leader.consumers.grants.leases
        if not cluster.not_done(offset, offset + 1):
            return ClusterTrace(name, Progress.DONE)
        fence, attempts = cluster.holder(offset)
        left_ms = leases.left_ms(name, fence, self._time.monotonic_ms()) if fence else 0
        progress, consumer = _progress(cluster, fence, left_ms)
        return ClusterTrace(name, progress, attempts, *self._who(consumer), left_ms)

    def _turn(
        self, leader: PartitionLeader, name: str, cursor: Cursor, offset: int
    ) -> ClusterTrace:  # fmt: skip
        """Say how far a cluster is that reads in total order, in partition 0."""
        if cursor.offsets and offset < cursor.offsets[0]:
            return ClusterTrace(name, Progress.DONE)
        left_ms = leader.consumers.cursor_leases.left_ms(name, self._time.monotonic_ms())
        who = self._who(cursor.consumer)
        return ClusterTrace(name, Progress.WAITING, cursor.attempts, *who, left_ms if who[0] else 0)

    def _who(self, consumer: int) -> tuple[int, str, str]:
        session = self._sessions.get(consumer)
        return (consumer, session.principal, session.address) if session else (consumer, "", "")


def _presence(state: PartitionState, offset: int) -> Presence:
    if offset < state.log_start:
        return Presence.DELETED
    if offset >= state.decided_offset:
        return Presence.AWAITED
    is_void = bool(state.voids.within(offset, offset + 1))
    return Presence.ABORTED if is_void else Presence.STORED


def _progress(cluster: ClusterState, fence: int, left_ms: int) -> tuple[Progress, int]:
    """Return the progress of a message that is not done, and its holder; `fence` is 0 without
    one.
    """
    grant = cluster.grants[fence] if fence else None
    if grant is not None and grant.consumer == NOBODY and (left_ms or grant.deadline == NEVER):
        # Its delay has not passed, or a scattering with its ack is not decided.
        return Progress.HELD_BACK, NOBODY
    if grant is None or grant.consumer == NOBODY or grant.deadline == AT_ONCE:
        return Progress.WAITING, NOBODY  # nobody had it, or who had it is gone
    return Progress.GRANTED, grant.consumer
