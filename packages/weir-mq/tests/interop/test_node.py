"""A whole node on a real disk and loopback, with the real client, in one loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import weir
from weir import device
from weir.broker.produce.appender import ProduceRequests
from weir.errors import (
    BadRequest,
    Disconnected,
    Refused,
    SequenceReused,
    TopicExists,
    UnknownTopic,
)
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.frame import ClientFrame
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, MemoryConfig, NodeConfig
from weir.spark.blocking_client import BlockingClient

Body = Callable[[int], Coroutine[Any, Any, None]]


@asynccontextmanager
async def node(folder: Path, budget_mib: int = 66, port: int = 0) -> AsyncIterator[int]:
    """Run a node on this loop; yield its port, and stop it gracefully."""
    config = Config(
        node=NodeConfig(data=str(folder), port=port),
        memory=MemoryConfig(budget_mib=budget_mib, cache_mib=1),
        log=LogConfig(segment_mib=32, spares=0),
    )
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve(config, lambda _, port: started.set_result(port), stop))
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield started.result()
    finally:
        stop.set()
        assert await task, "the node did not drain in time"


def run(folder: Path, body: Body, **settings: int) -> None:
    async def whole() -> None:
        async with node(folder, **settings) as port:
            await asyncio.wait_for(body(port), 60)

    asyncio.run(whole())


def url(port: int) -> str:
    return f"weir://127.0.0.1:{port}"


async def read_all(port: int, topic: str) -> list[weir.Message]:
    async with weir.connect(url(port)) as w:
        return [message async for message in w.reader(topic, follow=False)]


def test_what_is_published_is_read_back_even_after_a_restart(tmp_path: Path) -> None:
    async def publish(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("flights", partitions=2)
            for n in range(20):
                receipt = await w.publish(
                    "flights", b"v%d" % n, key=b"k", tag="UA", headers={"h": b"1"}, partition=1
                )
                assert (receipt.offset, receipt.partition) == (n, 1)

    async def check(port: int) -> None:
        messages = await read_all(port, "flights")
        assert [message.value for message in messages] == [b"v%d" % n for n in range(20)]
        assert [message.offset for message in messages] == list(range(20))
        assert {(x.key, x.tag, x.headers["h"], x.partition) for x in messages} == {
            (b"k", "UA", b"1", 1)
        }
        stamps = [message.stamp for message in messages]
        assert stamps == sorted(stamps)

    run(tmp_path, publish)
    run(tmp_path, check)
    run(tmp_path, check)


def test_reads_that_are_not_cached_come_from_the_disk(tmp_path: Path) -> None:
    """Twenty MiB pass through a cache of one."""
    values = [b"%07d" % n + bytes(1016) for n in range(20_000)]

    async def body(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("big")
            async with w.producer("big") as producer:
                await producer.send_many(values)
            assert [message.value for message in await read_all(port, "big")] == values

    run(tmp_path, body)


def test_devices_and_clients_share_one_port_and_one_order(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("locks")

        def lock() -> None:
            with device.Client("127.0.0.1", port, hub=0xA1, boot=1, topic="locks") as hub:
                for n in range(5):
                    reply = hub.publish_sequenced(b"unlock %d" % n, sn=7)
                    assert (reply.code, reply.offset) == (0, n)
                assert hub.publish(b"loose", sn=9).code == 0
                hub.ping()

        await asyncio.to_thread(lock)
        values = [message.value for message in await read_all(port, "locks")]
        assert values == [b"unlock %d" % n for n in range(5)] + [b"loose"]

    run(tmp_path, body)


def test_a_cluster_sees_each_message_until_it_is_acked(tmp_path: Path) -> None:
    async def first(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("jobs")
            async with w.producer("jobs") as producer:
                await producer.send_many([b"%d" % n for n in range(100)])
            async with w.consumer("jobs", cluster="crew", max_messages=10) as consumer:
                async for grant in consumer.batches():
                    await grant.ack(confirmed=True)
                    if grant.next_offset == 60:
                        break

    async def second(port: int) -> None:
        seen = []
        async with (
            weir.connect(url(port)) as w,
            w.consumer("jobs", cluster="crew", max_messages=10) as consumer,
        ):
            async for grant in consumer.batches():
                seen += [message.value for message in grant.messages()]
                await grant.ack(confirmed=True)
                if grant.next_offset == 100:
                    break
        assert seen[-1] == b"99"
        # Acked before the restart is acked for ever; a grant that was in flight may come again.
        assert set(range(60)).isdisjoint(map(int, seen))
        assert {*range(60, 100)} == {*map(int, seen)}

    run(tmp_path, first)
    run(tmp_path, second)


def test_refusals_have_numbers_and_say_what_to_do(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with weir.connect(url(port)) as w:
            with pytest.raises(UnknownTopic, match="weir topic create"):
                await w.publish("nowhere", b"x")
            await w.create_topic("t", partitions=2)
            assert (await w.create_topic("t", partitions=2)).id == 1
            with pytest.raises(TopicExists, match="2 partitions"):
                await w.create_topic("t", partitions=3)
            for bad in ("", "..", "a b", "x" * 129, "a/b/c"):
                with pytest.raises(Refused):
                    await w.create_topic(bad)
            with pytest.raises(Refused, match="order"):
                await w.create_topic("u", order="causal")

    run(tmp_path, body)


def test_an_unknown_opcode_and_a_missing_hello_are_refused_by_number(tmp_path: Path) -> None:
    def talk(port: int) -> list[m.Reply]:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(b"".join(encode_request(m.ListTopics(), 1)))
            unknown = bytearray(b"".join(encode_request(m.Hello("test"), 2)))
            unknown[2] = 99
            sock.sendall(unknown)
            stream, frames = ClientStream(), list[ClientFrame]()
            while len(frames) < 2:
                frames += stream.receive(sock.recv(4096))
            return [decode_reply(frame) for frame in frames]

    async def body(port: int) -> None:
        replies = await asyncio.to_thread(talk, port)
        assert [r.code for r in replies if isinstance(r, m.Refusal)] == [21, 22]

    run(tmp_path, body)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x02" + b"\xff" * 40, b"\x01" * 9]
)
def test_garbage_costs_a_peer_its_connection_and_nobody_else(
    tmp_path: Path, garbage: bytes
) -> None:
    def poke(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(garbage)
            return sock.recv(4096)

    async def body(port: int) -> None:
        assert await asyncio.to_thread(poke, port) == b""
        async with weir.connect(url(port)) as w:
            await w.ping()

    run(tmp_path, body)


def test_a_system_refuses_strangers(tmp_path: Path) -> None:
    def talk(port: int) -> m.Reply:
        with BlockingClient("127.0.0.1", port, 10) as client:
            return client.request(m.Hello("stranger", system=1))

    async def body(port: int) -> None:
        with pytest.raises(Refused) as refused:
            await asyncio.to_thread(talk, port)
        assert refused.value.code == 23

    run(tmp_path, body)


def test_a_second_process_cannot_open_the_folder(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        with pytest.raises(Exception, match="in use by another weir process"):
            async with node(tmp_path):
                pass

    run(tmp_path, body)


def test_a_publish_waits_for_a_node_that_restarts(tmp_path: Path) -> None:
    async def whole() -> None:
        async with node(tmp_path) as port:
            w = await weir.connect(url(port))
            await w.create_topic("t")
            await w.publish("t", b"before")
        waiting = asyncio.ensure_future(w.publish("t", b"meanwhile"))
        async with node(tmp_path, port=port):
            assert (await asyncio.wait_for(waiting, 30)).offset == 1
            await w.close()
            assert [x.value for x in await read_all(port, "t")] == [b"before", b"meanwhile"]

    asyncio.run(whole())


def test_a_client_without_a_node_is_told_what_to_check(tmp_path: Path) -> None:
    async def whole() -> None:
        async with node(tmp_path) as port:
            w = await weir.connect(url(port), request_timeout=0.5)
        with pytest.raises(Disconnected, match="weir serve"):
            await w.ping()
        await w.close()

    asyncio.run(whole())


def test_a_taken_port_is_reported_and_leaves_nothing_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        async with node(tmp_path / "first") as port:
            with pytest.raises(OSError, match="ddress already in use"):
                async with node(tmp_path / "second", port=port):
                    pass
        async with node(tmp_path / "second"):  # its folder is free again
            pass

    asyncio.run(whole())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_bug_in_the_shard_ends_the_node_and_a_restart_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a shard says is to be believed once one of its rules has raised."""

    async def first() -> None:
        async with node(tmp_path) as port, weir.connect(url(port), request_timeout=1) as w:
            await w.create_topic("t")
            await w.publish("t", b"kept")
            monkeypatch.setattr(ProduceRequests, "publish", _bug)
            with pytest.raises(Disconnected):
                await w.publish("t", b"broken")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(first())
    monkeypatch.undo()

    async def second(port: int) -> None:
        assert (await read_all(port, "t"))[0].value == b"kept"

    run(tmp_path, second)


def _bug(*_: object) -> None:
    raise ZeroDivisionError


def test_a_lock_that_is_refused_does_not_block_the_others(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("locks")

        def hub() -> device.Client:
            return device.Client("127.0.0.1", port, hub=5, boot=1, topic="locks")

        def play() -> None:
            with hub() as first:
                first.publish_sequenced(b"opened", sn=1)
                for bad in ("text", bytearray(b"x")):
                    with pytest.raises(BadRequest, match="bytes"):
                        first.publish_sequenced(bad, sn=1)  # type: ignore[arg-type]
                for sn in (-1, 256):
                    with pytest.raises(BadRequest, match="0 to 255"):
                        first.publish_sequenced(b"x", sn=sn)
                first.publish_sequenced(b"closed", sn=1)
            with hub() as again:  # restarted, and its boot count did not rise
                for _ in range(2):
                    with pytest.raises(SequenceReused, match="higher boot count"):
                        again.publish_sequenced(b"other", sn=1)
                again.publish_sequenced(b"fine", sn=2)

        await asyncio.to_thread(play)
        values = [message.value for message in await read_all(port, "locks")]
        assert values == [b"opened", b"closed", b"fine"]

    run(tmp_path, body)


def test_positions_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    async def body(port: int) -> None:
        async with weir.connect(url(port)) as w:
            await w.create_topic("t")
            await w.publish("t", b"x")
            for start in ({"0": 1}, {0: -1}, {0: 1.5}):
                with pytest.raises(BadRequest, match="whole numbers"):
                    w.reader("t", start=start)  # type: ignore[arg-type]
            with pytest.raises(Refused):
                async for _ in w.reader("t", start={7: 0}, follow=False):
                    pass

    run(tmp_path, body)
