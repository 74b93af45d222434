"""What a committed record about scatterings means for a partition, on every replica and for the
participant that its leader has.
"""

from __future__ import annotations

from weir.broker.records.entries import (
    AcksPrepared,
    AttemptBarred,
    ScatteringsBarred,
    ScatteringsDecided,
    ScatterRecord,
)
from weir.broker.scattering.participant import Participant
from weir.broker.state.scatterings import Outcome, PreparedAcks, give_again
from weir.broker.state.state import PartitionState
from weir.model.scattering import Attempt
from weir.model.stamp import milliseconds_of


def apply_scattering(
    index: int, record: ScatterRecord, state: PartitionState, participant: Participant | None
) -> None:
    """Apply a record of the entry at Raft index `index`, then tell the `participant`, if this node
    leads.
    """
    match record:
        case AcksPrepared():
            is_whole = state.prepare_acks(record, index)
            if participant is not None:
                participant.acks_prepared(index, is_whole)
        case ScatteringsBarred(stamp):
            state.bar(stamp)
            if participant is not None:
                participant.barred(index)
        case AttemptBarred(producer, epoch, number, stamp):
            state.bar_alone(Attempt(producer, epoch, number, stamp))
            if participant is not None:
                participant.barred(index)
        case ScatteringsDecided():
            _decide(record, state, participant)


def _decide(
    record: ScatteringsDecided, state: PartitionState, participant: Participant | None
) -> None:
    for producer, epoch, number, stamp, is_acks, outcome in record.rows:
        attempt = Attempt(producer, epoch, number, stamp)
        if outcome == Outcome.CLOSED:
            state.scatterings.committed.pop((attempt, is_acks), None)
            continue
        committed = outcome == Outcome.COMMITTED
        if not is_acks:
            if state.decide_batch(attempt, committed) and participant is not None:
                participant.batch_decided(producer)
        elif (prepared := state.scatterings.decide_acks(attempt, committed)) is not None:
            if committed:
                _ack(prepared, state, participant)
            else:
                state.bar(stamp)
                _give_again(attempt, prepared, state, participant)
        if participant is not None:
            participant.decided(attempt, is_acks, committed)


def _ack(prepared: PreparedAcks, state: PartitionState, participant: Participant | None) -> None:
    for name in dict.fromkeys(one.cluster for one in prepared.taken):
        cluster = state.clusters.get(name)
        if cluster is None:
            continue
        ranges = [
            (prepared.fence, one.first, one.behind) for one in prepared.taken if one.cluster == name
        ]
        if participant is not None:
            participant.acks_committing(name, ranges)
        for one in ranges:
            cluster.ack(*one)
        if participant is not None:
            participant.acks_committed(name)


def _give_again(
    attempt: Attempt, prepared: PreparedAcks, state: PartitionState, participant: Participant | None
) -> None:
    """Whoever held these messages holds them again, until their lease is over."""
    for one in prepared.taken:
        cluster = state.clusters.get(one.cluster)
        if cluster is None or not give_again(cluster, prepared.fence, one) or participant is None:
            continue
        left = milliseconds_of(one.deadline) - milliseconds_of(attempt.stamp)
        participant.given_again(one.cluster, one.fence, max(left, 0))
