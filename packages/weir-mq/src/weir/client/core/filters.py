"""Which messages of a batch a reader wants: by stamp, key and tag.

A batch is skipped by its stamp and by its tag list, which is never compressed, before a column is
opened. What is left is found in the columns of key hashes and tag indices, without splitting one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress

from weir.client.core.delivered_batches import Delivered
from weir.errors import BadRequest
from weir.model.batch import Batch
from weir.model.columns import Cursor, key_hash, tag_indices, text
from weir.model.header import HEADER_SIZE, Columns
from weir.model.message import Message
from weir.model.stamp import STAMP_MAX

_WIDTH = 4
_HASH = struct.Struct("<I")
#: Below one message in so many, single rows are cheaper than splitting all of them.
_RARE = 8
_NO_HEADERS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class Picked(Delivered):
    """Some messages of a batch: `rows` counts from the batch's first one."""

    rows: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.rows)

    def values(self) -> list[bytes]:
        """Split the values, one `bytes` a message."""
        return [message.value for message in self.messages()]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        if len(self.rows) * _RARE < len(self.batch):
            return self._each()
        wanted = bytearray(len(self.batch))
        for row in self.rows:
            wanted[row] = 1
        return compress(self._opened().messages(self.topic, self.partition), wanted)

    def _each(self) -> Iterator[Message]:
        batch, header = self._opened(), self.batch.header
        keys, tags = batch.key_column, batch.tag_column
        times, pairs = batch.numbers(Columns.TIME), batch.headers_column
        for row in self.rows:
            key = keys[1].at(row) if keys and _is_set(keys[0], row) else None
            headers = _NO_HEADERS
            if pairs:
                ends, names, values = pairs
                inside = range(ends[row], ends[row + 1])
                headers = {text(names.at(i)): values.at(i) for i in inside}
            yield Message(
                batch.value_column.at(row),
                key,
                (tags[0][tags[1][row]] or None) if tags else None,
                times[row] if times else header.base_time,
                headers,
                self.topic,
                self.partition,
                header.first_offset + row,
                header.stamp,
            )


class Pick:
    """What a reader wants: stamps in [floor, ceiling), one of some keys, one of some tags."""

    __slots__ = ("_hashes", "ceiling", "floor", "keys", "tags")

    def __init__(
        self,
        keys: Iterable[bytes] | None = None,
        tags: Iterable[str] | None = None,
        floor: int = 0,
        ceiling: int = STAMP_MAX,
    ) -> None:
        """Take keys and tags, None for whichever; stamps as `weir.model.stamp` has them."""
        self.keys = None if keys is None else frozenset(keys)
        self.tags = None if tags is None else frozenset(tags)
        self.floor = floor
        self.ceiling = ceiling
        if self.keys == frozenset() or self.tags == frozenset():
            raise BadRequest("an empty list of keys or tags picks nothing: leave it out for all")
        self._hashes = {_HASH.pack(key_hash(key)) for key in self.keys or ()}

    @property
    def wants_all(self) -> bool:
        """Whether no message is left out."""
        bounded = self.floor > 0 or self.ceiling < STAMP_MAX
        return self.keys is None and self.tags is None and not bounded

    def passes(self, delivered: list[Delivered]) -> tuple[list[Delivered], int | None]:
        """Return what may be wanted, by its stamp alone, so that nothing is opened yet; and the
        offset of the first message at the ceiling, if it came.
        """
        found: list[Delivered] = []
        for part in delivered:
            stamp = part.batch.header.stamp
            if stamp >= self.ceiling:
                return found, part.offset
            if stamp >= self.floor:
                found.append(part)
        return found, None

    def wanted(self, part: Delivered) -> Delivered | None:
        """Return what is wanted of a batch by key and tag; None if nothing is."""
        batch = part.batch
        rows: Iterable[int] = range(part.skip, part.skip + len(part))
        if self.tags is not None:
            listed = set(tags_listed(batch))
            if not listed & self.tags:
                return None
            if not listed <= self.tags:
                rows = self._tagged(part._opened(), rows)
        if self.keys is not None:
            within = frozenset(rows)
            rows = [row for row in self._keyed(part._opened()) if row in within]
        chosen = tuple(rows)
        if len(chosen) == len(part):
            return part
        if not chosen:
            return None
        return Picked(part.topic, part.partition, batch, part.offset, part.next_offset, chosen)

    def _tagged(self, batch: Batch, rows: Iterable[int]) -> list[int]:
        column = batch.tag_column
        assert self.tags is not None
        assert column is not None  # it has a tag list
        names, numbers = column
        wanted = {number for number, name in enumerate(names) if name in self.tags}
        indices = tag_indices(numbers, len(names))
        return [row for row in rows if indices[row] in wanted]

    def _keyed(self, batch: Batch) -> list[int]:
        column = batch.key_column
        if column is None:
            return []
        validity, keys, hashes = column
        data = hashes.tobytes()
        assert self.keys is not None  # asked only where keys are wanted
        return sorted(
            row
            for pattern in self._hashes
            for row in _where(data, pattern)
            if _is_set(validity, row) and keys.at(row) in self.keys
        )


def tags_listed(batch: Batch) -> list[str]:
    """Return the tag list alone, however the columns lie behind it. Raises `BadBatch`."""
    if not batch.header.columns & Columns.TAG:
        return []
    return Cursor(batch.view, HEADER_SIZE).tag_list()


def _where(data: bytes, pattern: bytes) -> Iterator[int]:
    """Yield each place of a number in a column of four bytes each, found at C speed."""
    at = data.find(pattern)
    while at >= 0:
        place, odd = divmod(at, _WIDTH)
        if not odd:
            yield place
        at = data.find(pattern, (place + 1) * _WIDTH)


def _is_set(bits: memoryview, row: int) -> bool:
    return bool(bits[row >> 3] & (1 << (row & 7)))
