"""A grant as a consumer gets it: what is another's, and what has expired, is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from weir.client.core.delivered_batches import Delivered
from weir.client.core.filters import Picked
from weir.client.core.runs import Run, joined, within, without
from weir.errors import BadBatch
from weir.model.header import Columns
from weir.model.message import Message

_EXPIRES = int(Columns.EXPIRES)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease of messages [offset, next_offset), or of their `runs`, until `deadline`, a stamp.

    `expired` are those whose lifetime was over when they were granted: no batch here holds them,
    and the consumer says by itself that they are done.
    """

    topic: str
    partition: int
    fence: int
    deadline: int
    offset: int
    next_offset: int
    attempts: int
    batches: tuple[Delivered, ...]
    runs: tuple[Run, ...] = ()
    expired: tuple[Run, ...] = ()

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        return chain.from_iterable(delivered.messages() for delivered in self.batches)

    @property
    def leased(self) -> tuple[Run, ...]:
        """What of [offset, next_offset) was granted, what had expired included."""
        return self.runs or ((self.offset, self.next_offset),)


def sorted_out(
    delivered: Sequence[Delivered], runs: Sequence[Run], now: int
) -> tuple[list[Delivered], list[Run]]:
    """Return what of some batches is to be handled, and the runs that had expired `now` (µs).

    Without `runs` all of the batches is granted.
    """
    left: list[Delivered] = []
    expired: list[Run] = []
    for one in delivered:
        pieces: Sequence[Run] = [(one.offset, one.next_offset)]
        if runs:
            pieces = [*within(runs, one.offset, one.next_offset)]
        if one.batch.header.columns & _EXPIRES and (over := _expired(one, now)):
            expired += [run for piece in pieces for run in within(over, *piece)]
            pieces = without(pieces, over)
        if pieces:
            left.append(_trimmed(one, pieces))
    return left, expired


def _trimmed(one: Delivered, pieces: Sequence[Run]) -> Delivered:
    (first, _), (_, behind) = pieces[0], pieces[-1]
    if len(pieces) == 1:
        if (first, behind) == (one.offset, one.next_offset):
            return one
        return replace(one, offset=first, next_offset=behind)
    base = one.batch.header.first_offset
    rows = tuple(chain.from_iterable(range(a - base, b - base) for a, b in pieces))
    return Picked(one.topic, one.partition, one.batch, first, behind, rows)


def _expired(delivered: Delivered, now: int) -> list[Run]:
    try:
        expires = delivered.batch.numbers(Columns.EXPIRES)
    except BadBatch:
        return []  # whoever splits it is told what to do
    assert expires is not None  # the header said so
    first = delivered.batch.header.first_offset
    return joined(first + row for row, at in enumerate(expires) if 0 < at <= now)
