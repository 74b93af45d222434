"""Snapshots from a peer, as frames of the log: so one log and one sync hold all of a group.

A SNAPSHOT frame begins a group's log anew. Whatever older frames say of the group, at whatever
index, counts no more, its hard state aside, which the frame repeats. Its term and index are those
of the state that it holds; entries follow that one or lie below it, down to `base_index + 1`. The
payload, little-endian, is

    u64 base index, u64 term of that entry, u64 term, vote and fence of the hard state,
    u32 number of this part, u32 parts, then a part of the state

A state of many parts is staged in one go, and counts when its last part is there. One of index 0
is empty: a group that was dropped begins with it when it comes back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir.codec.fields import Buffer, total
from weir.storage.format.frame import Frame, Kind
from weir.storage.format.record import HardState, Record

_HEAD = struct.Struct("<QQQQQII")
#: A part holds this much of the state at least, however small entries may be.
_PART_BYTES_MIN = 64


@dataclass(frozen=True, slots=True)
class Installed:
    """The state of a group after entry `index`, which was of `term`, as a peer sent it."""

    index: int
    term: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """Behind which entry a group's log begins, and that one's term; 0 where it is not known."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A snapshot of which all parts were found, the first one at log position `floor`."""

    floor: int
    base: Base
    hard_state: HardState
    state: Installed


def records(
    group: int,
    state: tuple[int, int],
    base: Base,
    hard_state: HardState,
    data: Sequence[Buffer],
    entry_bytes_max: int,
) -> Iterator[Record]:
    """Yield the records of a snapshot; `state` is the index and the term of what it holds."""
    index, term = state
    views = [memoryview(one) for one in data]
    room = max(entry_bytes_max - _HEAD.size, _PART_BYTES_MIN)
    count = max(-(-total(views) // room), 1)
    for part in range(count):
        head = _HEAD.pack(base.index, base.term, *hard_state, part, count)
        pieces: tuple[Buffer, ...] = (head, *_cut(views, part * room, (part + 1) * room))
        yield Record(group, term, index, Kind.SNAPSHOT, pieces, total(pieces))


def _cut(views: Sequence[memoryview], start: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `end` of views that lie one behind the other."""
    for view in views:
        if start < len(view) and end > 0:
            yield view[max(start, 0) : end]
        start, end = start - len(view), end - len(view)


class Gathering:
    """Puts the parts together again that a scan finds, in the order of their positions."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        """Begin without any."""
        self._begun: dict[int, tuple[int, list[bytes]]] = {}

    def take(self, frame: Frame, payload: memoryview) -> Whole | None:
        """Take a sound frame; return the snapshot if it is now complete."""
        *fields, part, count = _HEAD.unpack_from(payload)
        if part == 0:
            self._begun[frame.group] = (frame.position, [])
        begun = self._begun.get(frame.group)
        if begun is None or len(begun[1]) != part:
            return None
        floor, pieces = begun
        pieces.append(bytes(payload[_HEAD.size :]))
        if part + 1 < count:
            return None
        del self._begun[frame.group]
        state = Installed(frame.index, frame.term, b"".join(pieces))
        return Whole(floor, Base(*fields[:2]), HardState(*fields[2:]), state)
