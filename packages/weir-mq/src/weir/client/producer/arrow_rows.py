"""Arrow columns on their way out: record batches cut into batches for their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from weir.client.core.batcher import PLAIN, Packing
from weir.model.from_arrow import Rows

O = TypeVar("O")  # noqa: E741  # whom to tell what became of the batch


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
        """Return the sealed batch. Raises as `Rows.encode`."""
        return self.rows.encode(
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=self.base_time,
            compression=packing.kind,
            level=packing.level,
        )


def rows_of(data: Any) -> Iterator[Rows]:
    """Yield the rows of a record batch or table. Raises as `Rows.of`, and `TypeError`."""
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    else:
        raise TypeError(f"give a pyarrow.RecordBatch or Table, not {type(data).__name__}")
    checked = [Rows.of(batch) for batch in batches if batch.num_rows]  # all, or nothing is sent
    yield from checked
