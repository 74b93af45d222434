"""One connection's requests, without the connection: numbers, the table of what awaits an answer.

A `handle` is whatever the shell wants back with the answer. Requests run at batch rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from weir.codec.fields import Buffer
from weir.errors import Overloaded, RemoteProtocolError
from weir.model.limits import REQUESTS_PENDING_MAX
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.frame import Flags

H = TypeVar("H")

_RESPONSE = int(Flags.RESPONSE)  # a plain number: flag arithmetic costs more than all else here


class Answered(msgspec.Struct, Generic[H], frozen=True):
    """A reply with the handle and the correlation number of its request."""

    handle: H
    correlation: int
    reply: m.Reply


class Session(Generic[H]):
    """Correlates the replies of one connection with its requests; lives as long as it does."""

    __slots__ = ("_last", "_stream", "pending")

    def __init__(self, first: int = 1) -> None:
        """Start a connection: nothing asked, nothing read. Requests are numbered from `first`."""
        self._stream = ClientStream()
        #: By their numbers, opcodes and handles of the requests that await an answer, and the
        #: requests; None instead of one that was answered here.
        self.pending: dict[int, tuple[int, H, m.Request | None]] = {}
        self._last = first - 1

    def __len__(self) -> int:
        """Return the number of requests that await an answer."""
        return len(self.pending)

    @property
    def full(self) -> bool:
        """Whether one more request would be refused."""
        return len(self.pending) >= REQUESTS_PENDING_MAX

    def ask(self, request: m.Request, handle: H) -> tuple[int, tuple[Buffer, ...]]:
        """Return the request's correlation number and the buffers to write.

        Raises `Overloaded` while 1,024 requests await their answers.
        """
        if len(self.pending) >= REQUESTS_PENDING_MAX:
            raise Overloaded(
                f"{REQUESTS_PENDING_MAX:,} requests await answers on this connection: "
                "wait for some of them"
            )
        correlation = self._last + 1
        buffers = encode_request(request, correlation)
        self._last = correlation
        self.pending[correlation] = (request.declaration.opcode, handle, request)
        return correlation, buffers

    def receive(self, data: bytes) -> list[Answered[H]]:
        """Take bytes as they come; return whole replies in order.

        Raises `RemoteProtocolError`; then all that these bytes were to answer is still for `end`.
        """
        answered: dict[int, Answered[H]] = {}
        for frame in self._stream.receive(data):
            number = frame.correlation
            opcode, handle, _ = self.pending.get(number, (None, None, None))
            is_reply = frame.flags & _RESPONSE and frame.opcode == opcode
            if handle is None or not is_reply or number in answered:
                raise RemoteProtocolError(
                    f"a frame with opcode {frame.opcode} and correlation {number} "
                    "answers no request of this connection"
                )
            answered[number] = Answered(handle, number, decode_reply(frame))
        for number in answered:
            del self.pending[number]
        return [*answered.values()]

    def let_go(self, which: Callable[[m.Request], bool], handle: H) -> list[tuple[H, int]]:
        """Wait no more for the answers to some requests; return their handles and numbers.

        Their answers may still come, and go to `handle`.
        """
        found = []
        for number, (opcode, asking, request) in self.pending.items():
            if request is not None and which(request):
                found.append((asking, number))
                self.pending[number] = (opcode, handle, None)
        return found

    def end(self) -> list[tuple[H, int]]:
        """Forget every request without an answer; return their handles and numbers, in order.

        Each of them may or may not have happened: whoever asked decides whether to ask again.
        """
        lost = [(handle, correlation) for correlation, (_, handle, _) in self.pending.items()]
        self.pending.clear()
        return lost
