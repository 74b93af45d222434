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
from weir.broker.devices import Devices
from weir.broker.effects import Effect, Hangup, HoldReads, Stopped
from weir.broker.group import Group
from weir.broker.identity import Identity
from weir.broker.outbox import Outbox
from weir.broker.partition import Partition, Surroundings
from weir.broker.reads import Reads
from weir.broker.registry import Registry
from weir.broker.requests import Requests
from weir.broker.restore import LogStorage, Opened, node_for
from weir.broker.sessions import Session
from weir.broker.state import PartitionState
from weir.broker.topics import Topics
from weir.broker.writer import CHECKPOINT_BYTES, Writer
from weir.errors import Unavailable
from weir.model.ids import REGISTRY_GROUP, Address
from weir.model.limits import BUDGET_BYTES_DEFAULT, HELLO_WITHIN_MS, REQUESTS_PENDING_MAX
from weir.model.topic import Topic
from weir.order.clock import Highest, HybridClock, Time
from weir.wire.frame import ClientFrame


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What an operator may set."""

    budget_bytes: int = BUDGET_BYTES_DEFAULT
    authorize: Authorize = allow_all
    #: A checkpoint is saved after so many bytes of a log: what a restart has to apply again.
    checkpoint_bytes: int = CHECKPOINT_BYTES


class Shard:
    """Decides everything for the groups in its logs."""

    def __init__(
        self,
        identity: Identity,
        logs: Sequence[Opened],
        time: Time,
        settings: ShardSettings | None = None,
    ) -> None:
        """Own `logs`, numbered from 0, as the host opened them. `start` must come next."""
        settings = settings or ShardSettings()
        self.identity = identity
        self.budget = Budget(settings.budget_bytes)
        self._time = time
        self._outbox = outbox = Outbox(self.budget)
        self._reads = Reads(outbox, self.budget)
        self._writers = [
            Writer(n, opened, outbox, time, settings.checkpoint_bytes)
            for n, opened in enumerate(logs)
        ]
        self._shared = Surroundings(
            outbox, self._reads, self.budget, time, Highest(), self._dirty, self._admit
        )
        snapshot = self._writers[0].snapshots.get(REGISTRY_GROUP)
        catalog = Catalog.decode(snapshot.data) if snapshot else Catalog()
        clock = HybridClock(catalog.last_stamp, self._shared.highest)
        self.registry = Registry(catalog, outbox, time, clock, self._place, self._open_topic)
        self.topics = Topics(catalog)
        self._requests = Requests(identity, self.topics, self.registry, outbox, settings.authorize)
        self._devices = Devices(identity, self.topics, outbox, settings.authorize)
        self._sessions: dict[int, Session] = {}
        self._holding = False
        self._stopping = False
        self._stopped = False
        self._fan_in_asked = False

    @property
    def ready(self) -> bool:
        """Whether every group here is led and devices can be served."""
        return self._shared.fan_in_producer > 0 and all(p.leads for p in self.topics.partitions())

    @property
    def partitions_led(self) -> int:
        """How many partitions this shard leads."""
        return sum(p.leads for p in self.topics.partitions())

    def start(self) -> list[Effect]:
        """Bring the registry and all known partitions up; the effects end in elections won."""
        group = self._open_group(REGISTRY_GROUP)
        self.registry.group = group
        group.run(self.registry)
        for topic in self.topics.catalog.topics():
            self._open_topic(topic)
        return self._after()

    def handle(self, event: ev.Event) -> list[Effect]:
        """Take one event; return what to do about it, in order."""
        match event:
            case ev.Received(session, frames):
                self._received(session, frames)
            case ev.Flushed(log, flush):
                self._writers[log].flushed(flush)
            case ev.ReadDone():
                self._reads.done(event)
            case ev.Opened(session):
                self._sessions[session] = Session(session, self._time.monotonic_ms())
                self._outbox.opened(session)
            case ev.Closed(session):
                self._closed(session)
            case ev.Ticked():
                self._tick()
            case ev.SpareMade(log):
                self._writers[log].spare_made(event)
            case ev.CheckpointSaved(log, saved):
                self._writers[log].saved(saved)
            case ev.Stopping():
                self._stopping = True
        return self._after()

    # -- events ------------------------------------------------------------------------------

    def _received(self, number: int, frames: Sequence[object]) -> None:
        session = self._sessions.get(number)
        if session is None:
            return
        for frame in frames:
            if isinstance(frame, ClientFrame):
                if self._outbox.asked(number) > REQUESTS_PENDING_MAX:
                    reason = f"{REQUESTS_PENDING_MAX} requests wait for their answers"
                    self._outbox.put(Hangup(number, reason))
                    return
                self._requests.handle(session, frame)
            else:
                self._devices.handle(session, frame)  # type: ignore[arg-type]

    def _closed(self, number: int) -> None:
        if self._sessions.pop(number, None) is None:
            return
        self._outbox.closed(number)
        for partition in self.topics.partitions():
            partition.closed(number)

    def _tick(self) -> None:
        now = self._time.monotonic_ms()
        for partition in self.topics.partitions():
            if partition.waiting:
                partition.tick()
        for writer in self._writers:
            writer.tick()
        for session in self._sessions.values():
            if not session.greeted and now - session.opened_ms > HELLO_WITHIN_MS:
                reason = f"no hello within {HELLO_WITHIN_MS // 1000} s"
                self._outbox.put(Hangup(session.id, reason))

    def _after(self) -> list[Effect]:
        """Do what any event may have made possible."""
        if self.registry.ready and not self._fan_in_asked:
            self._fan_in_asked = True
            self.registry.grant(f"shard:{self.identity.shard}", 0, self._fan_in_opened)
        self._reads.advance()
        for writer in self._writers:
            writer.advance()
        hold = self.budget.should_hold(self._holding)
        if hold != self._holding:
            self._holding = hold
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
                if not writer.clean:
                    writer.checkpoint()
        if all(writer.idle for writer in self._writers) and not self._stopped:
            self._stopped = True
            self._outbox.put(Stopped())

    # -- groups ------------------------------------------------------------------------------

    def _place(self, group: int) -> Address:
        """Return where a group is served: the logs take groups in turn."""
        return Address(self.identity.shard, group % len(self._writers), group)

    def _open_group(self, id: int) -> Group:
        writer = self._writers[self._place(id).log]
        recovered, snapshot = writer.recovered.get(id), writer.snapshots.get(id)
        storage = LogStorage(writer.log, id, recovered, snapshot)
        group = Group(id, node_for(self.identity.node, storage), writer.log)
        writer.groups[id] = group
        return group

    def _open_topic(self, topic: Topic) -> None:
        for id in topic.groups():
            snapshot = self._writers[self._place(id).log].snapshots.get(id)
            state = PartitionState.decode(snapshot.data) if snapshot else PartitionState()
            group = self._open_group(id)
            partition = Partition(group, state, self._shared)
            self.topics.add(partition)
            group.run(partition)

    def _dirty(self, partition: Partition) -> None:
        self._writers[self._place(partition.group.id).log].mark_dirty(partition)

    def _admit(self) -> None:
        if self._stopping:
            raise Unavailable("this node is stopping: try another, or again shortly")
        for writer in self._writers:
            writer.admit(self.budget.used)

    def _fan_in_opened(self, record: ProducerOpened) -> None:
        self._shared.fan_in_producer = record.producer
