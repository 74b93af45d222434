"""Each second a shard says what the entities with quotas use there, and hears what it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from weir.broker.api.settings import Layout
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.quotas import NAMESPACE, quota_exceeded
from weir.broker.metadata.registry import Registry
from weir.broker.partition.topics import Topics, stored_bytes
from weir.broker.quotas.accounts import Account
from weir.broker.quotas.meter import Meter
from weir.broker.replica.disk_room import Admission
from weir.broker.replica.requests import no_registry
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Refused
from weir.model.ids import partition_of, topic_of
from weir.order.clock import Time
from weir.protocol.client import quotas as q
from weir.protocol.client.codec import decode_reply
from weir.protocol.frame import ClientFrame

#: How often a shard reports.
REPORT_MS = 1_000


class UsageReports:
    """Asks the leader of the registry for this shard's shares, and answers others where it leads
    here.
    """

    __slots__ = ("_admission", "_catalog", "_forwarder", "_layout", "_led", "_meter", "_outbox",
                 "_registry", "_reported_ms", "_sessions", "_time", "_topics")  # fmt: skip

    def __init__(
        self, meter: Meter, topics: Topics, sessions: Mapping[int, Session], registry: Registry,
        forwarder: Forwarder, admission: Admission, layout: Layout, outbox: Outbox, time: Time,
    ) -> None:  # fmt: skip
        """Report what `meter` counts, and what the partitions of `topics` that are led here hold;
        where that is too much, `admission` refuses.
        """
        self._meter = meter
        self._topics = topics
        self._catalog: Catalog = topics.catalog
        self._sessions = sessions
        self._registry = registry
        self._forwarder = forwarder
        self._admission = admission
        self._layout = layout
        self._outbox = outbox
        self._time = time
        self._reported_ms = 0
        self._led = False
        forwarder.listen(self, q.ReportUsage)

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what answers each request."""
        return {q.ReportUsage: self._report}

    def check_deadlines(self) -> None:
        """Keep to the quotas as they are now, let those be read from who waited, and report."""
        meter, ready = self._meter, self._registry.ready
        if meter.is_stale:
            meter.follow(self._members())
            self._admission.limit({}, {})  # until it is counted again
        if ready != self._led:
            self._led = ready
            self._registry.administration.quotas.dealer.forget()
        if meter.held or meter.is_on:
            meter.release()
        if not meter.is_on:
            return
        now_ms = self._time.monotonic_ms()
        if now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            self._tell(now_ms)

    def answered(self, frame: ClientFrame) -> None:
        """The leader deals this shard what it may use."""
        reply = decode_reply(frame)
        if isinstance(reply, q.UsageShares):
            self._hold(reply)

    def _report(self, session: Session, caller: Caller, request: q.ReportUsage) -> None:
        if not self._registry.ready:
            raise no_registry()
        shares = self._registry.administration.quotas.dealer.report(
            session.principal, request, self._members()
        )
        self._outbox.reply(caller, shares)

    def _tell(self, now_ms: int) -> None:
        request = q.ReportUsage(tuple(self._rows(now_ms)))
        place = self._forwarder.routes.registry
        with suppress(Refused):  # the leader is unknown, or not reached: the shares stay
            if place != self._forwarder.shard:
                self._forwarder.ask_own(place, request)
            elif self._registry.ready:
                name = self._forwarder.principal
                self._hold(
                    self._registry.administration.quotas.dealer.report(
                        name, request, self._members()
                    )
                )

    def _rows(self, now_ms: int) -> list[q.UsageRow]:
        meter = self._meter
        meter.count_connections(self._sessions.values())
        stored, clusters = self._counted()
        rows = []
        for entity, account in meter.accounts.items():
            throttled = meter.throttled.get(entity)
            bytes_in, bytes_out, requests = account.demands(now_ms)
            rows.append(
                q.UsageRow(
                    entity, account.connections, clusters[entity], stored[entity],
                    throttled.waited_ms if throttled else 0, (bytes_in, bytes_out, requests),
                )
            )  # fmt: skip
        self._limit(stored, clusters)
        return rows

    def _counted(self) -> tuple[Counter[str], Counter[str]]:
        """Return by entity the bytes that the partitions led here store, and the clusters that read
        partition 0 of a topic.
        """
        stored, clusters = Counter[str](), Counter[str]()
        for partition in self._topics.partitions():
            if not partition.leads:
                continue
            group = partition.group
            topic = self._topics.catalog.by_id(topic_of(group.id))  # it may still have to join
            entity = f"{NAMESPACE}{topic.namespace}" if topic is not None else ""
            if entity not in self._meter.accounts:
                continue
            stored[entity] += stored_bytes(group, partition.state)
            if not partition_of(group.id):
                names = partition.state.clusters.keys() | partition.state.cursors.keys()
                clusters[entity] += len(names)
        return stored, clusters

    def _hold(self, shares: q.UsageShares) -> None:
        accounts = self._meter.accounts
        for row in shares.rows:
            if (account := accounts.get(row.entity)) is None:
                continue
            account.totals = {
                "connections": row.connections, "clusters": row.clusters,
                "storage_bytes": row.storage_bytes,
            }  # fmt: skip
            for rate, share in enumerate(row.shares):
                if share is not None:
                    account.hold(rate, share)

    def _limit(self, stored: Counter[str], clusters: Counter[str]) -> None:
        """Let publishes, and new clusters, be refused where a namespace has as much as it may."""
        full: dict[str, dict[str, Refused]] = {"storage_bytes": {}, "clusters": {}}
        for entity, account in self._meter.accounts.items():
            for quota, here in (("storage_bytes", stored), ("clusters", clusters)):
                if _is_full(account, quota, here[entity]):
                    namespace = entity.removeprefix(NAMESPACE)
                    error = quota_exceeded(entity, quota, account.limits[quota])
                    full[quota][namespace] = error
        self._admission.limit(
            self._by_topic(full["storage_bytes"]), self._by_topic(full["clusters"])
        )

    def _by_topic(self, namespaces: Mapping[str, Refused]) -> dict[int, Refused]:
        found: dict[int, Refused] = {}
        for namespace, error in namespaces.items():
            found.update((topic.id, error) for topic in self._catalog.topics(namespace))
        return found

    def _members(self) -> int:
        nodes = self._catalog.nodes.all()
        return sum(self._forwarder.routes.shards_of(one.id) for one in nodes) or self._layout.shards


def _is_full(account: Account, quota: str, here: int) -> bool:
    limit = account.limits.get(quota)
    return limit is not None and here + account.totals.get(quota, 0) >= limit
