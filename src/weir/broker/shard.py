"""A shard: one process's share of a node, as one pure state machine.

    effects = shard.start()
    effects = shard.handle(event)      # for each event, in the order they happen

A host does the effects in order and reports what came of them as events. Nothing in here waits,
reads a clock of its own, or touches a disk but through `weir.log`'s port while starting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weir.broker import events as ev
from weir.broker.admission import Authorize, Budget, allow_all
from weir.broker.catalog import Catalog
from weir.broker.control import ProducerOpened
from weir.broker.counts import Counts
from weir.broker.devices import Devices
from weir.broker.effects import Effect, Hangup, HoldReads, Stopped
from weir.broker.group import Group
from weir.broker.identity import Identity
from weir.broker.layout import Layout
from weir.broker.neighbours import Neighbours
from weir.broker.outbox import Outbox
from weir.broker.partition import Partition, Surroundings
from weir.broker.reads import Reads
from weir.broker.registry import Registry
from weir.broker.requests import Requests
from weir.broker.restore import LogStorage, Opened, node_for
from weir.broker.sessions import Session
from weir.broker.state import PartitionState
from weir.broker.sweep import Sweep
from weir.broker.topics import Topics
from weir.broker.writer import CHECKPOINT_BYTES, Writer
from weir.errors import Unavailable, UnknownTopic
from weir.model.ids import REGISTRY_GROUP
from weir.model.limits import (
    BUDGET_BYTES_DEFAULT,
    HELLO_WITHIN_MS,
    REQUESTS_PENDING_MAX,
    RETENTION_EVERY_MS,
)
from weir.model.topic import Topic
from weir.order.clock import Highest, HybridClock, Time
from weir.wire.device import DeviceRequest
from weir.wire.frame import ClientFrame


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What an operator may set."""

    budget_bytes: int = BUDGET_BYTES_DEFAULT
    authorize: Authorize = allow_all
    #: A checkpoint is saved after so many bytes of a log: what a restart has to apply again.
    checkpoint_bytes: int = CHECKPOINT_BYTES
    #: How often each partition is looked at for messages that are past their retention.
    retention_every_ms: int = RETENTION_EVERY_MS
    #: The shards' own ports, by number; empty if there is but one.
    ports: tuple[int, ...] = ()


class Shard:
    """Decides everything for the groups in its logs."""

    def __init__(
        self,
        identity: Identity,
        logs: Sequence[Opened],
        time: Time,
        settings: ShardSettings | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Own `logs` as the host opened them: those that `layout` gives to this shard, or all there
        are. `start` must come next.
        """
        settings = settings or ShardSettings()
        self._layout = layout = layout or Layout(len(logs))
        self.identity = identity
        self.budget = Budget(settings.budget_bytes)
        self._time = time
        self._outbox = outbox = Outbox(self.budget)
        self._reads = Reads(outbox, self.budget)
        self._writers = [
            Writer(opened.log.settings.log, opened, outbox, time, settings.checkpoint_bytes)
            for opened in logs
        ]
        self._writer = {writer.number: writer for writer in self._writers}
        self._shared = Surroundings(
            outbox, self._reads, self.budget, time, Highest(), self._dirty, self._admit
        )
        self._sessions: dict[int, Session] = {}
        shard = identity.shard
        self._neighbours = Neighbours(layout, shard, self._sessions, outbox, self.budget, time)
        self._leads_registry = shard == layout.registry_shard
        snapshot = None
        if self._leads_registry:
            snapshot = self._writer_for(REGISTRY_GROUP).snapshots.get(REGISTRY_GROUP)
        catalog = Catalog.decode(snapshot.data) if snapshot else Catalog()
        clock = HybridClock(catalog.last_stamp, self._shared.highest)
        feed = self._neighbours.feed
        self.registry = Registry(
            catalog, feed, time, clock, layout.place, self._open_topic, self._close_topic
        )
        self._neighbours.join(self.registry, self._fan_in_opened, self._go_on)
        self.topics = Topics(catalog)
        self._requests = Requests(
            identity,
            self.topics,
            self.registry,
            outbox,
            settings.authorize,
            self._neighbours,
            settings.ports,
        )
        self._devices = Devices(
            identity, self.topics, outbox, settings.authorize, time, self._neighbours
        )
        self._holding = False
        self._stopping = False
        self._stopped = False
        self._fan_in_asked = False
        self._opened_all = False
        #: Partitions of deleted topics with something under way.
        self._ending: list[Partition] = []
        self._sweep = Sweep(self.topics, time, settings.retention_every_ms)

    @property
    def ready(self) -> bool:
        """Whether every group here is led and devices can be served."""
        if not self._shared.fan_in_producer or not self._neighbours.settled:
            return False
        return all(partition.leads for partition in self.topics.partitions())

    @property
    def counts(self) -> Counts:
        """What this shard has done since it started."""
        return self._outbox.counts

    @property
    def writers(self) -> Sequence[Writer]:
        """What writes to each of its logs."""
        return self._writers

    @property
    def partitions_led(self) -> int:
        """How many partitions this shard leads."""
        return sum(p.leads for p in self.topics.partitions())

    def start(self) -> list[Effect]:
        """Bring the registry up, then all partitions; the effects end in elections won."""
        if self._leads_registry:
            group = self._open_group(REGISTRY_GROUP)
            self.registry.group = group
            group.run(self._neighbours.feed)
        return self._after()

    def handle(self, event: ev.Event) -> list[Effect]:
        """Take one event; return what to do about it, in order."""
        match event:
            case ev.Received(session, frames):
                self._received(session, frames)
            case ev.Flushed(log, flush):
                self._writer[log].flushed(flush)
            case ev.ReadDone():
                self._reads.done(event)
            case ev.Opened(session, principal):
                self._opened(session, principal)
            case ev.Closed(session):
                self._closed(session)
            case ev.Ticked():
                self._tick()
            case ev.SpareMade(log):
                self._writer[log].spare_made(event)
            case ev.CheckpointSaved(log, saved):
                self._writer[log].saved(saved)
            case ev.ChoreDone(log):
                self._writer[log].chore_done()
            case ev.TrunkOpened() | ev.TrunkClosed() | ev.PassedBack():
                self._neighbours.handle(event)
            case ev.Stopping():
                self._stopping = True
        return self._after()

    # -- events ------------------------------------------------------------------------------

    def _opened(self, number: int, principal: str) -> None:
        session = Session(number, self._time.monotonic_ms())
        if principal:
            session.principal, session.passed, session.welcomed = principal, True, True
        self._sessions[number] = session
        self._outbox.opened(number)

    def _received(
        self, number: int, frames: Sequence[ClientFrame | DeviceRequest], final: bool = False
    ) -> None:
        session = self._sessions.get(number)
        if session is None:
            return
        if session.parked is not None:
            session.parked += frames
            return
        for at, frame in enumerate(frames):
            if isinstance(frame, ClientFrame):
                if self._outbox.asked(number) > REQUESTS_PENDING_MAX:
                    reason = f"{REQUESTS_PENDING_MAX} requests wait for their answers"
                    self._outbox.put(Hangup(number, reason))
                    return
                served = self._requests.handle(session, frame, final)
                if not served:
                    self._outbox.answered(number)  # it is counted when it is served again
            else:
                served = self._devices.handle(session, frame, final)
            if not served:
                self._park(session, frames[at:])
                return
            final = False

    def _park(self, session: Session, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Keep what asks for what is not known here until that is sure; and what comes behind."""
        session.parked = [*frames]
        copy = self._neighbours.copy
        assert copy is not None  # who leads the registry is sure at once
        copy.park(session.id)

    def _go_on(self, number: int) -> None:
        """Serve what was parked: what is not known now is not there."""
        session = self._sessions.get(number)
        if session is not None and session.parked is not None:
            frames, session.parked = session.parked, None
            self._received(number, frames, final=True)

    def _closed(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            return
        self._neighbours.closed(session)
        self._outbox.closed(number)
        self._devices.receivers.closed(number)
        for partition in self.topics.partitions():
            partition.closed(number)

    def _tick(self) -> None:
        now = self._time.monotonic_ms()
        for partition in self.topics.partitions():
            if partition.waiting:
                partition.tick()
        self._devices.receivers.tick()
        self._neighbours.feed.tick()
        if self._opened_all and not self._stopping:
            self._sweep.tick()
        # A checkpoint holds the groups that are open: it must not be made before they all are.
        if self._opened_all:
            for writer in self._writers:
                writer.tick()
        for session in self._sessions.values():
            if not session.greeted and now - session.opened_ms > HELLO_WITHIN_MS:
                reason = f"no hello within {HELLO_WITHIN_MS // 1000} s"
                self._outbox.put(Hangup(session.id, reason))

    def _after(self) -> list[Effect]:
        """Do what any event may have made possible."""
        if not self._opened_all and (self.registry.ready or self._neighbours.copy is not None):
            self._open_topics()
        if self.registry.ready and not self._fan_in_asked:
            self._fan_in_asked = True
            self._neighbours.feed.opened()
            self.registry.grant(f"shard:{self.identity.shard}", 0, self._granted)
        self._reads.advance()
        self._devices.receivers.advance()
        if self._ending:
            self._forget_ended()
        for writer in self._writers:
            writer.advance()
        hold = self.budget.should_hold(self._holding)
        if hold != self._holding:
            self._holding = hold
            self._outbox.counts.holds += hold
            self._outbox.put(HoldReads(hold))
        if self._stopping:
            self._stop()
        return self._outbox.take()

    def _stop(self) -> None:
        """Finish what is under way, mark it durable, save a checkpoint; one step an event."""
        # Nothing begins any more but acks of what was granted: else the log is never idle.
        self.registry.group = None
        for partition in self.topics.partitions():
            partition.drain()
        for writer in self._writers:
            writer.log.mark_idle()
            writer.advance()
        if all(writer.idle for writer in self._writers):
            for writer in self._writers:
                if not writer.clean and self._opened_all:
                    writer.checkpoint()
        if self._neighbours.passing.waiting:  # it is refused if the other shard does not answer
            return
        if all(writer.idle for writer in self._writers) and not self._stopped:
            self._stopped = True
            self._outbox.put(Stopped())

    # -- groups ------------------------------------------------------------------------------

    def _writer_for(self, group: int) -> Writer:
        return self._writer[self._layout.log_of(group)]

    def _open_group(self, id: int) -> Group:
        writer = self._writer_for(id)
        recovered, snapshot = writer.recovered.get(id), writer.snapshots.get(id)
        storage = LogStorage(writer.log, id, recovered, snapshot)
        group = Group(id, node_for(self.identity.node, storage), writer.log, storage)
        writer.groups[id] = group
        return group

    def _open_topics(self) -> None:
        """Open what the whole of the registry's log says that there is, and nothing else.

        Not before: what a deleted topic had may be gone from the logs in part.
        """
        if not self._neighbours.settled:
            return
        self._opened_all = True
        for topic in self.topics.catalog.topics():
            self._open_topic(topic)
        for writer in self._writers:
            for id in {*writer.recovered, *writer.snapshots} - writer.groups.keys():
                writer.forget(id)

    def _close_topic(self, topic: Topic) -> None:
        """Refuse whoever waits; each group goes when what is under way in it is done."""
        for partition in self.topics.take(topic):
            partition.end(UnknownTopic(f"topic {topic.full_name} was deleted", topic.id))
            self._ending.append(partition)

    def _forget_ended(self) -> None:
        """Let go of groups that have come to their end, and of all that they have stored."""
        for partition in [partition for partition in self._ending if partition.at_rest]:
            self._ending.remove(partition)
            self._writer_for(partition.group.id).forget(partition.group.id)

    def _open_topic(self, topic: Topic) -> None:
        if not self._opened_all:
            return  # the registry is still at its past: `_open_topics` comes
        for id in topic.groups():
            writer = self._writer.get(self._layout.log_of(id))
            if writer is None or id in writer.groups:
                continue
            snapshot = writer.snapshots.get(id)
            state = PartitionState.decode(snapshot.data) if snapshot else PartitionState()
            group = self._open_group(id)
            partition = Partition(group, state, self._shared)
            self.topics.add(partition)
            group.run(partition)
            if snapshot is not None:
                group.saved(snapshot.index, snapshot.term)

    def _dirty(self, partition: Partition) -> None:
        self._writer_for(partition.group.id).mark_dirty(partition)

    def _admit(self) -> None:
        if self._stopping:
            raise Unavailable("this node is stopping: try another, or again shortly")
        for writer in self._writers:
            writer.admit(self.budget.used)

    def _granted(self, record: ProducerOpened) -> None:
        self._fan_in_opened(record.producer)

    def _fan_in_opened(self, producer: int) -> None:
        self._shared.fan_in_producer = producer
