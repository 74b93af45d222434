"""What a committed control record means for a partition, on every replica and for its leader."""

from __future__ import annotations

from collections import defaultdict

from weir.broker.partition.leader import PartitionLeader
from weir.broker.records.entries import (
    AcksPrepared,
    AttemptBarred,
    ClusterDeleted,
    ClusterOpened,
    ClusterPaused,
    ClusterSought,
    ControlRecord,
    CursorMoved,
    CursorRecord,
    CursorSought,
    CursorTaken,
    GrantsExtended,
    GrantsReleased,
    HubForgotten,
    LogStartMoved,
    MessagesAcked,
    MessagesGranted,
    MessagesReturned,
    PartitionEnded,
    PartitionJoined,
    PartitionSealed,
    ScatteringsBarred,
    ScatteringsDecided,
    StampsRaised,
)
from weir.broker.replica.group import Group
from weir.broker.scattering.participant import apply_scattering
from weir.broker.state.state import PartitionState
from weir.errors import Halted
from weir.model.clusters import AckOutcome


def apply_control(
    index: int,
    record: ControlRecord,
    group: Group,
    state: PartitionState,
    leading: PartitionLeader | None,
) -> None:
    """Apply the record of the entry at Raft index `index`, then tell who waits for it where this
    node is `leading`. Raises `Halted` for one that belongs elsewhere.
    """
    match record:
        case MessagesGranted():
            grant = state.cluster(record.cluster).grant(index, record)
            state.last_stamp = max(state.last_stamp, record.stamp)
            if leading is not None:
                leading.grants.granted(index, record, grant)
        case MessagesAcked():
            _apply_ack(index, record, state, leading)
        case MessagesReturned():
            cluster = state.clusters.get(record.cluster)
            whole = cluster is not None and cluster.give_back(index, record)
            state.last_stamp = max(state.last_stamp, record.stamp)
            if leading is not None:
                leading.returns.returned(index, record, cluster, whole)
        case GrantsExtended(name, fences, deadline, stamp):
            cluster = state.clusters.get(name)
            over = [f for f in fences if cluster is not None and not cluster.extend(f, deadline)]
            state.last_stamp = max(state.last_stamp, stamp)
            if leading is not None:
                leading.returns.extended(index, record, cluster, over)
        case GrantsReleased():
            _release(record, state, leading)
        case ClusterOpened() | ClusterSought() | ClusterPaused() | ClusterDeleted():
            state.steer(record)
            if leading is not None:
                leading.cluster_operations.applied(index, record)
                leading.cursor_leases.steered(record.cluster)
        case _:
            _apply_bound(index, record, group, state, leading)


def _apply_ack(
    index: int, record: MessagesAcked, state: PartitionState, leading: PartitionLeader | None
) -> None:
    cluster = state.clusters.get(record.cluster)
    if leading is not None and cluster is not None:
        leading.grants.pickers.acking(record)
    late: list[tuple[int, int, int, AckOutcome]] = []
    stale: list[tuple[int, int, int]] = []
    if cluster is not None:
        for one in record.ranges:
            if leading is not None:
                late += [(one[0], *row) for row in cluster.late(*one)]
            if not cluster.ack(*one):
                stale.append(one)
    if leading is not None:
        leading.acks.applied(index, cluster, stale, late)
        leading.grants.acked(record.cluster)


def _release(
    record: GrantsReleased, state: PartitionState, leading: PartitionLeader | None
) -> None:
    consumer, counted = record.consumer, defaultdict[str, list[tuple[int, int]]](list)
    for name, *run in record.counted or ():
        counted[name].append((run[0], run[1]))
    released = [
        one.release(consumer, None if record.counted is None else counted[name])
        for name, one in state.clusters.items()
    ]
    had_turn = state.cursors.release(consumer)
    if any(released) and leading is not None:
        leading.grants.released(consumer)
    if had_turn and leading is not None:
        leading.cursor_leases.released()


def _apply_cursor(
    index: int, record: CursorRecord, state: PartitionState, leading: PartitionLeader | None
) -> None:
    in_time = state.steer_cursor(index, record)
    if leading is None:
        return
    match record:
        case CursorTaken():
            leading.cursor_leases.taken(index, record, in_time)
        case CursorMoved():
            leading.cursor_leases.moved(index, record, in_time)
        case CursorSought():
            leading.cursor_leases.sought(index, record)


def _apply_bound(
    index: int,
    record: ControlRecord,
    group: Group,
    state: PartitionState,
    leading: PartitionLeader | None,
) -> None:
    match record:
        case LogStartMoved():
            state.move_start(record)
            group.drop_below(state.first_index)
            if leading is not None:
                leading.grants.start_moved(state.log_start)
        case PartitionJoined(partition, floor):
            state.join(partition, floor)
            if leading is not None:
                leading.joined(partition)
        case PartitionSealed() | PartitionEnded():
            _apply_end(record, state)
        case HubForgotten(hub):
            devices = state.origins.forget(hub)
            if leading is not None:
                leading.hub_operations.forgotten(index, devices)
        case StampsRaised():
            state.last_stamp = max(state.last_stamp, record.stamp)
            if leading is not None:
                leading.stable_positions.answer_committed()
        case CursorTaken() | CursorMoved() | CursorSought():
            _apply_cursor(index, record, state, leading)
        case AcksPrepared() | ScatteringsDecided() | ScatteringsBarred() | AttemptBarred():
            participant = leading.participant if leading is not None else None
            apply_scattering(index, record, state, participant)
        case _:
            raise Halted(f"a {type(record).__name__} does not belong into a partition")


def _apply_end(record: PartitionSealed | PartitionEnded, state: PartitionState) -> None:
    match record:
        case PartitionSealed(stamp):
            state.seal(stamp)
        case PartitionEnded(partition, stamp, offset):
            state.end(partition, stamp, offset)
