"""Large values for callers without an event loop: `weir.sync` hands these out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weir.client.connection.system import Background
from weir.client.core.delivered_batches import Delivered, LargeDelivered
from weir.client.core.grants import Grant
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


@dataclass(frozen=True, slots=True)
class BlockingLargeDelivered(LargeDelivered):
    """The twin of a `LargeDelivered`: its message needs no event loop."""

    background: Background | None = None

    def messages(self) -> Iterator[Message]:
        """Yield the one message, a `BlockingLargeMessage` unless its value was loaded."""
        assert self.background is not None  # `delivered_without_async` gives it
        for message in LargeDelivered.messages(self):
            yield without_async(message, self.background)


def delivered_without_async(delivered: Delivered, background: Background) -> Delivered:
    """Return the batch itself, or the twin of one whose value lies in chunks."""
    if not isinstance(delivered, LargeDelivered):
        return delivered
    return BlockingLargeDelivered(
        delivered.topic,
        delivered.partition,
        delivered.batch,
        delivered.offset,
        delivered.next_offset,
        delivered.source,
        delivered.loaded,
        background,
    )


def grant_without_async(grant: Grant, background: Background) -> Grant:
    """Return a grant whose messages need no event loop."""
    if not any(isinstance(one, LargeDelivered) for one in grant.batches):
        return grant
    twins = tuple(delivered_without_async(one, background) for one in grant.batches)
    return replace(grant, batches=twins)
