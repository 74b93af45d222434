"""What a partition tells of itself, on any replica that may answer for it."""

from __future__ import annotations

from weir.broker.metadata.reassignment import behind, holders
from weir.broker.partition.context import Surroundings
from weir.broker.partition.leader import Leading
from weir.broker.replica.group import Group
from weir.broker.state.state import PartitionState
from weir.model.ids import partition_of
from weir.protocol.client.admin import PartitionInfo
from weir.protocol.client.messages import PositionsReply


def order_of(
    group: int, state: PartitionState, leading: Leading | None, shared: Surroundings
) -> tuple[int, int]:
    """Return the barrier of a group, 0 if it is not led here; and of partition 0, how many belong
    to its topic's order as of what is applied: see `Fetched`.
    """
    stamp = leading.barrier(shared.fenced(group)).stamp if leading is not None else 0
    if partition_of(group):
        return stamp, 0
    return stamp, shared.founded_with(group) + len(state.roster)


def positions_of(group: Group, state: PartitionState, stamp: int) -> PositionsReply:
    """Return where it begins, where it ends, and where messages from `stamp` on begin."""
    begin, end = state.log_start, state.decided_offset
    if not stamp:
        return PositionsReply(begin, end, begin)
    at = group.log.offset_at(group.id, stamp)
    return PositionsReply(begin, end, end if at is None else min(max(at, begin), end))


def info_of(group: Group, state: PartitionState) -> PartitionInfo:
    """Return what it holds, and who else does."""
    stored = group.log.group_bytes(group.id) + state.values.stored
    return PartitionInfo(
        state.log_start, state.decided_offset, stored, sorted(state.clusters),
        holders(group), behind(group),
    )  # fmt: skip
