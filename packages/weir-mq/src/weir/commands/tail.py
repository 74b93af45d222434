"""`weir tail`, connected: messages as they come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from weir.client.arguments.positions import Start
from weir.client.client import Client
from weir.client.reader.reader import Reader
from weir.commands.output import Form, Output, line_of
from weir.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Tail:
    """What to show. An offset as `start` means one of `partition`, or of the only one.

    It ends after `count` messages; without `follow`, at today's end; else never.
    """

    topic: str
    start: Start | int
    follow: bool = True
    count: int | None = None
    partition: int | None = None
    key: Sequence[bytes | str] | None = None
    tag: Sequence[str] | None = None
    order: str | None = None
    form: Form = Form.text

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
                output.write(line(message))
                left -= 1
                if not left:
                    break
            output.flush()
            if not left:
                return
