"""A snapshot on its way in."""

from __future__ import annotations

from weir_raft.messages import SnapshotMeta


class Arriving:
    """The pieces of one snapshot, in order and without a hole."""

    __slots__ = ("_data", "meta")

    def __init__(self, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._data = bytearray()

    @property
    def position(self) -> int:
        """Bytes below here have come."""
        return len(self._data)

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self.position == self.meta.size

    def take(self, position: int, data: bytes) -> None:
        """Keep `data` if it is the next piece."""
        if position == self.position and len(data) <= self.meta.size - position:
            self._data += data

    def with_piece(self, position: int, data: bytes) -> bytes | None:
        """Return the whole, if it is complete with this piece; takes nothing."""
        is_last = position == self.position and position + len(data) == self.meta.size
        return b"".join((self._data, data)) if is_last else None

    def data(self) -> bytearray:
        """The whole, which is not joined from its pieces then: it may be large."""
        return self._data
