"""One connection's requests, without the connection: numbers, the table of what awaits an answer.

A `handle` is whatever the shell wants back with the answer. Requests run at batch rate. Where no
answer comes, `Liveness` says what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from weir.codec import Buffer
from weir.errors import Overloaded, RemoteProtocolError
from weir.model.limits import REQUESTS_PENDING_MAX
from weir.protocol.client import messages as m
from weir.protocol.client.codec import (
    ClientStream,
    decode_notice,
    decode_reply,
    encode_request,
    is_notice,
)
from weir.protocol.frame import Flags

H = TypeVar("H")

PING_AFTER = 10.0
DEAD_AFTER = 30.0
#: If other nodes can take over, a node that owes an answer is pinged and given up sooner.
PROMPT_PING_AFTER = 0.3
PROMPT_DEAD_AFTER = 2.0
#: A leader that owes an answer for so long may have been followed by another.
SILENT_AFTER = 0.3
#: How often that is noted from then on.
SILENT_EVERY = 0.1
#: The loop was busy for so long: what came meanwhile was not heard yet.
_LATE = 0.5

_RESPONSE = int(Flags.RESPONSE)  # a plain number: flag arithmetic costs more than all else here


class Answered(msgspec.Struct, Generic[H], frozen=True):
    """A reply with the handle and the correlation number of its request."""

    handle: H
    correlation: int
    reply: m.Reply


class Session(Generic[H]):
    """Correlates the replies of one connection with its requests; lives as long as it does."""

    __slots__ = ("_last", "_stream", "pending", "throttle_ms")

    def __init__(self, first: int = 1) -> None:
        """Start a connection: nothing asked, nothing read. Requests are numbered from `first`."""
        self._stream = ClientStream()
        #: By their numbers, opcodes and handles of the requests that await an answer, and the
        #: requests; None instead of one that was answered here.
        self.pending: dict[int, tuple[int, H, m.Request | None]] = {}
        self._last = first - 1
        #: For how long the broker reads nothing, as it said since somebody set this to 0.
        self.throttle_ms = 0

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
            if is_notice(frame):
                self.throttle_ms = decode_notice(frame).throttle_ms
                continue
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

        Each of them may or may not have taken effect: the caller decides whether to retry.
        """
        lost = [(handle, correlation) for correlation, (_, handle, _) in self.pending.items()]
        self.pending.clear()
        return lost


Pending = Mapping[int, tuple[int, Any, m.Request | None]]


class Look(NamedTuple):
    """What the shell of a connection is to do now, and in how many seconds it is to look again."""

    #: For how many seconds nothing was heard, as far as something was due.
    silence: float
    is_dead: bool
    #: Whether answers are due for 0.3 s.
    is_silent: bool
    pings: bool
    wait: float


class Liveness:
    """Whether the other side of one connection lives, by when it was heard and what it owes.

    After 10 s of silence it is to be pinged, after 30 s it is dead; if it is `prompt`, while
    answers are due, after 0.3 s and 2 s. Times are seconds of one clock.
    """

    __slots__ = ("heard", "looks_at", "owed", "pinged_at", "prompt")

    def __init__(self, now: float) -> None:
        """Begin when it is connected."""
        #: Whether others can take over, so that answers are due soon.
        self.prompt = False
        #: When something was heard last; since when answers are due, if any are; and when `look`
        #: comes next.
        self.heard = self.owed = self.looks_at = now
        self.pinged_at = 0.0

    def throttled(self, now: float, seconds: float) -> None:
        """The other side lives, and will answer nothing for about so long."""
        self.owed = max(self.owed, now + seconds)

    def overdue(self, now: float, pending: Pending) -> Iterator[m.Request | None]:
        """Yield the requests that await an answer too long. What the broker may keep for a while
        is due once that is over, or once a ping that came behind it has no answer either.
        """
        late_ms = (self.silent_for(now) - SILENT_AFTER) * 1_000
        if self.pinged_at > self.heard and now - self.pinged_at >= SILENT_AFTER:
            late_ms = math.inf
        if late_ms >= 0:
            for _, _, request in pending.values():
                if getattr(request, "wait_ms", 0) <= late_ms:
                    yield request

    def silent_for(self, now: float) -> float:
        """Return for how many seconds answers are due and nothing has come."""
        return now - max(self.heard, self.owed)

    def look(self, now: float, pending: Pending) -> Look:
        """Return what is to be done, by what is `pending`; call it again when that says."""
        if now - self.looks_at > _LATE:
            self.owed = max(self.owed, now)
        silence = now - self.heard
        ping_after, dead_after = PING_AFTER, DEAD_AFTER
        if self.prompt and pending:
            silence = self.silent_for(now)
            ping_after, dead_after = PROMPT_PING_AFTER, PROMPT_DEAD_AFTER
        is_silent = self.prompt and any(True for _ in self.overdue(now, pending))
        most = PING_AFTER
        if self.prompt:
            most = SILENT_EVERY if is_silent else SILENT_AFTER
        pinged = self.prompt and self.pinged_at > self.heard
        wait = ping_after - silence if silence < ping_after else dead_after - silence
        return Look(
            silence,
            silence >= dead_after,
            is_silent,
            silence >= ping_after and not pinged,
            max(min(wait, most), 0.001),
        )
