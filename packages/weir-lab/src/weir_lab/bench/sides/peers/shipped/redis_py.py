"""Redis by redis-py, its Python client, with its parser in C where that is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from weir_lab.bench.sides.peers.dialect import PeerRefused
from weir_lab.bench.sides.peers.redis import ACK_ENTRIES, BLOCK_MS, GROUP, Redis
from weir_lab.bench.sides.peers.server import library_version

_LIBRARY = "redis"


class RedisClient:
    """A connection of its own. All that `publish` and XACK return is known by the server."""

    def __init__(self) -> None:
        """Be not connected."""
        self._redis: Any = None
        self._acked = asyncio.Event()
        self._acked.set()

    async def open(self, port: int) -> None:
        """Connect to a server on this machine."""
        from redis.asyncio import Redis as Connection

        self._redis = Connection(
            host="127.0.0.1", port=port, single_connection_client=True, socket_timeout=None
        )
        await self._redis.ping()

    async def publish(self, topic: str, value: bytes) -> None:
        """Add an entry, and return when that has its reply."""
        await self._redis.xadd(topic, {b"d": value})

    async def work(
        self, topic: str, number: int, grant: int, take: Callable[[list[bytes]], None]
    ) -> None:
        """Read up to `grant` entries at a time, as a consumer of the group, and ack them by some
        XACKs, each of which is awaited. Raises `PeerRefused` if one of them is acked already.
        """
        while True:
            reply = await self._redis.xreadgroup(
                GROUP, f"c{number}", {topic: ">"}, count=grant, block=BLOCK_MS
            )
            if not (found := _entries(reply)):
                continue
            self._acked.clear()
            take([fields[b"d"] for _, fields in found])
            for first in range(0, len(found), ACK_ENTRIES):
                ids = [entry for entry, _ in found[first : first + ACK_ENTRIES]]
                if await self._redis.xack(topic, GROUP, *ids) != len(ids):
                    raise PeerRefused(f"redis refused: of {len(ids)} acks some were repeated")
            self._acked.set()

    async def settled(self) -> None:
        """Return when each XACK has its reply."""
        await self._acked.wait()

    async def close(self) -> None:
        """Disconnect."""
        if self._redis is not None:
            await self._redis.aclose()


class RedisPy(Redis):
    """Redis, whose lone producers and workers have redis-py."""

    name = "redis-py"
    client = RedisClient

    def version(self) -> str:
        """Return the versions of the server and of the client. Raises `NotInstalled`."""
        return f"{super().version()}, client {library_version(_LIBRARY)}"


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of one stream out of a reply, of either version of the protocol."""
    if not reply:
        return []
    if isinstance(reply, dict):
        (batches,) = reply.values()
        return [entry for batch in batches for entry in batch]
    ((_, entries),) = reply
    return list(entries)
