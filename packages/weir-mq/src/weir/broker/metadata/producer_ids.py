"""The owners of producer ids: 12 bytes each, for millions are granted before they are forgotten.

Ids rise with their grants. They lie in chunks in that order, which a snapshot shares: all but the
last are full, and none that is full is written to.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from weir.broker.records.snapshots import Frozen, opened
from weir.model.ids import WINDOW_AT, granted_at

#: Small enough to be copied, or packed, at once.
_CHUNK = 4_096
#: How many of those that were asked for are at hand.
_RECENT_MAX = 4_096
#: The code of the window is in the lowest bits where ids are ordered.
_CODE_BITS = 3
_CODES = (1 << _CODE_BITS) - 1
#: A grant of a new epoch has no stamp of its own: it gets the next one that comes.
NOT_STAMPED = 0


class Holding(NamedTuple):
    """A producer id's newest epoch, its owner, and a stamp not before that epoch's grant."""

    epoch: int
    principal: str
    granted: int


class _Chunk(NamedTuple):
    """Some ids in their order, and the number of each id's owner."""

    keys: array[int]
    owners: array[int]


class ProducerIds:
    """The ids that were granted and are not forgotten."""

    __slots__ = ("_chunks", "_counts", "_firsts", "_free", "_names", "_numbers", "_renewed",
                 "forgot_at", "not_stamped", "recent", "windows")  # fmt: skip

    def __init__(self) -> None:
        """Know of none."""
        self._chunks: list[_Chunk] = []
        #: The first id of each chunk, as it is ordered.
        self._firsts = array("Q")
        #: Principals by number, their numbers, and how many ids each holds; numbers that are free.
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._counts: list[int] = []
        self._free: list[int] = []
        #: Ids of a later epoch than 0: epoch, stamp of its grant.
        self._renewed: dict[int, tuple[int, int]] = {}
        #: Ids with a new epoch, which gets the next stamp that comes.
        self.not_stamped: list[int] = []
        #: Some of those that were asked for: who publishes asks again and again.
        self.recent: dict[int, Holding] = {}
        #: How many were granted with a window.
        self.windows = 0
        #: The stamp at which old ones were forgotten last.
        self.forgot_at = 0

    def __len__(self) -> int:
        return sum(len(chunk.keys) for chunk in self._chunks)

    def __iter__(self) -> Iterator[int]:
        return (_id_of(key) for chunk in self._chunks for key in chunk.keys)

    def get(self, producer: int) -> Holding | None:
        """Return the owner of an id; None if it was never granted, or is forgotten."""
        found = self._find(_key_of(producer))
        if found is None:
            return None
        chunk, place = found
        epoch, granted = self._renewed.get(producer) or (0, granted_at(producer))
        holding = Holding(epoch, self._names[self._chunks[chunk].owners[place]], granted)
        if len(self.recent) >= _RECENT_MAX:
            self.recent.clear()
        self.recent[producer] = holding
        return holding

    def put(self, producer: int, epoch: int, principal: str) -> None:
        """Let a principal hold an id, or its next epoch, which `stamp` will give a stamp."""
        key = _key_of(producer)
        found = self._find(key)
        if found is None:
            self._insert(key, self._number(principal))
        else:
            number, place = found
            chunk = self._chunks[number]
            if self._names[chunk.owners[place]] != principal:
                owners = chunk.owners[:]
                self._drop(owners[place])
                owners[place] = self._number(principal)
                self._chunks[number] = _Chunk(chunk.keys, owners)
        self.recent.pop(producer, None)
        if epoch:
            self._renew(producer, epoch, NOT_STAMPED)

    def stamp(self, stamp: int) -> None:
        """Give this stamp to the new epochs that have none."""
        for producer in self.not_stamped:
            self._renewed[producer] = self._renewed[producer][0], stamp
            self.recent.pop(producer, None)
        self.not_stamped.clear()

    def forget(self, below: int) -> None:
        """Forget the ids of which the newest epoch was granted below a stamp."""
        end = below << _CODE_BITS
        count = bisect_left(self._firsts, end)
        kept = [self._kept(chunk, end, below) for chunk in self._chunks[:count]]
        self._chunks[:count] = [chunk for chunk in kept if chunk.keys]
        self._firsts = array("Q", [chunk.keys[0] for chunk in self._chunks])
        self.recent.clear()

    def held_by(self) -> Iterator[tuple[str, int]]:
        """Yield each principal that holds ids, and how many."""
        for name, number in self._numbers.items():
            yield name, self._counts[number]

    def rows(self) -> list[tuple[int, int, str, int]]:
        """Return all of them: id, epoch, principal, stamp."""
        found = []
        for chunk in self._chunks:
            for key, owner in zip(*chunk, strict=True):
                producer = _id_of(key)
                epoch, granted = self._renewed.get(producer) or (0, granted_at(producer))
                found.append((producer, epoch, self._names[owner], granted))
        return found

    def encode(self) -> list[Frozen]:
        """Return them for a snapshot: principals by number and the epochs of ids, then chunks of
        ids, as they are ordered, and of numbers.
        """
        renewed = [(producer, *row) for producer, row in self._renewed.items()]
        told = [Frozen(partial(tuple, ([*self._names], renewed)))]
        for keys, owners in self._chunks[-1:]:  # what is told now must not be appended to
            self._chunks[-1] = _Chunk(keys[:], owners[:])
            told = [*told, *(Frozen(partial(_packed, *chunk)) for chunk in self._chunks[:-1])]
            told.append(Frozen(partial(_packed, keys, owners)))
        return told

    @classmethod
    def decode(cls, parts: list[Any]) -> ProducerIds:
        """Return what `encode` gave."""
        ids = cls()
        (names, renewed), *chunks = map(opened, parts)
        ids._names, ids._counts = [*names], [0] * len(names)
        for packed_keys, packed_owners in chunks:
            chunk = _Chunk(array("Q"), array("I"))
            chunk.keys.frombytes(packed_keys)
            chunk.owners.frombytes(packed_owners)
            ids._chunks.append(chunk)
            ids._firsts.append(chunk.keys[0])
            ids.windows += sum(1 for key in chunk.keys if key & _CODES)
            for owner, count in Counter(chunk.owners).items():
                ids._counts[owner] += count
        ids._numbers = {name: n for n, name in enumerate(names) if ids._counts[n]}
        ids._free = [n for n, count in enumerate(ids._counts) if not count]
        for row in renewed:
            ids._renew(*row)
        return ids

    @classmethod
    def of_rows(cls, rows: list[Any]) -> ProducerIds:
        """Return what `rows` gave."""
        ids = cls()
        for producer, epoch, principal, granted in rows:
            ids._insert(_key_of(producer), ids._number(principal))
            if epoch:
                ids._renew(producer, epoch, granted)
        return ids

    def _renew(self, producer: int, epoch: int, granted: int) -> None:
        self._renewed[producer] = epoch, granted
        if granted == NOT_STAMPED:
            self.not_stamped.append(producer)

    def _find(self, key: int) -> tuple[int, int] | None:
        """Return the chunk of an id and its place there."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        keys = self._chunks[number].keys
        place = bisect_left(keys, key)
        return (number, place) if place < len(keys) and keys[place] == key else None

    def _insert(self, key: int, owner: int) -> None:
        self.windows += bool(key & _CODES)
        last = len(self._chunks) - 1
        if last < 0 or (key > (keys := self._chunks[last].keys)[-1] and len(keys) >= _CHUNK):
            self._chunks.append(_Chunk(array("Q", [key]), array("I", [owner])))
            self._firsts.append(key)
        elif key > keys[-1]:
            keys.append(key)
            self._chunks[last].owners.append(owner)
        else:  # it was forgotten, and has a new epoch all the same
            number = max(bisect_right(self._firsts, key) - 1, 0)
            keys, owners = self._chunks[number].keys[:], self._chunks[number].owners[:]
            place = bisect_left(keys, key)
            keys.insert(place, key)
            owners.insert(place, owner)
            self._chunks[number] = _Chunk(keys, owners)
            self._firsts[number] = keys[0]

    def _kept(self, chunk: _Chunk, end: int, below: int) -> _Chunk:
        kept = _Chunk(array("Q"), array("I"))
        for key, owner in zip(*chunk, strict=True):
            if key >= end or self._renewed.get(_id_of(key), (0, -1))[1] >= below:
                kept.keys.append(key)
                kept.owners.append(owner)
            else:
                self.windows -= bool(key & _CODES)
                self._drop(owner)
                self._renewed.pop(_id_of(key), None)
        return kept

    def _number(self, principal: str) -> int:
        """Return the number of a principal that holds one more."""
        number = self._numbers.get(principal)
        if number is None:
            if not self._free:
                self._free.append(len(self._names))
                self._names.append("")
                self._counts.append(0)
            number = self._numbers[principal] = self._free.pop()
            self._names[number] = principal
        self._counts[number] += 1
        return number

    def _drop(self, number: int) -> None:
        """Its principal holds one fewer."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._numbers[self._names[number]]
            self._free.append(number)


def _key_of(producer: int) -> int:
    """Return an id as it is ordered: by the stamp of its grant."""
    return granted_at(producer) << _CODE_BITS | producer >> WINDOW_AT & _CODES


def _id_of(key: int) -> int:
    return (key & _CODES) << WINDOW_AT | key >> _CODE_BITS


def _packed(keys: array[int], owners: array[int]) -> tuple[bytes, bytes]:
    return keys.tobytes(), owners.tobytes()
