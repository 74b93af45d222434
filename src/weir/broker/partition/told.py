"""What a partition tells of itself, on any replica that may answer for it."""

from __future__ import annotations

from weir.broker.registry.standing import behind, holders
from weir.broker.replica.group import Group
from weir.broker.state.state import PartitionState
from weir.wire.administration import PartitionInfo
from weir.wire.messages import PositionsReply


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
