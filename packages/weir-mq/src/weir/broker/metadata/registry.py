"""The registry group's machine: creates topics and grants producer ids through Raft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import weir_raft as raft
from weir.broker.api.events import Findings
from weir.broker.api.settings import Identity, Layout
from weir.broker.metadata.administration import (
    Administration,
    PartitionEndings,
    Replies,
    TopicGroups,
)
from weir.broker.metadata.audit import AuditGate, deed_of
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.membership import Membership
from weir.broker.metadata.placement import check_replicas
from weir.broker.metadata.quota_requests import QuotaRequests
from weir.broker.metadata.security.enrolment import Enrolment, FleetVault
from weir.broker.metadata.security.rewrapping import Rewrapping
from weir.broker.metadata.security.rules import topic_name
from weir.broker.metadata.security.users import AccessRequests
from weir.broker.metadata.usage import Dealer
from weir.broker.records.audit import AuditProducerOpened, AuditPublished
from weir.broker.records.entries import ControlRecord, Payload, of_control
from weir.broker.records.quotas import QuotaRecord
from weir.broker.records.registry import (
    Attributed,
    GroupsFollowed,
    GroupsPlaced,
    GroupsSettled,
    NodeRecord,
    ProducerOpened,
    RegistryChange,
    SchemaRuleSet,
    SchemaVersionAdded,
    SetPromoted,
    TopicAltered,
    TopicClusterPaused,
    TopicCreated,
    TopicCreatedWith,
    TopicDeleted,
    TopicEnds,
    TopicGrown,
    TopologyApplied,
)
from weir.broker.records.security import AccessRecord, FleetRecord, SecretsRewrapped
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals, no_registry
from weir.broker.runtime.outbox import Caller
from weir.errors import (
    Fenced,
    Halted,
    LevelTooLow,
    NotLeader,
    ProducerExpired,
    QuotaExceeded,
    Refused,
    TopicExists,
    Unavailable,
    UnknownProducer,
    UnknownVersion,
)
from weir.model.ids import Address, granted_at, producer_of, topic_of
from weir.model.limits import (
    AUDIT_RETENTION_MS,
    FORMAT_LEVEL_ACCESS,
    FORMAT_LEVEL_WINDOWS,
    TOPICS_MAX,
)
from weir.model.topic import (
    AUDIT_TOPIC,
    DEFAULT_SETTINGS,
    FOREVER,
    RESERVED_NAMESPACE,
    Topic,
    TopicSettings,
    check_key_by,
    check_settings,
    split_name,
)
from weir.order.clock import HybridClock, Time
from weir.protocol.client.messages import (
    CreateTopic,
    OpenProducer,
    ProducerGrant,
    RestoreTopic,
    TopicInfo,
)


class GroupPlaces(Protocol):
    """What knows where groups are served."""

    def address(self, group: int, /) -> Address:
        """Return where a group is served."""


class ProducerWaiter(Protocol):
    """A waiter for a producer id that is no caller: the shard itself."""

    def producer_granted(self, outcome: ProducerOpened | Refused, /) -> None:
        """It was granted, or why it was not."""


class Registry:
    """Topics and producer ids of this system (DESIGN §5 Registry, embedded).

    The shard that has its group leads it; others have a copy, in which they only look things up.
    """

    def __init__(
        self,
        catalog: Catalog,
        outbox: Replies,
        time: Time,
        clock: HybridClock,
        places: GroupPlaces,
        groups: TopicGroups,
        identity: Identity,
        layout: Layout,
        level: int,
        findings: Findings,
        random: Callable[[int], bytes] | None,
        vault: FleetVault,
    ) -> None:
        """Go on above what `catalog` holds; `clock` does too, or a clock that was set back would
        grant a producer id twice. `places` say where a group is served; `groups` follow what is
        decided of topics. The rest is as `Membership`, `AccessRequests` and `Enrolment` take it.
        """
        self.catalog = catalog
        #: Its group, where this node has that, and has it whole.
        self.group: Group | None = None
        self._outbox = outbox
        self._time = time
        self._places = places
        self._groups = groups
        access = AccessRequests(catalog, outbox, self, findings, random, vault)
        fleets = Enrolment(catalog, outbox, self, findings, vault, access.committed)
        rewrapping = Rewrapping(catalog, outbox, self, vault)
        quotas = QuotaRequests(catalog, outbox, self, Dealer(catalog, time))
        self.administration = Administration(
            catalog,
            outbox,
            time,
            self,
            groups,
            access,
            fleets,
            quotas,
            rewrapping,
            AuditGate(catalog, time),
        )
        self.endings = PartitionEndings(catalog, outbox, time, self)
        self.membership = Membership(catalog, identity, layout, level, outbox, self)
        self._clock = clock
        self._level = level
        self._identity = identity
        #: Whether this node leads the registry and has applied an entry of its own term.
        self.ready = False
        self._topics: Proposals[TopicCreated, tuple[Caller, CreateTopic]] = Proposals(self)
        self._producers: Proposals[ProducerOpened, Caller | ProducerWaiter] = Proposals(self)

    def take_group(self, group: Group | None) -> None:
        """Decide by this group from now on; None: this node does without it."""
        self.group = group

    def lead(self, leadership: raft.Leadership) -> None:
        """Lead once the first entry of this term is applied."""
        self._clock.raise_to(leadership.fence)

    def lose(self, error: NotLeader, cut_off: bool) -> None:
        """Stop leading: only the next leader knows the outcome of requests under way."""
        self.ready = False
        for caller, _ in self._topics.lose():
            self._outbox.refuse(caller, error)
        for waiter in self._producers.lose():
            self._answer(waiter, error)
        self.administration.lose(error)
        self.endings.lose(error)
        self.membership.lose(error)

    def create(self, caller: Caller, request: CreateTopic) -> None:
        """Create a topic, or answer with the one that is there if it has the same settings. Raises
        `QuotaExceeded` where its namespace has no room for it.
        """
        namespace, name = split_name(request.name)
        check_settings(request.partitions, request.order)
        check_replicas(request.replicas, len(self.catalog.nodes.active()), self.catalog.spread)
        key_by = check_key_by(request.key_by)
        if key_by:
            self._check_level("a topic with --key-by")
        default = DEFAULT_SETTINGS
        if namespace == RESERVED_NAMESPACE:
            self._check_level("an audit topic")
            default = TopicSettings(AUDIT_RETENTION_MS)
        settings = request.settings.over(default)
        existing = self.catalog.find(namespace, name)
        if existing is not None:
            self._outbox.reply(caller, self._existing(existing, request))
            return
        if len(self.catalog) >= TOPICS_MAX:
            raise Unavailable(f"this system has {TOPICS_MAX:,} topics, the most it can hold")
        self.catalog.check_room(namespace, 1, request.partitions)
        stamp = self._clock.stamp(self._time.wall_ms())
        named = namespace, name, request.partitions, request.order
        record = TopicCreated(*named, stamp, settings, request.replicas)
        source = _source_of(request)
        if key_by or (source and self.catalog.level >= FORMAT_LEVEL_ACCESS):
            record = TopicCreatedWith(*named, stamp, settings, request.replicas, key_by, source)
        self._topics.propose(record, (caller, request))

    def _check_level(self, what: str) -> None:
        level = self.catalog.level
        if level < FORMAT_LEVEL_ACCESS:
            raise LevelTooLow(
                f"this set writes format level {level}, and {what} needs "
                f"{FORMAT_LEVEL_ACCESS}: once all nodes run this release, raise it by `weir node "
                "raise-level`",
                level,
            )

    def open_producer(self, caller: Caller, principal: str, request: OpenProducer) -> None:
        """Grant a new producer id, or the next epoch of one that the principal holds."""
        self.grant(principal, request.producer, caller, request.window)

    def grant(
        self, principal: str, producer: int, waiter: Caller | ProducerWaiter, window: int = 0
    ) -> None:
        """Propose a producer id or epoch; `waiter` is told when it is committed, or when nobody
        here will know whether it is. A new one has the `window`, where the set writes such ids.

        A new id is the stamp of its grant, so that everybody can tell how old it is; it lies above
        every stamp of this shard, so that no partition takes it for old, however its clock ran.
        """
        epoch = 0
        if producer:
            epoch = self._epoch_of(producer, principal) + 1
        else:
            self.catalog.check_producers(principal)
            stamp = self._clock.stamp(self._time.wall_ms(), self._clock.highest.stamp)
            has_window = window if self.catalog.level >= FORMAT_LEVEL_WINDOWS else 0
            try:
                producer = producer_of(stamp, has_window)
            except ValueError:
                raise Unavailable(
                    "clocks of this set say that it is the year 2527 or later, and no producer id "
                    "can be granted: set them right"
                ) from None
        self._producers.propose(ProducerOpened(producer, epoch, principal), waiter)

    def _answer(self, waiter: Caller | ProducerWaiter, outcome: ProducerOpened | Refused) -> None:
        """Tell who asked for a producer what became of it."""
        if not isinstance(waiter, Caller):
            waiter.producer_granted(outcome)
        elif isinstance(outcome, Refused):
            self._outbox.refuse(waiter, outcome)
        else:
            self._outbox.reply(waiter, ProducerGrant(outcome.producer, outcome.epoch))

    def check_epoch(self, producer: int, epoch: int, principal: str) -> None:
        """Raise unless the principal holds the producer id, in this very epoch: `Fenced` for an
        older one, `UnknownProducer`, or `ProducerExpired` if it may have been granted and
        forgotten.
        """
        held = self.catalog.producer(producer)
        if held is not None and held.epoch == epoch and held.principal == principal:
            return
        granted = self._epoch_of(producer, principal)
        if epoch < granted:
            raise Fenced(f"producer {producer} goes on in epoch {granted}", granted)
        raise UnknownProducer(
            f"epoch {epoch} of producer {producer} was not granted: {granted} is the newest"
        )

    def _epoch_of(self, producer: int, principal: str) -> int:
        """Return the newest epoch of a producer id."""
        held = self.catalog.producer(producer)
        if held is None and granted_at(producer) < self.catalog.forgotten_below:
            raise ProducerExpired(f"producer {producer} was granted too long ago: open a new one")
        if held is None or held.principal != principal:
            raise UnknownProducer(
                f"producer {producer} was not granted to {principal}: open one first"
            )
        return held.epoch

    def open_audit(self, before: int) -> None:
        """Propose a producer id for the audit trail in place of `before`."""
        producer = self._clock.stamp(self._time.wall_ms(), self._clock.highest.stamp)
        self.propose(AuditProducerOpened(producer, before))

    def create_audit_topic(self) -> None:
        """Propose the topic that says who did what."""
        stamp = self._clock.stamp(self._time.wall_ms())
        settings = TopicSettings(AUDIT_RETENTION_MS)
        self.propose(TopicCreated(RESERVED_NAMESPACE, AUDIT_TOPIC, 1, "total", stamp, settings))

    def apply(self, index: int, payload: Payload) -> None:
        """Apply a committed entry."""
        control, record = payload.control, payload.change
        if not isinstance(control, Attributed):
            self._apply_change(index, record)
            return
        deed = deed_of(control.change, self.catalog)
        self._apply_change(index, record)
        self.catalog.audit.add(index, control, deed, self.catalog.access.version)

    def _apply_change(self, index: int, record: ControlRecord | None) -> None:
        if isinstance(record, AccessRecord):
            self.administration.access.apply(index, record)
        elif isinstance(record, SecretsRewrapped):
            self.administration.rewrapping.apply(index, record)
        elif isinstance(record, FleetRecord):
            self.administration.fleets.apply(index, record)
        elif isinstance(record, QuotaRecord):
            self.administration.quotas.apply(index, record)
        elif isinstance(record, NodeRecord):
            self.membership.apply(index, record)
            self._moved(record)
        elif isinstance(record, TopologyApplied):
            self.administration.topology.apply(index, record)
            self.membership.look_again()
        elif isinstance(record, AuditProducerOpened):
            self._clock.raise_to(record.producer)
            self.catalog.open_audit(record)
        elif isinstance(record, AuditPublished):
            self.catalog.audit.published(record)
        else:
            self._apply(index, record)
        self.administration.access.look_for_losses()

    def _apply(self, index: int, control: ControlRecord | None) -> None:
        match control:
            case None:
                self.ready = self.group is not None and self.group.begins_own_term(index)
                if self.ready:
                    self.membership.lead()
            case TopicCreated() as record:
                self._clock.raise_to(record.stamp)
                self._created(index, record)
            case TopicAltered() | TopicClusterPaused() | TopicDeleted() as record:
                self.administration.apply(index, record)
                self.membership.placed_new()
            case TopicGrown() as record:
                self.administration.grown(record)
            case TopicEnds() as record:
                self.endings.apply(index, record)
            case SchemaVersionAdded() | SchemaRuleSet() as record:
                self.administration.schemas.apply(index, record)
            case ProducerOpened() as record:
                self._clock.raise_to(granted_at(record.producer))
                self._opened(index, record)
            case other:
                raise Halted(f"a {type(other).__name__} does not belong into the registry")

    def _opened(self, index: int, record: ProducerOpened) -> None:
        waiter = self._producers.applied(index)
        try:
            outcome: ProducerOpened | Refused = self.catalog.open(record)
        except QuotaExceeded as error:
            outcome = error
        if waiter is not None:
            self._answer(waiter, outcome)

    def _moved(self, record: NodeRecord) -> None:
        """Let groups be opened that are to lie here from now on, and closed that need not, and let
        those go on that are forced to.
        """
        if isinstance(record, SetPromoted):
            topics = self.catalog.topics()
        elif isinstance(record, GroupsPlaced | GroupsFollowed | GroupsSettled):
            ids = dict.fromkeys(topic_of(group) for group, _ in record.rows)
            topics = [topic for id in ids if (topic := self.catalog.by_id(id)) is not None]
        else:
            return
        for topic in topics:
            self._groups.open_topic(topic)

    def decode(self, data: Any) -> Catalog:
        """See `Machine`."""
        catalog = Catalog.decode(data)
        if (level := catalog.nodes.level) > self._level:
            raise UnknownVersion(
                f"the registry was written by a newer release of weir (level {level}, this one "
                f"reads up to {self._level}): upgrade this node",
                level,
                self._level,
            )
        me, known = self._identity, catalog.nodes.get(self._identity.node)
        if known is not None and known.birth not in (0, me.birth):
            raise Halted(f"it says that node {me.node} of this set has another data folder")
        return catalog

    def restore(self, catalog: Catalog) -> None:
        """Hold what a snapshot holds in place of everything."""
        before = self.catalog.topics()
        self.catalog.become(catalog)
        for topic in before:
            if self.catalog.by_id(topic.id) is None:
                self._groups.close_topic(topic)
        self._clock.raise_to(self.catalog.last_stamp)
        self.administration.fleets.restored()
        self.administration.access.look_for_losses()
        for topic in self.catalog.topics():
            self._groups.open_topic(topic)

    def describe(self, topic: Topic) -> TopicInfo:
        """Return a topic and where its partitions are served."""
        addresses = [self._places.address(group) for group in topic.groups()]
        ends = tuple((end.partition, end.stamp * end.done) for end in topic.ends)
        schemas = self.catalog.schemas.of(topic.id)
        return TopicInfo(
            topic.id,
            topic.namespace,
            topic.name,
            topic.order,
            addresses,
            topic.settings,
            ends,
            schemas.newest,
            schemas.checked,
            topic.key_by,
        )

    def changing(self) -> None:
        """See `Machine`: nobody is promised anything of the registry."""

    def durable(self, index: int) -> None:
        """See `Machine`: nobody waits for this node's own disk."""

    def encode(self) -> object:
        """Return the state for a snapshot."""
        return self.catalog.encode()

    @property
    def first_needed(self) -> int:
        """A snapshot holds all there is to know: no entry below it is needed."""
        return self.group.node.log.last_index + 1 if self.group is not None else 0

    def _created(self, index: int, record: TopicCreated) -> None:
        waiting = self._topics.applied(index)
        try:
            topic, is_new = self.catalog.create(record)
        except QuotaExceeded as error:
            if waiting is not None:
                self._outbox.refuse(waiting[0], error)
            return
        if is_new:
            self._groups.open_topic(topic)
            self.membership.placed_new()
        if waiting is None:
            return
        caller, request = waiting
        try:
            reply = self.describe(topic) if is_new else self._existing(topic, request)
        except TopicExists as error:
            self._outbox.refuse(caller, error)
        else:
            self._outbox.reply(caller, reply)

    def _existing(self, topic: Topic, request: CreateTopic) -> TopicInfo:
        same = (topic.partitions, topic.order) == (request.partitions, request.order)
        same = same and request.key_by in ("", topic.key_by)
        if request.if_absent and same and request.settings.agrees(topic.settings):
            return self.describe(topic)
        raise TopicExists(
            f"topic {topic.full_name} exists with {_many_partitions(topic.partitions)}, "
            f"order={topic.order}, {_key_by(topic)}{_kept(topic.settings)}; choose another name, "
            "use it as it is, or alter it",
            topic.id,
        )

    def propose(self, record: RegistryChange) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here, and
        `AuditBacklog` as `AuditGate` says.
        """
        if self.group is None or not self.ready:
            raise no_registry()
        return self.group.propose(of_control(self.administration.audit.attributed(record)))


def _many_partitions(count: int) -> str:
    return f"{count} partition" if count == 1 else f"{count} partitions"


def _source_of(request: CreateTopic) -> str:
    """Return of which topic of which system the backup is that a topic is restored from."""
    if not isinstance(request, RestoreTopic):
        return ""
    return f"{request.system:x}:{topic_name(*split_name(request.source))}"


def _key_by(topic: Topic) -> str:
    return f"key-by={topic.key_by}, " if topic.key_by else ""


def _kept(settings: TopicSettings) -> str:
    """Return a topic's retention with the largest units in which the numbers are whole."""
    age, size = settings.retention_ms, settings.retention_bytes
    days = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))
    long = next((f"{age // ms}{unit}" for ms, unit in days if not age % ms), "")
    powers = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
    large = next((f"{size // one}{unit}" for one, unit in powers if not size % one), "")
    return (
        f"retention={'forever' if age == FOREVER else long} and "
        f"retention-bytes={'none' if size == FOREVER else large}"
        + "".join(f", scatter-with={name}" for name in settings.scatter_with)
        + "".join(f", until-done={name}" for name in settings.until_done)
    )
