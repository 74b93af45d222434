"""Which partitions this shard serves, under which topic, and what each answers to a request that it
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weir.broker.consumers.operations import Change
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.reassignment import behind, holders
from weir.broker.partition.fetches import ChunkReads, check_replica, positions_of
from weir.broker.partition.partition import Partition
from weir.broker.produce.appender import Appender
from weir.broker.produce.batcher import DeviceBatch
from weir.broker.records.entries import ControlRecord
from weir.broker.records.registry import ProducerOpened, TopicAltered, TopicCreated, TopicGrown
from weir.broker.replica.group import Group
from weir.broker.replica.requests import assured
from weir.broker.runtime.outbox import Caller
from weir.broker.state.state import PartitionState
from weir.errors import (
    BadRequest,
    LevelTooLow,
    NotLeader,
    Unavailable,
    UnknownTopic,
    WrongSystem,
)
from weir.model.batch import Batch, schema_of
from weir.model.ids import PARTITION_BITS, PARTITIONS_MAX, topic_of
from weir.model.limits import FORMAT_LEVEL_ACCESS, FORMAT_LEVEL_FILTERS, FORMAT_LEVEL_STAGING
from weir.model.topic import Topic, split_name
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.declaration import ControlReply, Request
from weir.protocol.client.order import Decide, Prepare
from weir.protocol.client.sinks import ForgetSink, ListSinks, Sink, SinkList, Stage
from weir.relay.messages import UNKNOWN, AskFilter, Pull, SayHold, decode_question

_SINKS_PER_PAGE = 500


class Topics:
    """Looks up topics in the catalog and partitions on this shard."""

    __slots__ = ("_partitions", "_system", "catalog", "find")

    def __init__(self, catalog: Catalog, system: int) -> None:
        """Serve no partition of a system yet."""
        self._system = system
        self.catalog = catalog
        self._partitions: dict[int, Partition] = {}
        #: Returns the partition of a group if it is served here: each request asks.
        self.find: Callable[[int], Partition | None] = self._partitions.get

    def add(self, partition: Partition) -> None:
        """Serve a partition."""
        self._partitions[partition.group.id] = partition

    def take(self, topic: Topic) -> list[Partition]:
        """Serve a topic's partitions no more; return those that were served."""
        taken = [self._partitions.pop(group, None) for group in topic.groups_to_be()]
        return [partition for partition in taken if partition is not None]

    def leave(self, group: int) -> Partition | None:
        """Serve one partition no more; return it if it was served."""
        return self._partitions.pop(group, None)

    def served(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic that are served here."""
        found = [self._partitions.get(group) for group in topic.groups()]
        return [partition for partition in found if partition is not None]

    @property
    def level(self) -> int:
        """The format level that is written."""
        return self.catalog.level

    def founded_with(self, group: int) -> int:
        """Return how many partitions a group's topic was made with; 0 if it is gone."""
        topic = self.catalog.by_id(topic_of(group))
        return topic.founded_with if topic is not None else 0

    def keys_devices(self, group: int) -> bool:
        """Return whether messages of devices have the number of their hub as their key."""
        topic = self.catalog.by_id(topic_of(group))
        return topic is not None and topic.key_by == "device"

    def check_staging(self, group: int, schema: int) -> None:
        """Raise `LevelTooLow` where nothing is staged yet, or `UnknownSchema` where the schema of
        the topic of a group has no version `schema`.
        """
        level = self.catalog.level
        if level < FORMAT_LEVEL_STAGING:
            raise LevelTooLow(
                f"this set writes format level {level}, and sinks need {FORMAT_LEVEL_STAGING}: "
                "once all nodes run this release, raise it by `weir node raise-level`",
                level,
            )
        if schema:
            self.catalog.schemas.check_known(self.topic_with(group), schema)

    def check_relay(self, group: int, asked: Pull | AskFilter | SayHold) -> None:
        """Raise `WrongSystem` for a relay of another system, `Unauthorized` for what the topology
        does not let its set hold of the topic of a group.
        """
        if asked.system != self._system:
            raise WrongSystem(
                f"a relay of system {asked.system:x} asks system {self._system:x}", self._system
            )
        topology, found = self.catalog.topology, self.topic_with(group)
        topic = f"{found.namespace}/{found.name}"
        # A relay without a log asks where to begin, and does not name its tags yet.
        begins = isinstance(asked, Pull) and asked.offset == UNKNOWN
        if isinstance(asked, SayHold) or begins:
            topology.check_relay(topic, asked.brokerset, asked.node)
        else:
            topology.check_tags(topic, asked.brokerset, asked.node, asked.tags)

    def __contains__(self, group: int) -> bool:
        return group in self._partitions

    def partitions(self) -> Iterable[Partition]:
        """Return all partitions served here."""
        return self._partitions.values()

    def named(self, name: str) -> Topic:
        """Return a topic by `topic` or `namespace/topic`. Raises `UnknownTopic`, `BadName`."""
        topic = self.catalog.find(*split_name(name))
        if topic is None:
            raise UnknownTopic(f"no topic {name!r}: `weir topic create {name}` makes it")
        return topic

    def is_settled(self, record: ControlRecord | None) -> bool:
        """Return whether what a record of the registry means for this shard is done: a topic's
        partitions are led, and nothing is under way that an older epoch sent. None stands for all
        records that a snapshot covers: of these, only epochs can find something under way.
        """
        match record:
            case None:
                return not any(map(self._is_fenced, self._appenders()))
            case ProducerOpened(producer, epoch) if epoch:
                return not any(one.has_under_way(producer) for one in self._appenders())
            case TopicCreated(namespace, name):
                topic = self.catalog.find(namespace, name)
            case TopicAltered(number) | TopicGrown(number):
                topic = self.catalog.by_id(number)
            case _:
                return True
        return topic is None or all(p.has_leader for p in self.served(topic))

    def _appenders(self) -> Iterator[Appender]:
        """Yield what takes batches into the partitions that are led here."""
        for partition in self.partitions():
            if partition.leading is not None:
                yield partition.leading.appender

    def _is_fenced(self, appender: Appender) -> bool:
        """Return whether something is under way in a partition whose epoch has ended."""
        for producer, epoch in appender.under_way:
            held = self.catalog.producer(producer)
            if held is not None and epoch < held.epoch:
                return True
        return False

    def partition(self, group: int) -> tuple[Topic, Partition]:
        """Return a group's topic and partition. Raises `UnknownTopic`, or `NotLeader` elsewhere."""
        topic, partition = self.topic_with(group), self._partitions.get(group)
        if partition is None:
            raise NotLeader(f"group {group} of {topic.full_name} is not served by this shard")
        return topic, partition

    def ask_part(self, request: Prepare | Decide, caller: Caller) -> None:
        """Have a partition that is served here answer about a part of a scattering. Raises
        `UnknownTopic`, `NotLeader`, or why it does not do what it was asked.
        """
        _, partition = self.partition(request.address.group)
        if isinstance(request, Prepare):
            partition.context.admission.check(partition.group.id)
        partition.begin_waiting()
        if partition.led().participant.take(request, caller):
            partition.writer.mark_dirty(partition)

    def topic_with(self, group: int) -> Topic:
        """Return the topic of a group, wherever that is served. Raises `UnknownTopic`."""
        topic = self.catalog.by_id(group >> PARTITION_BITS)
        if topic is None or group & PARTITIONS_MAX - 1 >= topic.partitions:
            deleted = self.catalog.was_deleted(topic_of(group))
            raise UnknownTopic(
                "the topic was deleted: a new topic of the same name is another one, open it anew"
                if deleted
                else "no topic has this partition: ask where it is served",
                topic_of(group),
            )
        return topic


def open_batch(partition: Partition, caller: Caller, request: m.Produce) -> Batch:
    """Open the batch of a request to publish; an authorized one continues with `publish`."""
    context, group = partition.context, partition.group.id
    context.admission.check(group)
    leading = partition.leading or partition.led()
    context.outbox.touches(caller.session, group)
    return leading.appender.open(request.batch)


def publish(partition: Partition, caller: Caller, request: m.Produce, batch: Batch) -> None:
    """Take a batch; the reply comes after the commit."""
    leading = partition.leading or partition.led()
    if leading.produce.publish(caller, request, batch):
        partition.writer.mark_dirty(partition)


def publish_devices(partition: Partition, batch: DeviceBatch) -> None:
    """Take device publishes, those of a connection together; confirms come after the commit."""
    leading, producer = partition.led(), partition.context.device_producer.id
    if not producer:
        raise Unavailable("the shard's own producer is being opened: try again shortly")
    leading.publish_devices(producer, batch)
    partition.writer.mark_dirty(partition)


def _check_applied(partition: Partition) -> None:
    """Raise unless all that was ever confirmed is applied here, or never will be."""
    if not partition.group.is_read_as_it_lies:
        partition.led()


def _fetch(partition: Partition, caller: Caller, request: m.Fetch) -> None:
    """Read by offset."""
    group = partition.group
    if request.replica and partition.leading is None:
        check_replica(group)
    elif not group.is_read_as_it_lies or request.offset >= partition.state.next_offset:
        partition.led()  # what a damaged one held behind its end, nobody knows
    partition.context.outbox.touches(caller.session, group.id)
    partition.fetches.fetch(caller, request)


def _check_cluster(partition: Partition, name: str) -> None:
    """Raise `QuotaExceeded` for a cluster that is new here and one too many of its namespace."""
    state = partition.state
    is_known = name in state.clusters or name in state.cursors
    partition.context.admission.check_cluster(partition.group.id, is_known)


def _check_tags(partition: Partition, tags: Sequence[str]) -> None:
    if tags and partition.context.topics.level < FORMAT_LEVEL_FILTERS:
        raise BadRequest(
            f"clusters with tags need format level {FORMAT_LEVEL_FILTERS}, and the set is at level "
            f"{partition.context.topics.level}: raise it with `weir node raise-level`"
        )


def _pull(partition: Partition, caller: Caller, request: m.Pull) -> None:
    """Ask for a grant."""
    grants = partition.led().consumers.grants
    _check_cluster(partition, request.cluster)
    _check_tags(partition, request.tags)
    partition.context.outbox.touches(caller.session, partition.group.id)
    partition.begin_waiting()
    grants.pull(caller, request)


def _positions(partition: Partition, caller: Caller, request: m.Positions) -> None:
    """Say where a partition begins, ends, and where messages from a stamp on begin. With a stamp,
    all that is stamped below it, now or later, lies before that end.
    """
    _check_applied(partition)
    outbox, stamp = partition.context.outbox, request.stamp

    def tell() -> None:
        group, leading = partition.group, partition.leading
        if stamp and leading is not None:
            outbox.touches(caller.session, group.id)
            partition.begin_waiting()
            leading.stable_positions.ask(caller, stamp)
        else:
            outbox.reply(caller, positions_of(group, partition.state, stamp))

    assured(partition.group, outbox, caller, tell)


def _report(
    partition: Partition, caller: Caller, say: Callable[[Group, PartitionState], ControlReply]
) -> None:
    """Answer what `say` says of a partition, once nobody else can have led it before."""
    _check_applied(partition)
    outbox, group, state = partition.context.outbox, partition.group, partition.state
    assured(group, outbox, caller, lambda: outbox.reply(caller, say(group, state)))


def _stage(partition: Partition, caller: Caller, request: Stage) -> None:
    group, context = partition.group.id, partition.context
    leading = partition.led()
    context.admission.check(group)
    context.topics.check_staging(group, schema_of(request.batch))
    context.outbox.touches(caller.session, group)
    partition.begin_waiting()
    leading.stage_requests.stage(caller, request)


def _ask_relay(partition: Partition, caller: Caller, request: m.AskRelay) -> None:
    group, context = partition.group.id, partition.context
    leading = partition.led()
    message = decode_question(request.message, group)
    context.topics.check_relay(group, message)
    context.outbox.touches(caller.session, group)
    partition.begin_waiting()
    leading.relays.take(caller, request, message)


def _list_sinks(partition: Partition, caller: Caller, request: ListSinks) -> None:
    def say(_: Group, state: PartitionState) -> SinkList:
        known = state.staging.sinks
        names = sorted(name for name in known if name > request.after)
        some = [Sink(name, *known[name]) for name in names[:_SINKS_PER_PAGE]]
        return SinkList(some, len(names) > len(some))

    _report(partition, caller, say)


def _forget_sink(partition: Partition, caller: Caller, request: ForgetSink) -> None:
    partition.begin_waiting()
    partition.led().stage_requests.forget(caller, request)


def _describe(partition: Partition, caller: Caller, request: a.DescribePartition) -> None:
    _report(partition, caller, info_of)


def _tell_stats(partition: Partition, caller: Caller, request: a.AskStats) -> None:
    _report(partition, caller, stats_of)


def stats_of(group: Group, state: PartitionState) -> a.PartitionStats:
    """Return how much it holds, without the messages of scatterings that were aborted."""
    start, end, reader = state.log_start, state.decided_offset, group.log.reader
    missing = sum(after - first for first, after in state.scatterings.voids.within(start, end))
    stored = reader.group_bytes(group.id) + state.stored_beside
    stamps = (reader.stamp_of(group.id, start), reader.stamp_of(group.id, end - 1))
    first, last = ((stamp or 0) if end > start else 0 for stamp in stamps)
    return a.PartitionStats(start, end, end - start - missing, stored, first, last)


def stored_bytes(group: Group, state: PartitionState) -> int:
    """Return how many bytes the messages of a partition take, on each of its replicas."""
    return group.log.reader.group_bytes(group.id) + state.stored_beside


def info_of(group: Group, state: PartitionState) -> a.PartitionInfo:
    """Return what it holds, and its other replicas."""
    stored = stored_bytes(group, state)
    return a.PartitionInfo(
        state.log_start, state.decided_offset, stored, sorted(state.clusters),
        holders(group), behind(group),
    )  # fmt: skip


def _fetch_chunks(partition: Partition, caller: Caller, request: m.FetchChunks) -> None:
    partition.led()
    context = partition.context
    ChunkReads(partition.group, context.reads, context.outbox).fetch(caller, request)


def _change_grants(
    partition: Partition,
    caller: Caller,
    request: m.Ack | m.Nack | m.Extend | m.MoveGrants | m.Withdraw,
) -> None:
    if isinstance(request, m.MoveGrants):
        partition.context.outbox.touches(caller.session, partition.group.id)
    partition.led().consumers.change_grants(caller, request)


def _steer_cursor(
    partition: Partition, caller: Caller, request: m.TakeTurn | m.MoveCursor | m.SeekCursor
) -> None:
    leader = partition.led()
    if not isinstance(request, m.MoveCursor):
        _check_cluster(partition, request.cluster)
    partition.context.outbox.touches(caller.session, partition.group.id)
    partition.begin_waiting()
    leader.consumers.steer_cursor(caller, request)


def _open_cluster(partition: Partition, caller: Caller, request: m.OpenCluster) -> None:
    leader = partition.led()
    _check_cluster(partition, request.cluster)
    _check_tags(partition, request.tags)
    leader.consumers.cluster_operations.open(caller, request)


def _change_cluster(partition: Partition, caller: Caller, request: Change) -> None:
    leader = partition.led()
    if isinstance(request, a.SeekCluster):  # one that is new begins there
        _check_cluster(partition, request.cluster)
    leader.consumers.cluster_operations.change(caller, request)


def _begin_cluster(partition: Partition, caller: Caller, request: a.BeginCluster) -> None:
    leader = partition.led()
    _check_cluster(partition, request.cluster)
    leader.consumers.cluster_operations.begin(caller, request)


def _forget_hub(partition: Partition, caller: Caller, request: a.ForgetHub) -> None:
    buries = partition.context.topics.level >= FORMAT_LEVEL_ACCESS
    partition.led().consumers.hub_operations.forget(caller, request, buries)


def _list_clusters(partition: Partition, caller: Caller, request: a.ListClusters) -> None:
    partition.led()
    outbox = partition.context.outbox

    def tell() -> None:
        partition.led().consumers.cluster_operations.list(caller, request)

    assured(partition.group, outbox, caller, tell)


def _list_hubs(partition: Partition, caller: Caller, request: a.ListHubs) -> None:
    partition.led()
    outbox = partition.context.outbox

    def tell() -> None:
        partition.led().consumers.hub_operations.list(caller, request)

    assured(partition.group, outbox, caller, tell)


#: What a partition does with each request that it decides.
BY_PARTITION: dict[type[Request], Callable[[Partition, Caller, Any], None]] = {
    m.Positions: _positions,
    m.Fetch: _fetch,
    m.FetchChunks: _fetch_chunks,
    m.AskRelay: _ask_relay,
    m.OpenCluster: _open_cluster,
    m.Pull: _pull,
    m.Ack: _change_grants,
    m.Nack: _change_grants,
    m.Extend: _change_grants,
    m.MoveGrants: _change_grants,
    m.Withdraw: _change_grants,
    m.TakeTurn: _steer_cursor,
    m.MoveCursor: _steer_cursor,
    m.SeekCursor: _steer_cursor,
    a.DescribePartition: _describe,
    a.AskStats: _tell_stats,
    a.ListClusters: _list_clusters,
    a.BeginCluster: _begin_cluster,
    a.SeekCluster: _change_cluster,
    a.DeleteCluster: _change_cluster,
    a.ListHubs: _list_hubs,
    a.ForgetHub: _forget_hub,
    Stage: _stage,
    ListSinks: _list_sinks,
    ForgetSink: _forget_sink,
}
