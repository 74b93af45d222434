"""The components of a shard, in the order in which they are made: each is given all it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

import weir_raft as raft
from weir.access.devices import SECRET_BYTES, Nonces
from weir.broker.access.authorizer import Authorizer
from weir.broker.access.confirmations import Confirmations
from weir.broker.access.logins import Logins
from weir.broker.access.session_ends import SessionEnds
from weir.broker.api.events import Findings
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.audit.auditor import Auditor, AuditTopic, ChangePublisher, EventPublisher
from weir.broker.audit.buffer import AuditBuffer
from weir.broker.barriers.total_order import TotalOrder
from weir.broker.brokerset import BrokerSet
from weir.broker.devices.proofs import Proofs
from weir.broker.devices.replacements import Replacements
from weir.broker.devices.requests import Devices
from weir.broker.forwarding.forwarder import Forwarder, Routes
from weir.broker.forwarding.registry_feed import HeldReplies, RegistryFeed
from weir.broker.forwarding.trunks import RegistryCopy, RegistryReplica, ShardTrunks
from weir.broker.groups import Groups
from weir.broker.listing import Listing
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.registry import Registry
from weir.broker.metadata.security.cutoff import Cutoff
from weir.broker.metadata.security.enrolment import FleetVault
from weir.broker.metadata.security.token_keys import TokenKeyRequests, TokenKeyVault
from weir.broker.partition.partition import DeviceProducer, PartitionContext, PartitionEvents
from weir.broker.partition.retention import RetentionSweep
from weir.broker.partition.topics import Topics
from weir.broker.partition.traces import MessageTraces
from weir.broker.promotion import PromotionRequests
from weir.broker.quotas.meter import Meter
from weir.broker.quotas.reports import UsageReports
from weir.broker.replica.catch_up import CatchUpPermits
from weir.broker.replica.checkpoints import Opened
from weir.broker.replica.disk_room import Admission, FullDisks
from weir.broker.replica.node_state import Clocks, PeerLinks
from weir.broker.replica.refill import Refill
from weir.broker.replica.transport import Peers
from weir.broker.replica.writer import Writer
from weir.broker.router import Handler, Requests, Sessions
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.live_traffic import LiveTraffic
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.runtime.session import SHARD, Session
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.participant import ParticipantReports
from weir.broker.scattering.requests import ScatteringRequests
from weir.model.ids import REGISTRY_GROUP
from weir.order.clock import HighestStamp, HybridClock, Time
from weir.protocol.client.order import ReportDone

#: How often news of the registry are asked for while none would make this shard stale.
_NEWS_PER_STALENESS = 6


class Runtime(msgspec.Struct, frozen=True):
    """What any component may use."""

    identity: Identity
    layout: Layout
    settings: ShardSettings
    time: Clocks
    budget: Budget
    outbox: Outbox
    reads: Reads
    findings: Findings


class Replication(msgspec.Struct, frozen=True):
    """Logs, and the other replicas of the groups in them."""

    writers: Sequence[Writer]
    #: The same, by the numbers of their logs.
    by_log: Mapping[int, Writer]
    multi: raft.Multi
    permits: CatchUpPermits
    disks: FullDisks
    refill: Refill
    links: PeerLinks
    peers: Peers


class Partitions(msgspec.Struct, frozen=True):
    """The partitions of topics that this shard serves."""

    topics: Topics
    admission: Admission
    context: PartitionContext
    groups: Groups


class Cluster(msgspec.Struct, frozen=True):
    """The other shards and nodes, and what the registry says of all."""

    sessions: dict[int, Session]
    #: Sessions that need not wait any more for news of the registry.
    resumed: deque[int]
    trunks: ShardTrunks
    registry: Registry
    brokerset: BrokerSet


class Services(msgspec.Struct, frozen=True):
    """What peers may ask for."""

    orders: TotalOrder
    coordinator: Coordinator
    listing: Listing
    confirmations: Confirmations
    logins: Logins
    authorizer: Authorizer
    sweep: RetentionSweep
    devices: Devices
    sessions: Sessions
    reports: ParticipantReports
    meter: Meter
    usage: UsageReports
    auditor: Auditor

    def proceed(self) -> None:
        """Go on with what any event may have made possible; cheap while nobody waits."""
        if self.reports.answers:
            self.coordinator.take_reports()
        if self.meter.is_on:
            self.meter.given()
        self.orders.proceed()
        confirmations = self.confirmations
        if confirmations.committed or confirmations.waiting:
            confirmations.proceed()
        auditor, registry = self.auditor, self.auditor.changes.registry
        is_answered = auditor.topic.answers or auditor.topic.own_answers
        is_audited = registry.ready and registry.catalog.is_audited
        if is_answered or (is_audited and auditor.changes.has_work):
            auditor.proceed()


class Components(NamedTuple):
    """All that a shard is made of."""

    runtime: Runtime
    replication: Replication
    partitions: Partitions
    cluster: Cluster
    services: Services


def assemble(
    identity: Identity, logs: Sequence[Opened], time: Time, settings: ShardSettings, layout: Layout
) -> Components:
    """Make the components of a shard that owns `logs`."""
    clocks, budget = Clocks(identity.node, time), Budget(settings.budget_bytes)
    outbox = Outbox(budget)
    reads, findings = Reads(outbox, budget), Findings()
    runtime = Runtime(identity, layout, settings, clocks, budget, outbox, reads, findings)
    replication = _replication(runtime, logs)
    partitions = _partitions(runtime, replication)
    cluster = _cluster(runtime, replication, partitions)
    services = _services(runtime, replication, partitions, cluster)
    return Components(runtime, replication, partitions, cluster, services)


def _replication(runtime: Runtime, logs: Sequence[Opened]) -> Replication:
    identity, layout, settings = runtime.identity, runtime.layout, runtime.settings
    time, outbox, reads, findings = runtime.time, runtime.outbox, runtime.reads, runtime.findings
    writers = [Writer(one, outbox, time, findings, settings.checkpoint_bytes) for one in logs]
    links, disks = PeerLinks(identity.node, layout), FullDisks(time)
    traffic = LiveTraffic(time)
    permits = CatchUpPermits(time, traffic)
    replication = settings.replication
    multi = raft.Multi(links.place_of, replication.heartbeat_ms, replication.election_ms)
    by_log = {writer.number: writer for writer in writers}
    refill = Refill(by_log, layout, reads, outbox, time, links, findings, traffic)
    peers = Peers(
        identity.node, settings.level, replication.election_ms, links, multi, permits, refill,
        disks, outbox, time, findings,
    )  # fmt: skip
    return Replication(writers, by_log, multi, permits, disks, refill, links, peers)


def _partitions(runtime: Runtime, replication: Replication) -> Partitions:
    identity, layout, settings = runtime.identity, runtime.layout, runtime.settings
    time, budget, outbox = runtime.time, runtime.budget, runtime.outbox
    by_log, multi = replication.by_log, replication.multi
    topics = Topics(_saved_catalog(identity, layout, by_log), identity.system)
    admission = Admission(replication.writers, budget, replication.disks)
    context = PartitionContext(
        outbox, runtime.reads, budget, time, HighestStamp(), admission, multi, topics,
        DeviceProducer(), ParticipantReports(outbox), PartitionEvents(),
    )  # fmt: skip
    groups = Groups(
        identity, layout, by_log, topics, context, replication.peers, multi, replication.permits,
        replication.refill, settings, runtime.findings,
    )  # fmt: skip
    return Partitions(topics, admission, context, groups)


def _saved_catalog(identity: Identity, layout: Layout, writers: Mapping[int, Writer]) -> Catalog:
    if identity.shard != layout.registry_shard:
        return Catalog()
    snapshot = writers[layout.log_of(REGISTRY_GROUP)].restored.snapshots.get(REGISTRY_GROUP)
    return Catalog.decode(snapshot.data) if snapshot else Catalog()


def _cluster(runtime: Runtime, replication: Replication, partitions: Partitions) -> Cluster:
    identity, layout, settings = runtime.identity, runtime.layout, runtime.settings
    time, budget, outbox = runtime.time, runtime.budget, runtime.outbox
    topics, context, groups = partitions.topics, partitions.context, partitions.groups
    catalog, sessions, resumed = topics.catalog, dict[int, Session](), deque[int]()
    founded = len(identity.members)
    routes = Routes(layout, identity.node, identity.shard, catalog, groups, founded)
    principal = f"{SHARD}{identity.node}.{routes.shard}"
    forwarder = Forwarder(routes, principal, sessions, outbox, budget)
    replies = HeldReplies(outbox, time, layout.shards - 1, topics)
    clock = HybridClock(catalog.last_stamp, context.highest)
    registry = Registry(
        catalog, replies, time, clock, routes, groups, identity, layout, settings.level,
        runtime.findings, settings.secret_bytes, FleetVault(_nonces(settings), settings.key_ring),
    )  # fmt: skip
    feed, producer = RegistryFeed(registry, replies, outbox), context.device_producer
    at, every_ms = layout.registry_shard, settings.stale_ms // _NEWS_PER_STALENESS
    view: RegistryReplica | RegistryCopy
    if at == identity.shard:
        view = RegistryReplica(registry, forwarder, producer, resumed, outbox, time, every_ms)
    else:
        view = RegistryCopy(at, registry, forwarder, producer, resumed, topics, time, every_ms)
    cutoff = Cutoff(catalog, view, time, settings.stale_ms, settings.cutoff_ms, settings.was_closed)
    trunks = ShardTrunks(routes, forwarder, registry, replies, feed, view, cutoff)
    brokerset = BrokerSet(
        identity, layout, settings.level, topics, registry, forwarder, outbox,
        time, replication.disks, replication.refill,
    )  # fmt: skip
    return Cluster(sessions, resumed, trunks, registry, brokerset)


def _services(
    runtime: Runtime, replication: Replication, partitions: Partitions, cluster: Cluster
) -> Services:
    identity, layout, settings = runtime.identity, runtime.layout, runtime.settings
    time, budget, outbox = runtime.time, runtime.budget, runtime.outbox
    topics, admission, context = partitions.topics, partitions.admission, partitions.context
    trunks, registry, brokerset = cluster.trunks, cluster.registry, cluster.brokerset
    forwarder, audit = trunks.forwarder, AuditBuffer(topics.catalog, time)
    authorizer = Authorizer(topics.catalog, audit)
    orders = TotalOrder(
        topics, registry, forwarder, layout, context, replication.multi, replication.writers
    )
    listing = Listing(topics, registry, trunks, outbox, time, authorizer)
    confirmations = Confirmations(
        topics.catalog, registry.administration.access.committed, forwarder, outbox, time,
        identity.node, layout.shards, settings.cutoff_ms,
    )  # fmt: skip
    ends = SessionEnds(cluster.sessions, authorizer, time, trunks.cutoff)
    logins = Logins(
        topics.catalog, trunks, outbox, time, ends, settings.secret_bytes, authorizer,
        audit, identity.system, registry.administration.fleets.vault,
    )  # fmt: skip
    sweep = RetentionSweep(topics, forwarder, outbox, time, settings.retention_every_ms)
    coordinator = Coordinator(
        topics, forwarder, context.reports, context.highest, time, outbox, budget
    )
    meter = Meter(topics.catalog, cluster.sessions, outbox, time, cluster.resumed, budget)
    usage = UsageReports(
        meter, topics, cluster.sessions, registry, forwarder, admission, layout, outbox, time
    )
    handlers: dict[type[Any], Handler] = {
        **usage.handlers(),
        **brokerset.handlers(),
        **PromotionRequests(identity, topics, registry, brokerset, trunks, outbox).handlers(),
        **orders.handlers(),
        **listing.handlers(),
        **ScatteringRequests(coordinator, topics, registry, admission).handlers(),
        **MessageTraces(topics, cluster.sessions, outbox, time).handlers(),
        **confirmations.handlers(),
        **logins.handlers(),
        **_token_keys(runtime, topics, registry).handlers(),
        **_administration(registry),
        ReportDone: sweep.reported,
    }
    requests = Requests(
        identity, topics, registry, outbox, authorizer, trunks, settings.ports, time, meter,
        handlers,
    )  # fmt: skip
    auditor = _auditor(runtime, partitions, cluster, audit)
    devices = _devices(runtime, topics, cluster, authorizer, meter)
    sessions = Sessions(
        cluster.sessions, outbox, budget, time, topics, trunks, requests, devices, authorizer,
        meter, ends, logins,
    )  # fmt: skip
    return Services(
        orders,
        coordinator,
        listing,
        confirmations,
        logins,
        authorizer,
        sweep,
        devices,
        sessions,
        context.reports,
        meter,
        usage,
        auditor,
    )


def _administration(registry: Registry) -> dict[type[Any], Handler]:
    asked = registry.administration
    return {**asked.fleets.handlers(), **asked.quotas.handlers(), **asked.topology.handlers()}


def _auditor(
    runtime: Runtime, partitions: Partitions, cluster: Cluster, buffer: AuditBuffer
) -> Auditor:
    catalog, forwarder = partitions.topics.catalog, cluster.trunks.forwarder
    topic = AuditTopic(partitions.topics, forwarder, runtime.outbox)
    own, time = partitions.context.device_producer, runtime.time
    return Auditor(
        topic,
        ChangePublisher(topic, cluster.registry, time),
        EventPublisher(topic, buffer, catalog, forwarder.principal, own, time),
        time,
        runtime.layout.shards == 1,
    )


def _devices(
    runtime: Runtime, topics: Topics, cluster: Cluster, authorizer: Authorizer, meter: Meter
) -> Devices:
    time, settings, fleets = runtime.time, runtime.settings, cluster.registry.administration.fleets
    trunks = cluster.trunks
    proofs = Proofs(topics.catalog, runtime.identity.system, _nonces(settings), fleets.vault)
    replacements = Replacements(topics.catalog, fleets, trunks.forwarder, cluster.resumed, time)
    return Devices(
        runtime.identity, topics, runtime.outbox, authorizer, time, trunks, runtime.budget,
        settings.device_in_hand, proofs, replacements, meter,
    )  # fmt: skip


def _token_keys(runtime: Runtime, topics: Topics, registry: Registry) -> TokenKeyRequests:
    asked = registry.administration
    vault = TokenKeyVault(runtime.settings.secret_bytes, asked.fleets.vault)
    system, outbox, time = runtime.identity.system, runtime.outbox, runtime.time
    return TokenKeyRequests(topics.catalog, outbox, asked.access, time, system, vault)


def _nonces(settings: ShardSettings) -> Nonces | None:
    return None if settings.secret_bytes is None else Nonces(settings.secret_bytes(SECRET_BYTES))
