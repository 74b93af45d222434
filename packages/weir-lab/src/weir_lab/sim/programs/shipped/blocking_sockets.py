"""Sockets that block, for programs without an event loop in a thread of a simulated process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from weir.client.connection.system import BlockingSocket
from weir.errors import UnknownOpcode
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_reply
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import CLIENT_HEADER
from weir.testing.simulator.clients.threads import current_thread, run_in_loop

T = TypeVar("T")


def _block(waits: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine does, while the world goes on."""
    return run_in_loop(current_thread(), waits)


def sleep(seconds: float) -> None:
    """Stand for `time.sleep`."""
    _block(asyncio.sleep(seconds))


def dial(host: str, port: int, timeout: float) -> BlockingSocket:
    """Stand for `weir.client.connection.system.dial`. Raises `OSError`."""
    return _block(_dial(host, port, timeout))


def dial_older(host: str, port: int, timeout: float) -> BlockingSocket:
    """Stand for a connection to a broker of the release before, which resolves no cuts."""
    return _Older(dial(host, port, timeout))


class _Older:
    """A socket whose other end does not know of `ResolveCut`."""

    def __init__(self, socket: BlockingSocket) -> None:
        self._socket = socket
        self._refusals = bytearray()

    def settimeout(self, value: float | None, /) -> None:
        self._socket.settimeout(value)

    def sendall(self, data: bytes, /) -> None:
        _, _, opcode, _, correlation = CLIENT_HEADER.unpack_from(data)
        if opcode != opcode_of(m.ResolveCut):
            self._socket.sendall(data)
            return
        refusal = m.Refusal(UnknownOpcode.code, f"opcode {opcode} is not known here", opcode)
        self._refusals += b"".join(encode_reply(refusal, opcode, correlation))

    def recv_into(self, buffer: memoryview, /) -> int:
        if not self._refusals:  # nothing else is under way when one of them is
            return self._socket.recv_into(buffer)
        size = min(len(buffer), len(self._refusals))
        buffer[:size] = self._refusals[:size]
        del self._refusals[:size]
        return size

    def close(self) -> None:
        self._socket.close()


async def _dial(host: str, port: int, timeout: float) -> BlockingSocket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        transport, came = await loop.create_connection(_Came, host, port)
    return _Socket(transport, came)


class _Came(asyncio.Protocol):
    """What a connection brought that was not received yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.over = False
        self.arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self.arrived.set()


class _Socket:
    """A socket that blocks."""

    def __init__(self, transport: asyncio.Transport, came: _Came) -> None:
        self._transport = transport
        self._came = came
        self._timeout: float | None = None

    def settimeout(self, value: float | None, /) -> None:
        self._timeout = value

    def sendall(self, data: bytes, /) -> None:
        if self._came.over or self._transport.is_closing():
            raise BrokenPipeError(32, "Broken pipe")
        self._transport.write(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        if not self._came.data and not self._came.over:
            _block(self._arrival())
        size = min(len(buffer), len(self._came.data))
        buffer[:size] = self._came.data[:size]
        del self._came.data[:size]
        return size

    def close(self) -> None:
        self._transport.abort()

    async def _arrival(self) -> None:
        came = self._came
        async with asyncio.timeout(self._timeout):
            while not came.data and not came.over:
                came.arrived.clear()
                await came.arrived.wait()
