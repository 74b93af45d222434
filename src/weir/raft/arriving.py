"""A snapshot on its way in."""

from __future__ import annotations

from weir.raft.messages import SnapshotMeta


class Arriving:
    """The pieces of one snapshot, in order and without a hole."""

    __slots__ = ("_pieces", "meta", "position")

    def __init__(self, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._pieces: list[bytes] = []
        #: Bytes below here have come.
        self.position = 0

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self.position == self.meta.size

    def take(self, position: int, data: bytes) -> None:
        """Keep `data` if it is the next piece."""
        if position == self.position and len(data) <= self.meta.size - position:
            self._pieces.append(data)
            self.position += len(data)

    def data(self) -> bytes:
        """The whole."""
        return b"".join(self._pieces)
