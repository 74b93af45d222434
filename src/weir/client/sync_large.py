"""Large values for callers without an event loop: `weir.sync` hands these out."""

from __future__ import annotations

from collections.abc import Iterator

from weir.client.background import Background
from weir.codec.fields import Buffer
from weir.model.message import LargeMessage, Message


class BlockingLargeMessage(LargeMessage):
    """A message whose value is not here: `for piece in message.chunks()` streams it.

    `value` raises `TooLarge`; `read()` takes all of it into memory. Errors as `LargeMessage`.
    """

    _background: Background

    def chunks(self) -> Iterator[Buffer]:  # type: ignore[override]  # the twin without async
        """Yield the value in pieces of up to 8 MiB, fetched as they are asked for."""
        return self._background.iterate(super().chunks())

    def read(self) -> bytes:  # type: ignore[override]  # the twin without async
        """Return the whole value; `size` says how much memory that takes."""
        return b"".join(bytes(piece) for piece in self.chunks())


def without_async(message: Message, background: Background) -> Message:
    """Return the message itself, or the twin of one whose value has to be fetched."""
    if type(message) is not LargeMessage:
        return message
    large = BlockingLargeMessage.of(message, message.size, message._pieces)
    assert isinstance(large, BlockingLargeMessage)  # `of` makes what it is called on
    large._background = background
    return large
