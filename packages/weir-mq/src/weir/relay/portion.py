"""Reads a portion of a relay's log for a child: entries in, rows filtered by the child's tags out.

A host reads what a `Plan` names where it reads from disk, and passes it to `portion_of`. The core
makes the same `Portion` from its own log.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, starmap
from typing import NamedTuple, Protocol

from weir.codec import Buffer
from weir.errors import Damaged
from weir.model.limits import CHUNKS_PER_FETCH_MAX, FETCH_BYTES_MAX, RELAY_ROWS_MAX
from weir.relay.entries import ChunkStored, Relayed, decode_entry
from weir.relay.messages import Chunk
from weir.relay.rows import Batches, Row, RowsBuilder, Tags, within

#: An answer has so many rows, and about so many bytes of batches at most: with its head it fits a
#: frame. The same in the core and in relays.
ANSWER_ROWS_MAX = 2_048
ANSWER_BYTES_MAX = FETCH_BYTES_MAX // 2


class Entries(Protocol):
    """Gives the entries of the log of one partition."""

    def entry(self, index: int) -> Buffer:
        """Return the bytes of an entry that was appended."""


class ChunkPlaces(Protocol):
    """Says where chunks lie."""

    def find(self, core_index: int) -> int:
        """Return the own index of a chunk; 0 if it is not here."""


class Plan(NamedTuple):
    """What is to be read for a pull: offsets [first, until) for these tags, `credit` bytes at most
    except for one larger batch, and of the value at `first` the chunks above `last_chunk`. In a
    relay the entries at `indexes` hold it.
    """

    group: int
    first: int
    until: int
    tags: Tags
    credit: int
    last_chunk: int
    indexes: tuple[int, ...] = ()


class Portion(NamedTuple):
    """What was read: [first, next) as rows, or chunks of the value at `first`; then their bytes."""

    first: int
    next: int
    rows: tuple[Row, ...]
    chunks: tuple[Chunk, ...]
    data: tuple[Buffer, ...]


def missing_chunks(runs: Sequence[tuple[int, int]], last_chunk: int) -> list[int]:
    """Return the core's indexes of the chunks in runs (first index, number) above `last_chunk`, the
    lowest ones; as many as fit an answer.
    """
    found: list[int] = []
    for first, count in runs:
        begin = max(first, last_chunk + 1)
        found += range(begin, min(first + count, begin + CHUNKS_PER_FETCH_MAX))
        if len(found) >= CHUNKS_PER_FETCH_MAX:
            break
    return found[:CHUNKS_PER_FETCH_MAX]


def portion_of(
    plan: Plan, entries: Entries, chunks: ChunkPlaces, batches: Batches,
    rows_max: int = RELAY_ROWS_MAX,
) -> Portion:  # fmt: skip
    """Read what a plan names, in fewer than `rows_max` rows. Raises `Damaged` where the log does
    not hold what it should.
    """
    built = RowsBuilder(plan.first)
    for index in plan.indexes:
        record, data = decode_entry(entries.entry(index))
        if not isinstance(record, Relayed):
            raise Damaged(f"entry {index} of group {plan.group} holds no messages")
        rows = within(record.first, record.rows, data, built.next, plan.until)
        for at, row, batch in rows:
            if at != built.next:
                raise Damaged(f"group {plan.group} lacks offsets from {built.next} on")
            kept: Buffer | None = batch
            if batch is not None and plan.tags is not None:
                kept = batches.select(batch, plan.tags, plan.group)
            size = 0 if kept is None else len(kept)
            full = len(built.rows) >= rows_max - 1
            if full or (built.size and size and built.size + size > plan.credit):
                return _of_rows(plan, built)
            runs = () if kept is None else batches.chunks(kept)
            if runs and (at > plan.first or missing_chunks(runs, plan.last_chunk)):
                if at > plan.first:  # its chunks come first, in an answer of their own
                    return _of_rows(plan, built)
                return _of_chunks(plan, runs, entries, chunks)
            built.add(row, kept)
    return _of_rows(plan, built)


def chunks_of(plan: Plan, entries: Entries, places: ChunkPlaces, batches: Batches) -> list[int]:
    """Return the own indexes of the chunks that have to go before the message at the beginning of a
    plan, for `portion_of` reads them too; none where it is no large value. Raises `Damaged`.
    """
    if not plan.indexes:
        return []
    record, data = decode_entry(entries.entry(plan.indexes[0]))
    if not isinstance(record, Relayed):
        raise Damaged(f"entry {plan.indexes[0]} of group {plan.group} holds no messages")
    first = next(within(record.first, record.rows, data, plan.first, plan.until), None)
    kept: Buffer | None = first[2] if first is not None else None
    if kept is not None and plan.tags is not None:
        kept = batches.select(kept, plan.tags, plan.group)
    if kept is None:
        return []
    missing = missing_chunks(batches.chunks(kept), plan.last_chunk)
    return [places.find(core_index) for core_index in missing]


def _of_rows(plan: Plan, built: RowsBuilder) -> Portion:
    return Portion(plan.first, built.next, tuple(built.rows), (), tuple(built.data))


def _of_chunks(
    plan: Plan, runs: Sequence[tuple[int, int]], entries: Entries, places: ChunkPlaces
) -> Portion:
    found: list[tuple[int, memoryview]] = []
    size = 0
    for core_index in missing_chunks(runs, plan.last_chunk):
        index = places.find(core_index)
        if not index:
            raise Damaged(f"group {plan.group} lacks chunk {core_index} of the value it closes")
        record, data = decode_entry(entries.entry(index))
        if not isinstance(record, ChunkStored) or record.core_index != core_index:
            raise Damaged(f"entry {index} of group {plan.group} is not chunk {core_index}")
        if found and size + len(data) > plan.credit:
            break
        found.append((core_index, data))
        size += len(data)
    told = tuple(starmap(Chunk, ((core_index, len(data)) for core_index, data in found)))
    return Portion(plan.first, plan.first, (), told, tuple(chain(data for _, data in found)))
