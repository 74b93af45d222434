"""The audit trail of changes: a transactional outbox in the registry's state.

Each entry that somebody asked for gives one message, a pure function of the entry, its index and
the state before it. The message stays in the state until an entry says that the audit topic has it.
Its sequence is how many came before it under the same producer id, so the state says it, too: who
leads after a crash sends the same bytes under the same sequence, and the partition takes them once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from weir.broker.metadata.security.rules import cluster_name, topic_name
from weir.broker.records import quotas as q
from weir.broker.records import registry as reg
from weir.broker.records import security as sec
from weir.broker.records.audit import (
    AuditEvent,
    AuditProducerOpened,
    AuditPublished,
    encode_event,
)
from weir.model.limits import AUDIT_CHANGES_MAX
from weir.model.topic import RESERVED_NAMESPACE, Topic
from weir.order.clock import Time

#: The principal that holds the producer id of changes, whichever node leads.
AUDITOR = "shard:audit"
#: A producer id that was idle for so long is given up: partitions forget those that are older.
_IDLE_MS = 24 * 3600 * 1000
#: These repair what may keep the audit topic from being written, or take rights away: they do not
#: wait until it takes messages.
_REPAIRS = (
    reg.SetPromoted,
    sec.UserRevoked,
    sec.TokenKeysRemoved,
    reg.NodeChanged,
    reg.LevelRaised,
    reg.TopicAltered,
    q.QuotaRemoved,
)


class AuditBacklog(Exception):
    """A change must wait, for the audit topic does not take those before it."""


class Deed(NamedTuple):
    """What an entry does, in the words of the audit topic."""

    verb: str
    kind: str
    resource: str
    detail: str = ""


class TopicsById(Protocol):
    """What is known of topics."""

    def by_id(self, topic: int, /) -> Topic | None:
        """Return a topic by its id."""


class AuditTrail:
    """The changes that the audit topic does not have yet, in order, and their producer id."""

    __slots__ = ("_last_ms", "_next", "_pending", "producer")

    def __init__(self) -> None:
        """Begin empty."""
        #: What publishes them; 0: a new one must be opened.
        self.producer = 0
        #: The sequence of the next one.
        self._next = 0
        #: When each was asked for, and the message.
        self._pending: deque[tuple[int, bytes]] = deque()
        self._last_ms = 0

    def __bool__(self) -> bool:
        return bool(self.producer or self._pending or self._last_ms)

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first(self) -> int:
        """The sequence of the first one."""
        return self._next - len(self._pending)

    def get(self, number: int) -> tuple[int, bytes]:
        """Return when the change of a sequence was asked for, in ms since 1970, and its message."""
        return self._pending[number - self.first]

    def add(self, index: int, by: reg.Attributed, deed: Deed, version: int) -> None:
        """An entry is applied that somebody asked for, at this access version."""
        if not self._pending and by.at_ms - self._last_ms > _IDLE_MS:
            # All that it published is known to be published: nothing can be sent again.
            self.producer = self._next = 0
        event = AuditEvent(
            f"change:{index}", by.at_ms, by.principal, by.address, deed.verb, deed.kind,
            deed.resource, "committed", 1, version, deed.detail,
        )  # fmt: skip
        self._pending.append((by.at_ms, encode_event(event)))
        self._next += 1
        self._last_ms = max(self._last_ms, by.at_ms)

    def open(self, record: AuditProducerOpened) -> bool:
        """Let another producer publish what is left; return whether it is news."""
        if record.before != self.producer:
            return False
        self.producer, self._next = record.producer, len(self._pending)
        return True

    def published(self, record: AuditPublished) -> None:
        """Forget what the audit topic has."""
        if record.producer == self.producer:
            while self._pending and self.first < record.below:
                self._pending.popleft()

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return self.producer, self._next, self._last_ms, list(self._pending)

    @classmethod
    def decode(cls, data: Any) -> AuditTrail:
        """Return the state that `encode` gave."""
        trail = cls()
        trail.producer, trail._next, trail._last_ms, pending = data
        trail._pending.extend((at_ms, bytes(value)) for at_ms, value in pending)
        return trail


class AuditedSet(Protocol):
    """What is known of a set whose changes are published."""

    audit: AuditTrail

    @property
    def is_audited(self) -> bool:
        """Whether there is an audit topic, or is to be one."""


class AuditGate:
    """Says in entries who asked for them, and keeps changes back while the audit topic does not
    take those before them.
    """

    __slots__ = ("_asker", "_catalog", "_time", "closed_by")

    def __init__(self, catalog: AuditedSet, time: Time) -> None:
        """Begin open; nobody asks for anything."""
        self._catalog = catalog
        self._time = time
        #: The principal, and its address, whose request is being answered; None: nobody's.
        self._asker: tuple[str, str] | None = None
        #: Why nothing is published; "": it is.
        self.closed_by = ""

    def answer_for(self, asker: tuple[str, str] | None, answer: Callable[[], None]) -> None:
        """Let `answer` propose what a principal asks from its address. Raises `AuditBacklog` where
        a change has to wait.
        """
        self._asker = asker
        try:
            answer()
        finally:
            self._asker = None

    def attributed(self, change: reg.RegistryChange) -> reg.RegistryChange | reg.Attributed:
        """Return a change as it is proposed. Raises `AuditBacklog`."""
        if self._asker is None or type(change) not in _DEEDS or not self._is_audited(change):
            return change
        pending = len(self._catalog.audit)
        # A set is promoted because its audit topic, too, has lost its leader for good.
        is_full = pending >= AUDIT_CHANGES_MAX and not isinstance(change, reg.SetPromoted)
        if is_full or (self.closed_by and not isinstance(change, _REPAIRS)):
            raise AuditBacklog
        return reg.Attributed(*self._asker, self._time.wall_ms(), change)

    def _is_audited(self, change: reg.RegistryChange) -> bool:
        """Return whether the audit topic gets a change: also the one by which it begins to."""
        if isinstance(change, sec.AccessModeSet) and change.mode != "open":
            return True
        if isinstance(change, reg.TopicCreated) and change.namespace == RESERVED_NAMESPACE:
            return True
        return self._catalog.is_audited


# -- what entries do ------------------------------------------------------------------------------


def _topic(id: int, topics: TopicsById) -> str:
    found = topics.by_id(id)
    return f"#{id}" if found is None else topic_name(found.namespace, found.name)


def _altered(record: reg.TopicAltered, topics: TopicsById) -> Deed:
    change, said = record.change, list[str]()
    if record.partitions:
        said.append(f"partitions={record.partitions}")
    for name in ("retention_ms", "retention_bytes", "scatter_with", "until_done"):
        if (value := getattr(change, name)) is not None:
            shown = value if isinstance(value, int) else ",".join(value)
            said.append(f"{name}={shown}")
    return Deed("alter", "topic", _topic(record.topic, topics), " ".join(said))


def _created_with(record: reg.TopicCreatedWith, topics: TopicsById) -> Deed:
    said = f"partitions={record.partitions} order={record.order}"
    said += f" key_by={record.key_by}" if record.key_by else ""
    said += f" source={record.source}" if record.source else ""
    verb = "restore" if record.source else "create"
    return Deed(verb, "topic", topic_name(record.namespace, record.name), said)


def _paused(record: reg.TopicClusterPaused, topics: TopicsById) -> Deed:
    name = cluster_name(_topic(record.topic, topics), record.cluster)
    return Deed("pause" if record.paused else "resume", "cluster", name)


def _role(record: sec.RoleChanged, topics: TopicsById) -> Deed:
    return Deed("alter", "role", record.role, _signed(map(_rule, record.added),
                                                      map(_rule, record.removed)))  # fmt: skip


def _rule(row: sec.RuleRow) -> str:
    verbs, kind, name, is_prefix = row
    return f"{','.join(verbs)}:{kind}:{name}{'*' if is_prefix else ''}"


def _signed(added: Any, removed: Any) -> str:
    said = [f"+{one}" for one in added] + [f"-{one}" for one in removed]
    shown = " ".join(said[:_SHOWN_MAX])
    return shown if len(said) <= _SHOWN_MAX else f"{shown} and {len(said) - _SHOWN_MAX} more"


def _node(record: reg.NodeChanged, topics: TopicsById) -> Deed:
    return Deed("alter", "node", str(record.node), record.state)


def _quota(record: q.QuotaSet, topics: TopicsById) -> Deed:
    said = " ".join(f"{name}={'none' if to is None else to}" for name, to in record.limits)
    return Deed("set-quota", "quota", record.entity, said)


def _device(record: sec.DeviceSet, topics: TopicsById) -> Deed:
    verb = "revoke" if record.is_revoked else "replace"
    return Deed(verb, "device", str(record.hub), f"generation={record.generation}")


def _keys(record: sec.TokenKeysAdded, topics: TopicsById) -> Deed:
    ids = [row.public.key_id for row in record.keys]
    detail = _signed(ids, ()) + (" replaces the others" if record.replace else "")
    return Deed("add-keys", "issuer", record.issuer, detail)


def _topology(record: reg.TopologyApplied, topics: TopicsById) -> Deed:
    detail = f"version={record.version} sets={len(record.topology)}"
    return Deed("apply-topology", "system", "", detail)


def _rewrapped(record: sec.SecretsRewrapped, topics: TopicsById) -> Deed:
    return Deed("rewrap", "system", "", f"{len(record.rows)} secrets")


_SHOWN_MAX = 16
_Describe = Callable[[Any, TopicsById], Deed]
#: What is published of each kind of entry that somebody may ask for.
_DEEDS: Mapping[type[Any], _Describe] = {
    reg.TopicCreated: lambda r, _: Deed(
        "create", "topic", topic_name(r.namespace, r.name),
        f"partitions={r.partitions} order={r.order}",
    ),
    reg.TopicCreatedWith: _created_with,
    reg.TopicAltered: _altered,
    reg.TopicEnds: lambda r, t: Deed(
        "end-partition", "topic", _topic(r.topic, t), f"partition={r.partition}"
    ),
    reg.TopicClusterPaused: _paused,
    reg.TopicDeleted: lambda r, t: Deed("delete", "topic", _topic(r.topic, t), f"id={r.topic}"),
    reg.SchemaVersionAdded: lambda r, t: Deed(
        "add-schema", "topic", _topic(r.topic, t), f"version={r.number} format={r.format}"
    ),
    reg.SchemaRuleSet: lambda r, t: Deed("set-schema-rule", "topic", _topic(r.topic, t),
                                       f"rule={r.rule} checked={r.checked}"),
    reg.NodeChanged: _node,
    reg.LevelRaised: lambda r, _: Deed("raise-level", "system", "", f"level={r.level}"),
    sec.UserCreated: lambda r, _: Deed("create", "user", r.user, _signed(r.roles, ())),
    sec.UserPasswordSet: lambda r, _: Deed("set-password", "user", r.user),
    sec.UserRolesChanged: lambda r, _: Deed("set-roles", "user", r.user,
                                            _signed(r.added, r.removed)),
    sec.UserRevoked: lambda r, _: Deed("revoke", "user", r.user),
    sec.RoleChanged: _role,
    sec.RoleDeleted: lambda r, _: Deed("delete", "role", r.role),
    sec.AccessModeSet: lambda r, _: Deed("set-mode", "system", "", r.mode),
    sec.TokenKeysAdded: _keys,
    sec.TokenKeysRemoved: lambda r, _: Deed("remove-keys", "issuer", r.issuer, r.key or "all"),
    sec.TokenRenewed: lambda r, _: Deed("renew", "token", r.id, f"issuer={r.issuer}"),
    sec.FleetPut: lambda r, _: Deed("put", "fleet", r.name, f"hubs={r.first}-{r.last}"),
    sec.FleetRemoved: lambda r, _: Deed("delete", "fleet", r.name),
    sec.DeviceSet: _device,
    sec.DeviceReplaced: lambda r, _: Deed("replace", "device", str(r.hub),
                                        f"generation={r.generation}"),
    sec.SecretsRewrapped: _rewrapped,
    reg.TopologyApplied: _topology,
    q.QuotaSet: _quota,
    q.QuotaRemoved: lambda r, _: Deed("remove-quota", "quota", r.entity),
    reg.NodeExpected: lambda r, _: Deed("expect-node", "node", str(r.node)),
    reg.SetPromoted: lambda r, _: Deed("promote", "system", str(r.brokerset)),
}  # fmt: skip
#: Entries of the registry that nobody asks for by themselves, or of the data path: not published.
UNAUDITED: Sequence[type[Any]] = (
    sec.AccessFounded,
    AuditProducerOpened,
    AuditPublished,
    reg.GroupsPlaced,
    reg.GroupsSettled,
    reg.NodeJoined,
    reg.ProducerOpened,
    reg.SetJoined,
    reg.GroupsFollowed,
    reg.TopicGrown,
    sec.DeviceUsed,
)


def deed_of(change: reg.RegistryChange, topics: TopicsById) -> Deed:
    """Return what an audited entry is about to do; `topics` are those before it."""
    return _DEEDS[type(change)](change, topics)
