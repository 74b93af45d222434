"""What the log of a damaged partition says of scatterings.

A damaged partition that nobody else has is only read, and none of its log behind the snapshot is
applied. But a batch of a scattering may be of an attempt that was aborted: what the log says of
that counts, and what it does not say is lost.
"""

from __future__ import annotations

import weir_raft as raft
from weir.broker.records.entries import (
    AttemptBarred,
    BatchRecord,
    Payload,
    ScatteringsBarred,
    ScatteringsDecided,
    applied_by,
)
from weir.broker.replica.group import Group
from weir.broker.replica.raft_storage import RaftStorage
from weir.broker.state.scatterings import Outcome
from weir.broker.state.state import PartitionState
from weir.errors import BadBatch, Halted
from weir.model.scattering import Attempt
from weir.storage.errors import LogDamaged


def find_decisions(group: Group, state: PartitionState) -> None:
    """Tell `state` which messages behind its snapshot are void. Entries that hold undecided ones
    count as lost from now on: nobody will decide them, or did where it cannot be read any more.

    Reads the log from there on, and blocks: for a start alone.
    """
    walk = _Walk(group, state)
    walk.run(group.storage)
    group.log.reader.disbelieve(group.id, walk.undecided)
    state.scatterings.batches.clear()
    state.scatterings.producers.clear()


class _Walk:
    """One pass through the entries behind the snapshot, in order."""

    __slots__ = ("_open", "_state")

    def __init__(self, group: Group, state: PartitionState) -> None:
        """Begin with what the snapshot says."""
        self._state = state
        #: By attempt, the entry of its batch, its first offset and the one behind it.
        self._open: dict[Attempt, tuple[int, int, int]] = {}
        for attempt, prepared in state.scatterings.batches.items():
            offset, last = prepared.answer.offset, group.storage.last_index()
            reading = group.log.reader.read(group.id, offset, 1, last)
            entries = reading.entries if reading is not None else ()
            self._open[attempt] = entries[0].index if entries else 0, offset, prepared.behind

    @property
    def undecided(self) -> list[int]:
        """The entries with batches of which it is not known whether they count."""
        return [index for index, _, _ in self._open.values() if index]

    def run(self, storage: RaftStorage) -> None:
        """Go through all there is."""
        snapshot, base = storage.snapshot(), storage.base[0]
        first = snapshot.index + 1 if snapshot is not None else 1
        for index in range(max(first, base + 1), storage.last_index() + 1):
            payload = _loaded(storage, index)
            if payload is None:
                continue
            for batch in payload.batches:
                self._batch(index, batch)
            match payload.control:
                case ScatteringsBarred(stamp):
                    self._state.scatterings.bar(stamp)
                case AttemptBarred(producer, epoch, number, stamp):
                    attempt = Attempt(producer, epoch, number, stamp)
                    self._state.scatterings.bar_alone(attempt)
                case ScatteringsDecided() as record:
                    self._decided(record)

    def _batch(self, index: int, batch: BatchRecord) -> None:
        if batch.scattered is None:
            return
        # Why else it may be void does not show here, as where acks were barred: then it is never
        # decided, for the leader knew. So an attempt before it says nothing of it, either.
        attempt = Attempt(batch.producer, batch.epoch, batch.scattered.number, batch.stamp)
        if self._state.scatterings.is_barred(attempt):
            self._state.scatterings.voids.add(batch.offset, batch.next_offset)
        else:
            self._open[attempt] = index, batch.offset, batch.next_offset

    def _decided(self, record: ScatteringsDecided) -> None:
        for producer, epoch, number, stamp, is_acks, outcome in record.rows:
            if outcome == Outcome.ABORTED:
                self._state.scatterings.bar(stamp)
            found = None
            if not is_acks:
                found = self._open.pop(Attempt(producer, epoch, number, stamp), None)
            if found is not None and outcome == Outcome.ABORTED:
                self._state.scatterings.voids.add(*found[1:])


def _loaded(storage: RaftStorage, index: int) -> Payload | None:
    """Return what an entry holds; None if it cannot be read."""
    try:
        (entry,) = storage.entries(index, index + 1, 0)
        return applied_by(entry)
    except (LogDamaged, BadBatch, Halted, raft.StorageError):
        return None
