"""Batches whose partition has ended, taken apart for those that their messages go to now."""

from __future__ import annotations

from weir.client.core.batcher import Gathered, picked
from weir.client.producer.partitioner import Choosing
from weir.client.producer.receipts import Handed
from weir.codec.fields import Buffer
from weir.model.batch import Batch
from weir.model.header import Columns


def taken_apart(
    whole: Handed, data: Buffer, choosing: Choosing
) -> list[tuple[int, Gathered[Handed]]]:
    """Return what goes to which partition of a batch that was encoded as `data`, in its order.

    What has no key goes to one of them. Who waits for the whole is told once all of these are
    settled.
    """
    batch, without_key = Batch(data), choosing.next()
    places: dict[int, list[int]] = {}
    for place, key in enumerate(batch.keys()):
        partition = without_key if key is None else choosing.of_key(key)
        places.setdefault(partition, []).append(place)
    moved: list[tuple[Handed, int] | None] = [None] * len(batch)
    found = []
    for partition, rows in places.items():
        part = Handed(whole.topic, partition)
        part.part_of, part.count = whole, len(rows)
        part.size = whole.size * len(rows) // len(batch)
        for at, row in enumerate(rows):
            moved[row] = part, at
        found.append((partition, _gathered(part, batch, rows)))
    found[0][1].owner.size += whole.size - sum(one.owner.size for _, one in found)
    whole.size = 0  # its parts have that
    whole.moved = [one for one in moved if one is not None]
    return found


def _gathered(owner: Handed, batch: Batch, rows: list[int]) -> Gathered[Handed]:
    columns = batch.header.columns

    def numbers(flag: Columns) -> list[int] | None:
        column = batch.numbers(flag)
        return None if column is None else picked(column.tolist(), rows)

    return Gathered(
        owner,
        batch.header.base_time,
        picked(batch.values(), rows) or (),
        picked(batch.keys(), rows) if columns & Columns.KEY else None,
        picked(batch.tags(), rows) if columns & Columns.TAG else None,
        numbers(Columns.TIME),
        picked(batch.headers(), rows) if columns & Columns.HEADERS else None,
        numbers(Columns.DUE),
        numbers(Columns.EXPIRES),
        owner.size,
    )
