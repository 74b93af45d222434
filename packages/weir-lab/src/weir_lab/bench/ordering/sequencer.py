"""A sequencer node, as systems have it that order by counting: led over its pipes.

It numbers batches in the order in which they are announced. It is as quick as such a node can be
made here: a request is 8 bytes, all that came with one read are answered with one write, and
numbers are put aside on the disk a million at a time, so that it gives none of them twice after a
restart and waits for no sync in between. A line lets it count from 0 again, for another topic.
"""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
from collections import deque
from pathlib import Path
from typing import cast

import msgspec

from weir_lab.bench.harness.led import Orders, Ready, be_led, report

REQUEST = bytes(8)
_NUMBER = struct.Struct("<Q")
_PUT_ASIDE = 1_000_000


class Plan(msgspec.Struct, frozen=True):
    """Listen here."""

    host: str
    port: int


class _Numbers:
    """Numbers from 0 on; those that may have been given are on the disk before they are."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._next = self._aside = 0

    def begin(self) -> None:
        self._next = 0

    def take(self, count: int) -> range:
        taken = range(self._next, self._next + count)
        if taken.stop > self._aside:
            self._aside = taken.stop + _PUT_ASIDE
            os.pwrite(self._file, _NUMBER.pack(self._aside), 0)
            os.fdatasync(self._file)
        self._next = taken.stop
        return taken


class _Serving(asyncio.Protocol):
    """One producer's connection."""

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        count, self._rest = divmod(self._rest + len(data), len(REQUEST))
        self._transport.write(b"".join(map(_NUMBER.pack, self._numbers.take(count))))


class Sequencer(asyncio.Protocol):
    """A producer's way to the sequencer: any number of questions under way."""

    def __init__(self) -> None:
        """Be connected by `connected`."""
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Let nobody wait for ever."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(ConnectionError("the sequencer has ended"))

    def data_received(self, data: bytes) -> None:
        """Give out the numbers that came, in the order of the questions."""
        data = self._rest + data
        whole = len(data) - len(data) % _NUMBER.size
        self._rest = data[whole:]
        for (number,) in _NUMBER.iter_unpack(data[:whole]):
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(number)

    def ask(self) -> asyncio.Future[int]:
        """Ask for the number of the next batch."""
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._transport.write(REQUEST)
        return waiting

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


async def connected(host: str, port: int) -> Sequencer:
    """Return a connection to a sequencer."""
    _, sequencer = await asyncio.get_running_loop().create_connection(Sequencer, host, port)
    return sequencer


async def serve(plan: Plan, orders: Orders) -> msgspec.Struct:
    """Number batches until the process that leads this one ends."""
    with tempfile.TemporaryDirectory(prefix="weir-sequencer-") as folder:
        numbers = _Numbers(Path(folder) / "numbers")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Serving(numbers), plan.host, plan.port)
        async with server:
            while True:
                numbers.begin()
                report(Ready())
                await orders.get()


if __name__ == "__main__":
    be_led(Plan, serve)
