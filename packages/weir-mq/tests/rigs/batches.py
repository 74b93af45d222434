"""Whether batches were opened, which costs more than all that a list of tags can say."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from weir.model.batch import Batch


def opened_batches() -> int:
    """Return of how many batches the columns are in memory."""
    gc.collect()
    return sum(isinstance(thing, Batch) and thing._found is not None for thing in gc.get_objects())


@contextmanager
def batches_opened() -> Iterator[list[Batch]]:
    """Yield the batches whose columns are looked for meanwhile."""
    opened: list[Batch] = []
    whole = Batch._locate

    def locate(batch: Batch) -> dict[int, object]:
        opened.append(batch)
        return whole(batch)

    Batch._locate = locate  # type: ignore[method-assign]
    try:
        yield opened
    finally:
        Batch._locate = whole  # type: ignore[method-assign]
