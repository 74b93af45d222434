"""Requests of the client dialect, each to where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from weir.broker.api.settings import Authorize, Identity
from weir.broker.consumers.operations import Change
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import Partition
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import (
    BadRequest,
    NotTogether,
    ProducerExpired,
    Refused,
    Unauthorized,
    UnknownOpcode,
    UnknownProducer,
    UnknownTopic,
    WrongSystem,
)
from weir.model.header import Header
from weir.model.ids import REGISTRY_GROUP, group_of, node_of
from weir.model.limits import ACK_RANGES_MAX, BATCH_BYTES_MAX, PIPELINE_WINDOW
from weir.model.topic import split_name
from weir.order.clock import Time
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client.codec import decode_request
from weir.protocol.frame import ClientFrame

#: What only the node that leads the registry can do.
_OF_REGISTRY = frozenset[type](
    {
        m.CreateTopic,
        m.OpenProducer,
        a.AlterTopic,
        a.DeleteTopic,
        a.EndPartition,
        a.PauseCluster,
        n.ChangeNode,
        n.RaiseLevel,
        n.ReportNode,
        n.ReportSettled,
        n.ReportLost,
        m.ReportJoined,
        m.ReportEnded,
    }
)
#: What only another shard may ask.
_OF_SHARDS = frozenset[type]({m.Follow, m.ReachRegistry, m.Prepare, m.Decide, m.ReportDone})
#: What lists all there is: it is asked again when this shard's copy of the registry is up to date.
_LISTS = frozenset[type]({m.ListTopics, m.ListOffsets})


class Requests:
    """Answers a client's frames; a refusal never costs it the connection."""

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        registry: Registry,
        outbox: Outbox,
        authorize: Authorize,
        neighbours: ShardTrunks,
        ports: Sequence[int],
        time: Time,
        handlers: Mapping[type[Any], Callable[[Session, Caller, Any], None]],
    ) -> None:
        """Serve what `topics` and `registry` know; pass on to `neighbours` what they serve.

        `ports` is what `Welcome` says; `handlers` answer more kinds of requests.
        """
        self._neighbours = neighbours
        self._passing = neighbours.passing
        self._ports = tuple(ports)
        self._time = time
        self._identity = identity
        self._topics = topics
        self._registry = registry
        self._outbox = outbox
        self._authorize = authorize
        self._handlers: dict[type[Any], Callable[[Session, Caller, Any], None]] = {
            m.Hello: self._hello,
            m.Ping: self._ping,
            m.DescribeTopic: self._describe,
            m.CreateTopic: self._create,
            m.OpenProducer: self._open_producer,
            m.Follow: self._follow,
            m.ReachRegistry: self._reach_registry,
            m.Positions: self._positions,
            m.Produce: self._produce,
            m.Fetch: self._fetch,
            m.FetchChunks: self._fetch_chunks,
            m.OpenCluster: self._open_cluster,
            m.Pull: self._pull,
            m.Ack: self._settle,
            m.Nack: self._settle,
            m.Extend: self._settle,
            m.Withdraw: self._settle,
            m.TakeTurn: self._turn,
            m.MoveCursor: self._turn,
            m.SeekCursor: self._turn,
            a.AlterTopic: self._alter,
            a.DeleteTopic: self._delete,
            a.EndPartition: self._end_partition,
            a.DescribePartition: self._describe_partition,
            a.AskLeader: self._tell_leader,
            a.ListClusters: self._list_clusters,
            a.SeekCluster: self._change_cluster,
            a.PauseCluster: self._pause_cluster,
            a.DeleteCluster: self._change_cluster,
            a.ListHubs: self._list_hubs,
            a.ForgetHub: self._forget_hub,
            **handlers,
        }

    def handle(self, session: Session, frame: ClientFrame, final: bool = False) -> bool:
        """Serve one frame, pass it on, or refuse it with a number.

        False, and nothing is done, if it asks for what this shard's copy of the registry does not
        hold, or not allow, which may be news: ask again, with `final`, when the copy is up to date.
        """
        caller = Caller(session.id, frame.opcode, frame.correlation)
        try:
            request = decode_request(frame)
            kind = type(request)
            if not session.welcomed and kind is not m.Hello:
                session.check_welcomed()
            if kind in _OF_SHARDS and not session.is_shard:
                raise UnknownOpcode("only a shard may ask that", caller.opcode)
            if (
                kind in _LISTS
                and not (session.is_shard or final)
                and self._neighbours.may_be_news()
            ):
                return False
            place = self._place(session, request)
            if place != self._passing.shard:
                self._passing.request(session, caller, frame, place)
            else:
                self._handlers[kind](session, caller, request)
        except (UnknownTopic, UnknownProducer, NotTogether) as error:
            if self._neighbours.may_be_news() and not final:
                return False
            self._outbox.refuse(caller, self._neighbours.certain(error))
        except Refused as error:
            self._outbox.refuse(caller, error)
        return True

    def _place(self, session: Session, request: m.Request) -> int:
        """Return the place that answers a request. Raises `NotLeader`, see `Routes`."""
        kind = type(request)
        address = None if kind in _OF_REGISTRY else getattr(request, "address", None)
        if address is not None:
            group = address.group
            if kind is a.AskLeader:
                return self._passing.routes.holder(group)
            partition = self._topics.find(group)
            if partition is not None and (
                partition.leading is not None or (isinstance(request, m.Fetch) and request.replica)
            ):
                return self._passing.shard
        elif kind in _OF_REGISTRY:
            group = REGISTRY_GROUP
        elif isinstance(request, n.DescribeShard) and request.place and not session.passed:
            return self._passing.routes.from_here(request.place)
        else:
            return self._passing.shard
        return self._passing.routes.toward(group, session.foreign)

    def _hello(self, session: Session, caller: Caller, request: m.Hello) -> None:
        me = self._identity
        if request.system not in (0, me.system):
            raise WrongSystem(f"this is system {me.system:x}, not {request.system:x}", me.system)
        session.welcomed = True
        welcome = m.Welcome(
            me.system,
            me.brokerset,
            me.node,
            me.shard,
            BATCH_BYTES_MAX,
            PIPELINE_WINDOW,
            ports=self._ports,
            nodes=self._neighbours.nodes(),
            met=self._neighbours.routes.met,
        )
        self._outbox.reply(caller, welcome)

    def _ping(self, session: Session, caller: Caller, request: m.Ping) -> None:
        if sum(len(runs) for _, _, runs in request.begun) > ACK_RANGES_MAX:
            raise BadRequest(f"a ping tells of {ACK_RANGES_MAX:,} runs of messages at most")
        for address, cluster, runs in request.begun:
            with suppress(Refused):  # it is led, or served, elsewhere by now
                _, partition = self._topics.partition(address.group)
                partition.begun(session.id, cluster, runs)
        self._outbox.reply(caller, m.Pong(self._time.wall_ms()))

    def _describe(self, session: Session, caller: Caller, request: m.DescribeTopic) -> None:
        topic = self._topics.named(request.name)
        self._authorize(session.principal, "describe", topic.full_name)
        self._outbox.reply(caller, self._registry.describe(topic))

    def _create(self, session: Session, caller: Caller, request: m.CreateTopic) -> None:
        namespace, _ = split_name(request.name)
        self._authorize(session.principal, "create", namespace)
        self._registry.create(caller, request)

    def _alter(self, session: Session, caller: Caller, request: a.AlterTopic) -> None:
        self._authorize(session.principal, "alter", request.name)
        self._registry.administration.alter(caller, request)

    def _delete(self, session: Session, caller: Caller, request: a.DeleteTopic) -> None:
        self._authorize(session.principal, "delete", request.name)
        self._registry.administration.delete(caller, request)

    def _end_partition(self, session: Session, caller: Caller, request: a.EndPartition) -> None:
        self._authorize(session.principal, "alter", request.name)
        self._registry.endings.end(caller, request)

    def _describe_partition(
        self, session: Session, caller: Caller, request: a.DescribePartition
    ) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "describe", topic.full_name)
        partition.describe(caller)

    def _tell_leader(self, session: Session, caller: Caller, request: a.AskLeader) -> None:
        group = request.address.group
        topic = self._topics.topic_with(group)
        self._authorize(session.principal, "describe", topic.full_name)
        partition = self._topics.find(group)
        node, term = partition.leader if partition is not None else (0, 0)
        holders = tuple(sorted(map(node_of, self._registry.catalog.voters(group))))
        self._outbox.reply(caller, a.LeaderInfo(node, term, holders))

    def _list_clusters(self, session: Session, caller: Caller, request: a.ListClusters) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "describe", topic.full_name)
        partition.list_clusters(caller, request)

    def _list_hubs(self, session: Session, caller: Caller, request: a.ListHubs) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "describe", topic.full_name)
        partition.list_hubs(caller, request)

    def _forget_hub(self, session: Session, caller: Caller, request: a.ForgetHub) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "steer", topic.full_name)
        partition.forget_hub(caller, request)

    def _change_cluster(self, session: Session, caller: Caller, request: Change) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "steer", topic.full_name)
        partition.change_cluster(caller, request)

    def _pause_cluster(self, session: Session, caller: Caller, request: a.PauseCluster) -> None:
        topic = self._topics.of_group(request.address.group)
        self._authorize(session.principal, "steer", topic.full_name)
        self._registry.administration.pause(caller, topic, request)

    def _open_producer(self, session: Session, caller: Caller, request: m.OpenProducer) -> None:
        self._registry.open_producer(caller, session.principal, request)

    def _follow(self, session: Session, caller: Caller, request: m.Follow) -> None:
        self._outbox.answered(session.id)  # what comes of it is no reply
        self._neighbours.feed.follow(session.id, session.principal, request.index)

    def _reach_registry(self, session: Session, caller: Caller, request: m.ReachRegistry) -> None:
        self._neighbours.reach(caller, session.foreign)

    def _positions(self, session: Session, caller: Caller, request: m.Positions) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "read", topic.full_name)
        partition.positions(caller, request.stamp)

    def _produce(self, session: Session, caller: Caller, request: m.Produce) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "publish", topic.full_name)
        batch = partition.open_batch(caller, request)
        self._own(session, partition, batch.header)
        partition.publish(caller, request, batch)

    def _own(self, session: Session, partition: Partition, header: Header) -> None:
        """Raise unless the session's principal holds the producer id, in this very epoch."""
        producer, epoch = header.producer, header.epoch
        try:
            self._registry.check_epoch(producer, epoch, session.principal)
        except ProducerExpired:
            known = partition.state.producers.known(producer)
            if known is None or known.epoch != epoch:
                raise
            # It was checked when it first wrote here, and has gone on since.

    def _fetch(self, session: Session, caller: Caller, request: m.Fetch) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "read", topic.full_name)
        partition.fetch(caller, request)

    def _fetch_chunks(self, session: Session, caller: Caller, request: m.FetchChunks) -> None:
        topic, partition = self._topics.partition(request.address.group)
        try:
            self._authorize(session.principal, "read", topic.full_name)
        except Unauthorized:
            # A consumer reads what it was granted; chunks are part of that.
            self._authorize(session.principal, "consume", topic.full_name)
        partition.fetch_chunks(caller, request)

    def _open_cluster(self, session: Session, caller: Caller, request: m.OpenCluster) -> None:
        topic, partition = self._topics.partition(request.address.group)
        if request.address.group != group_of(topic.id, 0):
            raise BadRequest("partition 0 of a topic keeps the modes of its clusters: ask there")
        self._authorize(session.principal, "consume", topic.full_name)
        partition.open_cluster(caller, request)

    def _pull(self, session: Session, caller: Caller, request: m.Pull) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "consume", topic.full_name)
        partition.pull(caller, request)

    def _settle(
        self, session: Session, caller: Caller, request: m.Ack | m.Nack | m.Extend | m.Withdraw
    ) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "consume", topic.full_name)
        partition.settle(caller, request)

    def _turn(
        self, session: Session, caller: Caller, request: m.TakeTurn | m.MoveCursor | m.SeekCursor
    ) -> None:
        topic, partition = self._topics.partition(request.address.group)
        if request.address.group != group_of(topic.id, 0):
            raise BadRequest("the cursor of a topic is kept by its partition 0: ask there")
        kind = "steer" if isinstance(request, m.SeekCursor) else "consume"
        self._authorize(session.principal, kind, topic.full_name)
        partition.turn(caller, request)
