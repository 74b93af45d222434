"""A shard: one process's share of a node, as one pure state machine.

    effects = shard.start()
    effects = shard.handle(event)      # for each event, in the order they happen

A host does the effects in order and reports what came of them as events. Nothing in here waits,
reads a clock of its own, or touches a disk but through `weir.storage`'s port while starting.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.api import events as ev
from weir.broker.api.effects import Effect, HoldReads, Stopped
from weir.broker.api.events import (
    GroupComplete,
    MendDone,
    RegistryRejoins,
    ReplicaStopped,
    RottenEntry,
    TopicOpened,
)
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.assembly import assemble
from weir.broker.brokerset import BrokerSet
from weir.broker.metadata.reassignment import give_away
from weir.broker.replica.checkpoints import Opened
from weir.broker.replica.disk_room import Full, FullDisks
from weir.broker.replica.group import Group
from weir.broker.replica.node_state import Clocks
from weir.broker.replica.writer import Writer
from weir.model.ids import REGISTRY_GROUP
from weir.order.clock import Time


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
        layout = layout or Layout(len(logs))
        parts = assemble(identity, logs, time, settings or ShardSettings(), layout)
        runtime, replication, partitions, cluster, services = parts
        self.identity = identity
        self._layout = layout
        self._has_registry = identity.shard == layout.registry_shard
        self._time = runtime.time
        self.budget = runtime.budget
        self._outbox = runtime.outbox
        #: What this shard has done since it started.
        self.counts = runtime.outbox.counts
        self._reads = runtime.reads
        self._findings = runtime.findings
        #: What writes to each of its logs.
        self.writers = replication.writers
        self._writer = {writer.number: writer for writer in self.writers}
        self._multi = replication.multi
        self._disks = replication.disks
        self._refill = replication.refill
        self._peers = replication.peers
        self.topics = partitions.topics
        self._admission = partitions.admission
        self._device_producer = partitions.context.device_producer
        self._partition_events = partitions.context.events
        self._reports = partitions.context.reports
        self._groups = partitions.groups
        self._resumed = cluster.resumed
        self._trunks = cluster.trunks
        self.registry = cluster.registry
        self._set = cluster.brokerset
        self._orders = services.orders
        self._coordinator = services.coordinator
        self._listing = services.listing
        self._sweep = services.sweep
        self._devices = services.devices
        self._sessions = services.sessions
        self._holding = self._stopping = self._stopped = False
        self._acks_until_ms = 0

    @property
    def ready(self) -> bool:
        """Whether every group here is led and devices can be served."""
        if not self._device_producer.id or not self._trunks.knows_topics:
            return False
        return all(p.has_leader for p in self.topics.partitions())

    @property
    def brokerset(self) -> BrokerSet:
        """This shard's part in its set."""
        return self._set

    @property
    def clock_astray_ms(self) -> int:
        """By how much this node's clock lies ahead of the time that it goes by."""
        return self._time.astray_ms

    @property
    def needed_bytes(self) -> int:
        """The free space that full disks need before publishes are taken again; 0 if they are."""
        return self._admission.needed_bytes

    @property
    def short(self) -> Full | None:
        """Which other nodes' disks are full, so that publishes to groups led here are refused."""
        return self._admission.short

    @property
    def partitions_led(self) -> int:
        """How many partitions this shard leads."""
        return sum(p.leads for p in self.topics.partitions())

    def passed_on(self, shard: int, size: int) -> None:
        """Give back what was charged for `Pass`: it has left this process, or was dropped."""
        self._trunks.forwarder.lanes.sent(shard, size)

    def start(self) -> list[Effect]:
        """Bring the registry up, then all partitions; the effects end in elections won."""
        self._set.start()
        if self._has_registry:
            group = self._groups.open_registry()
            first, *_ = self.identity.founding_voters
            self._run_registry(group, first == group.voter)
        return self.run_deferred()

    # -- findings ----------------------------------------------------------------------------

    def _act_on_findings(self) -> None:
        """Do what follows from what components found, in the order in which they did."""
        while self._findings:
            match self._findings.popleft():
                case RottenEntry(group, index, place):
                    self._refill.rotted(group, index, place)
                case MendDone(piece, is_sound):
                    self._refill.mended(piece, is_sound)
                case GroupComplete(group):
                    self._complete(group)
                case ReplicaStopped(group, halt, error):
                    self._peers.stopped(group, halt, error)
                case RegistryRejoins(voter):
                    self._rejoin_registry(voter)
                case TopicOpened(topic):
                    self._devices.receivers.grown(topic)
        while self._resumed:
            self._sessions.go_on(self._resumed.popleft())

    def _rejoin_registry(self, voter: int) -> None:
        """Take part in the registry again, of which the others have what was damaged here."""
        if self._groups.all_open:
            return  # groups would be let go of that lay elsewhere once: it waits for a restart
        if voter > self._registry_here.voter:  # else it did already
            self._run_registry(self._groups.open_registry_again(voter))

    def _complete(self, number: int) -> None:
        """A group has all again that it lacked."""
        if number != REGISTRY_GROUP:
            self._groups.reopen_complete(number)
        elif self._registry_here.storage.damage is not None:
            self._run_registry(self._groups.reopen_registry())

    @property
    def _registry_here(self) -> Group:
        return self._writer[self._layout.log_of(REGISTRY_GROUP)].groups[REGISTRY_GROUP]

    def _run_registry(self, group: Group, preferred: bool = False) -> None:
        self._set.take_registry(group)
        self._groups.run(group, self._trunks.feed, preferred)

    def _watch_registry(self) -> None:
        """Do without the registry's replica once it has stopped: what is known of it stays. One
        that stops before all groups are open is damaged like one that was opened so.
        """
        group = self.registry.group
        if group is None or group.damage is None:
            return
        if self._groups.all_open:
            self.registry.take_group(None)
        else:
            self._set.take_registry(group)

    def handle(self, event: ev.Event) -> list[Effect]:
        """Take one event; return what to do about it, in order."""
        return self.step(event) + self.run_deferred()

    def step(self, *events: ev.Event) -> list[Effect]:
        """Take events; return what to do about them at once, in order. The host does that, then
        calls `run_deferred`: a confirm, or what it waits for, waits for nothing that may be due.
        """
        if self._time.monotonic_ms() >= self._peers.late_ms:  # others may lead by now
            self._peers.tick()
        for event in events:
            self._dispatch(event)
            if self._findings or self._resumed:
                self._act_on_findings()
        if self._reports.answers:  # before the flush, for what follows may join it
            self._coordinator.take_reports()
        for writer in self.writers:
            writer.start_flush()
        return self._outbox.take() if self._outbox.effects else []

    # -- events ------------------------------------------------------------------------------

    def _dispatch(self, event: ev.Event) -> None:
        match event:  # it goes from class to class: thousands of devices come at once
            case ev.Received(session, frames):
                self._sessions.received(session, frames)
            case ev.Opened(session, principal, place):
                self._sessions.opened(session, principal, place)
            case ev.Arrived() | ev.LetGo():
                self._sessions.handle(event)
            case ev.Flushed(log, flush, rests):
                self._writer[log].flushed(flush, rests)
            case ev.PeerSent(place, messages):
                self._peers.received(place, messages)
            case ev.Closed(session):
                self._orders.session_closed(session)
                self._sessions.closed(session)
            case ev.TrunkOpened() | ev.TrunkClosed() | ev.PassedBack():
                self._of_trunk(event)
            case ev.Rested() | ev.SpareMade() | ev.CheckpointSaved() | ev.ChoreDone():
                self._writer[event.log].handle(event)
            case _:
                self._dispatch_rare(event)

    def _dispatch_rare(self, event: ev.Event) -> None:
        match event:
            case ev.Ticked():
                self._tick()
            case ev.ReadDone():
                # What rotted here may come from the other replicas.
                rotten = event.damaged_at >= 0
                comes = rotten and self._refill.met_rot(self._reads.under_way(event.ticket))
                self._reads.done(event, comes)
            case ev.LinkOpened() | ev.LinkClosed():
                self._peers.handle(event)
                self._trunks.routes.link(event)
                self._set.link(event)
            case ev.Stopping(acks_ms):
                self._stopping = True
                self._outbox.hurry()
                self._set.hand_over()
                self._acks_until_ms = self._time.monotonic_ms() + acks_ms

    def _of_trunk(self, event: ev.TrunkOpened | ev.TrunkClosed | ev.PassedBack) -> None:
        self._trunks.handle(event)
        if isinstance(event, ev.TrunkClosed):
            self._orders.trunk_closed(event.shard)
            self._coordinator.trunk_closed(event.shard)

    def _tick(self) -> None:
        self._peers.tick()  # first: nobody here is told anything by who leads no more
        self._watch_registry()
        self._partition_events.check_deadlines(self._time.monotonic_ms())
        self._orders.check_deadlines()
        self._coordinator.check_deadlines()
        self._listing.check_deadlines()
        self._devices.receivers.retry_due()
        self._trunks.check_deadlines()
        if self._stopping:
            self._set.hand_over_again()
        else:
            self._set.reconcile()
        if self._groups.all_open and not self._stopping:
            self._sweep.look_at_next()
        # A checkpoint holds the groups that are open: it must not be made before they all are.
        if self._groups.all_open:
            self._admission.look_at_disks(self.topics.partitions())
            for writer in self.writers:
                writer.work_by_time()
                _let_others_lead(writer, self._time, self._disks)
        self._sessions.check_deadlines()

    def run_deferred(self) -> list[Effect]:
        """Do what any event may have made possible; return what comes of it, in order."""
        if not self._groups.all_open and self._trunks.knows_topics:
            self._groups.open_all()
        # Each publish comes by here, twice, and has mostly made nothing of this possible.
        if self._partition_events.readable or self._reads.queue:
            self._serve_reads()
        if self._trunks.view.has_work or self._trunks.replies.held:
            self._trunks.proceed()
        if self._outbox.kept:
            self._devices.receivers.take_replies()
        if self._groups.ending:
            self._groups.close_ended()
        if self._reports.answers:
            self._coordinator.take_reports()
        self._orders.proceed()
        for writer in self.writers:
            if writer.tends or writer.dirty or writer.log.staged is not None:
                writer.start_work()
        if self._findings or self._resumed:
            self._act_on_findings()
        if self._multi.beats_wanted or self._multi.asking:
            self._peers.send_beats()
        if self._holding or self._stopping or self.budget.used > self.budget.high:
            self._hold_or_stop()
        return self._outbox.take() if self._outbox.effects else []

    def _serve_reads(self) -> None:
        """Answer those who wait for what is applied now, and read what there is room for."""
        if self._partition_events.readable:
            self._partition_events.answer_fetches()
        if self._reads.queue:
            self._reads.start_waiting()

    def _hold_or_stop(self) -> None:
        """Let the host stop reading from peers, or go on, by how much is in memory; and end, where
        that is asked for.
        """
        hold = self.budget.should_hold(self._holding)
        if hold != self._holding:
            self._holding = hold
            self._outbox.counts.holds += hold
            self._outbox.put(HoldReads(hold))
        if self._stopping and self._set.handed_over:
            self._admission.is_closed = True
            self._stop()

    def _stop(self) -> None:
        """Finish what is under way, mark it durable, save a checkpoint; one step an event."""
        self._set.leave()
        # Nothing begins any more but acks of what was granted: else the log is never idle.
        self.registry.take_group(None)
        for partition in self.topics.partitions():
            partition.drain(acks=self._time.monotonic_ms() < self._acks_until_ms)
        for writer in self.writers:
            writer.log.mark_idle()
            writer.start_work()
        if all(writer.idle for writer in self.writers):
            for writer in self.writers:
                if not writer.checkpoints.is_current and self._groups.all_open:
                    writer.checkpoints.save()
        if self._trunks.forwarder.waiting:  # it is refused if the other shard does not answer
            return
        if all(writer.idle for writer in self.writers) and not self._stopped:
            self._stopped = True
            self._outbox.put(Stopped())


def _let_others_lead(writer: Writer, time: Clocks, disks: FullDisks) -> None:
    """Hand over what a disk that hangs or is full, or a clock that is wrong, would hold up."""
    if writer.hangs or disks.is_full:
        give_away(writer.led, disks.suits)
    elif time.differ:
        give_away(filter(time.is_astray, writer.led), time.is_near)
