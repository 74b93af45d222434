"""What a partition answers to each request of a client that it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weir.broker.metadata.reassignment import behind, holders
from weir.broker.partition.partition import Partition
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller
from weir.broker.state.state import PartitionState
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.declaration import Request


def _positions(partition: Partition, caller: Caller, request: m.Positions) -> None:
    partition.positions(caller, request.stamp)


def _describe(partition: Partition, caller: Caller, request: a.DescribePartition) -> None:
    partition.report(caller, info_of)


def _tell_stats(partition: Partition, caller: Caller, request: a.AskStats) -> None:
    partition.report(caller, stats_of)


def stats_of(group: Group, state: PartitionState) -> a.PartitionStats:
    """Return how much it holds, without the messages of scatterings that were aborted."""
    start, end, reader = state.log_start, state.decided_offset, group.log.reader
    missing = sum(after - first for first, after in state.scatterings.voids.within(start, end))
    stored = reader.group_bytes(group.id) + state.values.stored
    stamps = (reader.stamp_of(group.id, start), reader.stamp_of(group.id, end - 1))
    first, last = ((stamp or 0) if end > start else 0 for stamp in stamps)
    return a.PartitionStats(start, end, end - start - missing, stored, first, last)


def info_of(group: Group, state: PartitionState) -> a.PartitionInfo:
    """Return what it holds, and who else does."""
    stored = group.log.reader.group_bytes(group.id) + state.values.stored
    return a.PartitionInfo(
        state.log_start, state.decided_offset, stored, sorted(state.clusters),
        holders(group), behind(group),
    )  # fmt: skip


#: What a partition does with each request that it decides.
BY_PARTITION: Mapping[type[Request], Callable[[Partition, Caller, Any], None]] = {
    m.Positions: _positions,
    m.Fetch: Partition.fetch,
    m.FetchChunks: Partition.fetch_chunks,
    m.OpenCluster: Partition.open_cluster,
    m.Pull: Partition.pull,
    m.Ack: Partition.change_grants,
    m.Nack: Partition.change_grants,
    m.Extend: Partition.change_grants,
    m.Withdraw: Partition.change_grants,
    m.TakeTurn: Partition.steer_cursor,
    m.MoveCursor: Partition.steer_cursor,
    m.SeekCursor: Partition.steer_cursor,
    a.DescribePartition: _describe,
    a.AskStats: _tell_stats,
    a.ListClusters: Partition.list_clusters,
    a.SeekCluster: Partition.change_cluster,
    a.DeleteCluster: Partition.change_cluster,
    a.ListHubs: Partition.list_hubs,
    a.ForgetHub: Partition.forget_hub,
}
