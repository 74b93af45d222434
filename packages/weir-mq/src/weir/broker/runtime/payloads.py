"""Batches out of what a reading returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weir.broker.state.ranges import Ranges
from weir.codec.fields import Buffer
from weir.model.batch import Batch
from weir.model.header import HEADER_SIZE


def batches_in(payloads: Sequence[Buffer]) -> Iterator[Batch]:
    """Open batches that lie glued together, or cut behind their headers, as the cache has them.

    Raises `BadBatch` for bytes that are none.
    """
    pieces = iter(payloads)
    for piece in pieces:
        whole = b"".join((piece, next(pieces))) if len(piece) == HEADER_SIZE else piece
        at = 0
        while at < len(whole):
            batch = Batch(whole, at)
            at += batch.header.total_size
            yield batch


def without(payloads: Sequence[Buffer], voids: Ranges) -> list[Buffer]:
    """Leave the batches out that are void."""
    kept: list[Buffer] = []
    for batch in batches_in(payloads):
        behind = batch.header.next_offset
        if not voids.covers(behind - 1, behind):
            kept.append(batch.view)
    return kept
