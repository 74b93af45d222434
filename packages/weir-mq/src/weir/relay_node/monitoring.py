"""What a relay shows of itself over HTTP: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.model.ids import partition_of
from weir.order.clock import milliseconds_of
from weir.relay.holds import Child
from weir.relay_node.consumers.clusters import ClusterCounts
from weir.relay_node.host import RelayHost, steady_ms, wall_ms
from weir.relay_node.listener import RelayTls
from weir.relay_node.partitions import ChildLag, Held, Lag, children_of, lag_of, tags_kept
from weir.server.observability.endpoint import (
    CONTENT_TYPE,
    PLAIN,
    Answer,
    Family,
    Labels,
    Pages,
    Sample,
    one,
)

#: What may fail on the disk, see `weir.relay_node.disk`.
DISK_KINDS = ("flush", "read", "checkpoint", "files", "reserve", "topics")


class RelayMonitor:
    """Makes the figures and pages of a running relay."""

    def __init__(
        self, host: RelayHost, tls: RelayTls, connections: Callable[[], int], counts: ClusterCounts
    ) -> None:  # fmt: skip
        """Look at a host, at its certificate, at how many `connections` clients have to it, and at
        what it did for clusters.
        """
        self._counts = counts
        self._host = host
        self._tls = tls
        self._connections = connections

    def pages(self) -> Pages:
        """Return the pages."""
        cheap = ("/healthz", "/readyz")
        pages = {"/metrics": self._figures, "/healthz": self._healthy, "/readyz": self._ready}
        return Pages(pages, cheap)

    async def _figures(self) -> Answer:
        lines = [line for family in self.families() for line in family.lines()]
        return 200, CONTENT_TYPE, "\n".join([*lines, ""])

    async def _healthy(self) -> Answer:
        return 200, PLAIN, "alive\n"

    async def _ready(self) -> Answer:
        held = self._host.partitions.held.values()
        if not self._host.topics and not self._host.has_looked:
            return 503, PLAIN, "starting: the core has not told its topics yet\n"
        if waiting := sum(not one.state.begun for one in held):
            return 503, PLAIN, f"starting: received nothing of {waiting} partitions yet\n"
        if not self._host.is_reached:
            return 200, PLAIN, "ready, and cut off from the core: readers get what the relay has\n"
        if self._host.disk.is_full:
            return 200, PLAIN, "ready, and pulls nothing new: the disk is full\n"
        return 200, PLAIN, "ready\n"

    def families(self) -> Iterator[Family]:
        """Yield all figures."""
        host, now_ms = self._host, steady_ms()
        rows = [(labels, held, lag_of(held, now_ms)) for labels, held in self._partitions()]

        def each(value: Callable[[Held, Lag], float]) -> list[Sample]:
            return [(labels, value(held, lag)) for labels, held, lag in rows]

        def gauge(name: str, about: str, samples: list[Sample]) -> Family:
            return Family(f"weir_relay_{name}", "gauge", about, samples)

        barred = sum(bool(topic.why_barred) for topic in host.topics.values())
        failing = host.disk.troubles.now
        yield gauge("core_up", "Whether there is a connection to the core.", one(host.is_reached))
        yield gauge("connections", "Connections of clients.", one(self._connections()))
        yield gauge("topics", "Topics that are relayed.", one(len(host.topics)))
        yield gauge("topics_barred", "Topics that the core does not let this relay read.",
                    one(barred))  # fmt: skip
        yield gauge("unsynced_bytes", "Bytes that came and are not durable here yet.",
                    one(host.disk.unsynced))  # fmt: skip
        yield gauge("disk_failing", "Whether the disk fails at this, 1 or 0.",
                    [({"kind": kind}, kind in failing) for kind in DISK_KINDS])  # fmt: skip
        counts = self._counts
        yield gauge("acks_pending", "Acks of clusters that wait for a core that is away.",
                    one(len(counts.pending)))  # fmt: skip
        yield gauge("acks_pending_seconds", "Seconds that the oldest of them has waited.",
                    one(counts.pending_seconds))  # fmt: skip
        yield Family("weir_relay_granted_messages_total", "counter",
                     "Messages that consumers of clusters were given.",
                     one(counts.granted))  # fmt: skip
        yield Family("weir_relay_granted_from_core_total", "counter",
                     "Of these, messages that were not here and were read from the core.",
                     one(counts.from_core))  # fmt: skip
        if (serving := self._tls.serving) is not None:
            yield gauge("certificate_ends_seconds",
                        "When the relay's certificate ends, in seconds since 1970.",
                        one(serving.own.ends))  # fmt: skip
            yield gauge("tls_files_unused", "Whether newer files of TLS could not be used.",
                        one(bool(self._tls.problem)))  # fmt: skip
        yield gauge("lag_messages", "Messages that the upper node has and this relay has not.",
                    each(lambda _, lag: lag.messages))  # fmt: skip
        yield gauge("lag_bytes", "About how many bytes these are.", each(lambda _, lag: lag.bytes))
        yield gauge("lag_seconds", "Seconds since all was here that the upper node had.",
                    each(lambda _, lag: lag.seconds))  # fmt: skip
        yield gauge("news_age_seconds", "Seconds since the last answer of an upper node.",
                    each(lambda _, lag: lag.news_seconds))  # fmt: skip
        yield gauge("held_bytes", "Bytes of messages that are held here.",
                    each(lambda held, _: held.state.ranges.total))  # fmt: skip
        yield gauge("gap_messages", "Messages that were lost above, and are an error to readers.",
                    each(lambda held, _: sum(b - a for a, b in held.state.gaps)))  # fmt: skip
        yield gauge("lineage", "Which lineage of the core's log is pulled; 0: the first one.",
                    each(lambda held, _: held.state.lineage))  # fmt: skip
        yield gauge("cut_messages", "Messages cut off since the start: a later lineage lacks them.",
                    each(lambda held, _: held.cut))  # fmt: skip
        yield gauge("filter_tags", "How many tags are kept; -1: all messages.",
                    each(lambda held, _: tags_kept(held)))  # fmt: skip
        yield gauge("mark_age_seconds", "Age of the stamp up to which all is known to be here.",
                    [(labels, max(wall_ms() - milliseconds_of(held.mark.stamp), 0) / 1_000)
                     for labels, held, _ in rows if held.mark is not None])  # fmt: skip
        yield from self._links(now_ms)

    def _links(self, now_ms: int) -> Iterator[Family]:
        """Yield what goes between this relay and others."""
        host = self._host
        pulled = [({"upper": host.tiers.name_of(upper)}, size)
                  for upper, size in host.partitions.pulled.items()]  # fmt: skip
        yield Family("weir_relay_pulled_bytes_total", "counter",
                     "Bytes of messages that came from an upper node.", pulled)  # fmt: skip
        sent = [(_named(child), size) for child, size in host.partitions.children.sent.items()]
        yield Family("weir_relay_sent_bytes_total", "counter",
                     "Bytes of messages that a relay below was sent.", sent)  # fmt: skip
        lags: list[tuple[Labels, ChildLag]] = []
        for topic in host.topics.values():
            held = host.partitions.held
            rows = [held[one.group] for one in topic.info.addresses if one.group in held]
            lags += [({"topic": topic.info.full_name, **_named(child)}, lag)
                     for child, lag in children_of(rows, now_ms).items()]  # fmt: skip
        yield Family("weir_relay_child_lag_messages", "gauge",
                     "Messages that a relay below has not made durable.",
                     [(labels, lag.messages) for labels, lag in lags])  # fmt: skip
        yield Family("weir_relay_child_silent_seconds", "gauge",
                     "Seconds since a relay below said what it needs.",
                     [(labels, lag.silent_seconds) for labels, lag in lags])  # fmt: skip

    def _partitions(self) -> Iterator[tuple[Labels, Held]]:
        for topic in self._host.topics.values():
            for address in topic.info.addresses:
                held = self._host.partitions.held.get(address.group)
                if held is not None:
                    partition = str(partition_of(address.group))
                    yield {"topic": topic.info.full_name, "partition": partition}, held


def _named(child: Child) -> dict[str, str]:
    brokerset, node = child
    return {"set": str(brokerset), "node": str(node)}
