"""What a group gives to the log: entries, its hard state, and a snapshot from a peer.

All are frames of the log, so one log and one sync hold all of a group. A SNAPSHOT frame begins a
group's log anew. Whatever older frames say of the group, at whatever index, counts no more, its
hard state aside, which the frame repeats. Its term and index are those of the state that it holds;
entries follow that one or lie below it, down to `base_index + 1`. The payload, little-endian, is

    u64 base index, u64 term of that entry, u64 term, vote and fence of the hard state,
    u32 number of this part, u32 parts, then a part of the state

A state of many parts is staged in one go, and counts when its last part is there. One of index 0 is
empty: a group that was dropped begins with it when it comes back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from weir.codec import Buffer, total
from weir.storage.format.frame import Frame, Kind

_HARD_STATE = struct.Struct("<QQQ")
_SNAPSHOT = struct.Struct("<QQQQQII")
#: A part holds this much of the state at least, however small entries may be.
_PART_BYTES_MIN = 64


class HardState(NamedTuple):
    """What a Raft group must never forget: its term, its vote, its fence."""

    term: int
    vote: int
    fence: int

    def pack(self) -> bytes:
        """Return the payload of a HARD_STATE record."""
        return _HARD_STATE.pack(*self)

    @classmethod
    def unpack(cls, payload: Buffer) -> HardState:
        """Read the payload of a HARD_STATE record."""
        return cls(*_HARD_STATE.unpack(payload))


class Raw(msgspec.Struct, frozen=True):
    """One entry as it lies in the log: `size` bytes of payload in all."""

    index: int
    term: int
    kind: Kind
    payload: tuple[Buffer, ...]
    size: int


HARD_STATE_SIZE = _HARD_STATE.size


class Record(msgspec.Struct, frozen=True):
    """One thing to keep. `payload` holds `size` bytes in all and must not change any more.

    `first_offset` and `next_offset` are those of its messages and `stamp` that of the last one, -1
    where it has none; `tags` are all tags that they have, none where nobody knows. A HARD_STATE
    record has index 0 and `HardState.pack()` as its payload.
    """

    group: int
    term: int
    index: int
    kind: Kind
    payload: tuple[Buffer, ...]
    size: int
    first_offset: int = -1
    next_offset: int = -1
    stamp: int = -1
    tags: tuple[str, ...] = ()


class Installed(msgspec.Struct, frozen=True):
    """The state of a group after entry `index`, which was of `term`, as a peer sent it."""

    index: int
    term: int
    data: bytes


class Base(msgspec.Struct, frozen=True):
    """Behind which entry a group's log begins, and that one's term; 0 where it is not known."""

    index: int
    term: int


class Whole(msgspec.Struct, frozen=True):
    """A snapshot of which all parts were found, the first one at log position `floor`."""

    floor: int
    base: Base
    hard_state: HardState
    state: Installed


def snapshot_records(
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
    room = max(entry_bytes_max - _SNAPSHOT.size, _PART_BYTES_MIN)
    count = max(-(-total(views) // room), 1)
    for part in range(count):
        head = _SNAPSHOT.pack(base.index, base.term, *hard_state, part, count)
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
        *fields, part, count = _SNAPSHOT.unpack_from(payload)
        if part == 0:
            self._begun[frame.group] = (frame.position, [])
        begun = self._begun.get(frame.group)
        if begun is None or len(begun[1]) != part:
            return None
        floor, pieces = begun
        pieces.append(bytes(payload[_SNAPSHOT.size :]))
        if part + 1 < count:
            return None
        del self._begun[frame.group]
        state = Installed(frame.index, frame.term, b"".join(pieces))
        return Whole(floor, Base(*fields[:2]), HardState(*fields[2:]), state)
