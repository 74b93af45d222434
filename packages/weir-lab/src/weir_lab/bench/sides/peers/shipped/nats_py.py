"""NATS JetStream by nats-py, its Python client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from weir_lab.bench.sides.peers.nats import DURABLE, Nats
from weir_lab.bench.sides.peers.server import library_version

_LIBRARY = "nats-py"
_REPLY_SECONDS = 30.0


class NatsClient:
    """A connection of its own. A message is confirmed by its ack; of acks of a consumer the last
    one is sent again in the end, and asks for a reply.
    """

    def __init__(self) -> None:
        """Be not connected."""
        self._nats: Any = None
        self._stream: Any = None
        self._sent = asyncio.Event()
        self._sent.set()
        self._last = ""

    async def open(self, port: int) -> None:
        """Connect to a server on this machine."""
        import nats

        self._nats = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        self._stream = self._nats.jetstream(timeout=_REPLY_SECONDS)

    async def publish(self, topic: str, value: bytes) -> None:
        """Publish a message, and return when the stream has it."""
        await self._stream.publish(topic, value)

    async def work(
        self, topic: str, number: int, grant: int, take: Callable[[list[bytes]], None]
    ) -> None:
        """Pull what there is, up to `grant` messages at a time, and ack each."""
        pulling = await self._stream.pull_subscribe_bind(durable=DURABLE, stream=topic)
        while True:
            # With a timeout the client would wait for as many as it asked for, and for so long.
            found = await pulling.fetch(grant, timeout=None)
            self._sent.clear()
            take([message.data for message in found])
            for message in found:
                await message.ack()
            self._last = found[-1].reply
            self._sent.set()

    async def settled(self) -> None:
        """Return when the server has replied to the last ack, behind all others."""
        await self._sent.wait()
        if self._last:
            await self._nats.request(self._last, b"+ACK", timeout=_REPLY_SECONDS)

    async def close(self) -> None:
        """Disconnect."""
        if self._nats is not None:
            await self._nats.close()


class NatsPy(Nats):
    """NATS, whose lone producers and workers have nats-py."""

    name = "nats-py"
    client = NatsClient

    def version(self) -> str:
        """Return the versions of the server and of the client. Raises `NotInstalled`."""
        return f"{super().version()}, client {library_version(_LIBRARY)}"
