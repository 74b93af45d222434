"""What is asked of quotas, and what becomes of it when it is committed.

The leader looks first whether an entry could be applied; replicas look again when they apply it,
for another one may have come between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.broker.metadata.quotas import Quotas, check_entity
from weir.broker.metadata.usage import Dealer
from weir.broker.records.quotas import QuotaRecord, QuotaRemoved, QuotaSet
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import BadRequest, LevelTooLow, Refused
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.protocol.client import quotas as q
from weir.protocol.client.messages import Reply

#: So many entities are listed by one reply.
_PAGE_ROWS = 256


class QuotaCatalog(Protocol):
    """What is known of quotas, and of what is written."""

    quotas: Quotas

    @property
    def level(self) -> int:
        """The format level that is written."""

    def used(self, entity: str, /) -> dict[str, int]:
        """Return by quota how much an entity has of what is in the registry."""


class QuotaLog(Protocol):
    """The registry's log."""

    def propose(self, record: QuotaRecord, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class QuotaRequests:
    """Changes quotas by entries."""

    __slots__ = ("_catalog", "_outbox", "_proposals", "dealer")

    def __init__(
        self, catalog: QuotaCatalog, outbox: Replies, log: QuotaLog, dealer: Dealer
    ) -> None:
        """Change `catalog` by entries of `log`; `dealer` knows what is used."""
        #: What deals shares of rates where this node leads.
        self.dealer = dealer
        self._catalog = catalog
        self._outbox = outbox
        self._proposals: Proposals[QuotaRecord, Caller] = Proposals(log)

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def set(self, caller: Caller, request: q.SetQuota) -> None:
        """Propose other limits. Raises `LevelTooLow`, `BadName`, `BadRequest` or `TooLarge`."""
        level = self._catalog.level
        if level < FORMAT_LEVEL_ACCESS:
            raise LevelTooLow(
                f"this set writes format level {level}, and quotas need {FORMAT_LEVEL_ACCESS}: "
                "once all nodes run this release, raise it by `weir node raise-level`",
                level,
            )
        if not request.limits:
            raise BadRequest("name a quota, and its limit")
        record = QuotaSet(check_entity(request.entity), request.limits)
        self._catalog.quotas.check(record)
        self._proposals.propose(record, caller)

    def remove(self, caller: Caller, request: q.RemoveQuota) -> None:
        """Propose that an entity has no quotas any more. Raises `BadRequest` if it has none."""
        record = QuotaRemoved(check_entity(request.entity))
        self._catalog.quotas.check(record)
        self._proposals.propose(record, caller)

    def list(self, caller: Caller, request: q.ListQuotas) -> None:
        """Answer with quotas and their use, as many as one reply holds."""
        catalog, found = self._catalog, list[q.QuotaUse]()
        for entity, limits in catalog.quotas:
            if entity <= request.after:
                continue
            if len(found) >= _PAGE_ROWS:
                self._outbox.reply(caller, q.QuotaList(found, True))
                return
            reported, throttled_ms = self.dealer.used(entity)
            used = {**catalog.used(entity), **reported}
            row = tuple(sorted(limits.items()))
            found.append(q.QuotaUse(entity, row, tuple(sorted(used.items())), throttled_ms))
        self._outbox.reply(caller, q.QuotaList(found))

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what answers each request about quotas."""
        return {
            q.SetQuota: lambda _, caller, request: self.set(caller, request),
            q.RemoveQuota: lambda _, caller, request: self.remove(caller, request),
            q.ListQuotas: lambda _, caller, request: self.list(caller, request),
        }

    def apply(self, index: int, record: QuotaRecord) -> None:
        """Apply a committed record, and answer who asked for it."""
        caller = self._proposals.applied(index)
        try:
            limits = self._catalog.quotas.apply(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
        else:
            if caller is not None:
                self._outbox.reply(caller, q.QuotaChanged(row_of(record.entity, limits)))


def row_of(entity: str, limits: Mapping[str, int]) -> q.QuotaRow:
    """Return limits as the wire has them."""
    return q.QuotaRow(entity, tuple(sorted(limits.items())))
