"""Peers that hold memory and do not move: the byte budget holds, and others are served again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import weir
from weir.model.limits import MIB
from weir.server import transport
from weir.server.config import Config, LogConfig, MemoryConfig, NodeConfig
from weir.server.main import serve
from weir.wire import messages as m
from weir.wire.client import encode_request
from weir.wire.frame import CLIENT_HEADER
from weir.wire.messages import Opcode

BUDGET_MIB = 32
#: A peer that speaks of a frame of 8 MiB and sends half of it.
HALF_FRAME = CLIENT_HEADER.pack(2, 0, Opcode.PRODUCE, 8 * MIB, 1) + bytes(4 * MIB)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_STALL_SECONDS", 0.5)


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB


def attack(folder: Path, body: Callable[[int, weir.client.client.Client], object]) -> None:
    """Run a node with a small budget and no cache; `body` gets its port and an honest client."""

    async def whole() -> None:
        config = Config(
            node=NodeConfig(data=str(folder), port=0),
            memory=MemoryConfig(budget_mib=BUDGET_MIB, cache_mib=0),
            log=LogConfig(segment_mib=32, spares=0),
        )
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.ensure_future(serve(config, lambda _, p: port.set_result(p), stop))
        async with weir.connect(f"weir://127.0.0.1:{await port}", request_timeout=30) as client:
            await asyncio.wait_for(body(port.result(), client), 60)  # type: ignore[arg-type]
        stop.set()
        assert await task

    asyncio.run(whole())


def send_all(port: int, data: bytes) -> socket.socket:
    """Send what the node takes within a moment; leave the connection open, and read nothing."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.settimeout(0.2)
    hello = b"".join(encode_request(m.Hello("hostile"), 1))
    with contextlib.suppress(TimeoutError):  # the node has stopped reading: that is the point
        sock.sendall(hello + data)
    return sock


def test_half_frames_neither_fill_the_memory_nor_stop_the_node(tmp_path: Path) -> None:
    async def body(port: int, client: weir.client.client.Client) -> None:
        before = resident_mib()
        held = [await asyncio.to_thread(send_all, port, HALF_FRAME) for _ in range(12)]
        assert resident_mib() - before < 2 * BUDGET_MIB
        await client.create_topic("t")  # answered once those who stall are let go
        assert (await client.publish("t", b"honest")).offset == 0
        for sock in held:
            sock.close()

    attack(tmp_path, body)


def test_replies_that_nobody_reads_stay_within_the_budget(tmp_path: Path) -> None:
    async def body(port: int, client: weir.client.client.Client) -> None:
        topic = await client.create_topic("t")
        async with client.producer("t", batch_bytes=MIB) as producer:
            await producer.send_many([bytes(MIB // 2)] * 60)
        before = resident_mib()
        fetch = m.Fetch(topic.addresses[0], 0, 8 * MIB)
        fetches = b"".join(b"".join(encode_request(fetch, n)) for n in range(400))
        held = [await asyncio.to_thread(send_all, port, fetches) for _ in range(2)]
        await client.ping()
        # 800 replies of 8 MiB were asked for; a peer may fill its own socket and 16 MiB.
        assert resident_mib() - before < 4 * BUDGET_MIB
        assert (await client.publish("t", b"honest")).offset == 60
        for sock in held:
            sock.close()

    attack(tmp_path, body)


def test_a_peer_that_is_hung_up_on_and_reads_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_GRACE_SECONDS", 0.3)

    async def body(port: int, client: weir.client.client.Client) -> None:
        topic = await client.create_topic("t")
        async with client.producer("t", batch_bytes=MIB) as producer:
            await producer.send_many([bytes(MIB // 2)] * 16)
        fetch = m.Fetch(topic.addresses[0], 0, 8 * MIB)
        garbage = b"".join(encode_request(fetch, 2)) + b"\xff" * 16
        sock = await asyncio.to_thread(send_all, port, garbage)

        def drain() -> int:
            """Read until the node has cut the connection; return how much came."""
            sock.settimeout(10)
            size = 0
            with contextlib.suppress(ConnectionResetError):  # one of the two ways to be cut
                while data := sock.recv(MIB):
                    size += len(data)
            return size

        await asyncio.sleep(1.0)  # the peer reads nothing for longer than the grace lasts
        assert await asyncio.to_thread(drain) < 8 * MIB
        sock.close()

    attack(tmp_path, body)
