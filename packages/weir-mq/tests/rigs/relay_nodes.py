"""A relay of a node in memory, over real sockets, and what its readers get of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from weir.client.arguments import parse_url
from weir.client.client import Client, connect
from weir.errors import Unauthorized, Unavailable, UnknownTopic
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.relay.ports import AnswerCame, Event, RefusalCame
from weir.relay_node import host as hosting
from weir.relay_node import store as stores
from weir.relay_node import uppers as pulling
from weir.relay_node.host import RelayConfig
from weir.relay_node.serve import Started, run
from weir.testing.memory_node import Node

Row = tuple[int, int, int, bytes]
TAGS = ("a", "b", None)
ALL = {"start": "earliest", "follow": False}


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let relays begin with small files, and look for news of the core often."""
    monkeypatch.setattr(stores, "SEGMENT_BYTES", 8 * 1024 * 1024)
    monkeypatch.setattr(stores, "ENTRY_BYTES_MAX", 2 * 1024 * 1024)
    monkeypatch.setattr(hosting, "_LOOK_EVERY", 0.05)
    monkeypatch.setattr(hosting, "REQUEST_TIMEOUT", 0.5)
    monkeypatch.setattr(hosting, "REFUSED_MS", 50)
    monkeypatch.setattr(pulling, "_AGAIN", 0.05)
    monkeypatch.setattr(pulling, "REFUSED_MS", 50)


class OpenSession:
    """A session that does not end by itself."""

    user = ""

    async def ended(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        """There is nothing to close."""


@asynccontextmanager
async def relay(
    core: Node, path: Path, at: tuple[str, int] = ("127.0.0.1", 0), **config: Any
) -> AsyncIterator[str]:
    """Run a relay; yield its address."""
    async with started_relay(core, path, at, **config) as found:
        yield f"weir://{found.host}:{found.port}"


@asynccontextmanager
async def started_relay(
    core: Node, path: Path, at: tuple[str, int] = ("127.0.0.1", 0), **config: Any
) -> AsyncIterator[Started]:
    """Run a relay; yield what it tells when it serves."""
    stop, up = asyncio.Event(), asyncio.get_running_loop().create_future()
    told = RelayConfig(parse_url(core.url), **config)
    running = asyncio.ensure_future(run(told, path, at, up.set_result, stop))
    await asyncio.wait((running, up), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    try:
        yield up.result()
    finally:
        stop.set()
        await running


def play(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))  # type: ignore[arg-type]


async def fill(core: Node, count: int = 30, first: int = 0, topic: str = "t") -> None:
    async with connect(core.url) as client:
        with_topic = await client.topics()
        if topic not in {one.full_name for one in with_topic}:
            await client.create_topic(topic, partitions=2, order="total")
        for number in range(first, first + count):
            await client.publish(topic, b"%d" % number, tag=TAGS[number % 3])


async def known(client: Client, topic: str = "t", end: int = 0) -> None:
    """Wait until a relay has so many messages of a topic."""
    while True:
        try:
            found = await client.parts(topic)
        except (UnknownTopic, Unavailable):
            found = []
        if found and sum(part.end for part in found) >= end:
            return
        await asyncio.sleep(0.02)


async def rows(url: str, **options: Any) -> list[Row]:
    found: list[Row] = []
    async with connect(url) as client, client.reader("t", **options) as reader:
        async for one in reader:
            found.append((one.partition, one.offset, one.stamp, bytes(one.value)))
    return found


async def why_refused(client: Client) -> str | None:
    """Return why a relay does not serve its topic; None if it does."""
    try:
        await client.describe("t")
    except Unauthorized as error:
        return str(error)
    return None


async def until_known(url: str, end: int) -> None:
    async with connect(url) as client:
        await known(client, end=end)


async def spoken(url: str, *frames: bytes) -> list[Any]:
    """Send bytes to a relay; return its replies until it hangs up, or has been silent a while."""
    ((host, port),) = parse_url(url)
    reader, writer = await asyncio.open_connection(host, port)
    writer.writelines(frames)
    stream, replies = ClientStream(), list[Any]()
    try:
        while data := await asyncio.wait_for(reader.read(1 << 16), 0.3):
            replies += [decode_reply(frame) for frame in stream.receive(data)]
        replies.append("closed")
    except TimeoutError:
        pass
    writer.close()
    await writer.wait_closed()
    return replies


def frame(request: m.Request) -> bytes:
    return b"".join(encode_request(request, 1))


def offsets(told: list[Event]) -> int:
    """Return how many offsets came from relays above."""
    answers = [event.answer for event in told if isinstance(event, AnswerCame)]
    return sum(answer.next - answer.first for answer in answers)


def refusals(told: list[Event]) -> list[str]:
    return [type(event.refusal).__name__ for event in told if isinstance(event, RefusalCame)]


async def fill_until(core: Node, count: int, found: Callable[[], bool]) -> int:
    """Publish behind `count` messages until something was found; return how many there are. What
    comes from the core ends a pull there, and the next one goes to the relay above.
    """
    while not found():
        await fill(core, 1, count)
        count += 1
        await asyncio.sleep(0.01)
    return count


def is_linked(told: list[Event], partitions: int = 2) -> Callable[[], bool]:
    """Whether messages of so many partitions have come from a relay above."""

    def look() -> bool:
        answers = [event.answer for event in told if isinstance(event, AnswerCame)]
        return len({one.group for one in answers if one.next > one.first}) == partitions

    return look
