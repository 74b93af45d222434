"""To which partition of a topic a producer sends what, also when one has ended."""

from __future__ import annotations

from collections.abc import Iterable

from weir.client.core.batcher import Gathered, picked
from weir.client.producer.partition_sender import PartitionSender
from weir.client.producer.receipts import PendingBatch, Unconfirmed
from weir.codec.fields import Buffer
from weir.errors import BadRequest, UnknownTopic
from weir.model.batch import Batch
from weir.model.header import Columns
from weir.model.topic import partition_for


class Partitioner:
    """Chooses by key, and in turn what has none, among the partitions that take messages."""

    __slots__ = ("_topic", "_turn", "closed", "senders")

    def __init__(self, topic: str) -> None:
        """Know of no partition yet."""
        self._topic = topic
        self._turn = 0
        #: Of the partitions that are known, by number.
        self.senders: list[PartitionSender] = []
        #: Those to which nothing goes any more unless they are named.
        self.closed: set[int] = set()

    def begin(self, senders: list[PartitionSender], closed: Iterable[int], turn: int) -> None:
        """Choose among these, the one at `turn` before the first."""
        self.senders, self.closed, self._turn = senders, set(closed), turn

    def close_idle(self, closed: Iterable[int]) -> None:
        """Send nothing more to these, as far as nothing is under way there: what is, and what comes
        behind it, goes elsewhere together, in its order, once it is refused.
        """
        self.closed |= {p for p in closed if p < len(self.senders) and self.senders[p].is_idle}

    def by_key(self, key: bytes) -> int:
        """Return the partition that a key falls into."""
        return partition_for(key, len(self.senders), self.closed)

    @property
    def turn(self) -> int:
        """The partition whose turn it is."""
        return self.next() if self._turn in self.closed else self._turn

    def next(self) -> int:
        """Stay with a partition while it gathers, then turn to the next: whole batches."""
        if not self.senders[self._turn].gathering:
            self._turn = (self._turn + 1) % len(self.senders)
        while self._turn in self.closed:  # partition 0 never is
            self._turn = (self._turn + 1) % len(self.senders)
        return self._turn

    def choose(self, key: bytes | None, partition: int | None) -> PartitionSender:
        """Return the sender of a partition, of a key's, or of the next. Raises `BadRequest`,
        `UnknownTopic`.
        """
        senders = self.senders
        if not senders:
            raise BadRequest("the producer is not open: use `async with client.producer(...)`")
        if partition is None:
            if key is not None:
                return senders[partition_for(key, len(senders), self.closed)]
            partition = self.next()
        if not isinstance(partition, int) or not 0 <= partition < len(senders):
            raise UnknownTopic(
                f"{self._topic} has no partition {partition!r}: give 0 to {len(senders) - 1}"
            )
        return senders[partition]


def taken_apart(
    whole: PendingBatch, data: Buffer, partitioner: Partitioner, unconfirmed: Unconfirmed
) -> list[tuple[int, Gathered[PendingBatch]]]:
    """Return what goes to which partition of a batch that was encoded as `data`, in its order.

    What has no key goes to one of them. Who waits for the whole is told once all of these are
    settled.
    """
    batch, without_key = Batch(data), partitioner.next()
    places: dict[int, list[int]] = {}
    for place, key in enumerate(batch.keys()):
        partition = without_key if key is None else partitioner.by_key(key)
        places.setdefault(partition, []).append(place)
    moved: list[tuple[PendingBatch, int] | None] = [None] * len(batch)
    found = []
    for partition, rows in places.items():
        part = unconfirmed.begin(partition, part_of=whole)
        part.count = len(rows)
        part.size = whole.size * len(rows) // len(batch)
        for at, row in enumerate(rows):
            moved[row] = part, at
        found.append((partition, _gathered(part, batch, rows)))
    found[0][1].owner.size += whole.size - sum(one.owner.size for _, one in found)
    whole.size = 0  # its parts have that
    whole.moved = [one for one in moved if one is not None]
    return found


def _gathered(owner: PendingBatch, batch: Batch, rows: list[int]) -> Gathered[PendingBatch]:
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
