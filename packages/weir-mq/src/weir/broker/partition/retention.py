"""Retention: which messages are to go (DESIGN §4: log start moves by an entry).

The leader looks at ages and sizes now and then, and proposes; every replica lets go at the entry.
So no replica's clock decides (counterexample 13). Whole entries go, never a part of one; what is
left is never less than a size limit. Values that somebody began and left lying go with them.
Where a topic keeps messages until clusters are done with them, those go that all of these have
acknowledged; age and size let more go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.broker.records.control import LogStartMoved
from weir.broker.records.entries import of_control
from weir.broker.replica.group import Group
from weir.broker.state.state import PartitionState
from weir.model.limits import OPEN_VALUE_MS
from weir.model.stamp import stamp_at
from weir.model.topic import EVERY_CLUSTER, FOREVER, TopicSettings


def retain(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int, done: int = 0
) -> None:
    """Propose a later start if a topic's settings let messages go; clusters are `done` with all
    below that offset.
    """
    moved = new_start(group, state, settings, wall_ms, done)
    if moved is not None:
        group.propose(of_control(moved))


def done_below(
    state: PartitionState, until_done: Sequence[str], cursors: Mapping[str, int] | None
) -> int:
    """Return the offset below which all clusters of `until_done` are done; 0 if there is none.

    `cursors` says how far the clusters are that read the topic in total order, for those are not
    known to each partition; None if nobody has said so yet. A cluster that is named and has not
    begun keeps everything.
    """
    if cursors is None:
        return 0
    found = {name: cluster.cursor for name, cluster in state.clusters.items()} | dict(cursors)
    names = found.keys() if tuple(until_done) == (EVERY_CLUSTER,) else until_done
    return min((found.get(name, 0) for name in names), default=0)


def new_start(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int, done: int = 0
) -> LogStartMoved | None:
    """Return where the log is to start by its topic's settings, and which open values are void;
    None if all may stay as it is.
    """
    # The leader takes no chunk of such a value any more, so that none is on its way (`Growing`).
    if state.undecided:
        return None  # soon
    since = stamp_at(max(wall_ms - OPEN_VALUE_MS, 0))
    if not state.values.untouched(since):
        since = 0
    index, offset = _cut(group, state, settings, wall_ms, done)
    if offset > state.log_start:
        # The chunks of a value lie before its message: what is kept of those keeps more entries.
        needed = state.values.first_needed_index(index, offset, since)
        return LogStartMoved(needed, offset, since)
    return LogStartMoved(state.first_index, state.log_start, since) if since else None


def first_needed(group: Group, state: PartitionState) -> int:
    """Return the Raft index of the first entry that holds messages to keep, or is to hold some."""
    stored, index = group.log.cut_by_stamp(group.id, 0), group.node.last_index + 1
    if stored is not None and state.log_start < state.next_offset:
        index = max(stored[0], state.first_index)
    return state.values.first_needed_index(index, state.log_start)


def _cut(
    group: Group, state: PartitionState, settings: TopicSettings, wall_ms: int, done: int
) -> tuple[int, int]:
    """Return Raft index and offset of what is to stay; that may lie below where the log starts."""
    if state.next_offset == state.log_start:
        return 0, 0
    log, cuts = group.log, []
    # Behind all that is committed: what remains of a topic that was idle for too long.
    everything = (group.node.applied_index + 1, state.next_offset)
    if settings.retention_ms != FOREVER:
        oldest = stamp_at(max(wall_ms - settings.retention_ms, 0))
        cuts.append(log.cut_by_stamp(group.id, oldest) or everything)
    if settings.retention_bytes != FOREVER:
        cut = log.cut_by_size(group.id, settings.retention_bytes, state.values.stored_from)
        if cut is not None:
            cuts.append(cut)
    if done:
        cuts.append(log.cut_by_offset(group.id, done) or everything)
    index, offset = max(cuts, key=lambda cut: cut[1], default=(0, 0))
    if offset > state.next_offset:
        index, offset = everything
    return index, offset
