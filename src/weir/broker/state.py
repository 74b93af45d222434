"""A partition's replicated state: what every replica knows after the same entries."""

from __future__ import annotations

from typing import Any

from weir.broker.clusters import ClusterState
from weir.broker.dedupe import Answer, OriginTable, ProducerTable, value_hash
from weir.broker.entries import BatchRecord
from weir.errors import UnknownVersion
from weir.model.batch import Batch
from weir.model.columns import NO_SEQUENCE
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
        producer, epoch, sequence, messages, hash_, offset, stamp, fan_in = batch
        self.producers.record(producer, epoch, Answer(sequence, messages, offset, stamp, hash_))
        if fan_in is not None:
            self._note_origins(fan_in, offset)
        self.next_offset = offset + messages
        # A grant may be stamped after a batch and yet lie before it in the log.
        self.last_stamp = max(self.last_stamp, stamp)
        if stamp - self._expired_at > _EXPIRE_EVERY:
            # By stamp and never by a clock, so that every replica forgets at the same entry.
            self._expired_at = stamp
            self.producers.expire(stamp - _HORIZON)

    def _note_origins(self, batch: Batch, offset: int) -> None:
        origins = batch.origins
        assert origins is not None  # BatchRecord keeps only such batches
        hashes = map(value_hash, batch.values())
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
            raise UnknownVersion(
                f"the checkpoint holds a partition in version {version}; this release reads "
                f"{_VERSION}. The log has all of it: move the checkpoint file away and start again"
            )
        next_offset, last_stamp, expired_at, producers, origins, clusters = fields
        state = cls()
        state.next_offset, state.last_stamp, state._expired_at = next_offset, last_stamp, expired_at
        state.producers = ProducerTable.decode(producers)
        state.origins = OriginTable.decode(origins)
        state.clusters = {name: ClusterState.decode(*row) for name, row in clusters.items()}
        return state
