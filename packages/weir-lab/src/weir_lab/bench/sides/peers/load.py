"""Connections that produce to a peer and consume from it, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from weir.errors import Disconnected
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.sides.peers.dialect import Consuming, Publishing, Sharing

CONNECT_SECONDS = 30.0


class _Connection(asyncio.Protocol):
    """What both sides share: the transport, being ready, and how it ends."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_ready: asyncio.Future[None] = loop.create_future()
        #: Set to what went wrong; never to a result.
        self.trouble: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none by descent.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or Disconnected("the peer closed the connection"))

    def fail(self, error: Exception) -> None:
        """End the connection; all waiters get the error."""
        for future in (self.is_ready, self.trouble):
            if not future.done():
                future.set_exception(error)
                future.exception()  # it is no fault if nobody asks
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self.transport is not None:
            self.transport.abort()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self.transport is not None
        self.transport.write(data)


class Producer(_Connection):
    """Keeps up to `window` messages under way until its `quota` is confirmed."""

    def __init__(self, dialect: Publishing, block: Block, number: int, window: int) -> None:
        """Send what `block` makes, as producer `number`."""
        super().__init__()
        self._dialect = dialect
        self._block = block
        self._number = number
        self._window = window
        self._step = max(1, min(block.count_max, window // 2))
        self._quota = 0
        self._sent = 0
        self._confirmed = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def confirmed(self) -> int:
        """How many messages were confirmed."""
        return self._confirmed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        super().connection_made(transport)
        self.write(self._dialect.opening())
        self._look()

    def connection_lost(self, error: Exception | None) -> None:
        """Wake waiters for confirms, too."""
        super().connection_lost(error)
        if not self.done.done():
            self.done.set_exception(error or Disconnected("the peer closed the connection"))
            self.done.exception()

    def send(self, quota: int) -> asyncio.Future[None]:
        """Send `quota` messages more; the result is there when all are confirmed."""
        self._quota += quota
        self.done = asyncio.get_running_loop().create_future()
        self._pump()
        return self.done

    def data_received(self, data: bytes) -> None:
        """Count confirms, and send on."""
        try:
            answer = self._dialect.receive(data)
        except Exception as error:
            self.fail(error)
            if not self.done.done():
                self.done.set_exception(error)
            return
        if answer:
            self.write(answer)
        self._confirmed = self._dialect.confirmed
        self._look()
        if self._confirmed >= self._quota > 0 and not self.done.done():
            self.done.set_result(None)
        self._pump()

    def _look(self) -> None:
        if self._dialect.ready and not self.is_ready.done():
            self.is_ready.set_result(None)

    def _pump(self) -> None:
        """Send while there is room for a whole step, so that writes are large."""
        while self._sent < self._quota:
            count = min(self._step, self._quota - self._sent)
            if self._sent + count - self._confirmed > self._window:
                return
            rows = self._block.bytes_of(self._number, self._sent, count)
            self.write(self._dialect.before(count) + rows.tobytes())
            self._sent += count


class Consumer(_Connection):
    """Acks everything, and hands the values of each read to `take`."""

    def __init__(self, dialect: Consuming, take: Callable[[list[bytes]], None]) -> None:
        """Hand values to `take` as they come."""
        super().__init__()
        self._dialect = dialect
        self._take = take

    def begin(self) -> None:
        """Ask for the first messages."""
        self.write(self._dialect.begin())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        super().connection_made(transport)
        self.write(self._dialect.opening())
        self._look()

    def data_received(self, data: bytes) -> None:
        """Ack and hand on."""
        try:
            values, answer = self._dialect.receive(data)
            if answer:
                self.write(answer)
            self._look()
            if values:
                self._take(values)
        except Exception as error:
            self.fail(error)

    def _look(self) -> None:
        if self._dialect.ready and not self.is_ready.done():
            self.is_ready.set_result(None)


class Worker(Consumer):
    """A consumer of several that share a topic, which tells when the peer knows its acks."""

    def __init__(self, dialect: Sharing, take: Callable[[list[bytes]], None]) -> None:
        """Hand values to `take` as they come."""
        super().__init__(dialect, take)
        self._sharing = dialect
        self._ended: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Ack, hand on, and wake the waiter for the end."""
        super().data_received(data)
        self._look_at_end()

    async def end(self) -> None:
        """Return when the peer knows all acks."""
        self._ended = asyncio.get_running_loop().create_future()
        self.write(self._sharing.end())
        self._look_at_end()
        await self._ended

    def _look_at_end(self) -> None:
        if self._ended is not None and not self._ended.done() and self._sharing.settled:
            self._ended.set_result(None)


async def connected(port: int, connection: _Connection) -> None:
    """Connect to a peer on this machine and return when it is ready. Raises what it refused."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        await loop.create_connection(lambda: connection, "127.0.0.1", port)
        await connection.is_ready
