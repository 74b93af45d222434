"""Values of chunks (DESIGN §4): which are growing, and what retention must keep for the closed.

`ValueTable` is part of a partition's replicated state: it changes by committed entries alone, and
time is the stamp in an entry. A leader judges chunks and closing batches by what it says and by
`ValuesUnderWay`. What a piece and a reference are: `weir.model.columns`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import takewhile
from typing import Any

import msgspec

from weir.broker.records.entries import BatchRecord
from weir.errors import Overloaded, TooLarge, ValueLost
from weir.model.batch import Batch
from weir.model.columns import Piece, References, chained
from weir.model.limits import (
    OPEN_RUNS_MAX,
    OPEN_VALUE_MS,
    OPEN_VALUES_MAX,
    RETRY_AFTER_MS,
    VALUE_RUNS_MAX,
)
from weir.order.clock import milliseconds_of, stamp_at

_OPEN_FOR = stamp_at(OPEN_VALUE_MS)
#: A value this close to its end counts as over: the stamp that decides is given a moment later.
_MARGIN_MS = 10_000
_NONE = -1
_AGAIN = "open another producer, and send the value again from its beginning"


class OpenValue(msgspec.Struct):
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
    packed: array[int] = msgspec.field(default_factory=lambda: array("Q"))

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


class ValuesUnderWay:
    """What open values will have come to once all that is under way is committed."""

    __slots__ = ("_values", "sizes")

    def __init__(self, values: ValueTable) -> None:
        """Begin to lead: nothing is under way."""
        self._values = values
        #: Of producers with batches under way: their epoch, and the bytes of their open value,
        #: `_NONE` if closed. Once all is committed the state knows it, and it goes.
        self.sizes: dict[int, tuple[int, int]] = {}

    def check(self, batch: Batch, now_ms: int) -> None:
        """Raise `ValueLost` unless a chunk continues its value, or references are all of it.

        `Overloaded` if one more value would be one too many. Any other batch passes.
        """
        producer, epoch = batch.header.producer, batch.header.epoch
        size = self._size(producer, epoch, now_ms)
        if (piece := batch.piece) is not None:
            self._check_room(producer, piece, stamp_at(now_ms - OPEN_VALUE_MS))
            if piece.position and piece.position != size:
                raise ValueLost(
                    f"a piece from byte {piece.position:,} continues nothing: "
                    f"{max(size, 0):,} bytes are there; {_AGAIN}",
                    max(size, 0),
                )
        elif (references := batch.references) is not None:
            value = self._values.open(producer)
            there = value is not None and (value.size, value.hash, value.runs) == references
            if size != references.size or not there:
                raise ValueLost(
                    f"the references of a value of {references.size:,} bytes are not its chunks: "
                    f"they expired, or were replaced; {_AGAIN}",
                    max(size, 0),
                )

    def accepted(self, record: BatchRecord) -> None:
        """A batch is under way."""
        if isinstance(record.large, Piece):
            size = record.large.position + record.large.size
            self.sizes[record.producer] = record.epoch, size
        elif isinstance(record.large, References):
            self.sizes[record.producer] = record.epoch, _NONE

    def _growing(self, since: int) -> int:
        begun = sum(self._values.open(producer) is None for producer in self.sizes)
        return self._values.growing(since) + begun

    def _size(self, producer: int, epoch: int, now_ms: int) -> int:
        ahead = self.sizes.get(producer)
        if ahead is not None:  # of an older epoch, perhaps, whose value is void
            return ahead[1] if ahead[0] == epoch else _NONE
        value = self._values.open(producer)
        if value is None or value.epoch != epoch:
            return _NONE
        over = now_ms - milliseconds_of(value.stamp) > OPEN_VALUE_MS - _MARGIN_MS
        return _NONE if over else value.size

    def _check_room(self, producer: int, piece: Piece, since: int) -> None:
        """What nobody touched since stamp `since` takes no room: this very chunk's entry voids it.

        Were it counted, values given up could keep out those whose entries would void them.
        """
        values = self._values
        value = values.open(producer)
        if (value is None or value.stamp < since) and self._growing(since) >= OPEN_VALUES_MAX:
            raise Overloaded(
                f"{OPEN_VALUES_MAX:,} large values are being uploaded here: try again "
                "when some are done",
                RETRY_AFTER_MS,
            )
        if piece.position == 0 or value is None:
            return
        if len(value.packed) // 2 >= VALUE_RUNS_MAX:
            raise TooLarge(
                f"a value in {VALUE_RUNS_MAX:,} places: send it again in larger pieces",
                VALUE_RUNS_MAX,
            )
        if values.open_runs(since) >= OPEN_RUNS_MAX:
            raise Overloaded(
                f"large values grow in {OPEN_RUNS_MAX:,} places here: send larger pieces, or try "
                "again when some are done",
                RETRY_AFTER_MS,
            )
