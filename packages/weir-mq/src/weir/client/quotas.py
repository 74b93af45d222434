"""Quotas: how much namespaces and principals may use, and how much they do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from weir.client.connection.network_client import NetworkClient
from weir.protocol.client import quotas as q


class Quota(msgspec.Struct, frozen=True):
    """The limits of `namespace:NAME`, `user:NAMESPACE/NAME`, `fleet:NAME` or `anonymous`, by quota,
    and how much of each is used, as far as that is known: rates as of the second before.

    `throttled_ms` is for how long its connections waited, all together, since the leader of the
    registry leads.
    """

    entity: str
    limits: Mapping[str, int]
    used: Mapping[str, int] = msgspec.field(default_factory=dict)
    throttled_ms: int = 0


class Quotas:
    """The quotas of a system."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `quotas` this is."""
        self._network = network

    async def set(self, entity: str, limits: Mapping[str, int | None]) -> Quota:
        """Set limits of an entity by the names of quotas, such as `bytes_in`; None ends one, and
        those that are not named stay. Return all that it has then.

        Raises `BadRequest` for what is no entity or quota, `BadName`, `LevelTooLow`, and `TooLarge`
        where too many have quotas.
        """
        request = q.SetQuota(entity, tuple(limits.items()))
        return _quota((await self._network.request(request, q.QuotaChanged)).quota)

    async def remove(self, entity: str) -> Quota:
        """Let an entity have no quotas any more, and return those that it had. Raises `BadRequest`
        if it had none.
        """
        request = q.RemoveQuota(entity)
        return _quota((await self._network.request(request, q.QuotaChanged)).quota)

    async def list(self) -> tuple[Quota, ...]:
        """Return all quotas and how much of them is used, in the order of their entities."""
        found: list[Quota] = []
        after, more = "", True
        while more:
            page = await self._network.request(q.ListQuotas(after), q.QuotaList)
            found += [
                Quota(one.entity, dict(one.limits), dict(one.used), one.throttled_ms)
                for one in page.quotas
            ]
            more = page.more and bool(page.quotas)
            after = found[-1].entity if found else ""
        return tuple(found)

    async def describe(self, entity: str) -> Quota:
        """Return the limits of an entity, and how much of each it uses; without limits if it has no
        quota.
        """
        found = (one for one in await self.list() if one.entity == entity)
        return next(found, Quota(entity, {}))


def _quota(row: q.QuotaRow) -> Quota:
    return Quota(row.entity, dict(row.limits))
