"""Many messages at once, column by column, as lists or as Arrow has them: cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weir.client.core.batcher import PLAIN, Gathered, Packing, picked
from weir.errors import MissingLibrary

if TYPE_CHECKING:
    from weir.model.from_arrow import Rows

O = TypeVar("O")  # noqa: E741  # whom to tell what became of the batch


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Many messages, column by column; `due` and `expires` are those of all of them."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    tags: Sequence[str | None] | None
    times: Sequence[int] | None
    due: int | None
    expires: int | None

    def taken(self, rows: Sequence[int]) -> ColumnRows:
        """Return some of them."""
        return replace(
            self,
            values=[self.values[row] for row in rows],
            keys=picked(self.keys, rows),
            tags=picked(self.tags, rows),
            times=picked(self.times, rows),
        )

    def gathered(self, owner: O, *, first: int, last: int, now: int, size: int) -> Gathered[O]:
        """Return the batch of messages [first, last)."""
        # A slice is also a copy: what the caller does to his list changes nothing here.
        return Gathered(
            owner,
            now,
            self.values[first:last],
            None if self.keys is None else self.keys[first:last],
            None if self.tags is None else self.tags[first:last],
            None if self.times is None else self.times[first:last],
            dues=None if self.due is None else [self.due] * (last - first),
            expires=None if self.expires is None else [self.expires] * (last - first),
            size=size,
        )


@dataclass(slots=True, eq=False)
class ArrowBatch(Generic[O]):
    """A batch to be, of rows that stay where they are until it is encoded."""

    owner: O
    base_time: int
    rows: Rows

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.rows)

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = PLAIN
    ) -> bytearray:
        """Return the sealed batch. Raises as `weir.model.from_arrow.Rows.encode`."""
        return self.rows.encode(
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=self.base_time,
            compression=packing.kind,
            level=packing.level,
        )


def arrow_rows(data: Any) -> list[Rows]:
    """Return the checked rows of a record batch or table: all of them, or nothing is sent.

    Raises `TypeError`, `MissingLibrary`, and as `weir.model.from_arrow.Rows.of`.
    """
    try:
        import pyarrow as pa

        from weir.model.from_arrow import Rows
    except ImportError:
        raise MissingLibrary("pyarrow is not installed: pip install 'weir-mq[arrow]'") from None
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    else:
        raise TypeError(f"give a pyarrow.RecordBatch or Table, not {type(data).__name__}")
    return [Rows.of(batch) for batch in batches if batch.num_rows]
