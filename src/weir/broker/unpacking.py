"""Values out of batches, for devices: they cannot open columns. The one place that does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.broker.payloads import batches_in
from weir.codec.fields import Buffer
from weir.errors import BadBatch, MissingLibrary
from weir.model.chunks import References
from weir.model.header import Columns
from weir.wire.deliveries import message_bytes

_U32_MAX = 0xFFFFFFFF


@dataclass(slots=True)
class Taken:
    """Values and their offsets; with `too_large` one offset, whose value has so many bytes.

    Messages below `passed` that are not among them cannot be opened here.
    """

    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    too_large: int = 0
    passed: int = 0


def take(payloads: Sequence[Buffer], first: int, behind: int, most: int, room: int) -> Taken:
    """Return the values of up to `most` messages from [first, behind).

    `room` bytes are for the values, and for the heads of all messages but one. A value that lies in
    chunks is too large whatever the room. A batch that cannot be opened ends what is returned, or
    is passed by where nothing comes before it. Raises `BadBatch` for bytes that are none.
    """
    taken = Taken()
    room += message_bytes(b"")
    for batch in batches_in(payloads):
        begin = batch.header.first_offset
        if batch.header.columns & Columns.REFERENCES and first <= begin < behind:
            size = References.unpack(batch.value_column.at(0)).size
            return taken if taken.offsets else Taken([begin], [b""], min(size, _U32_MAX))
        rows = range(max(first, begin), min(behind, batch.header.next_offset))
        if not rows:
            continue  # not worth inflating
        try:
            column = batch.value_column
        except (BadBatch, MissingLibrary):
            if taken.offsets:
                return taken
            taken.passed = batch.header.next_offset
            continue
        for offset in rows:
            value = column.at(offset - begin)
            room -= message_bytes(value)
            if room < 0:
                return taken if taken.offsets else Taken([offset], [b""], len(value))
            taken.offsets.append(offset)
            taken.values.append(value)
            if len(taken.offsets) == most:
                return taken
    return taken
