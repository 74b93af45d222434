"""The client without async, which applications import as `weir.sync`: twins of the one with it.

A twin speaks for an object of the other client, which lives in an event loop in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from weir.client.connection.system import Background
from weir.client.core.delivered_batches import Delivered, LargeDelivered
from weir.codec import Buffer
from weir.model.message import LargeMessage, Message

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
S = TypeVar("S")


class BlockingLargeMessage(LargeMessage):
    """A message whose value is not here: `for piece in message.chunks()` streams it.

    `value` raises `TooLarge`; `read()` takes all of it into memory. Errors as `LargeMessage`.
    """

    _background: Background

    def __new__(cls, message: LargeMessage, background: Background) -> Self:
        """Let `background` fetch what another message would stream."""
        large = LargeMessage.__new__(cls, message, message.size, message.pieces)
        large._background = background
        return large

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
    return BlockingLargeMessage(message, background)


class BlockingLargeDelivered(LargeDelivered, frozen=True):
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


class Twin(Generic[A]):
    """The blocking side of an async object."""

    def __init__(self, of: A, background: Background) -> None:
        """Speak for `of`, which lives in the loop of `background`."""
        self._of = of
        self._background = background


def waits(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the twin of an async method."""

    @wraps(method)
    def call(self: Twin[A], /, *arguments: P.args, **named: P.kwargs) -> R:
        return self._background.run(method(self._of, *arguments, **named))

    return call


def gives(
    method: Callable[Concatenate[A, P], R], twin: Callable[[R, Background], S]
) -> Callable[Concatenate[Any, P], S]:
    """Return the twin of a method that makes an async object: it makes that one's twin."""

    @wraps(method)
    def call(self: Twin[A], /, *arguments: P.args, **named: P.kwargs) -> S:
        return twin(method(self._of, *arguments, **named), self._background)

    return call


def in_loop(
    method: Callable[Concatenate[A, P], R], twin: Callable[[R, Background], S]
) -> Callable[Concatenate[Any, P], S]:
    """Return the same as `gives`, for a method that sets timers: the loop must call it."""

    @wraps(method)
    def call(self: Twin[A], /, *arguments: P.args, **named: P.kwargs) -> S:
        async def within() -> R:
            return method(self._of, *arguments, **named)

        return twin(self._background.run(within()), self._background)

    return call
