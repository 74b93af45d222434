"""Connections to a relay: who takes nothing is cut off, and makes room for others."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import cast

import pytest

from rigs.relay_nodes import OpenSession
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request
from weir.relay_node import listener as module
from weir.relay_node.gate import RelayGate
from weir.relay_node.listener import Listener
from weir.relay_node.requests import AnswerRoom

ADDRESS = Address(0, 0, 3 << 16, 1)
ANSWER_BYTES = 7 * MIB


class LargeAnswers:
    """Answers two questions with more than the sockets of a connection hold."""

    def session(self, channel: object) -> OpenSession:
        return OpenSession()

    async def answer(self, request: m.Request, room: AnswerRoom, session: object) -> m.Reply:
        if isinstance(request, m.Hello):
            return m.Welcome(1, 0, 1, 0, MIB, 1)
        await room.take()
        return m.FetchedChunks(ADDRESS, 1, (bytes(ANSWER_BYTES),))


@pytest.mark.parametrize("behind", [b"", b"\xff" * 64], ids=["quiet", "bad"])
def test_who_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, behind: bytes) -> None:
    monkeypatch.setattr(module, "_STALLED", 0.1)
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    hello = b"".join(encode_request(m.Hello("test"), 1))
    asked = b"".join(encode_request(m.FetchChunks(ADDRESS, 1, 1, MIB), 2))

    async def work() -> None:
        listener = Listener(cast(RelayGate, LargeAnswers()))
        await listener.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            stalled.setblocking(False)
            await loop.sock_connect(stalled, ("127.0.0.1", listener.port))
            await loop.sock_sendall(stalled, hello + asked * 2)
            await asyncio.sleep(0.05)
            await loop.sock_sendall(stalled, behind)
            while not await greets(listener.port, hello):
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            assert await taken(stalled) < ANSWER_BYTES, "what was written waited for it"
        await listener.stop()

    asyncio.run(asyncio.wait_for(work(), 10))


def test_the_system_looks_for_clients_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    look_for = module.look_for

    def look(sock: socket.socket) -> None:
        look_for(sock)
        idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        found.append((sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), idle))

    monkeypatch.setattr(module, "look_for", look)

    async def work() -> None:
        listener = Listener(cast(RelayGate, LargeAnswers()))
        await listener.start("127.0.0.1", 0)
        assert await greets(listener.port, b"".join(encode_request(m.Hello("test"), 1)))
        await listener.stop()

    asyncio.run(asyncio.wait_for(work(), 10))
    assert found == [(1, module.SILENT_SECONDS)]


class OneAnswer:
    """Answers each question once there is room for it; a pull once the others have come, too."""

    def session(self, channel: object) -> OpenSession:
        return OpenSession()

    async def answer(self, request: m.Request, room: AnswerRoom, session: object) -> m.Reply:
        if isinstance(request, m.Hello):
            return m.Welcome(1, 0, 1, 0, MIB, 1)
        if isinstance(request, m.AskRelay):
            room.step_aside()
        await room.take()
        if isinstance(request, m.AskRelay):
            for _ in range(50):
                await asyncio.sleep(0)
            return m.RelayTold(ADDRESS)
        return m.FetchedChunks(ADDRESS, 1, (b"chunk",))


def test_a_pull_and_fetches_of_one_connection_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    monkeypatch.setattr(module, "_LARGE_MAX", 1)
    fetch = m.FetchChunks(ADDRESS, 1, 1, MIB)
    asked = [m.AskRelay(ADDRESS, b""), *[fetch] * 4, m.AskRelay(ADDRESS, b"")]

    async def work() -> None:
        listener = Listener(cast(RelayGate, OneAnswer()))
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        stream, replies = ClientStream(), 0
        for frames in ([m.Hello("test")], asked):
            writer.write(b"".join(b"".join(encode_request(one, 1)) for one in frames))
            replies -= len(frames)
            while replies:
                replies += len(list(stream.receive(await reader.read(MIB))))
        writer.close()
        await listener.stop()

    asyncio.run(asyncio.wait_for(work(), 2))


async def taken(stalled: socket.socket) -> int:
    """Return how many bytes a client still gets, until its connection ends."""
    size = 0
    with suppress(ConnectionError):
        while data := await asyncio.get_running_loop().sock_recv(stalled, MIB):
            size += len(data)
    return size


async def greets(port: int, hello: bytes) -> bool:
    """Return whether a relay has room for one more connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    try:
        return bool(await reader.read(64))
    except ConnectionError:
        return False
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
