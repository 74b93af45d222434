"""How much namespaces and principals may use, as entries of the registry say.

A quota belongs to an *entity*: `namespace:NAME`, `user:NAMESPACE/NAME`, `fleet:NAME` or
`anonymous`. A user belongs to the namespace of its name. Counts are compared where something is
made; rates are shared out among the shards of the set (`weir.broker.quotas`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weir.broker.metadata.security.rules import topic_name
from weir.broker.records.quotas import QuotaRecord, QuotaRemoved
from weir.errors import BadRequest, QuotaExceeded, TooLarge
from weir.model.limits import QUOTA_LIMIT_MAX, QUOTAS_MAX
from weir.model.topic import RESERVED_NAMESPACE, check_name, split_name

NAMESPACE = "namespace:"
_USER, _FLEET, _ANONYMOUS = "user:", "fleet:", "anonymous"
#: Quotas of what happens in a second, in the order in which shards report it.
RATES = ("bytes_in", "bytes_out", "requests")
#: What a principal may have quotas of; a namespace may have all.
_OF_PRINCIPALS = (*RATES, "connections", "producers")
#: All quotas, in the order in which they are shown.
QUOTAS = (*_OF_PRINCIPALS, "topics", "partitions", "clusters", "storage_bytes")
#: What a limit counts.
_COUNTED = {
    "bytes_in": "bytes a second that are published",
    "bytes_out": "bytes a second that are read",
    "requests": "requests a second",
    "connections": "connections",
    "producers": "producer ids",
    "topics": "topics",
    "partitions": "partitions",
    "clusters": "clusters",
    "storage_bytes": "bytes that are stored",
}


def check_entity(entity: str) -> str:
    """Return the full name of what has a quota. Raises `BadRequest`, `BadName`."""
    kind, colon, name = entity.partition(":")
    match kind + colon:
        case "namespace:" if name == RESERVED_NAMESPACE:
            raise BadRequest(f"{RESERVED_NAMESPACE} is the brokers' own: it has no quotas")
        case "namespace:":
            return NAMESPACE + check_name(name, "namespace")
        case "user:":
            return _USER + topic_name(*split_name(name))
        case "fleet:":
            return _FLEET + check_name(name, "fleet")
        case "anonymous":
            return _ANONYMOUS
    raise BadRequest(
        f"quotas belong to namespace:NAME, user:NAMESPACE/NAME, fleet:NAME or anonymous, not to "
        f"{entity!r}"
    )


def entity_of(principal: str) -> str:
    """Return what has the quotas of a principal; empty for shards, which have none."""
    name = principal.partition("#")[0]
    return "" if name.startswith("shard:") else name


def namespace_of(principal: str) -> str:
    """Return the namespace that a user belongs to; empty for other principals."""
    if not principal.startswith(_USER):
        return ""
    return principal.removeprefix(_USER).partition("/")[0]


def quota_exceeded(entity: str, quota: str, limit: int) -> QuotaExceeded:
    """Return the refusal of what would go beyond a limit."""
    return QuotaExceeded(
        f"{entity} has its quota of {limit:,} {_COUNTED[quota]} ({quota}): free some of it, or "
        f"raise it by `weir quota set {entity} --{quota.replace('_', '-')} NUMBER`",
        limit,
    )


class Quotas:
    """The limits of all entities that have any. `revision` rises with each change."""

    __slots__ = ("_limits", "revision")

    def __init__(self) -> None:
        """Begin without any."""
        self._limits: dict[str, dict[str, int]] = {}
        self.revision = 0

    def __len__(self) -> int:
        return len(self._limits)

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Return entities and their limits, in the order of their names."""
        return iter(sorted(self._limits.items()))

    def of(self, entity: str) -> Mapping[str, int] | None:
        """Return the limits of an entity by the names of quotas; None if it has none."""
        return self._limits.get(entity)

    def limit(self, entity: str, quota: str) -> int | None:
        """Return a limit; None if there is none."""
        found = self._limits.get(entity)
        return None if found is None else found.get(quota)

    def check_room(self, entity: str, quota: str, used: int, more: int = 1) -> None:
        """Raise `QuotaExceeded` where an entity that uses so much may not have `more`."""
        limit = self.limit(entity, quota)
        if limit is not None and used + more > limit:
            raise quota_exceeded(entity, quota, limit)

    def check(self, record: QuotaRecord) -> None:
        """Raise `BadRequest`, `BadName` or `TooLarge` unless a record can be applied."""
        entity = check_entity(record.entity)
        if entity != record.entity:
            raise BadRequest(f"the full name is {entity}")
        if isinstance(record, QuotaRemoved):
            if entity not in self._limits:
                raise BadRequest(f"{entity} has no quotas: `weir quota list` shows those there are")
            return
        _check_limits(entity, record.limits)
        if entity not in self._limits and len(self._limits) >= QUOTAS_MAX:
            raise TooLarge(
                f"{QUOTAS_MAX:,} namespaces and principals have quotas, the most there can be",
                QUOTAS_MAX,
            )

    def apply(self, record: QuotaRecord) -> Mapping[str, int]:
        """Apply a record; return the limits that its entity has, or had. Raises as `check`."""
        self.check(record)
        self.revision += 1
        if isinstance(record, QuotaRemoved):
            return self._limits.pop(record.entity)
        limits = dict(self._limits.get(record.entity, {}))
        for quota, limit in record.limits:
            limits.pop(quota, None)
            if limit is not None:
                limits[quota] = limit
        if limits:
            self._limits[record.entity] = limits
        else:
            self._limits.pop(record.entity, None)
        return limits

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return [(entity, list(limits.items())) for entity, limits in self._limits.items()]

    @classmethod
    def decode(cls, data: Any) -> Quotas:
        """Return the state that `encode` gave."""
        found = cls()
        for entity, limits in data:
            found._limits[entity] = dict(limits)
        found.revision = len(found._limits)
        return found


def _check_limits(entity: str, limits: Iterable[tuple[str, int | None]]) -> None:
    allowed = QUOTAS if entity.startswith(NAMESPACE) else _OF_PRINCIPALS
    for quota, limit in limits:
        if quota not in QUOTAS:
            raise BadRequest(f"there is no quota {quota!r}: there are {', '.join(QUOTAS)}")
        if quota not in allowed:
            raise BadRequest(f"namespaces alone have a quota of {quota}, not {entity}")
        if limit is not None and not 0 <= limit <= QUOTA_LIMIT_MAX:
            raise BadRequest(f"{quota} is 0 to {QUOTA_LIMIT_MAX:,}", QUOTA_LIMIT_MAX)
        if limit == 0 and quota in RATES:
            raise BadRequest(
                f"{quota} is at least 1 a second, or requests would wait for ever: set "
                "connections to 0 to refuse all connections"
            )
