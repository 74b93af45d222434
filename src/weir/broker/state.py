"""A partition's replicated state: what every replica knows after the same entries."""

from __future__ import annotations

from typing import Any

from weir.broker.clusters import ClusterState
from weir.broker.dedupe import Answer, OriginTable, ProducerTable, value_hash
from weir.broker.entries import BatchRecord
from weir.errors import Halted
from weir.model.batch import Batch
from weir.model.columns import NO_SEQUENCE, Origins
from weir.model.limits import DEDUPE_HORIZON_MS
from weir.model.stamp import stamp_at

_VERSION = 1
_HORIZON = stamp_at(DEDUPE_HORIZON_MS)
_EXPIRE_EVERY = stamp_at(3600 * 1000)


class PartitionState:
    """Next offset, last stamp, dedupe, clusters (DESIGN §5 Raft, the list of a snapshot)."""

    __slots__ = ("_expired_at", "clusters", "last_stamp", "next_offset", "origins", "producers")

    def __init__(self) -> None:
        """Begin as a new partition."""
        self.next_offset = 0
        self.last_stamp = 0
        self.producers = ProducerTable()
        self.origins = OriginTable()
        self.clusters: dict[str, ClusterState] = {}
        self._expired_at = 0

    def apply(self, batch: BatchRecord) -> None:
        """Take note of a committed batch."""
        producer, epoch, sequence, messages, hash_, offset, stamp, origins = batch
        self.producers.record(producer, epoch, Answer(sequence, messages, offset, stamp, hash_))
        if origins is not None:
            self._note_origins(origins, offset, hash_)
        self.next_offset = offset + messages
        # A grant may be stamped after a batch and yet lie before it in the log.
        self.last_stamp = max(self.last_stamp, stamp)
        if stamp - self._expired_at > _EXPIRE_EVERY:
            # By stamp and never by a clock, so that every replica forgets at the same entry.
            self._expired_at = stamp
            self.producers.expire(stamp - _HORIZON)

    def _note_origins(self, origins: Origins, offset: int, hash_: int) -> None:
        hashes = map(value_hash, _values_beside(origins, hash_))
        columns = origins.hubs, origins.sns, origins.epochs, origins.sequences, hashes
        for at, (hub, sn, boot, sequence, value) in enumerate(zip(*columns, strict=True), offset):
            if sequence != NO_SEQUENCE:
                self.origins.record(hub, sn, boot, sequence, at, value)

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return (
            _VERSION,
            self.next_offset,
            self.last_stamp,
            self._expired_at,
            self.producers.encode(),
            self.origins.encode(),
            {name: cluster.encode() for name, cluster in self.clusters.items()},
        )

    @classmethod
    def decode(cls, data: Any) -> PartitionState:
        """Return the state that `encode` gave."""
        version, *fields = data
        if version != _VERSION:
            raise ValueError(f"a snapshot of version {version}; this release reads {_VERSION}")
        next_offset, last_stamp, expired_at, producers, origins, clusters = fields
        state = cls()
        state.next_offset, state.last_stamp, state._expired_at = next_offset, last_stamp, expired_at
        state.producers = ProducerTable.decode(producers)
        state.origins = OriginTable.decode(origins)
        state.clusters = {name: ClusterState.decode(*row) for name, row in clusters.items()}
        return state


def _values_beside(origins: Origins, hash_: int) -> list[bytes]:
    """Return the values of the batch that `origins` is a column of, the one of that hash.

    A column is a view into its entry, and the entry's batches lie one behind the other there.
    """
    assert isinstance(origins.sns, memoryview)
    entry, at = origins.sns.obj, 0
    assert isinstance(entry, bytes | bytearray)
    while at < len(entry):
        batch = Batch(entry, at)
        if batch.header.hash == hash_:
            return batch.values()
        at += batch.header.total_size
    raise Halted("an entry's device messages are not where its origins are")
