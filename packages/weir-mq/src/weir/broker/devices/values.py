"""Values out of batches, for devices: they cannot open columns. The one place that does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.broker.runtime.reads import batches_in
from weir.codec.fields import Buffer
from weir.errors import BadBatch, MissingLibrary
from weir.model.chunks import References
from weir.model.header import Columns
from weir.protocol.device.deliveries import message_bytes

_U32_MAX = 0xFFFFFFFF


@dataclass(slots=True)
class Taken:
    """Values and their offsets; with `too_large` one offset, whose value has so many bytes.

    Messages below `passed` that are not among them cannot be opened here, or have expired: those
    are in the runs `expired`.
    """

    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    too_large: int = 0
    passed: int = 0
    expired: list[tuple[int, int]] = field(default_factory=list)

    def leave_out(self, offset: int) -> None:
        """A message has expired."""
        self.passed = offset + 1
        if self.expired and self.expired[-1][1] == offset:
            self.expired[-1] = (self.expired[-1][0], offset + 1)
        else:
            self.expired.append((offset, offset + 1))


def take(
    payloads: Sequence[Buffer], first: int, behind: int, most: int, room: int, now_us: int = 0
) -> Taken:
    """Return the values of up to `most` messages from [first, behind) that have not expired by
    `now_us`, in microseconds since 1970.

    `room` bytes are for the values, and for the heads of all messages but one. A value that lies in
    chunks is too large whatever the room. A batch that cannot be opened ends what is returned, or
    is passed by where nothing comes before it. Raises `BadBatch` for bytes that are none.
    """
    taken = Taken()
    room += message_bytes(b"")
    for batch in batches_in(payloads):
        begin = batch.header.first_offset
        rows = range(max(first, begin), min(behind, batch.header.next_offset))
        if not rows:
            continue  # not worth inflating
        try:
            column, expires = batch.value_column, batch.numbers(Columns.EXPIRES)
        except (BadBatch, MissingLibrary):
            if taken.offsets:
                return taken
            taken.passed = batch.header.next_offset
            continue
        for offset in rows:
            if expires is not None and 0 < expires[offset - begin] <= now_us:
                taken.leave_out(offset)
                continue
            value = column.at(offset - begin)
            if batch.header.columns & Columns.REFERENCES:
                return taken if taken.offsets else _too_large(taken, offset, _size_of(value))
            room -= message_bytes(value)
            if room < 0:
                return taken if taken.offsets else _too_large(taken, offset, len(value))
            taken.offsets.append(offset)
            taken.values.append(value)
            if len(taken.offsets) == most:
                return taken
    return taken


def _size_of(references: bytes) -> int:
    return min(References.unpack(references).size, _U32_MAX)


def _too_large(taken: Taken, offset: int, size: int) -> Taken:
    return Taken([offset], [b""], size, taken.passed, taken.expired)
