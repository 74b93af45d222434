"""Retention: which messages are to go (DESIGN §4: log start moves by an entry).

The leader looks at ages and sizes now and then, and proposes; every replica lets go at the entry.
So no replica's clock decides (counterexample 13). Whole entries go, never a part of one.
"""

from __future__ import annotations

from weir.broker.control import LogStartMoved
from weir.broker.group import Group
from weir.broker.state import PartitionState
from weir.model.stamp import stamp_at
from weir.model.topic import FOREVER, TopicSettings


def new_start(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int
) -> LogStartMoved | None:
    """Return where the log is to start by its topic's settings; None if it may stay as it is."""
    if state.next_offset == state.log_start:
        return None
    log, cuts = group.log, []
    # Behind all that is committed: what remains of a topic that was idle for too long.
    everything = (group.node.applied_index + 1, state.next_offset)
    if settings.retention_ms != FOREVER:
        oldest = stamp_at(max(wall_ms - settings.retention_ms, 0))
        cuts.append(log.cut_by_stamp(group.id, oldest) or everything)
    if settings.retention_bytes != FOREVER:
        cut = log.cut_by_size(group.id, settings.retention_bytes)
        if cut is not None:
            cuts.append(cut)
    index, offset = max(cuts, key=lambda cut: cut[1], default=(0, 0))
    if offset > state.next_offset:
        index, offset = everything
    if offset <= state.log_start:
        return None
    # The chunks of a value lie before its message: what is kept of those keeps more entries.
    return LogStartMoved(state.values.first_needed_index(index, offset), offset)
