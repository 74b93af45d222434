"""A shard: one process's share of a node, as one pure state machine.

    effects = shard.start()
    effects = shard.handle(event)      # for each event, in the order they happen

A host does the effects in order and reports what came of them as events. Nothing in here waits,
reads a clock of its own, or touches a disk but through `weir.storage`'s port while starting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.access.credentials import ScramVerifier
from weir.broker.api import events as ev
from weir.broker.api.effects import Effect, HoldReads, Stopped
from weir.broker.api.events import (
    AccessNarrowed,
    GroupComplete,
    MendDone,
    RegistryRejoins,
    ReplicaStopped,
    RottenEntry,
    TopicOpened,
)
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.assembly import Cluster, Partitions, Runtime, assemble
from weir.broker.audit.auditor import Auditor
from weir.broker.brokerset import BrokerSet
from weir.broker.groups import RegistryGroup
from weir.broker.metadata.reassignment import give_away
from weir.broker.metadata.security.access import bearer_of
from weir.broker.quotas.meter import ThrottleCounts
from weir.broker.replica.checkpoints import Opened
from weir.broker.replica.disk_room import Full, FullDisks
from weir.broker.replica.node_state import Clocks
from weir.broker.replica.writer import Writer
from weir.model.ids import REGISTRY_GROUP
from weir.order.clock import Time
from weir.protocol.client.declaration import Kind, Verb


class Shutdown:
    """A stop of the shard: what is under way is finished and marked durable, and a checkpoint is
    saved; one step an event.
    """

    __slots__ = ("_acks_until_ms", "_cluster", "_is_over", "_partitions", "_runtime", "_writers",
                 "is_under_way")  # fmt: skip

    def __init__(
        self, runtime: Runtime, writers: Sequence[Writer], partitions: Partitions, cluster: Cluster
    ) -> None:
        """Take the parts to stop; no stop is under way yet."""
        self._runtime = runtime
        self._writers = writers
        self._partitions = partitions
        self._cluster = cluster
        self.is_under_way = self._is_over = False
        self._acks_until_ms = 0

    def begin(self, acks_ms: int) -> None:
        """Hand over what is led here; acks of what was granted are taken for so long."""
        self.is_under_way = True
        self._runtime.outbox.hurry()
        self._cluster.brokerset.hand_over()
        self._acks_until_ms = self._runtime.time.monotonic_ms() + acks_ms

    def proceed(self) -> None:
        """Take the next step, once what was led here is handed over."""
        partitions, cluster = self._partitions, self._cluster
        partitions.admission.is_closed = True
        cluster.brokerset.leave()
        # Nothing begins any more but acks of what was granted: else the log is never idle.
        cluster.registry.take_group(None)
        takes_acks = self._runtime.time.monotonic_ms() < self._acks_until_ms
        for partition in partitions.topics.partitions():
            partition.drain(acks=takes_acks)
        for writer in self._writers:
            writer.log.mark_idle()
            writer.start_work()
        if all(writer.idle for writer in self._writers):
            for writer in self._writers:
                if not writer.checkpoints.is_current and partitions.groups.all_open:
                    writer.checkpoints.save()
        if cluster.trunks.forwarder.waiting:  # it is refused if the other shard does not answer
            return
        if all(writer.idle for writer in self._writers) and not self._is_over:
            self._is_over = True
            self._runtime.outbox.put(Stopped())


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
        parts = assemble(
            identity, logs, time, settings or ShardSettings(), layout or Layout(len(logs))
        )
        self._runtime, self._replication, self._partitions, self._cluster, self._services = parts
        self.identity = identity
        self.time: Time = self._runtime.time
        self.budget = self._runtime.budget
        #: What this shard has done since it started.
        self.counts = self._runtime.outbox.counts
        #: What writes to each of its logs.
        self.writers = self._replication.writers
        self.topics = self._partitions.topics
        self.registry = self._cluster.registry
        self._registry_group = RegistryGroup(
            self._partitions.groups, self._cluster.brokerset, self.registry,
            self._cluster.trunks.feed,
        )  # fmt: skip
        self._shutdown = Shutdown(self._runtime, self.writers, self._partitions, self._cluster)
        #: Whether the host was told to stop reading from peers.
        self._holding = False

    @property
    def ready(self) -> bool:
        """Whether every group here is led and devices can be served."""
        if not self._partitions.context.device_producer.id or not self._cluster.trunks.knows_topics:
            return False
        return all(p.has_leader for p in self.topics.partitions())

    @property
    def brokerset(self) -> BrokerSet:
        """This shard's part in its set."""
        return self._cluster.brokerset

    @property
    def clock_astray_ms(self) -> int:
        """By how much this node's clock lies ahead of the time that it goes by."""
        return self._runtime.time.astray_ms

    @property
    def needed_bytes(self) -> int:
        """The free space that full disks need before publishes are taken again; 0 if they are."""
        return self._partitions.admission.needed_bytes

    @property
    def short(self) -> Full | None:
        """Which other nodes' disks are full, so that publishes to groups led here are refused."""
        return self._partitions.admission.short

    @property
    def unallowed(self) -> int:
        """How many requests came that no rule of access allows; in an open set nobody looks."""
        return self._services.sessions.unallowed

    @property
    def access_mode(self) -> str:
        """The mode of access; "" while this shard does not know whether its copy is current."""
        return self.registry.catalog.access.mode if self._cluster.trunks.in_sync else ""

    @property
    def failed_logins(self) -> int:
        """How many logins by a password were refused."""
        return self._services.logins.failures.all

    @property
    def auditor(self) -> Auditor:
        """What this shard publishes to the audit topic, and why it does not."""
        return self._services.auditor

    @property
    def unaudited(self) -> str:
        """Why the audit topic takes nothing, so that administration waits; "" if it does not."""
        return self.registry.administration.audit.closed_by

    @property
    def promise_rounds(self) -> int:
        """How often the voters of all groups led here were asked for a promise of total order."""
        return self._services.orders.promise_rounds

    @property
    def throttled(self) -> Mapping[str, ThrottleCounts]:
        """By entity, how often and for how long peers waited because of its quotas."""
        return self._services.meter.throttled

    @property
    def peers_held(self) -> int:
        """How many peers are not read from because of a quota."""
        return self._services.meter.held

    @property
    def partitions_led(self) -> int:
        """How many partitions this shard leads."""
        return sum(p.leads for p in self.topics.partitions())

    def passed_on(self, shard: int, size: int) -> None:
        """Give back what was charged for `Pass`: it has left this process, or was dropped."""
        self._cluster.trunks.forwarder.lanes.sent(shard, size)

    def token_allows(self, token: bytes, verb: Verb, kind: Kind) -> bool:
        """Return whether a token allows its holder a verb with a resource of a kind that has no
        name. Raises `NotAuthenticated` and `Unavailable`.
        """
        self.check_news()
        access, now = self.registry.catalog.access, self._runtime.time.wall_ms() / 1_000
        user, claims = bearer_of(access, token, now)
        return access.authorize(user.principal, verb, kind, "", claims.limits) is not None

    def check_news(self) -> None:
        """Raise `Unavailable` while this shard cannot know who was revoked."""
        self._cluster.trunks.cutoff.check()

    @property
    def news_age_ms(self) -> int:
        """How old the news of the metadata is; since the start, if there was none yet."""
        return self._cluster.trunks.cutoff.news_age_ms

    def offer_rescue(self, verifier: ScramVerifier | None) -> None:
        """Accept the password that `verifier` checks, for sessions that administer or promote.

        None accepts none, and ends such sessions. So does a node that a promotion has left behind.
        """
        if self._cluster.trunks.cutoff.has_ended:
            verifier = None
        self._services.authorizer.rescue = verifier
        if verifier is None:
            self._runtime.findings.append(AccessNarrowed())

    def start(self) -> list[Effect]:
        """Bring the registry up, then all partitions; the effects end in elections won."""
        self._cluster.brokerset.start()
        layout = self._runtime.layout
        if self.identity.shard == layout.registry_shard:
            self._registry_group.open(self.identity)
        return self.run_deferred()

    # -- findings ----------------------------------------------------------------------------

    def _act_on_findings(self) -> None:
        """Do what follows from what components found, in the order in which they did."""
        findings, resumed = self._runtime.findings, self._cluster.resumed
        refill, groups = self._replication.refill, self._partitions.groups
        while findings:
            match findings.popleft():
                case RottenEntry(group, index, place):
                    refill.rotted(group, index, place)
                case MendDone(piece, is_sound):
                    refill.mended(piece, is_sound)
                case GroupComplete(group) if group != REGISTRY_GROUP:
                    groups.reopen_complete(group)
                case GroupComplete():
                    self._registry_group.complete()
                case ReplicaStopped(group, halt, error):
                    self._replication.peers.stopped(group, halt, error)
                case RegistryRejoins(voter):
                    self._registry_group.rejoin(voter)
                case AccessNarrowed():
                    for session in self._services.sessions.end_revoked():
                        self._services.orders.session_closed(session)
                    self._services.devices.replacements.proceed()
                case TopicOpened(topic):
                    self._services.devices.receivers.grown(topic)
        while resumed:
            self._services.sessions.go_on(resumed.popleft())

    def handle(self, event: ev.Event) -> list[Effect]:
        """Take one event; return what to do about it, in order."""
        return self.step(event) + self.run_deferred()

    def idle_ms(self, most: int) -> int:
        """Return for how long the shard need not be told that time passes, `most` milliseconds at
        most, if nothing happens meanwhile and nothing has happened for some ticks; 0 where it does
        something that ticks carry on.
        """
        partitions, runtime = self._partitions, self._runtime
        is_up = partitions.groups.all_open and self._cluster.trunks.knows_topics
        if not is_up or self._shutdown.is_under_way or self._holding or self.budget.used:
            return 0
        if not all(writer.idle for writer in self.writers):
            return 0
        services = self._services
        if services.meter.held or services.logins.slowed or services.sweep.is_under_way:
            return 0  # ticks alone end the short waits of these peers, and the sweep
        now_ms, due_ms = runtime.time.monotonic_ms(), services.orders.due_ms
        if due_ms is not None:
            most = min(most, max(due_ms - now_ms, 0))
        idle_ms = partitions.context.events.idle_ms(now_ms, most)
        return min(max(idle_ms, 0), most)

    def step(self, *events: ev.Event) -> list[Effect]:
        """Take events; return what to do about them at once, in order. The host does that, then
        calls `run_deferred`: a confirm, or what it waits for, waits for nothing that may be due.
        """
        runtime, peers, resumed = self._runtime, self._replication.peers, self._cluster.resumed
        if runtime.time.monotonic_ms() >= peers.late_ms:  # others may lead by now
            peers.tick()
        for event in events:
            self._dispatch(event)
            if runtime.findings or resumed:
                self._act_on_findings()
        # Before the flush, for what follows may join it.
        if self._partitions.context.reports.answers:
            self._services.coordinator.take_reports()
        for writer in self.writers:
            if writer.dirty or writer.log.staged is not None:
                writer.start_flush()
        return runtime.outbox.take() if runtime.outbox.effects else []

    # -- events ------------------------------------------------------------------------------

    def _dispatch(self, event: ev.Event) -> None:
        match event:  # it goes from class to class: thousands of devices come at once
            case ev.Received(session, frames):
                self._services.sessions.received(session, frames)
            case ev.Opened():
                self._services.sessions.opened(event)
            case ev.Arrived() | ev.LetGo():
                self._services.sessions.handle(event)
            case ev.Flushed(log, flush, rests):
                self._replication.by_log[log].flushed(flush, rests)
            case ev.PeerSent(place, messages):
                self._replication.peers.received(place, messages)
            case ev.Closed(session):
                self._services.orders.session_closed(session)
                self._services.sessions.closed(session)
            case ev.TrunkOpened() | ev.TrunkClosed() | ev.PassedBack():
                self._of_trunk(event)
            case ev.Rested() | ev.SpareMade() | ev.CheckpointSaved() | ev.ChoreDone():
                self._replication.by_log[event.log].handle(event)
            case _:
                self._dispatch_rare(event)

    def _dispatch_rare(self, event: ev.Event) -> None:
        match event:
            case ev.Ticked():
                self._tick()
            case ev.ReadDone():
                # What rotted here may come from the other replicas.
                reads, refill = self._runtime.reads, self._replication.refill
                rotten = event.damaged_at >= 0
                comes = rotten and refill.met_rot(reads.under_way(event.ticket))
                reads.done(event, comes)
            case ev.LinkOpened() | ev.LinkClosed():
                self._replication.peers.handle(event)
                self._cluster.trunks.routes.link(event)
                self._cluster.brokerset.link(event)
            case ev.Outlived(_, lineage):
                self._cluster.brokerset.outlived(lineage)
                self._cluster.trunks.cutoff.outlive(lineage)
                self.offer_rescue(None)
            case ev.Secured(session, origin):
                self._services.sessions.secured(session, origin)
            case ev.Certified():
                self._services.sessions.certified(event)
            case ev.Stopping(acks_ms):
                self._shutdown.begin(acks_ms)
                self._services.auditor.stop()

    def _of_trunk(self, event: ev.TrunkOpened | ev.TrunkClosed | ev.PassedBack) -> None:
        self._cluster.trunks.handle(event)
        if isinstance(event, ev.TrunkClosed):
            self._services.orders.trunk_closed(event.shard)
            self._services.coordinator.trunk_closed(event.shard)
            self._services.confirmations.trunk_closed(event.shard)

    def _tick(self) -> None:
        partitions, services = self._partitions, self._services
        self._replication.peers.tick()  # first: a former leader must not answer anybody
        self._registry_group.watch()
        partitions.context.events.check_deadlines(self._runtime.time.monotonic_ms())
        services.orders.check_deadlines()
        services.coordinator.check_deadlines()
        services.listing.check_deadlines()
        services.confirmations.check_deadlines()
        services.logins.check_deadlines()
        services.usage.check_deadlines()
        services.auditor.check_deadlines()
        services.devices.receivers.retry_due()
        services.devices.replacements.check_deadlines()
        self._cluster.trunks.check_deadlines()
        if self._shutdown.is_under_way:
            self._cluster.brokerset.hand_over_again()
        else:
            self._cluster.brokerset.reconcile()
        if partitions.groups.all_open and not self._shutdown.is_under_way:
            services.sweep.look_at_next()
        # A checkpoint holds the groups that are open: it must not be made before they all are.
        if partitions.groups.all_open:
            partitions.admission.look_at_disks(self.topics.partitions())
            for writer in self.writers:
                writer.work_by_time()
                _let_others_lead(writer, self._runtime.time, self._replication.disks)
        services.sessions.check_deadlines()
        for session in services.sessions.end_expired():
            services.orders.session_closed(session)
        partitions.admission.hold_clusters(self._cluster.trunks.cutoff.why_stale())

    @property
    def has_deferred(self) -> bool:
        """Whether publishes that were taken just now left work for `run_deferred`: readers of a
        total order wait for them, other nodes for beats, their senders for news of the registry,
        or the memory budget is used up. What they wait for else comes with their flush.
        """
        replication, trunks = self._replication, self._cluster.trunks
        multi = replication.multi
        if (multi.beats_wanted or multi.asking) and replication.links.up:
            return True
        if self._partitions.context.events.proposed:
            return True
        if trunks.view.has_work or trunks.replies.held or self._holding:
            return True
        return self.budget.used > self.budget.high

    def run_deferred(self) -> list[Effect]:
        """Do what any event may have made possible; return what comes of it, in order."""
        runtime, replication, services = self._runtime, self._replication, self._services
        partitions, trunks = self._partitions, self._cluster.trunks
        groups, context = partitions.groups, partitions.context
        if not groups.all_open and trunks.knows_topics:
            groups.open_all()
        # Each publish comes by here, twice, and has mostly made nothing of this possible.
        if context.events.readable or runtime.reads.queue:
            self._serve_reads()
        if replication.permits.line:
            replication.permits.proceed()
        if trunks.view.has_work or trunks.replies.held:
            trunks.proceed()
        if runtime.outbox.kept:
            services.devices.receivers.take_replies()
        if groups.ending:
            groups.close_ended()
        services.proceed()
        for writer in self.writers:
            if writer.tends or writer.dirty or writer.log.staged is not None:
                writer.start_work()
        if runtime.findings or self._cluster.resumed:
            self._act_on_findings()
        multi = replication.multi
        if (multi.beats_wanted or multi.asking) and replication.links.up:
            replication.peers.send_beats()
        if self._holding or self._shutdown.is_under_way or self.budget.used > self.budget.high:
            self._hold_or_stop()
        return runtime.outbox.take() if runtime.outbox.effects else []

    def _serve_reads(self) -> None:
        """Answer those who wait for what is applied now, and read what there is room for."""
        events, reads = self._partitions.context.events, self._runtime.reads
        if events.readable:
            events.answer_fetches()
        if reads.queue:
            reads.start_waiting()

    def _hold_or_stop(self) -> None:
        """Let the host stop reading from peers, or go on, by how much is in memory; and end, where
        that is asked for.
        """
        hold = self.budget.should_hold(self._holding)
        if hold != self._holding:
            self._holding = hold
            self._runtime.outbox.counts.holds += hold
            self._runtime.outbox.put(HoldReads(hold))
        is_left = self._shutdown.is_under_way and self._cluster.brokerset.handed_over
        if is_left and self._services.auditor.has_stopped:
            self._shutdown.proceed()


def _let_others_lead(writer: Writer, time: Clocks, disks: FullDisks) -> None:
    """Hand over what a disk that hangs or is full, or a clock that is wrong, would hold up."""
    if writer.hangs or disks.is_full:
        give_away(writer.led, disks.suits)
    elif time.differ:
        give_away(filter(time.is_astray, writer.led), time.is_near)
