"""Requests for which a broker waits leave together, and in the order in which they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from weir.client.connection.connection import Connection, Senders
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_request

_AT = Address(1, 0, 65_536)
_PING = m.Ping()


def _poll(offset: int) -> m.Fetch:
    return m.Fetch(_AT, offset, 1, wait_ms=5_000)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close


def _run(body: Callable[[Connection, Transport], Awaitable[None]]) -> list[list[Any]]:
    """Run the body with a connection; return what each write holds."""
    transport = Transport()
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        connection = Connection(Senders())
        given: Any = transport
        connection.connection_made(given)
        await body(connection, transport)
        connection.connection_lost(None)

    asyncio.run(main())
    assert not errors
    return [[*map(decode_request, ClientStream().receive(one))] for one in transport.written]


def _ignore(_: int, __: Any) -> None:
    pass


def test_polls_of_one_turn_are_one_write_and_the_next_turn_has_its_own() -> None:
    async def body(connection: Connection, transport: Transport) -> None:
        for offset in (1, 2, 3):
            connection.send(_poll(offset), _ignore)
        assert not transport.written
        await asyncio.sleep(0)
        assert len(transport.written) == 1
        connection.send(_poll(4), _ignore)
        await asyncio.sleep(0)

    assert _run(body) == [[_poll(1), _poll(2), _poll(3)], [_poll(4)]]


def test_another_request_leaves_at_once_behind_polls_that_were_sent_before() -> None:
    async def body(connection: Connection, transport: Transport) -> None:
        connection.send(_PING, _ignore)
        assert len(transport.written) == 1
        connection.send(_poll(1), _ignore)
        connection.send(_PING, _ignore)
        assert len(transport.written) == 3
        connection.send(_poll(2), _ignore)
        await asyncio.sleep(0)

    assert _run(body) == [[_PING], [_poll(1)], [_PING], [_poll(2)]]


def test_what_was_sent_is_written_before_the_connection_is_closed() -> None:
    async def body(connection: Connection, transport: Transport) -> None:
        connection.send(_poll(1), _ignore)
        connection.over.set()
        await connection.close()
        assert transport.is_closed
        await asyncio.sleep(0)

    assert _run(body) == [[_poll(1)]]


def test_polls_of_a_connection_that_ended_in_their_turn_are_written_nowhere() -> None:
    async def body(connection: Connection, transport: Transport) -> None:
        connection.send(_poll(1), _ignore)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    assert _run(body) == []
