"""The load options `keys`, `tags` and `partitions`: which messages of a topic a query reads.

They belong to the options of a load, so every use of one DataFrame (a union, a self-join, a cache,
a stream) reads the same rows. A stream stores their `digest` in its checkpoint, because the offsets
there say nothing about rows that were left out. Tags are asked for, and a broker may leave out what
has none of them. Keys, and tags again, are looked for in what came: a batch lists its tags, so one
without a wanted tag is passed over with its columns closed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import BadOption
from weir.model.arrow import made
from weir.model.batch import Batch
from weir.model.limits import TAGS_PER_FETCH_MAX
from weir.model.slices import tags_of

#: Bytes of the digest in a checkpoint: enough to tell any two selections apart.
_DIGEST_BYTES = 8

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages to read; None means any. A key of None is no key, and a tag of "" is no tag."""

    keys: frozenset[bytes | None] | None = None
    tags: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Selection:
        """Read the options; their names are in lower case. Raises `BadOption`."""
        return cls(
            _listed(options, "keys", _key, 'keys such as ["EWR", {"hex": "00ff"}, null]'),
            _listed(options, "tags", _tag, 'tags such as ["late", ""]'),
            _listed(options, "partitions", _partition, "partitions such as [0, 2]"),
        )

    @property
    def filters_rows(self) -> bool:
        """Whether some messages of a partition may be left out."""
        return self.keys is not None or self.tags is not None

    @property
    def asked(self) -> tuple[str, ...]:
        """The tags to ask a broker for; none where all are wanted, or too many to be asked for."""
        if self.tags is None or len(self.tags) > TAGS_PER_FETCH_MAX:
            return ()
        return tuple(sorted(self.tags))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns by which messages are told apart."""
        return ("key",) * (self.keys is not None) + ("tag",) * (self.tags is not None)

    @property
    def digest(self) -> str:
        """A short text that is the same for the same selection; "" if all messages are read."""
        if not self.filters_rows and self.partitions is None:
            return ""
        parts = {
            "keys": None if self.keys is None else sorted(map(_spelt, self.keys)),
            "tags": None if self.tags is None else sorted(self.tags),
            "partitions": None if self.partitions is None else sorted(self.partitions),
        }
        text = json.dumps(parts, sort_keys=True).encode()
        return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()

    def reads(self, partition: int) -> bool:
        """Return whether messages of a partition are wanted."""
        return self.partitions is None or partition in self.partitions

    def wants(self, batch: Batch) -> bool:
        """Return whether a row of `batch` may pass: told by its list of tags alone."""
        if self.tags is None:
            return True
        return not self.tags.isdisjoint(tags_of(batch))

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass."""
        if self.keys is not None:
            keys = made(pa.binary(), list(self.keys))
            rows = rows.filter(pc.is_in(rows.column("key"), value_set=keys))
        if self.tags is not None:
            tags = made(pa.string(), [tag.encode() or None for tag in self.tags])
            rows = rows.filter(pc.is_in(rows.column("tag"), value_set=tags))
        return rows


def _listed(
    options: Mapping[str, str], name: str, read: Callable[[object], V], example: str
) -> frozenset[V] | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        given = json.loads(text)
        if not isinstance(given, list) or not given:
            raise ValueError
        return frozenset(map(read, given))
    except ValueError:
        raise BadOption(f"option {name} is {text!r}: give a JSON list of {example}") from None


def _key(given: object) -> bytes | None:
    match given:
        case None:
            return None
        case str():
            return given.encode()
        case {"hex": str(digits), **rest} if not rest:
            return bytes.fromhex(digits)
    raise ValueError


def _tag(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError
    given.encode()  # a lone surrogate is no text, and no message has it
    return given


def _partition(given: object) -> int:
    # bool is an int to isinstance, and true is no partition.
    if type(given) is not int or given < 0:
        raise ValueError
    return given


def _spelt(key: bytes | None) -> str:
    return "" if key is None else f"x{key.hex()}"
