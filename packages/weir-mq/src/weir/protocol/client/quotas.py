"""Requests and replies about quotas: how much namespaces and principals may use."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from weir.errors import BadName, LevelTooLow, TooLarge
from weir.model.ids import Natural
from weir.model.limits import NAME_CHARACTERS_MAX, QUOTA_LIMIT_MAX
from weir.protocol.client.declaration import (
    Asker,
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

Name = Annotated[str, Meta(max_length=8 * NAME_CHARACTERS_MAX)]
Quota = Annotated[str, Meta(max_length=32)]
Limit = Annotated[int, Meta(ge=0, le=QUOTA_LIMIT_MAX)]
#: Of a rate, in thousandths of a unit a second.
Share = Natural
_ADMINISTER = (Right("administer", Resource.SYSTEM),)


class QuotaRow(Control, frozen=True, array_like=True):
    """The limits of `namespace:NAME`, `user:NAMESPACE/NAME`, `fleet:NAME` or `anonymous`, by the
    names of the quotas.
    """

    entity: Name
    limits: tuple[tuple[Quota, Natural], ...]


class QuotaChanged(ControlReply, frozen=True, array_like=True):
    """Quotas as they are now, or were when they were removed."""

    quota: QuotaRow


class SetQuota(ControlRequest, frozen=True, array_like=True):
    """Set limits of an entity, by the names of quotas; nil ends one, and those that are not named
    stay. Rates are in bytes or requests a second, of the whole set.
    """

    declaration = Declaration(
        90,
        Scope.REGISTRY,
        QuotaChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(BadName, LevelTooLow, TooLarge),
        methods=("Quotas.set",),
    )

    entity: Name
    limits: Annotated[tuple[tuple[Quota, Limit | None], ...], Meta(max_length=64)]


class RemoveQuota(ControlRequest, frozen=True, array_like=True):
    """Let an entity have no quotas any more."""

    declaration = Declaration(
        91,
        Scope.REGISTRY,
        QuotaChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(BadName,),
        methods=("Quotas.remove",),
    )

    entity: Name


class QuotaUse(Control, frozen=True, array_like=True):
    """The limits of an entity, and how much of each it uses, as far as that is known: rates as of
    the second before. `throttled_ms` is for how long its connections waited, all together, since
    the leader of the registry leads.
    """

    entity: Name
    limits: tuple[tuple[Quota, Natural], ...]
    used: tuple[tuple[Quota, Natural], ...]
    throttled_ms: Natural = 0


class QuotaList(ControlReply, frozen=True, array_like=True):
    """Quotas in the order of their entities; there are `more` behind the last."""

    quotas: list[QuotaUse]
    more: bool = False


class ListQuotas(ControlRequest, frozen=True, array_like=True):
    """Ask for all quotas and how much of them is used, behind those of the entity `after`."""

    declaration = Declaration(
        92,
        Scope.REGISTRY,
        QuotaList,
        Retry.READ,
        rights=_ADMINISTER,
        methods=("Quotas.list", "Quotas.describe"),
    )

    after: Name = ""


#: Of one rate: units that were used in the last second, whether somebody had to wait for more, and
#: the share that is held; nil without a limit.
RateRow = tuple[Share, bool, Share] | None


class UsageRow(Control, frozen=True, array_like=True):
    """What a shard has of an entity: connections, clusters of consumers, bytes stored, by how much
    its peers were throttled since it started; and its rates, `bytes_in`, `bytes_out`, `requests`.
    """

    entity: Name
    connections: Natural
    clusters: Natural
    storage_bytes: Natural
    throttled_ms: Natural
    rates: tuple[RateRow, RateRow, RateRow]


class ShareRow(Control, frozen=True, array_like=True):
    """What the other shards have of an entity, as far as they said, and the share of each rate that
    a shard is to hold from now on; nil without a limit.
    """

    entity: Name
    connections: Natural
    clusters: Natural
    storage_bytes: Natural
    shares: tuple[Share | None, Share | None, Share | None]


class UsageShares(ControlReply, frozen=True, array_like=True):
    """Shares of the entities that were reported, as far as they have quotas."""

    rows: tuple[ShareRow, ...]


class ReportUsage(ControlRequest, frozen=True, array_like=True):
    """Only shards ask this, each second while there are quotas: what they use, by entity."""

    declaration = Declaration(94, Scope.REGISTRY, UsageShares, Retry.SAME, asker=Asker.SHARD)

    rows: tuple[UsageRow, ...]


class Throttled(ControlReply, frozen=True, array_like=True):
    """No answer, but a notice: the broker does not read from this connection for about so long,
    because of a quota. It comes again while that lasts. Only clients get it whose hello says that
    they take `notices`.
    """

    #: The opcode of its frame, whose correlation is 0.
    opcode: ClassVar[int] = 95

    throttle_ms: Natural


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (SetQuota, RemoveQuota, ListQuotas, ReportUsage)
