"""The clients of one city, as a process in its network: `python -m weir_lab.company.office`.

It answers each line of JSON on its stdin with one on its stdout, and ends when its stdin does.
Messages say where and when they were sent, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import NamedTuple

import msgspec

from weir.client.client import Client, connect
from weir.client.producer.producer import Producer

REQUEST_S = 120.0
_LOOK_S = 0.01
_LINE_BYTES_MAX = 1 << 28
VALUE_BYTES_MIN = 80


class Read(msgspec.Struct, frozen=True, tag=True):
    """Begin to read a topic from its beginning on: `readers` of them at each address."""

    urls: list[str]
    topic: str
    tags: list[str]
    readers: int


class Send(msgspec.Struct, frozen=True, tag=True):
    """Publish at a rate, with each of the tags by turns; answered once all is confirmed."""

    url: str
    topic: str
    tags: list[str]
    rate: float
    seconds: float
    size: int


class Await(msgspec.Struct, frozen=True, tag=True):
    """Answered once each reader was given so many messages, or after so many seconds."""

    messages: int
    seconds: float


class Report(msgspec.Struct, frozen=True, tag=True):
    """Tell what each reader was given."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End all readers, and forget what they were given."""


Command = Read | Send | Await | Report | Stop


class Row(NamedTuple):
    """A message that a reader was given, and when, in monotonic nanoseconds."""

    partition: int
    offset: int
    stamp: int
    value: str
    given_ns: int


class Confirm(NamedTuple):
    """A message, and when it was sent and confirmed, in monotonic nanoseconds."""

    value: str
    sent_ns: int
    confirmed_ns: int


class Reply(msgspec.Struct, frozen=True):
    """The answer to any command; `error` says what went wrong."""

    confirms: list[Confirm] = []
    #: By reader: the address it reads at, and its number in the office.
    given: dict[str, list[Row]] = {}
    is_complete: bool = True
    error: str = ""


class Value(NamedTuple):
    """What a message says of itself."""

    tag: str
    office: str
    number: int
    sent_ns: int


def packed(value: Value, size: int) -> bytes:
    """Return the bytes of a message, padded to a size."""
    return "|".join(map(str, value)).encode().ljust(size)


def unpacked(text: str) -> Value:
    """Return what a message says of itself."""
    tag, office, number, sent_ns = text.split("|")
    return Value(tag, office, int(number), int(sent_ns))


class Office:
    """What the clients of an office do."""

    def __init__(self, name: str) -> None:
        """Begin without clients."""
        self._name = name
        self._given: dict[str, list[Row]] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._sent = 0

    async def obey(self, command: Command) -> Reply:
        """Carry out a command."""
        match command:
            case Read():
                for url in command.urls:
                    for _ in range(command.readers):
                        rows = self._given[f"{url}, reader {len(self._given) + 1}"] = []
                        one = self._read(url, command.topic, command.tags, rows)
                        self._readers.append(asyncio.create_task(one))
                return Reply()
            case Send():
                return Reply(await self._send(command))
            case Await():
                return Reply(is_complete=await self._await(command))
            case Report():
                return Reply(given=self._given)
            case Stop():
                await self.stop()
                return Reply()

    async def stop(self) -> None:
        """End all readers."""
        for one in self._readers:
            one.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers, self._given = [], {}

    async def _read(self, url: str, topic: str, tags: list[str], rows: list[Row]) -> None:
        async with (
            connect(url, name=self._name, request_timeout=REQUEST_S) as client,
            client.reader(topic, tag=tags, order="total") as reader,
        ):
            async for one in reader:
                value = bytes(one.value).decode().rstrip()
                row = Row(one.partition, one.offset, one.stamp, value, time.monotonic_ns())
                rows.append(row)

    async def _send(self, command: Send) -> list[Confirm]:
        confirms: list[Confirm] = []

        async def send(producer: Producer, value: Value) -> None:
            data = packed(value, command.size)
            await producer.send(data, tag=value.tag)
            text = data.decode().rstrip()
            confirms.append(Confirm(text, value.sent_ns, time.monotonic_ns()))

        async with (
            connect(command.url, name=self._name, request_timeout=REQUEST_S) as client,
            client.producer(command.topic) as producer,
        ):
            await _known(client, command.topic)
            sent: set[asyncio.Task[None]] = set()
            began = time.monotonic()
            for turn in range(round(command.rate * command.seconds)):
                await asyncio.sleep(max(0.0, began + turn / command.rate - time.monotonic()))
                self._sent += 1
                tag = command.tags[turn % len(command.tags)]
                value = Value(tag, self._name, self._sent, time.monotonic_ns())
                sent.add(asyncio.create_task(send(producer, value)))
            await asyncio.gather(*sent)
        return confirms

    async def _await(self, command: Await) -> bool:
        until = time.monotonic() + command.seconds
        while time.monotonic() < until:
            for one in self._readers:
                if one.done():
                    one.result()
            if all(len(rows) >= command.messages for rows in self._given.values()):
                return True
            await asyncio.sleep(_LOOK_S)
        return False


async def _known(client: Client, topic: str) -> None:
    """Ask once, so that a connection is there before what is timed begins."""
    await client.positions(topic)


async def _main(name: str) -> None:
    """Carry out commands until stdin ends, and with it this process."""
    lines = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    commands: asyncio.Queue[Command] = asyncio.Queue()
    working = asyncio.create_task(_work(Office(name), commands))
    while line := await lines.readline():
        commands.put_nowait(msgspec.json.decode(line, type=Command))
    # The core may be gone, too: a producer would wait for confirms before it lets itself be ended.
    os._exit(int(working.done()))


async def _work(office: Office, commands: asyncio.Queue[Command]) -> None:
    while True:
        command = await commands.get()
        try:
            reply = await office.obey(command)
        except Exception as error:  # told to the one who asked, who ends it
            reply = Reply(error=f"{type(error).__name__}: {error}")
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
