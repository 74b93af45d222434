"""Values of chunks (DESIGN §4): which are growing, and what retention must keep for the closed.

Part of a partition's replicated state: it changes by committed entries alone, and time is the
stamp in an entry. What a piece and a reference are: `weir.model.chunks`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from weir.model.chunks import Piece, References, chained
from weir.model.limits import OPEN_VALUE_MS
from weir.model.stamp import stamp_at

_OPEN_FOR = stamp_at(OPEN_VALUE_MS)


@dataclass(slots=True)
class OpenValue:
    """A value that grows: its bytes so far, the stamp of its last chunk, and where they all lie.

    `stored` are the bytes that its chunks take in the log, where they may be compressed; `hash` is
    that of its chunks in order. `packed` holds first index and number of each run in turn: a value
    may have very many.
    """

    epoch: int
    size: int = 0
    stamp: int = 0
    stored: int = 0
    hash: int = 0
    packed: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def first_index(self) -> int:
        """The entry of its first chunk."""
        return self.packed[0]

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Where its chunks lie, as references say it."""
        return tuple(zip(self.packed[::2], self.packed[1::2], strict=True))

    def add(self, piece: Piece, hash_: int, index: int, stamp: int, stored: int) -> None:
        """Take one more chunk."""
        self.size += piece.size
        self.hash = chained(self.hash, hash_)
        self.stored += stored
        self.stamp = stamp
        if self.packed and self.packed[-2] + self.packed[-1] == index:
            self.packed[-1] += 1
        else:
            self.packed.extend((index, 1))


class ValueTable:
    """Open values by producer, the longest untouched first; closed ones in packed arrays."""

    __slots__ = ("_behind", "_firsts", "_offsets", "opened")

    def __init__(self) -> None:
        """Know of none."""
        #: Open values by producer, the longest untouched first.
        self.opened: dict[int, OpenValue] = {}
        # One row a closed value, in log order: its offset, the index of its first chunk, and the
        # bytes that the chunks of it and of the rows before it take.
        self._offsets = array("q")
        self._firsts = array("q")
        self._behind = array("q")

    def __len__(self) -> int:
        """Return the number of open values."""
        return len(self.opened)

    def open_runs(self, since: int) -> int:
        """Return the number of runs of all values that grow, as `growing` counts them."""
        grow = (value for value in self.opened.values() if value.stamp >= since)
        return sum(len(value.packed) // 2 for value in grow)

    def growing(self, since: int) -> int:
        """Return the number of open values that a batch stamped an hour after `since` leaves."""
        return len(self.opened) - len(self.untouched(since))

    def stored_from(self, offset: int) -> int:
        """Return the bytes that the chunks of closed values take, from those at `offset` on."""
        at = bisect_left(self._offsets, offset)
        return self._behind[-1] - self._before(at) if self._behind else 0

    @property
    def stored(self) -> int:
        """The bytes that the chunks of all values take, open ones included."""
        return sum(value.stored for value in self.opened.values()) + self.stored_from(0)

    def open(self, producer: int) -> OpenValue | None:
        """Return what a producer's value has come to; None if none is open."""
        return self.opened.get(producer)

    def at(self, producer: int, epoch: int, stamp: int) -> None:
        """A batch of `producer` is committed: void what an ended epoch, or an hour, left behind."""
        if (value := self.opened.get(producer)) is not None and value.epoch != epoch:
            del self.opened[producer]
        self.void(stamp - _OPEN_FOR)

    def untouched(self, since: int) -> list[int]:
        """Return whose open values had their last chunk before stamp `since`."""
        untouched = takewhile(lambda one: one[1].stamp < since, self.opened.items())
        return [producer for producer, _ in untouched]

    def void(self, since: int) -> None:
        """Forget the open values whose last chunk came before stamp `since`."""
        for producer in self.untouched(since):
            del self.opened[producer]

    def grow(
        self,
        producer: int,
        epoch: int,
        piece: Piece,
        hash_: int,
        index: int,
        stamp: int,
        stored: int,
    ) -> None:
        """Note a committed chunk, whose header has `hash_`.

        One that continues nothing is void, and so is its value.
        """
        value = self.opened.pop(producer, None)
        if piece.position == 0:
            value = OpenValue(epoch)
        if value is None or value.size != piece.position:
            return
        value.add(piece, hash_, index, stamp, stored)
        self.opened[producer] = value  # behind all others: it was touched last

    def close(self, producer: int, references: References, offset: int) -> None:
        """Note a committed closing entry: its chunks are needed as long as its offset is."""
        value = self.opened.pop(producer, None)
        before = self._before(len(self._behind))
        self._offsets.append(offset)
        self._firsts.append(references.first_index)
        self._behind.append(before + (value.stored if value is not None else 0))

    def first_needed_index(self, index: int, offset: int, since: int = 0) -> int:
        """Return below which Raft index, `index` at most, no entry is needed when the log starts at
        `offset`: the values from there on stay readable, and open ones can be closed, but for those
        untouched since stamp `since`.
        """
        kept = self._firsts[bisect_left(self._offsets, offset) :]
        growing = [value.first_index for value in self.opened.values() if value.stamp >= since]
        return min([index, *growing, *kept])

    def forget_below(self, offset: int) -> None:
        """The log starts at `offset`: closed values below it are gone."""
        gone = bisect_left(self._offsets, offset)
        before = self._before(gone)
        for column in (self._offsets, self._firsts, self._behind):
            del column[:gone]
        self._behind = array("q", (behind - before for behind in self._behind))

    def _before(self, row: int) -> int:
        return self._behind[row - 1] if row else 0

    def encode(self) -> object:
        """Return the table for a snapshot."""
        rows = [
            (p, v.epoch, v.size, v.stamp, v.stored, v.hash, v.packed.tobytes())
            for p, v in self.opened.items()
        ]
        return rows, self._offsets.tobytes(), self._firsts.tobytes(), self._behind.tobytes()

    @classmethod
    def decode(
        cls,
        rows: list[Any],
        offsets: bytes,
        firsts: bytes,
        behind: bytes,
    ) -> ValueTable:
        """Return the table of a snapshot."""
        table = cls()
        for producer, epoch, size, stamp, stored, hash_, packed in rows:
            runs = array("Q", packed)
            table.opened[producer] = OpenValue(epoch, size, stamp, stored, hash_, runs)
        table._offsets.frombytes(offsets)
        table._firsts.frombytes(firsts)
        table._behind.frombytes(behind)
        return table
