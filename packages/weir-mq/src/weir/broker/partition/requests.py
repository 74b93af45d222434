"""What a partition answers to each request of a client that it decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.broker.consumers.operations import Change
from weir.broker.metadata.reassignment import behind, holders
from weir.broker.partition.fetches import ChunkReads
from weir.broker.partition.partition import Partition
from weir.broker.produce.stable_positions import positions_of
from weir.broker.replica.group import Group
from weir.broker.replica.requests import assured
from weir.broker.runtime.outbox import Caller
from weir.broker.state.state import PartitionState
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.declaration import ControlReply, Request


def _positions(partition: Partition, caller: Caller, request: m.Positions) -> None:
    """Say where a partition begins, ends, and where messages from a stamp on begin. With a stamp,
    all that is stamped below it, now or later, lies before that end.
    """
    partition.check_applied()
    outbox, stamp = partition.context.outbox, request.stamp

    def tell() -> None:
        group, leading = partition.group, partition.leading
        if stamp and leading is not None:
            outbox.touches(caller.session, group.id)
            partition.begin_waiting()
            leading.stable_positions.ask(caller, stamp)
        else:
            outbox.reply(caller, positions_of(group, partition.state, stamp))

    assured(partition.group, outbox, caller, tell)


def _report(
    partition: Partition, caller: Caller, say: Callable[[Group, PartitionState], ControlReply]
) -> None:
    """Answer what `say` says of a partition, once nobody else can have led it before."""
    partition.check_applied()
    outbox, group, state = partition.context.outbox, partition.group, partition.state
    assured(group, outbox, caller, lambda: outbox.reply(caller, say(group, state)))


def _describe(partition: Partition, caller: Caller, request: a.DescribePartition) -> None:
    _report(partition, caller, info_of)


def _tell_stats(partition: Partition, caller: Caller, request: a.AskStats) -> None:
    _report(partition, caller, stats_of)


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


def _fetch_chunks(partition: Partition, caller: Caller, request: m.FetchChunks) -> None:
    partition.led()
    context = partition.context
    ChunkReads(partition.group, context.reads, context.outbox).fetch(caller, request)


def _change_grants(
    partition: Partition, caller: Caller, request: m.Ack | m.Nack | m.Extend | m.Withdraw
) -> None:
    partition.led().change_grants(caller, request)


def _steer_cursor(
    partition: Partition, caller: Caller, request: m.TakeTurn | m.MoveCursor | m.SeekCursor
) -> None:
    leader = partition.led()
    partition.context.outbox.touches(caller.session, partition.group.id)
    partition.begin_waiting()
    leader.steer_cursor(caller, request)


def _open_cluster(partition: Partition, caller: Caller, request: m.OpenCluster) -> None:
    partition.led().cluster_operations.open(caller, request)


def _change_cluster(partition: Partition, caller: Caller, request: Change) -> None:
    partition.led().cluster_operations.change(caller, request)


def _forget_hub(partition: Partition, caller: Caller, request: a.ForgetHub) -> None:
    partition.led().hub_operations.forget(caller, request)


def _list_clusters(partition: Partition, caller: Caller, request: a.ListClusters) -> None:
    partition.led()
    outbox = partition.context.outbox

    def tell() -> None:
        partition.led().cluster_operations.list(caller, request)

    assured(partition.group, outbox, caller, tell)


def _list_hubs(partition: Partition, caller: Caller, request: a.ListHubs) -> None:
    partition.led()
    outbox = partition.context.outbox

    def tell() -> None:
        partition.led().hub_operations.list(caller, request)

    assured(partition.group, outbox, caller, tell)


#: What a partition does with each request that it decides.
BY_PARTITION: dict[type[Request], Callable[[Partition, Caller, Any], None]] = {
    m.Positions: _positions,
    m.Fetch: Partition.fetch,
    m.FetchChunks: _fetch_chunks,
    m.OpenCluster: _open_cluster,
    m.Pull: Partition.pull,
    m.Ack: _change_grants,
    m.Nack: _change_grants,
    m.Extend: _change_grants,
    m.Withdraw: _change_grants,
    m.TakeTurn: _steer_cursor,
    m.MoveCursor: _steer_cursor,
    m.SeekCursor: _steer_cursor,
    a.DescribePartition: _describe,
    a.AskStats: _tell_stats,
    a.ListClusters: _list_clusters,
    a.SeekCluster: _change_cluster,
    a.DeleteCluster: _change_cluster,
    a.ListHubs: _list_hubs,
    a.ForgetHub: _forget_hub,
}
