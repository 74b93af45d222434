"""A shard: one process's share of a node, as one pure state machine.

    effects = shard.start()
    effects = shard.handle(event)      # for each event, in the order they happen

A host does the effects in order and reports what came of them as events. Nothing in here waits,
reads a clock of its own, or touches a disk but through `weir.storage`'s port while starting.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from weir.broker.api import events as ev
from weir.broker.api.effects import Effect, HoldReads, Stopped
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.barriers.barriers import Orders
from weir.broker.brokerset import BrokerSet
from weir.broker.devices.requests import Devices
from weir.broker.forwarding.routes import Routes
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.groups import Groups
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.reassignment import give_away
from weir.broker.metadata.registry import Registry
from weir.broker.partition.context import Surroundings
from weir.broker.partition.retention import Sweep
from weir.broker.partition.topics import Topics
from weir.broker.replica.peers.node_state import Clocks, Full, FullDisks
from weir.broker.replica.peers.refill import Refill
from weir.broker.replica.peers.transport import Peers
from weir.broker.replica.restore import Opened
from weir.broker.replica.writer import SPARE_RETRY_MS, Writer
from weir.broker.router.listing import Listing
from weir.broker.router.requests import Requests
from weir.broker.router.sessions import Reception
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.runtime.session import Session
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.participant import ParticipantReports
from weir.broker.scattering.requests import ScatteringRequests
from weir.errors import Overloaded, Unavailable
from weir.model.ids import REGISTRY_GROUP
from weir.model.topic import Topic
from weir.order.clock import Highest, HybridClock, Time
from weir.protocol.client.barriers import ReportDone


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
        self._time = time = Clocks(identity.node, time)
        self._outbox = outbox = Outbox(self.budget)
        #: What this shard has done since it started.
        self.counts = outbox.counts
        self._reads = Reads(outbox, self.budget)
        self._writers = [
            Writer(opened.log.settings.log, opened, outbox, time, settings.checkpoint_bytes)
            for opened in logs
        ]
        self._writer = {writer.number: writer for writer in self._writers}
        #: What writes to each of its logs.
        self.writers: Sequence[Writer] = self._writers
        self._peers = Peers(
            identity.node, layout, outbox, time, settings.replication, settings.level
        )
        #: The groups led here that other nodes' full disks keep from taking publishes.
        self._short: dict[int, Full] = {}
        sessions: dict[int, Session] = {}
        self._has_registry = identity.shard == layout.registry_shard
        catalog = self._saved_catalog()
        self.topics = Topics(catalog)
        self._shared = Surroundings(
            outbox, self._reads, self.budget, time, Highest(), self._admit,
            self._peers.multi.fenced, self.topics.founded_with, ParticipantReports(outbox),
        )  # fmt: skip
        clock = HybridClock(catalog.last_stamp, self._shared.highest)
        self._peers.refill = refill = Refill(
            self._writer, layout, self._reads, outbox, time, self._peers.places
        )
        refill.whole, self._reads.met_rot = self._whole, refill.met_rot
        for writer in self._writers:
            writer.rotted = refill.rotted
        self._groups = Groups(
            identity, layout, self._writer, self.topics, self._shared, self._peers,
            settings.replication, settings.random,
        )  # fmt: skip
        founded = len(identity.members)
        routes = Routes(
            layout, identity.node, identity.shard, catalog, self._groups.leader_of, founded
        )
        self._neighbours = ShardTrunks(
            routes, layout, identity.node, sessions, outbox, self.budget, time,
            self.topics.is_settled,
        )  # fmt: skip
        opened, closed = self._open_topic, self._groups.close_topic
        self.registry = Registry(
            catalog, self._neighbours.feed, time, clock, routes.address, opened, closed, identity,
            layout, settings.level,
        )  # fmt: skip
        at = layout.registry_shard
        go_on = lambda session: self._reception.go_on(session)  # noqa: E731 - it comes later
        self._neighbours.join(self.registry, at, self._fan_in_opened, go_on)
        self._welcome(sessions, settings)
        self._holding = self._stopping = self._stopped = False
        self._acks_until_ms = 0

    def _saved_catalog(self) -> Catalog:
        if not self._has_registry:
            return Catalog()
        snapshot = self._writer_for(REGISTRY_GROUP).snapshots.get(REGISTRY_GROUP)
        return Catalog.decode(snapshot.data) if snapshot else Catalog()

    def _welcome(self, sessions: dict[int, Session], settings: ShardSettings) -> None:
        """Serve peers: what they ask for, and what the rest of the set asks of this node."""
        identity, topics, registry = self.identity, self.topics, self.registry
        outbox, time, neighbours = self._outbox, self._time, self._neighbours
        authorize = settings.authorize
        requests = Requests(
            identity, topics, registry, outbox, authorize, neighbours, settings.ports, time
        )
        self._devices = Devices(
            identity, topics, outbox, authorize, time, neighbours, self.budget,
            settings.device_in_hand,
        )  # fmt: skip
        self._reception = Reception(
            sessions, outbox, self.budget, time, topics, neighbours, requests, self._devices
        )
        self._set = BrokerSet(
            identity, self._layout, settings.level, topics, registry, neighbours.passing, outbox,
            authorize, self._time, self._peers.rooms.suits,
        )  # fmt: skip
        requests.serve(self._set.handlers())
        self._orders = Orders(
            topics, registry, neighbours.passing, self._layout, self._shared, authorize,
            self._peers.multi, self.writers,
        )  # fmt: skip
        requests.serve(self._orders.handlers())
        self._listing = Listing(topics, registry, neighbours, self._shared, authorize)
        requests.serve(self._listing.handlers())
        self._sweep = Sweep(topics, neighbours.passing, outbox, time, settings.retention_every_ms)
        requests.serve({ReportDone: self._sweep.reported})
        self._coordinator = Coordinator(
            topics, neighbours.passing, self._shared.reports, self._shared.highest, time, outbox,
            self.budget,
        )  # fmt: skip
        scatterings = ScatteringRequests(
            self._coordinator, topics, registry, self._shared, authorize
        )
        requests.serve(scatterings.handlers())
        self._set.is_hopeful = self._peers.refill.is_hopeful
        self._peers.registry_comes_again = self._registry_comes_again

    @property
    def ready(self) -> bool:
        """Whether every group here is led and devices can be served."""
        if not self._shared.fan_in_producer or not self._neighbours.settled:
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
        return sum(writer.needed_bytes for writer in self._writers)

    @property
    def short(self) -> Full | None:
        """Which other nodes' disks are full, so that publishes to groups led here are refused."""
        return max(self._short.values(), default=None)

    @property
    def partitions_led(self) -> int:
        """How many partitions this shard leads."""
        return sum(p.leads for p in self.topics.partitions())

    def passed_on(self, shard: int, size: int) -> None:
        """Give back what was charged for `Pass`: it has left this process, or was dropped."""
        self._neighbours.passing.lanes.sent(shard, size)

    def start(self) -> list[Effect]:
        """Bring the registry up, then all partitions; the effects end in elections won."""
        self._set.start()
        if self._has_registry:
            group = self._groups.open_registry()
            self._set.take_registry(group)
            first, *_ = self.identity.founding_voters
            self._groups.run(group, self._neighbours.feed, first == group.voter)
        return self.settle()

    def _registry_comes_again(self, voter: int) -> None:
        """Take part in the registry again, of which the others have what was damaged here."""
        if self._groups.all_open:
            return  # groups would be let go of that lay elsewhere once: it waits for a restart
        group = self._groups.open_registry_again(voter)
        self._set.take_registry(group)
        self._groups.run(group, self._neighbours.feed, preferred=False)

    def _whole(self, number: int) -> None:
        """A group has all again that it lacked."""
        if number != REGISTRY_GROUP:
            self._groups.whole(number)
        elif self._writer_for(REGISTRY_GROUP).groups[REGISTRY_GROUP].past.damage is not None:
            group = self._groups.registry_whole()
            self._set.take_registry(group)
            self._groups.run(group, self._neighbours.feed, preferred=False)

    def _watch_registry(self) -> None:
        """Do without the registry's replica once it has stopped: what is known of it stays. One
        that stops before all groups are open is damaged like one that was opened so.
        """
        group = self.registry.group
        if group is None or group.damage is None:
            return
        if self._groups.all_open:
            self.registry.group = None
        else:
            self._set.take_registry(group)

    def handle(self, event: ev.Event) -> list[Effect]:
        """Take one event; return what to do about it, in order."""
        return self.take(event) + self.settle()

    def take(self, *events: ev.Event) -> list[Effect]:
        """Take events; return what to do about them at once, in order. The host calls `settle`
        when that is done: a confirm, or what it waits for, waits for nothing that may be due.
        """
        if self._time.monotonic_ms() >= self._peers.late_ms:  # others may lead by now
            self._peers.tick()
        for event in events:
            self._heed(event)
        if self._shared.reports.answers:  # before the flush, for what follows may join it
            self._coordinator.take_reports()
        for writer in self._writers:
            writer.flush()
        return self._outbox.take()

    # -- events ------------------------------------------------------------------------------

    def _heed(self, event: ev.Event) -> None:
        match event:  # it goes from class to class: thousands of devices come at once
            case ev.Received(session, frames):
                self._reception.received(session, frames)
            case ev.Opened(session, principal, place):
                self._reception.opened(session, principal, place)
            case ev.Arrived() | ev.LetGo():
                self._reception.handle(event)
            case ev.Flushed(log, flush, rests):
                self._writer[log].flushed(flush, rests)
            case ev.Closed(session):
                self._orders.closed(session)
                self._reception.closed(session)
            case ev.PeerSent() | ev.LinkOpened() | ev.LinkClosed():
                self._of_link(event)
            case ev.ReadDone():
                self._reads.done(event)
            case ev.Ticked():
                self._tick()
            case ev.Rested() | ev.SpareMade() | ev.CheckpointSaved() | ev.ChoreDone():
                self._writer[event.log].handle(event)
            case ev.TrunkOpened() | ev.TrunkClosed() | ev.PassedBack():
                self._of_trunk(event)
            case ev.Stopping(acks_ms):
                self._stopping = True
                self._outbox.hurry()
                self._set.hand_over()
                self._acks_until_ms = self._time.monotonic_ms() + acks_ms

    def _of_trunk(self, event: ev.TrunkOpened | ev.TrunkClosed | ev.PassedBack) -> None:
        self._neighbours.handle(event)
        if isinstance(event, ev.TrunkClosed):
            self._orders.cut(event.shard)
            self._coordinator.trunk_closed(event.shard)

    def _of_link(self, event: ev.PeerSent | ev.LinkOpened | ev.LinkClosed) -> None:
        self._peers.handle(event)
        if not isinstance(event, ev.PeerSent):
            self._neighbours.routes.link(event)
            self._set.link(event)

    def _tick(self) -> None:
        self._peers.tick()  # first: nobody here is told anything by who leads no more
        self._watch_registry()
        self._shared.tick()
        self._orders.tick()
        self._coordinator.check_deadlines()
        self._listing.tick()
        self._devices.receivers.tick()
        self._neighbours.tick()
        if self._stopping:
            self._set.hand_over_again()
        else:
            self._set.tick()
        if self._groups.all_open and not self._stopping:
            self._sweep.tick()
        # A checkpoint holds the groups that are open: it must not be made before they all are.
        if self._groups.all_open:
            rooms = self._peers.rooms
            rooms.is_full = any(writer.is_full for writer in self._writers)
            rooms.needed_bytes = self.needed_bytes
            self._find_short()
            for writer in self._writers:
                writer.tick()
                _let_others_lead(writer, self._time, rooms)
        self._reception.tick()

    def _find_short(self) -> None:
        """Find the groups that other nodes' full disks hold up, and tell who waits for publishes
        there: no majority may have had room for them.
        """
        led = chain.from_iterable(one.led for one in self._writers)
        self._short = self._peers.rooms.short(led)
        for partition in self.topics.partitions() if self._short else ():
            if (full := self._short.get(partition.group.id)) is not None:
                text = f"{full}: free space there; what is under way may still be taken"
                partition.stall(Unavailable(text))

    def settle(self) -> list[Effect]:
        """Do what any event may have made possible; return what comes of it, in order."""
        if not self._groups.all_open and self._neighbours.settled:
            self._groups.open_all()
        # Each publish comes by here, twice, and has mostly made nothing of this possible.
        if self._shared.woken:
            self._shared.advance()
        if self._reads.queue:
            self._reads.advance()
        self._neighbours.advance()
        if self._outbox.kept:
            self._devices.receivers.advance()
        if self._groups.ending:
            self._groups.advance()
        if self._shared.reports.answers:
            self._coordinator.take_reports()
        self._orders.advance()
        for writer in self._writers:
            writer.advance()
        self._peers.advance()
        hold = self.budget.should_hold(self._holding)
        if hold != self._holding:
            self._holding = hold
            self._outbox.counts.holds += hold
            self._outbox.put(HoldReads(hold))
        if self._stopping and self._set.handed_over:
            self._stop()
        return self._outbox.take()

    def _stop(self) -> None:
        """Finish what is under way, mark it durable, save a checkpoint; one step an event."""
        self._set.leave()
        # Nothing begins any more but acks of what was granted: else the log is never idle.
        self.registry.group = None
        for partition in self.topics.partitions():
            partition.drain(acks=self._time.monotonic_ms() < self._acks_until_ms)
        for writer in self._writers:
            writer.log.mark_idle()
            writer.advance()
        if all(writer.idle for writer in self._writers):
            for writer in self._writers:
                if not writer.clean and self._groups.all_open:
                    writer.checkpoint()
        if self._neighbours.passing.waiting:  # it is refused if the other shard does not answer
            return
        if all(writer.idle for writer in self._writers) and not self._stopped:
            self._stopped = True
            self._outbox.put(Stopped())

    # -- groups ------------------------------------------------------------------------------

    def _open_topic(self, topic: Topic) -> None:
        self._groups.open_topic(topic)
        self._devices.receivers.grown(topic)

    def _writer_for(self, group: int) -> Writer:
        return self._writer[self._layout.log_of(group)]

    def _admit(self, group: int) -> None:
        if self._stopping and self._set.handed_over:
            raise Unavailable("this node is stopping: try another, or again shortly")
        for writer in self._writers:
            writer.admit(self.budget.used)
        if (full := self._short.get(group)) is not None:
            text = f"{full}: free space there or add disks; acks and reads go on"
            raise Overloaded(text, SPARE_RETRY_MS)

    def _fan_in_opened(self, producer: int) -> None:
        self._shared.fan_in_producer = producer


def _let_others_lead(writer: Writer, time: Clocks, rooms: FullDisks) -> None:
    """Hand over what a disk that hangs or is full, or a clock that is wrong, would hold up."""
    if writer.hangs or rooms.is_full:
        give_away(writer.led, rooms.suits)
    elif time.differ:
        give_away(filter(time.is_astray, writer.led), time.is_near)
