"""Which partitions this shard serves, and under which topic."""

from __future__ import annotations

from collections.abc import Iterable

from weir.broker.metadata.catalog import Catalog
from weir.broker.partition.partition import Partition
from weir.broker.records.entries import (
    ControlRecord,
    ProducerOpened,
    TopicAltered,
    TopicCreated,
    TopicGrown,
)
from weir.broker.runtime.outbox import Caller
from weir.errors import NotLeader, UnknownTopic
from weir.model.ids import PARTITION_BITS, PARTITIONS_MAX, topic_of
from weir.model.topic import Topic, split_name
from weir.protocol.client.scattering import Decide, Prepare


class Topics:
    """Looks up topics in the catalog and partitions on this shard."""

    __slots__ = ("_partitions", "catalog")

    def __init__(self, catalog: Catalog) -> None:
        """Serve no partition yet."""
        self.catalog = catalog
        self._partitions: dict[int, Partition] = {}

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

    def founded_with(self, group: int) -> int:
        """Return how many partitions a group's topic was made with; 0 if it is gone."""
        topic = self.catalog.by_id(topic_of(group))
        return topic.founded_with if topic is not None else 0

    def find(self, group: int) -> Partition | None:
        """Return the partition of a group if it is served here."""
        return self._partitions.get(group)

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
                return not any(map(self._is_fenced, self.partitions()))
            case ProducerOpened(producer, epoch) if epoch:
                return not any(p.has_under_way(producer) for p in self.partitions())
            case TopicCreated(namespace, name):
                topic = self.catalog.find(namespace, name)
            case TopicAltered(number) | TopicGrown(number):
                topic = self.catalog.by_id(number)
            case _:
                return True
        return topic is None or all(p.has_leader for p in self.served(topic))

    def _is_fenced(self, partition: Partition) -> bool:
        """Return whether something is under way in a partition whose epoch has ended."""
        for producer, epoch in partition.under_way:
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
        partition.part(request, caller)

    def topic_with(self, group: int) -> Topic:
        """Return the topic of a group, wherever that is served. Raises `UnknownTopic`."""
        topic = self.catalog.by_id(group >> PARTITION_BITS)
        if topic is None or group & PARTITIONS_MAX - 1 >= topic.partitions:
            deleted = self.catalog.was_deleted(topic_of(group))
            raise UnknownTopic(
                "the topic was deleted: one of its name that came since is another, open it anew"
                if deleted
                else "no topic has this partition: ask where it is served",
                topic_of(group),
            )
        return topic
