"""Closing a connection ends it on the wire, on either event loop, whoever else holds its number."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from weir.client.client import connect

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_closed_connection_is_over_for_the_broker(run: Run, fake_broker: Any) -> None:
    wrong: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: wrong.append(what))
        async with fake_broker() as broker:
            client = await connect(broker.url, request_timeout=5.0)
            await client.ping()
            kept = _copies_of_connections_to(broker.port)
            await client.close()
            async with asyncio.timeout(5.0):
                while broker.writers:
                    await asyncio.sleep(0)
            for handle in kept:
                os.close(handle)

    run(work())
    assert wrong == []


def _copies_of_connections_to(port: int) -> list[int]:
    """Copy the handles of this process's connections to a port, as a fork does."""
    copies = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family == socket.AF_INET and found.getpeername()[1] == port:
                    copies.append(os.dup(found.fileno()))
        except OSError:
            continue
    return copies
