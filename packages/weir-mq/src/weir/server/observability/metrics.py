"""What a shard says in figures: from the counts its core keeps, and from what only a host sees.

Names follow the Prometheus conventions: `weir_` first, the unit last, `_total` on what only grows.
Labels by topic are bounded in number; `weir_series_left_out` says how many were not shown.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from weir.broker.api.counts import Histogram, PartitionCounts
from weir.broker.runtime.budget import Reservations
from weir.broker.shard import Shard
from weir.broker.state.clusters import ClusterState
from weir.errors import BY_CODE
from weir.model.ids import partition_of, topic_of
from weir.server.network.tls import TlsAcceptor
from weir.server.observability.endpoint import Family, Labels, Sample, one
from weir.version import __version__

#: How many partitions, and how many clusters of them, get series of their own.
PARTITIONS_SHOWN_MAX = 1_000
CLUSTERS_SHOWN_MAX = 1_000


class Host(Protocol):
    """What the metrics need of the shard's driver."""

    @property
    def connections(self) -> int:
        """Open connections."""

    @property
    def reservations(self) -> Reservations:
        """Which frames of peers are read that are not whole yet."""

    @property
    def flush_seconds(self) -> Mapping[int, Histogram]:
        """By the log's number, how long its flushes took."""


class Exposure(Protocol):
    """What knows whether anybody in a network may use this node."""

    @property
    def is_exposed(self) -> bool:
        """Whether that is so now."""


class Metrics:
    """Collects all figures of one shard whenever somebody asks."""

    def __init__(
        self,
        shard: Shard,
        host: Host,
        folder: str,
        loop_lag: Histogram,
        tls: TlsAcceptor | None = None,
        exposure: Exposure | None = None,
    ) -> None:
        """Take where the figures are; `folder` is the data folder, for the room on its disk."""
        self._tls = tls
        self._exposure = exposure
        self._shard = shard
        self._host = host
        self._folder = folder
        self._loop_lag = loop_lag
        self._began = time.time()

    async def text(self) -> str:
        """Return the page; others get their turn on the loop between families."""
        lines: list[str] = []
        for family in self.families():
            lines += family.lines()
            await asyncio.sleep(0)
        return "\n".join(lines) + "\n"

    def families(self) -> Iterator[Family]:
        """Yield every metric there is."""
        yield from self._of_partitions()
        yield from self._of_clusters()
        yield from self._of_shard()
        yield from self._of_set()
        yield from self._of_logs()
        if self._tls is not None and self._tls.serving is not None:
            yield from self._of_tls(self._tls)
        yield from self._of_process()

    # -- by topic -----------------------------------------------------------------------------

    def _of_partitions(self) -> Iterator[Family]:
        shown: list[tuple[Labels, PartitionCounts]] = []
        begins: list[Sample] = []
        ends: list[Sample] = []
        terms: list[Sample] = []
        partitions = self._shard.topics.partitions()
        for partition in islice(partitions, PARTITIONS_SHOWN_MAX):
            group = partition.group.id
            labels = self._place(group)
            shown.append((labels, self._shard.counts.partition(group)))
            begins.append((labels, partition.state.log_start))
            ends.append((labels, partition.state.next_offset))
            terms.append((labels, partition.group.node.term))

        def each(value: Callable[[PartitionCounts], int]) -> list[Sample]:
            return [(labels, value(counts)) for labels, counts in shown]

        for name, about, value in _BY_PARTITION:
            yield Family(name, "counter", about, each(value))
        yield Family("weir_first_offset", "gauge", "Offset of the oldest message.", begins)
        yield Family("weir_next_offset", "gauge", "Offset after the last message.", ends)
        yield Family(
            "weir_raft_term", "gauge", "Raft term of the partition; each election raises it.", terms
        )
        left = max(len(tuple(partitions)) - PARTITIONS_SHOWN_MAX, 0)
        about = "Partitions that have no series of their own here."
        yield Family("weir_series_left_out", "gauge", about, one(left))

    def _of_clusters(self) -> Iterator[Family]:
        lags: list[Sample] = []
        behind: list[Sample] = []
        leased: list[Sample] = []
        skipped: list[Sample] = []
        paused: list[Sample] = []
        for labels, next_offset, cluster in islice(self._clusters(), CLUSTERS_SHOWN_MAX):
            lags.append((labels, cluster.lag(next_offset)))
            behind.append((labels, next_offset - cluster.cursor))
            leased.append((labels, len(cluster.grants)))
            skipped.append((labels, cluster.skipped))
            paused.append((labels, int(cluster.paused)))
        about = "Messages that are not done."
        yield Family("weir_cluster_lag_messages", "gauge", about, lags)
        about = "Messages from the first one that is not done to the end."
        yield Family("weir_cluster_behind_messages", "gauge", about, behind)
        about = "Grants that are neither acked in full nor replaced."
        yield Family("weir_cluster_grants", "gauge", about, leased)

        about = "Messages that went past retention before they were done."
        yield Family("weir_cluster_skipped_total", "counter", about, skipped)
        yield Family("weir_cluster_paused", "gauge", "1 if the cluster is paused.", paused)

    def _clusters(self) -> Iterator[tuple[Labels, int, ClusterState]]:
        for partition in self._shard.topics.partitions():
            state = partition.state
            for name, cluster in state.clusters.items():
                labels = {**self._place(partition.group.id), "cluster": name}
                yield labels, state.next_offset, cluster

    def _place(self, group: int) -> Labels:
        topic = self._shard.topics.catalog.by_id(topic_of(group))
        namespace, name = (topic.namespace, topic.name) if topic else ("", str(topic_of(group)))
        return {"namespace": namespace, "topic": name, "partition": str(partition_of(group))}

    # -- the shard ----------------------------------------------------------------------------

    def _of_shard(self) -> Iterator[Family]:
        shard, counts = self._shard, self._shard.counts
        reads: list[Sample] = [
            ({"from": "cache"}, counts.reads_cached),
            ({"from": "disk"}, counts.reads_disk),
        ]
        yield from _counters(
            ("weir_confirms_total", "Batches of clients that were confirmed.", counts.confirms),
            (
                "weir_confirms_repeated_total",
                "Confirmed batches that were repeats.",
                counts.repeats,
            ),
            (
                "weir_unallowed_total",
                "Requests that no rule of access allows: refused if the set is closed.",
                shard.unallowed,
            ),
            (
                "weir_logins_failed_total",
                "Logins by a password that were refused.",
                shard.failed_logins,
            ),
            (
                "weir_promise_rounds_total",
                "Questions to the voters of all groups led here for a promise of total order.",
                shard.promise_rounds,
            ),
            ("weir_holds_total", "Times that reading from peers stopped.", counts.holds),
            ("weir_flushes_total", "Flushes of a log (write and sync).", counts.flushes),
            ("weir_flushed_bytes_total", "Bytes written by flushes.", counts.flushed_bytes),
        )
        about = "Device publishes that were confirmed."
        yield Family("weir_device_confirms_total", "counter", about, one(counts.devices.confirms))
        refused = [*_by_code(counts.refused, "client"), *_by_code(counts.devices.refused, "device")]
        yield Family("weir_refused_total", "counter", "Refusals.", refused)
        yield Family("weir_reads_total", "counter", "Reads of the log.", reads)
        about = "Time from queueing a batch to its commit, in steps of 1 ms."
        yield Family("weir_commit_seconds", "histogram", about, one(_in_seconds(counts.latency)))
        yield from _gauges(
            (
                "weir_access_mode",
                "0 while the set is open, 1 while it watches, 2 once it is closed.",
                ("open", "watch", "closed").index(shard.registry.catalog.access.mode),
            ),
            (
                "weir_insecure",
                "1 while anyone who reaches this node in a network may do everything.",
                int(self._exposure is not None and self._exposure.is_exposed),
            ),
            (
                "weir_news_age_seconds",
                "Age of the news of the registry; a closed set stops by access.stale_seconds.",
                shard.news_age_ms / 1_000,
            ),
            ("weir_ready", "1 if the shard leads all its partitions.", int(shard.ready)),
            (
                "weir_partitions",
                "Partitions that are served here.",
                len([*shard.topics.partitions()]),
            ),
            ("weir_partitions_led", "Partitions that the shard leads.", shard.partitions_led),
            ("weir_connections", "Open connections.", self._host.connections),
            ("weir_budget_used_bytes", "Bytes of messages in transit.", shard.budget.used),
            ("weir_budget_limit_bytes", "The limit of messages in transit.", shard.budget.limit),
        )
        yield from self._of_quotas()
        yield from self._of_audit()
        yield from self._of_frames()

    def _of_quotas(self) -> Iterator[Family]:
        rows = [({"entity": entity}, row) for entity, row in self._shard.throttled.items()]
        times: list[Sample] = [(labels, row.times) for labels, row in rows]
        seconds: list[Sample] = [(labels, row.waited_ms / 1_000) for labels, row in rows]
        if rows:
            about = "Times that a peer was not read from, because of a quota of this entity."
            yield Family("weir_throttled_total", "counter", about, times)
            about = "For how long peers were not read from, all together."
            yield Family("weir_throttled_seconds_total", "counter", about, seconds)
        about = "Peers that are not read from just now, because of a quota."
        yield Family("weir_throttled_peers", "gauge", about, one(self._shard.peers_held))

    def _of_audit(self) -> Iterator[Family]:
        changes, events = self._shard.auditor.changes, self._shard.auditor.events
        yield from _counters(
            (
                "weir_audit_dropped_total",
                "Logins, denials and first uses that the full buffer of the audit topic dropped.",
                events.buffer.dropped,
            ),
        )
        yield from _gauges(
            (
                "weir_audit_changes",
                "Changes that the audit topic does not have yet.",
                len(self._shard.registry.catalog.audit),
            ),
            (
                "weir_audit_events",
                "Kinds of logins, denials and first uses that are not published yet.",
                len(events.buffer),
            ),
            (
                "weir_audit_stalled_seconds",
                "For how long the oldest change waits for the audit topic, where the registry is "
                "led. Above 1 administration waits.",
                changes.stalled_ms / 1_000,
            ),
        )

    def _of_frames(self) -> Iterator[Family]:
        frames = self._host.reservations
        yield from _gauges(
            (
                "weir_frames_begun_bytes",
                "Bytes of partial frames without a reservation.",
                frames.first_bytes,
            ),
            (
                "weir_frames_begun_limit_bytes",
                "The limit of partial frames without a reservation.",
                frames.first_bytes_limit,
            ),
            (
                "weir_frames_reserved_bytes",
                "Bytes reserved for partial frames.",
                frames.reserved_bytes,
            ),
            ("weir_frames_reserved_limit_bytes", "The limit of reservations.", frames.limit),
            (
                "weir_frames_waiting",
                "Frames that wait for a reservation.",
                frames.waiting,
            ),
        )
        yield from _counters(
            (
                "weir_frames_evicted_total",
                "Partial frames that lost their connection, because they waited longest.",
                frames.evicted,
            ),
            (
                "weir_frames_revoked_total",
                "Partial frames that lost their reservation, because they were slowest.",
                frames.revoked,
            ),
        )

    def _of_set(self) -> Iterator[Family]:
        counts, part = self._shard.counts, self._shard.brokerset
        found, linked = part.standing, part.linked
        yield from _counters(
            ("weir_leads_begun_total", "Times that the node became leader of a partition.",
             counts.leads_begun),
            ("weir_leads_lost_total", "Times that the node lost the leadership of a partition.",
             counts.leads_lost),
            ("weir_bad_frames_total", "Damaged frames from other nodes, which were dropped.",
             counts.bad_frames),
            ("weir_replicas_halted_total",
             "Replicas that met an entry which they could not apply, and stopped.",
             counts.replicas_halted),
        )  # fmt: skip
        yield from _gauges(
            ("weir_nodes_linked", "Other nodes that can be sent to.", len(linked)),
            ("weir_clock_astray_seconds",
             "How far this clock is ahead of the median, if too far to be used; else 0.",
             self._shard.clock_astray_ms / 1_000),
            ("weir_groups", "Replicas of groups here, including the registry.", found.held),
            ("weir_groups_led", "Groups that are led here.", found.led),
            ("weir_groups_leaderless", "Groups whose replica here knows no leader.",
             found.leaderless),
            ("weir_replicas_lagging", "Replicas of groups led here that are not up to date.",
             found.lagging.total()),
        )  # fmt: skip

    def _of_logs(self) -> Iterator[Family]:
        logs = [({"log": str(w.number)}, w.log) for w in self._shard.writers]
        tails: list[Sample] = [(labels, log.tail) for labels, log in logs]
        rooms: list[Sample] = [(labels, log.room_bytes) for labels, log in logs]
        yield Family("weir_log_bytes_total", "counter", "Bytes ever written to the log.", tails)
        about = "Bytes that can be written before a new file is needed."
        yield Family("weir_log_room_bytes", "gauge", about, rooms)
        yield from self._of_scrubs()
        about = "How long a write and its sync took."
        seconds: list[Sample] = [
            ({"log": str(number)}, taken) for number, taken in self._host.flush_seconds.items()
        ]
        yield Family("weir_flush_seconds", "histogram", about, seconds)

    def _of_scrubs(self) -> Iterator[Family]:
        scrubs = [({"log": str(w.number)}, w.chores.scrubber) for w in self._shard.writers]
        sizes: list[Sample] = [(labels, scrub.size) for labels, scrub in scrubs]
        rounds: list[Sample] = [(labels, scrub.rounds) for labels, scrub in scrubs]
        bad: list[Sample] = [(labels, len(scrub.damage)) for labels, scrub in scrubs]
        about = "Bytes that were read again and verified in the background."
        yield Family("weir_scrubbed_bytes_total", "counter", about, sizes)
        about = "Times that the whole log was verified."
        yield Family("weir_scrub_rounds_total", "counter", about, rounds)
        about = "Damaged places that the start or a background check found."
        yield Family("weir_scrub_damage", "gauge", about, bad)

    def _of_tls(self, tls: TlsAcceptor) -> Iterator[Family]:
        counts, serving = tls.counts, tls.serving
        assert serving is not None  # else there is nothing to tell
        yield from _counters(
            ("weir_tls_handshakes_total", "TLS handshakes that were done.", counts.handshakes),
            (
                "weir_tls_failed_total",
                "TLS connections that ended in an error of TLS.",
                counts.failed,
            ),
            (
                "weir_tls_refused_total",
                "Peers that were refused for their certificate, or for doing without TLS.",
                counts.refused,
            ),
            ("weir_tls_handshake_seconds_total", "Time of handshakes.", counts.seconds),
        )
        about = "Whether newer files of TLS could not be used."
        yield from _gauges(
            ("weir_tls_waiting", "TLS handshakes that wait for their turn.", tls.waiting),
            (
                "weir_tls_certificate_ends_seconds",
                "When the node's certificate ends, in seconds since 1970.",
                serving.own.ends,
            ),
            ("weir_tls_files_unused", about, int(bool(tls.problem))),
        )

    def _of_process(self) -> Iterator[Family]:
        about = "How late the event loop ran a timer."
        yield Family("weir_loop_lag_seconds", "histogram", about, one(self._loop_lag))
        version: Labels = {"version": __version__, "shard": str(self._shard.identity.shard)}
        yield Family("weir_build_info", "gauge", "Release and shard; always 1.", [(version, 1)])
        disk = os.statvfs(self._folder)
        times = os.times()
        yield from _gauges(
            ("weir_disk_free_bytes", "Room on the disk.", disk.f_bavail * disk.f_frsize),
            ("process_start_time_seconds", "Seconds since 1970 at the start.", self._began),
            ("process_resident_memory_bytes", "Memory in use.", _resident_bytes()),
            ("process_open_fds", "Open files and sockets.", _open_files()),
        )
        about = "CPU time, user and system."
        yield Family("process_cpu_seconds_total", "counter", about, one(times.user + times.system))


_BY_PARTITION: tuple[tuple[str, str, Callable[[PartitionCounts], int]], ...] = (
    ("weir_messages_in_total", "Messages committed here.", lambda c: c.messages_in),
    ("weir_batches_in_total", "Batches committed here.", lambda c: c.batches_in),
    ("weir_bytes_in_total", "Bytes of batches committed here.", lambda c: c.bytes_in),
    (
        "weir_messages_out_total",
        "Messages sent to readers and consumers.",
        lambda c: c.messages_out,
    ),
    ("weir_replies_out_total", "Replies with messages.", lambda c: c.replies_out),
    ("weir_bytes_out_total", "Bytes of batches sent in replies.", lambda c: c.bytes_out),
    (
        "weir_relay_holds_passed_total",
        "Times that a relay needed more than is kept for it.",
        lambda c: c.holds_passed,
    ),
)


def _by_code(counts: Mapping[int, int], to: str) -> Iterator[Sample]:
    for code, count in sorted(counts.items()):
        error = BY_CODE[code].__name__ if code in BY_CODE else ""
        yield {"to": to, "code": str(code), "error": error}, count


def _counters(*rows: tuple[str, str, float]) -> Iterable[Family]:
    return [Family(name, "counter", about, one(value)) for name, about, value in rows]


def _gauges(*rows: tuple[str, str, float]) -> Iterable[Family]:
    return [Family(name, "gauge", about, one(value)) for name, about, value in rows]


def _in_seconds(counted: Histogram) -> Histogram:
    """Return a histogram of milliseconds as one of seconds."""
    seconds = Histogram([bound / 1_000 for bound in counted.bounds])
    seconds.counts, seconds.total = counted.counts, counted.total / 1_000
    return seconds


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
