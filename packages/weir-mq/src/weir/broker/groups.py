"""The groups in a shard's logs: opened once it is known which there are, forgotten when gone.

A damaged partition that nobody else has is only read, and none of its log behind the snapshot is
applied. But a batch of a scattering may be of an attempt that was aborted: what the log says of
that counts, and what it does not say is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

import weir_raft as raft
from weir.broker.api.events import Findings, TopicOpened
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.brokerset import BrokerSet
from weir.broker.forwarding.registry_feed import RegistryFeed
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import Partition, PartitionContext
from weir.broker.partition.topics import Topics
from weir.broker.records.entries import BatchRecord, Payload, applied_by
from weir.broker.records.partition import AttemptBarred, ScatteringsBarred, ScatteringsDecided
from weir.broker.replica.catch_up import CatchUpPermits
from weir.broker.replica.group import Group, GroupContext, Machine
from weir.broker.replica.raft_storage import RaftStorage, node_for
from weir.broker.replica.refill import Refill
from weir.broker.replica.transport import Peers
from weir.broker.replica.writer import Writer
from weir.broker.state.scatterings import Outcome
from weir.broker.state.state import PartitionState
from weir.errors import BadBatch, Halted, NotLeader, UnknownTopic
from weir.model.columns import Publication
from weir.model.ids import REGISTRY_GROUP, Attempt, node_of, partition_of, topic_of
from weir.model.topic import Topic
from weir.storage.compaction import class_of
from weir.storage.errors import LogDamaged
from weir.storage.recovery import RecoveredGroup


def find_decisions(group: Group, state: PartitionState) -> None:
    """Tell `state` which messages behind its snapshot are void. Entries that hold undecided ones
    count as lost from now on: nobody will decide them, or did where it cannot be read any more.

    Reads the log from there on, and blocks: for a start alone.
    """
    walk = _Walk(group, state)
    walk.run(group.storage)
    group.log.reader.disbelieve(group.id, walk.undecided)
    state.scatterings.batches.clear()
    state.scatterings.producers.clear()


class _Walk:
    """One pass through the entries behind the snapshot, in order."""

    __slots__ = ("_lost", "_open", "_state")

    def __init__(self, group: Group, state: PartitionState) -> None:
        """Begin with what the snapshot says."""
        self._state = state
        #: The entries that publish what is not here.
        self._lost: list[int] = []
        #: By attempt, the entry of its batch, its first offset and the one behind it, and what it
        #: publishes.
        self._open: dict[Attempt, tuple[int, int, int, Publication | None]] = {}
        for attempt, prepared in state.scatterings.batches.items():
            offset, last = prepared.answer.offset, group.storage.last_index()
            reading = group.log.reader.read(group.id, offset, 1, last)
            entries = reading.entries if reading is not None else ()
            index = entries[0].index if entries else 0
            self._open[attempt] = index, offset, prepared.behind, prepared.publication

    @property
    def undecided(self) -> list[int]:
        """The entries with batches of which it is not known whether they count, or what they
        publish.
        """
        return [index for index, *_ in self._open.values() if index] + self._lost

    def run(self, storage: RaftStorage) -> None:
        """Go through all there is."""
        snapshot, base = storage.snapshot(), storage.base[0]
        first = snapshot.index + 1 if snapshot is not None else 1
        for index in range(max(first, base + 1), storage.last_index() + 1):
            payload = _loaded(storage, index)
            if payload is None:
                continue
            for batch in payload.batches:
                self._batch(index, batch)
            if payload.staged is not None:
                self._state.staging.add(index, payload.staged)
            match payload.control:
                case ScatteringsBarred(stamp):
                    self._state.scatterings.bar(stamp)
                case AttemptBarred(producer, epoch, number, stamp):
                    attempt = Attempt(producer, epoch, number, stamp)
                    self._state.scatterings.bar_alone(attempt)
                case ScatteringsDecided() as record:
                    self._decided(record)

    def _batch(self, index: int, batch: BatchRecord) -> None:
        if batch.scattered is None:
            return
        # Why else it may be void does not show here, as where acks were barred: then it is never
        # decided, for the leader knew. So an attempt before it says nothing of it, either.
        attempt = Attempt(batch.producer, batch.epoch, batch.scattered.number, batch.stamp)
        if self._state.scatterings.is_barred(attempt):
            self._state.scatterings.voids.add(batch.offset, batch.next_offset)
        else:
            publication = batch.publication
            self._open[attempt] = index, batch.offset, batch.next_offset, publication

    def _decided(self, record: ScatteringsDecided) -> None:
        for producer, epoch, number, stamp, is_acks, outcome in record.rows:
            if outcome == Outcome.ABORTED:
                self._state.scatterings.bar(stamp)
            found = None
            if not is_acks:
                found = self._open.pop(Attempt(producer, epoch, number, stamp), None)
            if found is None:
                continue
            index, offset, behind, publication = found
            if outcome == Outcome.ABORTED:
                self._state.scatterings.voids.add(offset, behind)
            elif publication is not None and self._state.staging.missing(publication) is None:
                self._state.staging.decide(publication, offset, stamp, committed=True)
            elif publication is not None:
                self._lost.append(index)


def _loaded(storage: RaftStorage, index: int) -> Payload | None:
    """Return what an entry holds; None if it cannot be read."""
    try:
        (entry,) = storage.entries(index, index + 1, 0)
        return applied_by(entry)
    except (LogDamaged, BadBatch, Halted, raft.StorageError):
        return None


class Groups:
    """Opens the groups that lie in the logs of one shard, and lets go of those of deleted topics.

    No partition is opened before the whole of the registry's log is applied: what a deleted topic
    had may be gone from the logs in part.
    """

    __slots__ = (
        "_context",
        "_findings",
        "_identity",
        "_layout",
        "_multi",
        "_peers",
        "_permits",
        "_refill",
        "_settings",
        "_topics",
        "_writers",
        "all_open",
        "ending",
    )  # fmt: skip

    def __init__(
        self,
        identity: Identity,
        layout: Layout,
        writers: Mapping[int, Writer],
        topics: Topics,
        context: PartitionContext,
        peers: Peers,
        multi: raft.Multi,
        permits: CatchUpPermits,
        refill: Refill,
        settings: ShardSettings,
        findings: Findings,
    ) -> None:
        """Open nothing yet; `writers` are this shard's, by the numbers of their logs. Topics that
        are opened go to `findings`.
        """
        #: Whether every group here is open that there is: a checkpoint holds those that are.
        self.all_open = False
        self._identity = identity
        self._layout = layout
        self._writers = writers
        self._topics = topics
        self._context = context
        self._peers = peers
        self._multi = multi
        self._permits = permits
        self._refill = refill
        self._settings = settings
        self._findings = findings
        #: Partitions of deleted topics with something under way.
        self.ending: list[Partition] = []

    def leader_of(self, group: int) -> int:
        """Return the voter that leads a group as far as this shard knows; 0 if it does not."""
        for writer in self._writers.values():
            if (found := writer.groups.get(group)) is not None:
                return found.leader
        return 0

    @property
    def registry(self) -> Group:
        """The registry's group, once it was opened."""
        return self._writers[self._layout.log_of(REGISTRY_GROUP)].groups[REGISTRY_GROUP]

    def open_registry(self) -> Group:
        """Open the registry's group: its founders vote in it, and every other node learns of it."""
        founders = self._identity.founding_voters
        voter = self._identity.voter
        group = self._open(REGISTRY_GROUP, voter, founders if voter in founders else ())
        for member in group.node.configuration.members:
            if node_of(member) == self._identity.node and member != voter:  # it came back once
                return self._open(REGISTRY_GROUP, member, ())
        return group

    def open_registry_again(self, voter: int) -> Group:
        """Open the registry's group with nothing that it had, as another voter."""
        self._peers.remove(REGISTRY_GROUP)
        self._writers[self._layout.log_of(REGISTRY_GROUP)].forget(REGISTRY_GROUP)
        self._topics.catalog.become(Catalog())  # all of it is applied anew
        return self._open(REGISTRY_GROUP, voter, ())

    def _open(
        self, id: int, voter: int, founders: tuple[int, ...], has_copies: bool = False
    ) -> Group:
        """Restore a group of this shard's logs; it does nothing before it is told to `run`."""
        writer = self._writers[self._layout.log_of(id)]
        recovered, snapshot = writer.restored.groups.get(id), writer.restored.snapshots.get(id)
        if recovered is None and (lost := writer.log.groups.lost_of(id)) is not None:
            recovered = RecoveredGroup(None, 0, lost, hard_state_lost=True)
        storage = RaftStorage(writer.log, id, recovered, snapshot, has_copies)
        context = self._multi.context(id)
        settings = self._settings
        node = node_for(voter, founders, storage, settings.replication, settings.random, context)
        shared = GroupContext(
            self._context.reads, self._permits, self._peers, writer.checkpoints, self._findings
        )
        group = Group(id, voter, node, writer.log, storage, shared, founders)
        writer.groups[id] = group
        if recovered is not None and recovered.rotten:
            self._refill.lack(id, recovered.rotten)
        return group

    def reopen_complete(self, id: int) -> None:
        """A partition has all again that it lacked: one that was damaged takes part from now on."""
        writer = self._writers[self._layout.log_of(id)]
        group = writer.groups[id]
        if group.storage.damage is None or not writer.restored.groups[id].rotten:
            group.storage.mended()
            return
        if (partition := self._topics.leave(id)) is not None:
            partition.end(NotLeader(f"group {id} is being opened: try again shortly"))
        self._mended(writer, id)
        self._open_partition(id, writer.restored.snapshots.get(id))

    def reopen_registry(self) -> Group:
        """Open the registry's group as what it was before it was damaged."""
        self._mended(self._writers[self._layout.log_of(REGISTRY_GROUP)], REGISTRY_GROUP)
        return self.open_registry()

    def _mended(self, writer: Writer, id: int) -> None:
        """Let go of a damaged group of which all can be read again."""
        self._peers.remove(id)
        del writer.groups[id]
        found = writer.restored.groups[id]
        left = found.unreadable - len(found.rotten)
        writer.restored.groups[id] = replace(found, damage=None, unreadable=max(left, 0), rotten=())

    def run(self, group: Group, machine: Machine, preferred: bool) -> None:
        """Let a group take part. The preferred leader of a new group, or its only member, campaigns
        without waiting for silence.
        """
        node = group.node
        if group.has_others:
            group.storage.doubt()
        alone = node.configuration.voters == (group.voter,)
        group.run(machine, campaign=alone or (preferred and not node.log.last_index))
        self._peers.add(group)

    def open_all(self) -> None:
        """Open what the registry says that there is; whatever else the logs hold is dropped."""
        self.all_open = True
        for topic in self._topics.catalog.topics():
            self._open_topic(topic)
        for writer in self._writers.values():
            for id in writer.restored.numbers - writer.groups.keys():
                writer.forget(id)
            writer.log.groups.know_all()

    def open_topic(self, topic: Topic) -> None:
        """Take a topic that the registry made or changed."""
        self._open_topic(topic)
        self._findings.append(TopicOpened(topic))

    def _open_topic(self, topic: Topic) -> None:
        """Open those of a topic's partitions that lie here, and leave those that moved away."""
        if not self.all_open:
            return  # the registry is still at its past: `open_all` comes
        for id in topic.groups_to_be():
            writer = self._writers.get(self._layout.log_of(id))
            if writer is None:
                continue
            writer.log.lifecycle.copies.set_class(id, class_of(topic.settings.retention_ms))
            if id not in writer.groups:
                self._open_partition(id, writer.restored.snapshots.get(id))
            elif not self._lies_here(id) or self._comes_again(writer.groups[id]):
                self._leave(id)
            else:
                self._force(writer.groups[id])
            floor, partition = topic.floor_of(partition_of(id)), self._topics.find(id)
            if floor and partition is not None:
                partition.begin_above(floor)
            if partition is not None:
                partition.pause(topic.pauses)

    def _open_partition(self, id: int, snapshot: raft.Snapshot | None) -> None:
        nodes, own = self._topics.catalog.nodes, self._identity.node
        voter, voters = nodes.voter(id, own), nodes.voters(id)
        founders = nodes.founders(id) or (voter,)
        writer = self._writers[self._layout.log_of(id)]
        if not self._lies_here(id):
            return
        state = PartitionState.decode(snapshot.data) if snapshot else PartitionState()
        founders = founders if voter in founders else ()
        group = self._open(id, voter, founders, has_copies=len(voters) > 1)
        if group.is_read_as_it_lies:  # beyond what could be applied, too
            find_decisions(group, state)
            state.next_offset = max(state.next_offset, writer.log.reader.next_offset(id))
        topic = self._topics.catalog.by_id(topic_of(id))
        pauses = () if topic is None else topic.pauses
        partition = Partition(group, state, self._context, writer, pauses)
        self._topics.add(partition)
        self.run(group, partition, not voters or voters[0] == voter)
        if snapshot is not None:
            group.saved(snapshot)
        self._force(group)

    def _force(self, group: Group) -> None:
        """Let a group go on without its voters, where the set of this node was promoted and the
        group has not begun its lineage here yet.
        """
        forced = self._topics.catalog.nodes.promotions.forced.get(group.id)
        if forced is not None and group.voter in forced.voters:
            group.force(*forced)

    def _lies_here(self, group: int) -> bool:
        """Return whether this node is to hold a group, or may still be needed by it."""
        nodes, voters = self._topics.catalog.nodes, self._topics.catalog.voters(group)
        needed = (*voters, *nodes.leaving(group), *nodes.learners(group))
        return not voters or nodes.voter(group, self._identity.node) in needed

    def _comes_again(self, group: Group) -> bool:
        """Return whether this node is to hold a group as another voter, and with nothing it had."""
        voters = self._topics.catalog.voters(group.id)
        return bool(voters) and group.voter != self._topics.catalog.nodes.voter(
            group.id, self._identity.node
        )

    def _leave(self, group: int) -> None:
        """Let go of a group that others have by now."""
        partition = self._topics.leave(group)
        if partition is not None:
            partition.end(NotLeader(f"group {group} has moved to other nodes: ask where it is"))
            self.ending.append(partition)

    def close_topic(self, topic: Topic) -> None:
        """Refuse waiting callers; each group ends when its entries under way are done."""
        for partition in self._topics.take(topic):
            partition.end(UnknownTopic(f"topic {topic.full_name} was deleted", topic.id))
            self.ending.append(partition)

    def close_ended(self) -> None:
        """Let go of groups that have come to their end, and of all that they have stored."""
        if not self.ending:
            return
        for partition in [one for one in self.ending if one.leading is None or one.leading.at_rest]:
            self.ending.remove(partition)
            group = partition.group.id
            self._peers.remove(group)
            self._writers[self._layout.log_of(group)].forget(group)
            self._context.outbox.counts.forget(group)
            if (topic := self._topics.catalog.by_id(topic_of(group))) is not None:
                self._open_topic(topic)  # it may have come back meanwhile


class RegistryGroup:
    """The registry's group in the logs of this shard: it is opened first, and begins anew where
    what it had was damaged and the others have it.
    """

    __slots__ = ("_brokerset", "_feed", "_groups", "_registry")

    def __init__(
        self, groups: Groups, brokerset: BrokerSet, registry: Registry, feed: RegistryFeed
    ) -> None:
        """Open nothing yet; the group drives `feed`, and `registry` is led by it."""
        self._groups = groups
        self._brokerset = brokerset
        self._registry = registry
        self._feed = feed

    def open(self, identity: Identity) -> None:
        """Open it, and let it take part."""
        group = self._groups.open_registry()
        first, *_ = identity.founding_voters
        self._run(group, first == group.voter)

    def rejoin(self, voter: int) -> None:
        """Take part again, as another voter: the others have what was damaged here."""
        if self._groups.all_open:
            return  # groups would be let go of that lay elsewhere once: it waits for a restart
        if voter > self._groups.registry.voter:  # else it did already
            self._run(self._groups.open_registry_again(voter))

    def complete(self) -> None:
        """It has all again that it lacked."""
        if self._groups.registry.storage.damage is not None:
            self._run(self._groups.reopen_registry())

    def watch(self) -> None:
        """Do without it once it has stopped: what is known of it stays. One that stops before all
        groups are open is damaged like one that was opened so.
        """
        group = self._registry.group
        if group is None or group.damage is None:
            return
        if self._groups.all_open:
            self._registry.take_group(None)
        else:
            self._brokerset.take_registry(group)

    def _run(self, group: Group, preferred: bool = False) -> None:
        self._brokerset.take_registry(group)
        self._groups.run(group, self._feed, preferred)
