"""A message, as a person writes and reads it. The data path moves batches instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from weir.codec import Buffer
from weir.errors import TooLarge


class Pieces(Protocol):
    """Where the pieces of a large value come from, in order; each iteration fetches them again."""

    def __aiter__(self) -> AsyncIterator[Buffer]:
        """Begin with the first one. What comes may raise any `WeirError`."""


class Origin(NamedTuple):
    """The device that sent a message; `sequence` is None if it asked for no check of repeats.

    `generation` says how often it was replaced before, and `verified` whether it proved its
    identity: otherwise anybody may have sent the message in its name.
    """

    hub: int
    sn: int
    boot: int
    sequence: int | None
    generation: int = 0
    verified: bool = False


class Message(NamedTuple):
    """One message. `time` is microseconds since 1970; `offset` and `stamp` are the leader's.

    `origin` says which device sent it, None for what clients publish. `schema` is the version of
    the topic's schema that the value has, 0 if none is said.
    """

    value: bytes
    key: bytes | None = None
    tag: str | None = None
    time: int = 0
    headers: Mapping[str, bytes] = {}
    topic: str = ""
    partition: int = -1
    offset: int = -1
    stamp: int = -1
    origin: Origin | None = None
    schema: int = 0

    @property
    def size(self) -> int:
        """The bytes of the value, whether it is here or not."""
        return len(self.value)

    @property
    def loaded(self) -> bool:
        """Whether `value` is here; else `chunks` and `read` fetch it."""
        return True

    def json(self) -> Any:
        """Return what was published as JSON. Raises `ValueError` for any other value."""
        try:
            return msgspec.json.decode(self.value)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"the value of {self.topic}/{self.partition} at {self.offset} is no JSON: {error}"
            ) from None

    async def chunks(self) -> AsyncIterator[Buffer]:
        """Yield the value in pieces: one, unless it is too large to be handed out whole."""
        yield self.value

    async def read(self) -> bytes:
        """Return the whole value, however large."""
        return self.value


class LargeMessage(Message):
    """A message whose value is not here: `async for piece in message.chunks()` streams it.

    `value` raises `TooLarge`; `await read()` takes all of it into memory.
    """

    _size: int
    _pieces: Pieces | None

    def __new__(cls, message: Message, size: int, pieces: Pieces | None = None) -> Self:
        """Take everything but the value from `message`."""
        large = tuple.__new__(cls, (b"", *message[1:]))
        large._size, large._pieces = size, pieces
        return large

    @property
    def pieces(self) -> Pieces | None:
        """Where the pieces of the value come from; None where nobody fetches them."""
        return self._pieces

    @property
    def value(self) -> bytes:
        """Raise `TooLarge`."""
        raise TooLarge(
            f"the value of {self.topic}/{self.partition} offset {self.offset} has {self._size:,} "
            "bytes and was not loaded: stream it with `async for piece in message.chunks()`, or "
            "give the reader a larger value_bytes_max",
            self._size,
        )

    def __iter__(self) -> Iterator[Any]:
        """Raise `TooLarge`: unpacking would give a value that is none."""
        return iter((self.value,))

    def __getitem__(self, at: Any) -> Any:
        """Return a column by its place. Raises `TooLarge` where the value is among them."""
        if 0 in range(len(self))[at if isinstance(at, slice) else slice(at, at + 1 or None)]:
            _ = self.value
        return super().__getitem__(at)

    @property
    def size(self) -> int:
        """The bytes of the value."""
        return self._size

    @property
    def loaded(self) -> bool:
        """Say no."""
        return False

    async def chunks(self) -> AsyncIterator[Buffer]:
        """Yield the value in pieces of up to 8 MiB, fetched as they are asked for.

        Raises `BadBatch` behind the last one if they are not what was published: use nothing
        before that. `ValueLost` once it is past retention.
        """
        if self._pieces is None:
            raise TooLarge(
                "this reader does not fetch chunks: read the message with `weir.connect`",
                self._size,
            )
        async for piece in self._pieces:
            yield piece

    async def read(self) -> bytes:
        """Return the whole value; `size` says how much memory that takes."""
        return b"".join([bytes(piece) async for piece in self.chunks()])
