"""What to read, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from weir.client.arguments import ReadFrom, check_choice, key_bytes, whole_number
from weir.client.core.delivered_batches import Pick
from weir.client.reader.positions import Begin, End, Start, Until
from weir.errors import BadRequest
from weir.model.limits import FETCH_BYTES_MAX, MIB, VALUE_BYTES_LOADED_MAX
from weir.model.topic import check_order
from weir.order.clock import STAMP_MAX

#: What of a reader has one order: see `Client.reader`.
ReadingOrder = Literal["partition", "total", "best-effort"]
BEST_EFFORT: Final = "best-effort"
#: An interval in which a leader that is well tells something new, in seconds, and for how long at
#: most an order of best effort waits for one that does not: a busy core is not a dead one.
_INTERVAL = 0.05
SILENT_AFTER = 10 * _INTERVAL


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read: see `Client.reader`."""

    start: Start = "earliest"
    partitions: Sequence[int] | None = None
    max_bytes: int = 4 * MIB
    follow: bool = True
    until: Until | None = None
    key: bytes | str | Sequence[bytes | str] | None = None
    tag: str | Sequence[str] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX
    #: What has one order: each "partition", all together ("total"), or None: as the topic says.
    order: ReadingOrder | None = None
    read_from: ReadFrom = "leader"

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        whole_number("max_bytes", self.max_bytes, 1, FETCH_BYTES_MAX)
        whole_number("value_bytes_max", self.value_bytes_max, 0)
        if self.partitions is not None and not self.partitions:
            raise BadRequest("partitions=[]: name at least one, or leave it out for all")
        numbers = [] if self.partitions is None else self.partitions
        if not isinstance(numbers, Collection) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise BadRequest(f"partitions={numbers!r}: give a list of numbers from 0 on")
        if self.order is not None and self.order != BEST_EFFORT:
            check_order(self.order)
        check_choice("read_from", self.read_from, ReadFrom)

    def pick(self, begin: Begin, end: End | None) -> Pick:
        """Return which messages are wanted. Raises `BadRequest`."""
        keys = [self.key] if isinstance(self.key, bytes | str) else self.key
        tags = [self.tag] if isinstance(self.tag, str) else self.tag
        for name, wanted in (("key", keys), ("tag", tags)):
            if not isinstance(wanted, Collection | None):
                raise BadRequest(f"{name}={wanted!r}: give one, or a list of them")
        return Pick(
            None if keys is None else map(key_bytes, keys),
            tags,
            begin.stamp,
            STAMP_MAX if end is None else end.stamp,
        )
