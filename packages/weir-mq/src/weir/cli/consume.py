"""`weir sub` and `weir tail`, connected, and waiting for a broker that is away.

`Sub` takes messages as a consumer of a cluster, and acks them; `Tail` shows them as they come. They
take a connection, and something to write to; the command line gives them stdout.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from weir.cli.output import Form, Output, line_of
from weir.cli.record import Record
from weir.client.arguments import ConsumerMode
from weir.client.client import Client
from weir.client.reader.options import ReadingOrder, Start
from weir.client.reader.reader import Reader
from weir.errors import BadRequest
from weir.model.limits import GRANT_MS_DEFAULT
from weir.model.message import Message


class Sub(msgspec.Struct, frozen=True):
    """What to take: a share of `topic` for `cluster`, which ends after `count` messages, or never.

    `topic` may be several, or a prefix. `mode` is "shared", "keyed" or "ordered"; a message is its
    own for `lease` seconds. A cluster that is new begins at `start`. If `tags` are given, it takes
    only messages with one of them.
    """

    topic: str | Sequence[str]
    cluster: str
    mode: ConsumerMode = "shared"
    count: int | None = None
    form: Form = Form.text
    lease: float = GRANT_MS_DEFAULT / 1_000
    start: Start = "earliest"
    record: Record | None = None
    tags: Sequence[str] | None = None

    async def take(self, client: Client, output: Output) -> None:
        """Write messages until the end; each is acked once it is written. Raises `UnknownTopic`."""
        left = sys.maxsize if self.count is None else self.count
        line = line_of(self.form)
        async with client.consumer(
            self.topic,
            cluster=self.cluster,
            start=self.start,
            mode=self.mode,
            lease=self.lease,
            tags=self.tags,
        ) as consumer:
            async for message in consumer:
                output.write(line(message))
                output.flush()  # what is acked was seen
                if self.record is not None:
                    self.record.received(message, self.cluster)
                await message.ack()
                left -= 1
                if not left:
                    return


class Tail(msgspec.Struct, frozen=True):
    """What to show. An offset as `start` means one of `partition`, or of the only one.

    It ends after `count` messages; without `follow`, at today's end; else never. With `hub` it
    shows what devices of that hub sent.
    """

    topic: str
    start: Start | int
    follow: bool = True
    count: int | None = None
    partition: int | None = None
    key: Sequence[bytes | str] | None = None
    tag: Sequence[str] | None = None
    order: ReadingOrder | None = None
    form: Form = Form.text
    record: Record | None = None
    hub: int | None = None

    async def show(self, client: Client, output: Output) -> None:
        """Write messages until the end. Raises `BadRequest`, `OffsetOutOfRange`, `UnknownTopic`."""
        where = await self._where(client)
        narrow = self.partition is not None or isinstance(where, dict)
        async with client.reader(
            self.topic,
            start=where,
            partitions=[self.partition or 0] if narrow else None,
            follow=self.follow,
            key=self.key,
            tag=self.tag,
            order=self.order,
        ) as reader:
            await self._write(reader, output)

    async def _where(self, client: Client) -> Start:
        """Return where to begin; an offset means something in one partition only."""
        if not isinstance(self.start, int):
            return self.start
        if self.partition is None:
            count = len((await client.describe(self.topic)).addresses)
            if count > 1:
                raise BadRequest(
                    f"{self.topic} has {count} partitions, each with offsets of its own: say which "
                    f"one with --partition 0 to {count - 1}"
                )
        return {self.partition or 0: self.start}

    async def _write(self, reader: Reader, output: Output) -> None:
        line = line_of(self.form)
        left = sys.maxsize if self.count is None else self.count
        async for delivered in reader.batches():
            for message in delivered.messages():
                if self.hub is not None and not _is_of(message, self.hub):
                    continue
                output.write(line(message))
                if self.record is not None:
                    self.record.received(message, None)
                left -= 1
                if not left:
                    break
            output.flush()
            if not left:
                return


def _is_of(message: Message, hub: int) -> bool:
    return message.origin is not None and message.origin.hub == hub


R = TypeVar("R")

#: Between two looks at the connection, in seconds.
_LOOK = 0.5


async def for_ever(
    client: Client, work: Callable[[Client], Awaitable[R]], tell: Callable[[bool], None]
) -> R:
    """Return what `work` does with a client; tell when its broker is away (True), and is back."""
    client.wait_without_end()
    telling = asyncio.create_task(_tell_when_away(client, tell))
    try:
        return await work(client)
    finally:
        telling.cancel()


async def _tell_when_away(client: Client, tell: Callable[[bool], None]) -> None:
    away = False
    while True:
        await asyncio.sleep(_LOOK)
        if client.is_connected == away:
            away = not away
            tell(away)
