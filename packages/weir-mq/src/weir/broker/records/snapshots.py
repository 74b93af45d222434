"""States as they travel and lie in checkpoints: MessagePack, in which large parts are packed late.

A state of hundreds of megabytes is taken in a moment, on the loop, and packed off it: what it is
made of is copied only where it is written to meanwhile. Each `Frozen` part is small, so that a
thread that packs them releases the interpreter between them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from weir.codec import Buffer, crc32c
from weir.model.limits import MIB
from weir.storage.disk import Disk


class Frozen:
    """A part of a state, as it was when this was made; `tell` says it as MessagePack can hold it.

    What `tell` reads must not change any more. It is a function, for what packs a part late knows
    nothing of the tables that it is a part of.
    """

    __slots__ = ("tell",)

    def __init__(self, tell: Callable[[], object]) -> None:
        """Be told late, perhaps in another thread, perhaps more than once: by a function, for each
        table packs its own rows.
        """
        self.tell = tell

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frozen) and pack(self) == pack(other)

    def __hash__(self) -> int:
        return hash(pack(self))


def opened(part: Any) -> Any:
    """Return what a part holds, whether it was packed in between or not."""
    return part.tell() if isinstance(part, Frozen) else part


def taken(state: object) -> object:
    """Return a state of which nothing changes any more: what is not frozen in it is packed now.

    A state is a tuple of which each element is frozen, a list of `Frozen`, or something small.
    """
    if not isinstance(state, tuple):
        return msgspec.Raw(pack(state))
    return tuple(part if _is_frozen(part) else msgspec.Raw(pack(part)) for part in state)


def _is_frozen(part: object) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], Frozen)


_encoder = msgspec.msgpack.Encoder(enc_hook=opened)
unpack = partial(msgspec.msgpack.decode, strict=False)
_split = partial(msgspec.msgpack.decode, type=list[msgspec.Raw])


class Packing(msgspec.Struct, frozen=True):
    """A state that was `taken`, to be packed off the loop, as if it were read from a log."""

    log: int
    state: object
    cached: None = None
    #: What it takes is known when it is packed.
    size: int = 0

    def pin(self) -> None:
        """It lies in no file."""

    def release(self) -> None:
        """It lies in no file."""

    def run(self, disk: Disk) -> list[bytes]:
        """Return the state, packed."""
        return [pack(self.state)]


class Decoder(Protocol):
    """What knows the states of a machine."""

    def decode(self, data: Any) -> object:
        """Return the state that another replica's `encode` gave; called in another thread."""


class Unpacking:
    """A state as it came over a link, to be decoded off the loop, as if it were read from a log."""

    __slots__ = ("_data", "_decoder", "error", "log", "state")

    cached = None
    #: It is there already, and what it becomes is no message.
    size = 0

    def __init__(self, log: int, data: Buffer, decoder: Decoder) -> None:
        """Let `decoder` make a state of `data`, which `pack` gave."""
        self.log = log
        self._data = data
        self._decoder = decoder
        #: What came of it, once it was run.
        self.state: object = None
        #: Why nothing did.
        self.error: Exception | None = None

    def pin(self) -> None:
        """It lies in no file."""

    def release(self) -> None:
        """It lies in no file."""

    def run(self, disk: Disk | None) -> list[bytes]:
        """Decode it; a part at a time where it is large, so that others have their turn."""
        try:
            self.state = self._decoder.decode(unpack_slowly(self._data))
        except Exception as error:  # whatever a state's decoder meets in bytes that are none
            self.error = error
        return []


def unpack_slowly(data: Buffer) -> Any:
    """Return what `unpack` does, of a tuple of which some elements are long lists."""
    if len(data) < MIB:
        return unpack(data)
    return [
        [unpack(part) for part in _split(element)] if len(element) >= MIB else unpack(element)
        for element in _split(data)
    ]


def pack(state: object) -> bytes:
    """Return a state as MessagePack."""
    return _encoder.encode(state)


def pack_onto(state: object, out: bytearray) -> None:
    """Append a state as MessagePack."""
    _encoder.encode_into(state, out, -1)


def crc_from(data: bytearray, start: int) -> int:
    """Return the CRC-32C of large data from byte `start` on, a piece at a time."""
    crc = 0
    with memoryview(data) as view:
        for at in range(start, len(view), MIB):
            crc = crc32c(view[at : at + MIB], crc)
    return crc
