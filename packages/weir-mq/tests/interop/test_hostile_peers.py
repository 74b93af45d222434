"""Hostile peers: bytes that mean no good, that do not come, too many at once, memory held.

Those who mean well are served all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import weir
from weir.client.client import Client
from weir.errors import BadChecksum, Revoked, UnknownOpcode
from weir.host import connections as module
from weir.host import unsent_bytes
from weir.host.accept_queue import ConnectionLimits
from weir.model.limits import MIB
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import CLIENT_HEADER
from weir.server import config
from weir.server.assembly import serve
from weir.server.config import (
    Config,
    ConnectionsConfig,
    LogConfig,
    MemoryConfig,
    NodeConfig,
)

BUDGET_MIB = 66
#: A peer that speaks of a frame of 8 MiB and sends half of it.
HALF_FRAME = CLIENT_HEADER.pack(2, 0, opcode_of(m.Produce), 8 * MIB, 1) + bytes(4 * MIB)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_bytes, "_STALL_SECONDS", 0.5)


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // MIB


Body = Callable[[int, Client], object]


def attack(folder: Path, body: Body, connections: ConnectionsConfig | None = None) -> None:
    """Run a node with a small budget and no cache; `body` gets its port and an honest client."""

    async def whole() -> None:
        config = Config(
            node=NodeConfig(data=str(folder), port=0),
            memory=MemoryConfig(budget_mib=BUDGET_MIB, cache_mib=0),
            log=LogConfig(segment_mib=32, spares=0),
            connections=connections or ConnectionsConfig(),
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
    async def body(port: int, client: Client) -> None:
        before = resident_mib()
        held = [await asyncio.to_thread(send_all, port, HALF_FRAME) for _ in range(12)]
        assert resident_mib() - before < 2 * BUDGET_MIB
        await client.create_topic("t")
        assert (await client.publish("t", b"honest")).offset == 0
        for sock in held:
            sock.close()

    attack(tmp_path, body)


def test_half_frames_begun_by_one_byte_neither_fill_the_memory_nor_stop_the_node(
    tmp_path: Path,
) -> None:
    async def body(port: int, client: Client) -> None:
        before = resident_mib()
        held = [await asyncio.to_thread(send_all, port, HALF_FRAME[:1]) for _ in range(24)]
        await client.ping()  # the node has read what came before this
        for sock in held:
            with contextlib.suppress(OSError):  # it is not read any more, or cut
                await asyncio.to_thread(sock.sendall, HALF_FRAME[1:])
        assert resident_mib() - before < 2 * BUDGET_MIB
        await client.create_topic("t")
        assert (await client.publish("t", b"honest")).offset == 0
        for sock in held:
            sock.close()

    attack(tmp_path, body)


def test_a_thousand_claims_of_8_mib_cost_nobody_anything(tmp_path: Path) -> None:
    """Before, 50 of them used the budget up, and nobody was read for 10 s."""

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        await client.publish("t", b"the partition is led now")
        before = resident_mib()
        claims = HALF_FRAME[:1_024]
        held = [await asyncio.to_thread(send_all, port, claims) for _ in range(1_000)]
        try:
            async with asyncio.timeout(40), client.producer("t", batch_bytes=MIB) as producer:
                for n in range(1, 21):
                    assert (await client.publish("t", b"honest")).offset == n
                await producer.publish(bytes(MIB - 4_096))
            # Sockets and sessions of both ends are in this process: 60 KB a pair.
            assert resident_mib() - before < 100
            for sock in held:
                sock.setblocking(False)
                assert sock.recv(65_536), "the answer to hello"
                with pytest.raises(BlockingIOError):  # nobody is let go
                    sock.recv(65_536)
        finally:
            for sock in held:
                sock.close()

    attack(tmp_path, body)


def test_frames_that_hold_all_reservations_and_stop_are_revoked_with_a_code(
    tmp_path: Path,
) -> None:
    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        await client.publish("t", b"the partition is led now")
        before = resident_mib()
        begun = HALF_FRAME[: 512 * 1_024]
        held = [await asyncio.to_thread(send_all, port, begun) for _ in range(40)]
        async with asyncio.timeout(30), client.producer("t", batch_bytes=MIB) as producer:
            for _ in range(10):
                await producer.publish(bytes(MIB - 4_096))
        assert resident_mib() - before < 2 * BUDGET_MIB

        def last_word(sock: socket.socket) -> int | None:
            """Return the code of the refusal that came before the end, if there was an end."""
            stream, code = ClientStream(), None
            with sock:
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while data := sock.recv(65_536):
                        for frame in stream.receive(data):
                            reply = decode_reply(frame)
                            code = reply.code if isinstance(reply, m.Refusal) else None
                    return code
                return None

        codes = [last_word(sock) for sock in held]
        assert codes.count(Revoked.code) >= 32, "others waited for them"
        assert set(codes) <= {None, Revoked.code}

    attack(tmp_path, body)


def test_large_batches_of_more_producers_than_there_are_reservations_all_get_through(
    tmp_path: Path,
) -> None:
    """A producer whose frame was revoked sends it again by itself, and nothing is there twice."""

    async def body(port: int, client: Client) -> None:
        topic = await client.create_topic("t")
        value = bytes(MIB - 4_096)

        async def send() -> None:
            async with (
                weir.connect(f"weir://127.0.0.1:{port}", request_timeout=50) as one,
                one.producer("t", batch_bytes=8 * MIB) as producer,
            ):
                await producer.send_many([value] * 7)

        await asyncio.gather(*(send() for _ in range(8)))
        _, ends = await client.positions("t")
        assert sum(ends) == 8 * 7, topic

    attack(tmp_path, body)


def test_a_flood_of_small_frames_of_clients_leaves_the_others_their_turns(tmp_path: Path) -> None:
    """A turn served 256 KiB of pings of each: 8 such clients kept a new one out for 30 s."""
    pings = b"".join(b"".join(encode_request(m.Ping(), n)) for n in range(4_000))

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        stop = threading.Event()

        def flood() -> None:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"".join(encode_request(m.Hello("hostile"), 1)))
                sock.setblocking(False)
                sent = 0
                while not stop.is_set():
                    select.select([sock], [sock], [], 0.2)
                    with contextlib.suppress(BlockingIOError):
                        sock.recv(MIB)
                    with contextlib.suppress(BlockingIOError):
                        sent = (sent + sock.send(pings[sent:])) % len(pings)

        threads = [threading.Thread(target=flood) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            await asyncio.sleep(1.0)
            async with asyncio.timeout(25), weir.connect(f"weir://127.0.0.1:{port}") as late:
                for n in range(5):
                    assert (await late.publish("t", b"honest")).offset == n
        finally:
            stop.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)

    attack(tmp_path, body)


def test_small_frames_that_wait_in_line_are_all_answered_in_order(tmp_path: Path) -> None:
    async def body(port: int, client: Client) -> None:
        hello = b"".join(encode_request(m.Hello("many"), 1))
        pings = b"".join(b"".join(encode_request(m.Ping(), n)) for n in range(2, 20_000))

        def ask() -> list[int]:
            found: list[int] = []
            stream = ClientStream()
            with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
                sending = threading.Thread(target=sock.sendall, args=(hello + pings,))
                sending.start()
                while len(found) < 19_999:
                    data = sock.recv(MIB)
                    assert data, "the node hung up"
                    found += [frame.correlation for frame in stream.receive(data)]
                sending.join()
            return found

        assert await asyncio.to_thread(ask) == [*range(1, 20_000)]

    attack(tmp_path, body)


def test_replies_that_nobody_reads_stay_within_the_budget(tmp_path: Path) -> None:
    async def body(port: int, client: Client) -> None:
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


def sockets() -> int:
    """Return how many sockets this process has, the node's among them."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it has just been closed
            found += os.readlink(one).startswith("socket:")
    return found


def test_a_peer_that_is_hung_up_on_and_reads_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.3)

    async def body(port: int, client: Client) -> None:
        topic = await client.create_topic("t")
        async with client.producer("t", batch_bytes=MIB) as producer:
            await producer.send_many([bytes(MIB // 2)] * 16)
        fetch = m.Fetch(topic.addresses[0], 0, 8 * MIB)
        garbage = b"".join(encode_request(fetch, 2)) + b"\xff" * 16
        before = sockets()
        sock = await asyncio.to_thread(send_all, port, garbage)

        def drain() -> int:
            """Read until the node has cut the connection; return how much came."""
            sock.settimeout(10)
            size = 0
            with contextlib.suppress(ConnectionResetError):  # one of the two ways to be cut
                while data := sock.recv(MIB):
                    size += len(data)
            return size

        while sockets() > before + 1:  # the peer reads nothing until the node's end is closed
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(drain) < 8 * MIB
        sock.close()

    attack(tmp_path, body)


def greeted(port: int, hub: int = 1) -> socket.socket:
    """Connect a device that has said hello to topic t."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(device.hello(hub, 1, "t"))
    assert reply(sock).code == 0
    return sock


def reply(sock: socket.socket) -> device.DeviceReply:
    replies = device.DeviceReplies()
    while True:
        data = sock.recv(65_536)
        assert data, "the node hung up"
        if found := replies.receive(data):
            return found[0]


def until_cut(sock: socket.socket) -> None:
    """Return once the node has closed the connection."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65_536):
            pass
    sock.close()


PING = device.frame(device.DeviceOpcode.PING, 9, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\xff\xff\xff\xff\x00\x02\x07",
        b"\x02\x00\x20\x00\xff\xff\xff\xff" + bytes(8),
        b"\x02\x00\x01\x00\x01\x00\x10\x00" + bytes(8),
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        PING + b"\x02",
    ],
    ids=["device 4 GiB", "client 4 GiB", "control 1 MiB", "zeros", "HTTP", "TLS", "other dialect"],
)
def test_bytes_that_begin_no_frame_end_the_connection(tmp_path: Path, data: bytes) -> None:
    async def body(port: int, client: Client) -> None:
        def send() -> None:
            sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            sock.sendall(data + bytes(8))
            until_cut(sock)

        await asyncio.to_thread(send)
        await client.create_topic("t")
        assert (await client.publish("t", b"honest")).offset == 0

    attack(tmp_path, body)


def test_bad_frames_that_are_in_step_are_numbered_and_cost_nothing_else(tmp_path: Path) -> None:
    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        await client.publish("t", b"the partition is led now")

        def send() -> list[tuple[int, int]]:
            with greeted(port) as sock:
                found = []
                bad = device.publish(7, b"open")
                for frame in (
                    bad[:-1] + bytes((bad[-1] ^ 1,)),
                    device.frame(77, 7, b"?"),
                    PING[:-1] + b"?",
                    device.publish(7, b"open"),
                ):
                    sock.sendall(frame)
                    answer = reply(sock)
                    found.append((answer.opcode, answer.code))
                return found

        assert await asyncio.to_thread(send) == [
            (2, BadChecksum.code), (77, UnknownOpcode.code), (4, BadChecksum.code), (2, 0)
        ]  # fmt: skip

    attack(tmp_path, body)


def test_a_frame_that_dribbles_in_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.1)

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")

        def dribble() -> int:
            sock, sent = greeted(port), 0
            sock.settimeout(0.05)
            for byte in device.publish(1, bytes(60_000)):
                try:
                    sock.sendall(bytes((byte,)))
                    sent += 1
                    if not sock.recv(1):
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            sock.close()
            return sent

        slow = asyncio.create_task(asyncio.to_thread(dribble))
        for n in range(20):
            assert (await client.publish("t", b"honest")).offset == n
        assert await slow < 1_000, "it was cut long before its frame was whole"

    attack(tmp_path, body, ConnectionsConfig(frame_seconds=1))


def test_a_silent_device_is_let_go_and_one_that_pings_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.1)

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")

        def wait() -> None:
            silent, polite = greeted(port, 1), greeted(port, 2)
            silent.settimeout(0.2)
            for _ in range(200):
                polite.sendall(PING)
                assert reply(polite).code == 0
                with contextlib.suppress(TimeoutError):
                    assert silent.recv(1) == b"", "nothing was asked, so nothing is said"
                    break
            else:
                raise AssertionError("the silent device was never let go")
            silent.close()
            polite.close()

        await asyncio.to_thread(wait)
        await client.ping()

    attack(tmp_path, body, ConnectionsConfig(idle_seconds=3))


def test_those_who_come_too_fast_wait_and_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "ConnectionLimits", partial(ConnectionLimits, accept_burst=4))

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        await client.publish("t", b"the partition is led now")

        def rush() -> None:
            socks = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(30)]
            for hub, sock in enumerate(socks):
                sock.sendall(device.hello(hub, 1, "t") + device.publish(1, b"%d" % hub))
            for sock in socks:
                replies, found = device.DeviceReplies(), []
                while len(found) < 2:
                    found += replies.receive(sock.recv(4_096))
                assert [r.code for r in found] == [0, 0]
                sock.close()

        await asyncio.to_thread(rush)

    attack(tmp_path, body, ConnectionsConfig(accepts_per_second=100))


def test_those_who_lost_patience_in_the_lobby_keep_out_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "ConnectionLimits", partial(ConnectionLimits, accept_burst=4))

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        await client.publish("t", b"the partition is led now")

        def rush() -> None:
            for hub in range(300):  # who come for a minute at 5 a second, and go at once
                with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                    sock.sendall(device.hello(hub, 1, "t"))
            greeted(port, 1_000).close()

        await asyncio.to_thread(rush)

    attack(tmp_path, body, ConnectionsConfig(accepts_per_second=5))


def test_idle_connections_by_the_thousand_cost_little_and_hold_up_nobody(tmp_path: Path) -> None:
    count = 2_000

    async def body(port: int, client: Client) -> None:
        await client.create_topic("t")
        before = resident_mib()
        socks = [socket.socket() for _ in range(count)]
        try:
            for sock in socks:
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(("127.0.0.1", port))
            for n in range(20):
                assert (await client.publish("t", b"honest")).offset == n
            # Sockets of both ends are in this process: 30 KB is for the node's.
            assert resident_mib() - before < 60 * count // 1_024
        finally:
            for sock in socks:
                sock.close()

    attack(tmp_path, body)
