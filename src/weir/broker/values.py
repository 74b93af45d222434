"""Values out of batches, for devices alone: the second place that spends time per message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.codec.fields import Buffer
from weir.model.batch import Batch

#: What a message takes in a reply besides its value: u64 offset, u32 size.
MESSAGE_BYTES = 12
#: What a reply to a device has room for to say how large a message is.
_SIZE_MAX = 0xFFFFFFFF


@dataclass(slots=True)
class Taken:
    """Values by their offsets. With `too_large`, the one message there has so many bytes."""

    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    too_large: int = 0


def take(payloads: Sequence[Buffer], first: int, behind: int, most: int, room: int) -> Taken:
    """Return up to `most` values of offsets [first, behind), in `room` bytes together.

    Each but the first takes `MESSAGE_BYTES` more. A first one that has no room is `too_large`; no
    offsets at all mean that no message lies there. Raises `BadBatch` and `MissingLibrary`.
    """
    taken = Taken()
    for payload in payloads:
        at = 0
        while at < len(payload) and len(taken.offsets) < most:
            batch = Batch(payload, at)
            at += batch.header.total_size
            if not _take_from(batch, taken, (first, behind), most, room):
                return taken
    return taken


def _take_from(batch: Batch, taken: Taken, offsets: tuple[int, int], most: int, room: int) -> bool:
    """Take what fits from one batch; return whether there may be more."""
    header = batch.header
    large, column = batch.references, batch.value_column
    used = sum(map(len, taken.values)) + MESSAGE_BYTES * len(taken.values)
    for offset in range(max(header.first_offset, offsets[0]), min(header.next_offset, offsets[1])):
        row = offset - header.first_offset
        size = large.size if large else column.offsets[row + 1] - column.offsets[row]
        if used + size > room or large:
            if not taken.offsets:
                taken.offsets, taken.values = [offset], [b""]
                taken.too_large = min(size, _SIZE_MAX)
            return False
        taken.offsets.append(offset)
        taken.values.append(column.at(row))
        used += size + MESSAGE_BYTES
        if len(taken.offsets) == most:
            return False
    return True
