"""Judging chunks and closing batches on the leader, by what is committed and what is under way."""

from __future__ import annotations

from weir.broker.records.entries import BatchRecord
from weir.broker.state.state import PartitionState
from weir.errors import Overloaded, TooLarge, ValueLost
from weir.model.batch import Batch
from weir.model.chunks import Piece, References
from weir.model.limits import (
    OPEN_RUNS_MAX,
    OPEN_VALUE_MS,
    OPEN_VALUES_MAX,
    RETRY_AFTER_MS,
    VALUE_RUNS_MAX,
)
from weir.model.stamp import milliseconds_of, stamp_at

#: A value this close to its end counts as over: the stamp that decides is given a moment later.
_MARGIN_MS = 10_000
_NONE = -1
_AGAIN = "open another producer, and send the value again from its beginning"


class Growing:
    """What open values will have come to once all that is under way is committed."""

    __slots__ = ("_sizes", "_state")

    def __init__(self, state: PartitionState) -> None:
        """Begin to lead: nothing is under way."""
        self._state = state
        #: Of producers with batches under way: their epoch, and the bytes of their open value,
        #: `_NONE` if closed.
        self._sizes: dict[int, tuple[int, int]] = {}

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
            value = self._state.values.open(producer)
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
            self._sizes[record.producer] = record.epoch, size
        elif isinstance(record.large, References):
            self._sizes[record.producer] = record.epoch, _NONE

    def settled(self, producer: int) -> None:
        """All that a producer had under way is committed: the state knows it now."""
        self._sizes.pop(producer, None)

    def _growing(self, since: int) -> int:
        values = self._state.values
        begun = sum(values.open(producer) is None for producer in self._sizes)
        return values.growing(since) + begun

    def _size(self, producer: int, epoch: int, now_ms: int) -> int:
        ahead = self._sizes.get(producer)
        if ahead is not None:  # of an older epoch, perhaps, whose value is void
            return ahead[1] if ahead[0] == epoch else _NONE
        value = self._state.values.open(producer)
        if value is None or value.epoch != epoch:
            return _NONE
        over = now_ms - milliseconds_of(value.stamp) > OPEN_VALUE_MS - _MARGIN_MS
        return _NONE if over else value.size

    def _check_room(self, producer: int, piece: Piece, since: int) -> None:
        """What nobody touched since stamp `since` takes no room: this very chunk's entry voids it.

        Were it counted, values given up could keep out those whose entries would void them.
        """
        values = self._state.values
        value = values.open(producer)
        if (value is None or value.stamp < since) and self._growing(since) >= OPEN_VALUES_MAX:
            raise Overloaded(
                f"{OPEN_VALUES_MAX:,} large values are growing here: try again when some are done",
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
