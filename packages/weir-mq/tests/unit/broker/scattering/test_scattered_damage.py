"""Scatterings in a damaged log that nobody else has: what it says of them counts, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import weir_raft as raft
from weir.broker.groups import find_decisions
from weir.broker.records.entries import BatchRecord, ControlRecord, Payload, entry_of, of_control
from weir.broker.records.partition import AttemptBarred, ScatteringsBarred, ScatteringsDecided
from weir.broker.replica.group import Group
from weir.broker.state.scatterings import Outcome
from weir.broker.state.state import PartitionState
from weir.model.columns import Scattered
from weir.storage.format.frame import Kind

#: What may lie in a log: nothing that can be read, a record, or a batch.
Lies = ControlRecord | BatchRecord | None


def batch(offset: int, stamp: int, producer: int = 7, scattered: bool = True) -> BatchRecord:
    """Return a batch of one message, or a part of a scattering."""
    told = Scattered(0, (2, 4)) if scattered else None
    return BatchRecord(producer, 0, 0, 1, 0, offset, stamp, offset + 1, scattered=told)


def decided(stamp: int, outcome: Outcome, producer: int = 7) -> ScatteringsDecided:
    return ScatteringsDecided([(producer, 0, 0, stamp, False, int(outcome))])


def found(*entries: Lies, state: PartitionState | None = None) -> tuple[list[Any], list[int]]:
    """Return what is void, and the entries that count as lost, of a log that begins at index 1."""
    state = state or PartitionState()
    lost: list[int] = []

    def load(lo: int, hi: int, max_bytes: int) -> list[raft.Entry]:
        lies = entries[lo - 1]
        if lies is None:
            raise raft.Unavailable(f"no entry {lo}")
        if isinstance(lies, BatchRecord):
            return [entry_of(lo, 1, Payload(Kind.BATCHES, (), 0, (lies,)))]
        return [entry_of(lo, 1, of_control(lies))]

    storage = SimpleNamespace(
        snapshot=lambda: None, base=(0, 0), last_index=lambda: len(entries), entries=load
    )
    reading = SimpleNamespace(entries=(SimpleNamespace(index=1),))
    reader = SimpleNamespace(
        disbelieve=lambda group, which: lost.extend(which), read=lambda *which: reading
    )
    log = SimpleNamespace(reader=reader)
    find_decisions(cast(Group, SimpleNamespace(id=1, storage=storage, log=log)), state)
    assert state.decided_offset == state.next_offset, "what is lost keeps back nothing behind it"
    return list(state.voids), lost


def test_what_the_log_says_counts() -> None:
    """Aborted attempts were handed out as messages (simulated node that scatters, 9)."""
    aborted = batch(0, 10), decided(10, Outcome.ABORTED), batch(1, 20)
    assert found(*aborted, decided(20, Outcome.COMMITTED)) == ([(0, 1)], [])
    assert found(None, *aborted, decided(20, Outcome.COMMITTED)) == ([(0, 1)], [])
    assert found(batch(0, 10, scattered=False), None) == ([], [])


def test_what_nobody_decides_any_more_is_lost() -> None:
    assert found(batch(0, 10), batch(1, 11, 8), decided(11, Outcome.COMMITTED, 8)) == ([], [1])
    assert found(batch(0, 10), None) == ([], [1])


def test_what_came_too_late_is_void() -> None:
    assert found(ScatteringsBarred(10), batch(0, 10)) == ([(0, 1)], [])
    assert found(None, ScatteringsBarred(10), batch(0, 10)) == ([(0, 1)], [])
    alone = AttemptBarred(7, 0, 0, 90)
    others = batch(0, 10), decided(10, Outcome.COMMITTED)
    assert found(alone, *others, batch(1, 90)) == ([(1, 2)], [])


def test_a_later_attempt_counts_whatever_became_of_the_first() -> None:
    """It was taken for void, since its producer had another one that is undecided as far as the
    log says: acks had barred that (simulated node that scatters, 134).
    """
    behind = batch(1, 20), decided(20, Outcome.COMMITTED)
    assert found(batch(0, 10), *behind) == ([], [1])
    assert found(batch(0, 10), None, *behind) == ([], [1])


def test_what_is_behind_a_hole_and_was_never_decided_is_lost() -> None:
    """It may be void: what barred it may have been in the hole."""
    assert found(None, batch(0, 10)) == ([], [2])


def test_it_begins_with_what_the_snapshot_says() -> None:
    for decision, expected in (
        (decided(10, Outcome.COMMITTED), ([], [])),
        (decided(10, Outcome.ABORTED), ([(0, 1)], [])),
        (None, ([], [1])),
    ):
        state = PartitionState()
        state.apply(batch(0, 10), 1)
        assert found(None, decision, state=state) == expected
