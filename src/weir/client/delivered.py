"""What readers and consumers hand out: checked batches, trimmed to what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from weir.codec.fields import Buffer
from weir.model.batch import Batch, split
from weir.model.message import Message


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages [offset, next_offset) of one batch, whose first `skip` messages lie before them."""

    topic: str
    partition: int
    batch: Batch
    offset: int
    next_offset: int

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.next_offset - self.offset

    @property
    def skip(self) -> int:
        """How many leading messages of the batch to ignore."""
        return self.offset - self.batch.header.first_offset

    def values(self) -> list[bytes]:
        """Split the values, one `bytes` a message."""
        return self.batch.values()[self.skip : self.skip + len(self)]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        whole = self.batch.messages(self.topic, self.partition)
        return islice(whole, self.skip, self.skip + len(self))


def deliver(
    payloads: Sequence[Buffer], group: int, topic: str, partition: int, offset: int, behind: int
) -> list[Delivered]:
    """Open and check batches; return what of them lies in [offset, behind). Raises `BadBatch`."""
    found = []
    for payload in payloads:
        for batch in split(payload, group):
            header = batch.header
            first, last = max(header.first_offset, offset), min(header.next_offset, behind)
            if first < last:
                found.append(Delivered(topic, partition, batch, first, last))
                offset = last
    return found
