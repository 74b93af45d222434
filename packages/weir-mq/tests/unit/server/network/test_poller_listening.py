"""What the loop, the collector and the listening sockets are set to, once for all connections."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.server.driver import Driver
from weir.server.interpreter import run_loop
from weir.server.network.poller import listening

OPTIONS = (socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.fixture
def collector() -> Iterator[None]:
    """Set the garbage collector back afterwards, for `run_loop` takes the process for itself.

    What it freezes stays frozen, as all that was collected is: nothing of it may be garbage.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    yield
    gc.set_threshold(*thresholds)


def nothing() -> None:
    pass


async def options_of_a_connection() -> list[int]:
    came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            sock = transport.get_extra_info("socket")
            came.set_result([sock.getsockopt(*option) for option in OPTIONS])
            transport.close()

    driver = cast(
        Driver,
        SimpleNamespace(protocol=Accepted, gather=nothing, settle=nothing, frames=0, tls=None),
    )
    async with listening(driver, "127.0.0.1", 0) as (host, port), asyncio.timeout(10):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"who connects speaks first: else it is accepted a second later")
        found: list[int] = await came
        writer.close()
    return found


def test_connections_send_at_once_and_notice_a_peer_that_is_gone(collector: None) -> None:
    assert run_loop(options_of_a_connection()) == [1, 1]
    assert asyncio.run(options_of_a_connection()) == [1, 1]


def test_a_broker_looks_for_cycles_rarely_and_never_among_its_code(collector: None) -> None:
    async def thresholds() -> tuple[int, int]:
        return gc.get_threshold()[0], gc.get_freeze_count()

    first, frozen = run_loop(thresholds())
    assert first > 10_000
    assert frozen > 1_000
