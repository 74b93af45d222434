"""The inside of a client, a producer or a reader, for tests that watch what users cannot."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from weir.client.connection.network_client import NetworkClient
from weir.client.connection.pool import ConnectionPool
from weir.client.consumer.acknowledgements import Nacks
from weir.client.consumer.pulls import Pulling
from weir.testing import Node

#: Methods that tests wrap, for `monkeypatch.setattr`.
PULL_ONCE = Pulling, "_once"
SEND_NACK = Nacks, "_send"


def in_loop(scenario: Callable[[Node], Awaitable[None]]) -> Callable[[Node], None]:
    """Run a test that is a coroutine in a loop of its own, for at most 60 s."""

    @wraps(scenario)
    def whole(node: Node) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await scenario(node)

        asyncio.run(bounded())

    return whole


def network_of(client: Any) -> NetworkClient:
    """Return what a client reaches brokers by."""
    return cast(NetworkClient, client._network)


def pool_of(client: Any) -> ConnectionPool:
    """Return the connections of a client, or of what it reaches brokers by."""
    network = client if isinstance(client, NetworkClient) else network_of(client)
    return network._pool


def connection_to(pool: ConnectionPool, node: int, shard: int) -> Any:
    """Return the connection of a shard, which may be on its way."""
    return pool._shards[node, shard]


def know(pool: ConnectionPool, nodes: dict[int, Any]) -> None:
    """Let a pool know these nodes, as if they had been named to it."""
    pool._nodes = nodes


def come_and_go(home: Any) -> None:
    """Connect, and end in the same turn of the loop."""
    home._up.set()
    home._up.clear()


def streams_of(client: Any) -> dict[int, Any]:
    """Return what is kept of partitions that were sent to, by group."""
    return cast(dict[int, Any], network_of(client)._streams)


def idle_scatterings(client: Any) -> list[Any]:
    """Return the producer ids by which nothing is scattered now."""
    return list(client._scatterings.producers.idle)


def sender_of(producer: Any) -> Any:
    """Return what sends a producer's messages."""
    return producer._sender


def merge_of(reader: Any) -> Any:
    """Return what a reader in total order merges by."""
    return reader._source._merge


def error_of(reader: Any) -> Exception | None:
    """Return what ended a reader, if it has ended."""
    return cast("Exception | None", reader._source._error)


def ended_in(reader: Any) -> dict[int, int]:
    """Return the ended partitions that a reader has read, and how far."""
    return cast(dict[int, int], reader._source._over)


def background_of(client: Any) -> Any:
    """Return the thread of a blocking client."""
    return client._background


def calls_of(background: Any) -> dict[Any, Any]:
    """Return the calls that a background thread has yet to end."""
    return cast(dict[Any, Any], background._calls)


def call_late(background: Any, coroutine: Any) -> Any:
    """Let a background thread run what it would refuse by now."""
    return background._result(background._hand(coroutine))


def rows_of(limits: Any) -> list[Any]:
    """Return what a shared timeout keeps, the oldest first."""
    return list(limits._line)


def break_connection(hub: Any) -> None:
    """End the connection of a device, which has yet to find out."""
    socket_of = hub._connection._socket
    assert socket_of is not None
    socket_of.shutdown(socket.SHUT_RDWR)


def close_connection(hub: Any) -> None:
    """Let a device close its connection, and open another for what comes next."""
    hub._connection.close()


def feed_of(consumer: Any) -> Any:
    """Return what hands grants to a consumer in turn."""
    return consumer.settlement.leases._feed
