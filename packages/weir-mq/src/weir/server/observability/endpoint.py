"""The metrics endpoint: a few pages over HTTP, and the text that Prometheus reads.

Nothing else is served: GET and HEAD, one request a connection, all bounded.

/metrics  all figures        /healthz  200 while the process serves its loop
/readyz   200 once it leads all its partitions, 503 while it starts or stops, or its disk is full

In a crowd the oldest connection that asks nothing makes room. Where all ask, only pages that cost
next to nothing are served: nobody can make a node look dead by asking for its figures.

The text is Prometheus's exposition format 0.0.4: families of samples, line by line.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

import msgspec

from weir.server.observability.http_stream import (
    HandshakePace,
    HttpStream,
    PlainStream,
    begin_stream,
)
from weir.tls.peers import PeerCertificate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Histogram(Protocol):
    """Values counted by class: `counts[i]` are those up to `bounds[i]`, the last one the rest."""

    @property
    def bounds(self) -> Sequence[float]:
        """The upper ends of the classes, rising."""

    @property
    def counts(self) -> Sequence[int]:
        """How many values are in each class, and above all of them."""

    @property
    def total(self) -> float:
        """The sum of the values."""


Sample = tuple[Labels, float | Histogram]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NO_LABELS: Labels = {}
CONNECTIONS_MAX = 16
#: Connections beyond which nobody is listened to: their requests are being answered.
CROWD_MAX = 8 * CONNECTIONS_MAX
HEAD_BYTES_MAX = 8_192
REQUEST_SECONDS = 5.0

#: Status, content type and text of a page.
Answer = tuple[int, str, str]
Page = Callable[[], Awaitable[Answer]]

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
    503: "Service Unavailable",
}
PLAIN = "text/plain; charset=utf-8"


class Family(msgspec.Struct, frozen=True):
    """One metric: its samples differ by labels. A histogram's bounds are in the metric's unit."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: Iterable[Sample]

    def lines(self) -> Iterator[str]:
        """Yield the lines, headings first."""
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            if isinstance(value, int | float):
                yield f"{self.name}{_labels(labels)} {_number(value)}"
            else:
                yield from _histogram(self.name, labels, value)


def one(value: float | Histogram) -> list[Sample]:
    """Return the samples of a family that has a single one, without labels."""
    return [(_NO_LABELS, value)]


def _histogram(name: str, labels: Labels, value: Histogram) -> Iterator[str]:
    counts = [*accumulate(value.counts)]  # a copy: another thread may be counting
    for bound, count in zip([*map(_number, value.bounds), "+Inf"], counts, strict=True):
        yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {counts[-1]}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    # In full: nine digits of a time in seconds are off by minutes.
    return str(int(value)) if value == int(value) else repr(value)


class Visitor(NamedTuple):
    """The sender of a request: its address, its certificate, and the token in the request."""

    address: str
    is_private: bool
    peer: PeerCertificate | None
    token: bytes


class Guard(Protocol):
    """Decides which visitors may see pages that are not for everybody."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What is served by TLS; None without a certificate."""

    async def check(self, visitor: Visitor) -> Answer | None:
        """Return the answer to a visitor that may not see a page; None if it may."""


class Pages:
    """Answers requests for the pages it was given."""

    def __init__(
        self, pages: Mapping[str, Page], cheap: Collection[str] = (), guard: Guard | None = None
    ) -> None:
        """Take the pages by path; `cheap` pages are served under load too, and to everybody; the
        others only to visitors that `guard` admits.
        """
        self._guard = guard
        self._pace = HandshakePace()
        self._pages = pages
        self._cheap = cheap
        self._open = 0
        #: Connections that have not asked for anything yet, the oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections during the block; yields the port. Raises `OSError`."""
        server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        try:
            bound: int = server.sockets[0].getsockname()[1]
            yield bound
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        crowded = self._open > CONNECTIONS_MAX and not self._make_room()
        self._silent[writer] = None
        try:
            if self._open <= CROWD_MAX:
                async with asyncio.timeout(REQUEST_SECONDS):
                    context = None if self._guard is None else self._guard.context
                    stream = await begin_stream(reader, writer, context, self._pace)
                    stream.write(await self._respond(stream, writer, crowded))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the visitor is gone, or too slow in sending its request
        finally:
            self._open -= 1
            self._silent.pop(writer, None)
            writer.close()

    def _make_room(self) -> bool:
        """Close the oldest connection without a request; False if all have sent one."""
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        del self._silent[oldest]
        oldest.transport.abort()
        return True

    async def _respond(
        self, stream: HttpStream, writer: asyncio.StreamWriter, crowded: bool
    ) -> bytes:
        try:
            # In another dialect, whose speaker waits for an answer, there is no head.
            is_http = not isinstance(stream, PlainStream) or stream.first.isalpha()
            head = await stream.head(HEAD_BYTES_MAX) if is_http else b""
            self._silent.pop(writer, None)
        except asyncio.LimitOverrunError:
            return _response("", (400, PLAIN, f"a request of over {HEAD_BYTES_MAX} bytes\n"))
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("", (400, PLAIN, "this is HTTP/1.1: GET /metrics\n"))
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(method, (405, PLAIN, "only GET and HEAD\n"))
        if path not in self._cheap and self._guard is not None:
            address = str((writer.get_extra_info("peername") or ("",))[0])
            visitor = Visitor(address, stream.is_private, stream.peer, _bearer(lines[1:]))
            if (refusal := await self._guard.check(visitor)) is not None:
                return _response(method, refusal)
        page = self._pages.get(path)
        if page is None:
            known = ", ".join(self._pages)
            return _response(method, (404, PLAIN, f"no such page; there are {known}\n"))
        if crowded and path not in self._cheap:
            return _response(method, (503, PLAIN, "too many ask: try again shortly\n"))
        return _response(method, await page())


def _bearer(lines: Sequence[str]) -> bytes:
    """Return the token of a request's `Authorization`; empty without one."""
    for line in lines:
        name, _, value = line.partition(":")
        scheme, _, token = value.strip().partition(" ")
        if name.lower() == "authorization" and scheme.lower() == "bearer":
            return token.strip().encode("latin-1")
    return b""


def _response(method: str, answer: Answer) -> bytes:
    status, kind, text = answer
    body = text.encode()
    head = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *(["Allow: GET, HEAD"] if status == 405 else []),
        *(["WWW-Authenticate: Bearer"] if status == 401 else []),
        "Cache-Control: no-store",
        "Connection: close",
    ]
    text_bytes = "".join(f"{line}\r\n" for line in [*head, ""]).encode()
    return text_bytes if method == "HEAD" else text_bytes + body
