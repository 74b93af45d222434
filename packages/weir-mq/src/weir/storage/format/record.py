"""What a group gives to the log."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from weir.codec.fields import Buffer
from weir.storage.format.frame import Kind

_HARD_STATE = struct.Struct("<QQQ")


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


@dataclass(frozen=True, slots=True)
class Raw:
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
    where it has none. A HARD_STATE record has index 0 and `HardState.pack()` as its payload.
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
