"""The groups in a shard's logs: opened once it is known which there are, forgotten when gone."""

from __future__ import annotations

from collections.abc import Mapping

from weir.broker.group import Group
from weir.broker.layout import Layout
from weir.broker.partition import Partition, Surroundings
from weir.broker.restore import LogStorage, node_for
from weir.broker.state import PartitionState
from weir.broker.topics import Topics
from weir.broker.writer import Writer
from weir.errors import UnknownTopic
from weir.log.classes import class_of
from weir.model.topic import Topic


class Groups:
    """Opens the groups that lie in the logs of one shard, and lets go of those of deleted topics.

    No partition is opened before the whole of the registry's log is applied: what a deleted topic
    had may be gone from the logs in part.
    """

    __slots__ = ("_ending", "_layout", "_node", "_shared", "_topics", "_writers", "all_open")

    def __init__(
        self,
        node: int,
        layout: Layout,
        writers: Mapping[int, Writer],
        topics: Topics,
        shared: Surroundings,
    ) -> None:
        """Open nothing yet; `writers` are this shard's, by the numbers of their logs."""
        #: Whether every group here is open that there is: a checkpoint holds those that are.
        self.all_open = False
        self._node = node
        self._layout = layout
        self._writers = writers
        self._topics = topics
        self._shared = shared
        #: Partitions of deleted topics with something under way.
        self._ending: list[Partition] = []

    def open(self, id: int) -> Group:
        """Restore a group of this shard's logs; it does nothing before it is told to `run`."""
        writer = self._writers[self._layout.log_of(id)]
        recovered, snapshot = writer.recovered.get(id), writer.snapshots.get(id)
        storage = LogStorage(writer.log, id, recovered, snapshot)
        group = Group(id, node_for(self._node, storage), writer.log, storage)
        writer.groups[id] = group
        return group

    def open_all(self) -> None:
        """Open what the registry says that there is; whatever else the logs hold is dropped."""
        self.all_open = True
        for topic in self._topics.catalog.topics():
            self.open_topic(topic)
        for writer in self._writers.values():
            for id in {*writer.recovered, *writer.snapshots} - writer.groups.keys():
                writer.forget(id)

    def open_topic(self, topic: Topic) -> None:
        """Open a new topic's partitions, or those that were added to one."""
        if not self.all_open:
            return  # the registry is still at its past: `open_all` comes
        for id in topic.groups():
            writer = self._writers.get(self._layout.log_of(id))
            if writer is None:
                continue
            writer.log.set_class(id, class_of(topic.settings.retention_ms))
            if id in writer.groups:
                continue
            snapshot = writer.snapshots.get(id)
            state = PartitionState.decode(snapshot.data) if snapshot else PartitionState()
            group = self.open(id)
            if group.damage is not None:  # read as it lies, beyond what could be applied too
                state.next_offset = max(state.next_offset, writer.log.next_offset(id))
            partition = Partition(group, state, self._shared)
            self._topics.add(partition)
            group.run(partition)
            if snapshot is not None:
                group.saved(snapshot.index, snapshot.term)

    def close_topic(self, topic: Topic) -> None:
        """Refuse whoever waits; each group goes when what is under way in it is done."""
        for partition in self._topics.take(topic):
            partition.end(UnknownTopic(f"topic {topic.full_name} was deleted", topic.id))
            self._ending.append(partition)

    def advance(self) -> None:
        """Let go of groups that have come to their end, and of all that they have stored."""
        for partition in [partition for partition in self._ending if partition.at_rest]:
            self._ending.remove(partition)
            group = partition.group.id
            self._writers[self._layout.log_of(group)].forget(group)
            self._shared.outbox.counts.forget(group)
