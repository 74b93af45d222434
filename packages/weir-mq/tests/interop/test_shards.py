"""Nodes of several shard processes, on real disks and sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import weir
from weir import device
from weir.cli.survey import log_folders
from weir.client.client import Client
from weir.errors import Disconnected, Fenced, UnknownOpcode, UnknownTopic
from weir.model.batch_builder import encode
from weir.protocol.client import messages as m
from weir.server.disk.node_folder import NodeFolder
from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import Node, NodeFailed, running_node

LOGS = 4
SMALL: dict[str, Any] = {"segment_mib": 32, "spares": 0, "budget_mib": 66, "cache_mib": 4}
Body = Callable[[Node], Coroutine[Any, Any, None]]
Pids = Callable[[Node], list[int]]
Landing = Callable[[Node, int], BlockingClient]


def run(folder: Path, shards: int, body: Body, seconds: float = 45) -> None:
    with running_node(folder, shards=shards, logs=LOGS, **SMALL) as node:
        try:
            asyncio.run(asyncio.wait_for(body(node), seconds))
        except BaseException as error:
            error.add_note(node.said())
            raise


async def values_of(w: Client, topic: str) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in (await w.describe(topic)).addresses]
    async for message in w.reader(topic, follow=False):
        found[message.partition].append(message.value)
    return found


@pytest.mark.parametrize("shards", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_any_shard_serves_every_partition(tmp_path: Path, shards: int, landing: Landing) -> None:
    """By the shared port alone: whichever shard is met passes on what is not its own."""

    def play(node: Node) -> None:
        groups = {}
        for shard in range(shards):
            with landing(node, shard) as client:
                created = client.request(m.CreateTopic(f"t{shard}", LOGS))
                assert isinstance(created, m.TopicInfo)
                assert {address.log for address in created.addresses} == set(range(LOGS))
                assert {address.shard for address in created.addresses} == set(range(shards))
                groups[shard] = created.addresses
        for shard in range(shards):
            with landing(node, shard) as client:
                grant = client.request(m.OpenProducer())
                assert isinstance(grant, m.ProducerGrant)
                for address in groups[(shard + 1) % shards]:
                    batch = encode([b"one", b"two"], group=address.group,
                                   producer=grant.producer, epoch=0, sequence=0)  # fmt: skip
                    produce = m.Produce(address, 0, memoryview(batch))
                    confirm = client.request(produce)
                    assert isinstance(confirm, m.Confirm)
                    again = client.request(produce)
                    assert isinstance(again, m.Confirm)
                    assert again.duplicate
                    assert (again.offset, again.stamp) == (confirm.offset, confirm.stamp)
        for shard in range(shards):
            with landing(node, shard) as client:
                for addresses in groups.values():
                    for address in addresses:
                        fetched = client.fetch(address, 0, 1 << 20)
                        assert (fetched.next_offset, len(fetched.batches)) == (2, 1)
                listed = client.request(m.ListTopics())
                assert isinstance(listed, m.TopicList)
                assert [topic.name for topic in listed.topics] == [f"t{s}" for s in range(shards)]

    async def body(node: Node) -> None:
        await asyncio.to_thread(play, node)

    run(tmp_path, shards, body)


def test_a_client_talks_to_each_shard_and_keeps_order(tmp_path: Path) -> None:
    values = [[b"%d-%05d" % (p, n) for n in range(2_000)] for p in range(LOGS)]

    async def body(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t", partitions=LOGS)
            async with w.producer("t", linger=0.001) as producer:
                for n in range(2_000):
                    for p in range(LOGS):
                        producer.send(values[p][n], partition=p)
                    await producer.ready()
            assert await values_of(w, "t") == values
            seen: set[bytes] = set()
            async with w.consumer("t", cluster="crew", max_messages=500) as consumer:
                async for grant in consumer.batches():
                    seen |= {message.value for message in grant.messages()}
                    await grant.ack(confirmed=True)
                    if len(seen) == LOGS * 2_000:
                        break

    run(tmp_path, 2, body)


def test_what_one_number_of_shards_wrote_another_reads(tmp_path: Path) -> None:
    async def begin(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("t", partitions=LOGS)
            for n in range(3 * LOGS):
                await w.publish("t", b"%d" % n, partition=n % LOGS)

    def goes_on(shards: int) -> Body:
        async def body(node: Node) -> None:
            async with weir.connect(node.url) as w:
                assert {a.shard for a in (await w.describe("t")).addresses} == {*range(shards)}
                found = await values_of(w, "t")
                for p, values in enumerate(found):
                    assert values[:3] == [b"%d" % n for n in range(p, 3 * LOGS, LOGS)]
                    assert values[3:] == [b"more"] * (len(values) - 3)
                    receipt = await w.publish("t", b"more", partition=p)
                    assert receipt.offset == len(values)

        return body

    run(tmp_path, 3, begin)
    for shards in (1, 4):
        run(tmp_path, shards, goes_on(shards))


def test_a_log_may_have_a_disk_of_its_own(tmp_path: Path) -> None:
    data, disk = tmp_path / "node", tmp_path / "disk"
    NodeFolder(data).found(2, {1: str(disk)})
    for offset in range(2):
        with (
            running_node(data, shards=2, **SMALL) as node,
            BlockingClient(node.host, node.port, 10) as client,
        ):
            info = client.request(m.CreateTopic("t", 2))
            grant = client.request(m.OpenProducer())
            assert isinstance(info, m.TopicInfo)
            assert isinstance(grant, m.ProducerGrant)
            for address in info.addresses:
                batch = encode([b"x"], group=address.group, producer=grant.producer,
                               epoch=0, sequence=0)  # fmt: skip
                confirm = client.request(m.Produce(address, 0, memoryview(batch)))
                assert isinstance(confirm, m.Confirm)
                assert confirm.offset == offset
        assert list(disk.glob("segment-*"))
        assert not (data / "log-1").exists()
    assert log_folders(data) == sorted([data / "log-0", disk])


def test_locks_send_and_receive_by_any_shard(tmp_path: Path) -> None:
    hubs = range(12)

    def play(node: Node) -> None:
        for hub in hubs:
            with device.Client(node.host, node.port, hub=hub, boot=1, topic="locks") as lock:
                for n in range(3):
                    assert lock.publish_sequenced(b"%d/%d" % (hub, n), sn=1).code == 0
                lock.ping()

    async def body(node: Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("locks", partitions=LOGS)
            await asyncio.to_thread(play, node)
            found = await values_of(w, "locks")
            assert all(found), "hubs spread over all partitions"
            for hub in hubs:
                mine = [b"%d/%d" % (hub, n) for n in range(3)]
                assert any([v for v in part if v in mine] == mine for part in found)

    run(tmp_path, 3, body)


def test_a_new_epoch_fences_the_old_one_at_every_shard(tmp_path: Path, landing: Landing) -> None:
    def play(node: Node) -> None:
        with landing(node, 0) as old, landing(node, 1) as new:
            info = old.request(m.CreateTopic("t", LOGS))
            grant = old.request(m.OpenProducer())
            assert isinstance(info, m.TopicInfo)
            assert isinstance(grant, m.ProducerGrant)

            def produce(client: BlockingClient, epoch: int, sequence: int, partition: int) -> None:
                address = info.addresses[partition]
                batch = encode([b"x"], group=address.group, producer=grant.producer,
                               epoch=epoch, sequence=sequence)  # fmt: skip
                client.request(m.Produce(address, 0, memoryview(batch)))

            for epoch in range(3):
                for partition in range(LOGS):
                    produce(old, epoch, 0, partition)
                fencing = new.request(m.OpenProducer(grant.producer))
                assert isinstance(fencing, m.ProducerGrant)
                assert fencing.epoch == epoch + 1
                for partition in range(LOGS):
                    with pytest.raises(Fenced):
                        produce(old, epoch, 1, partition)

    async def body(node: Node) -> None:
        await asyncio.to_thread(play, node)

    run(tmp_path, 2, body)


def test_a_topic_that_is_not_there_is_unknown_at_every_shard(
    tmp_path: Path, landing: Landing
) -> None:
    def play(node: Node) -> None:
        for shard in range(2):
            with landing(node, shard) as client:
                with pytest.raises(UnknownTopic):
                    client.describe("nowhere")
                with pytest.raises(UnknownTopic):
                    client.fetch(m.Address(0, 0, 77 << 16), 0, 1)
                with pytest.raises(UnknownTopic):
                    client.fetch(m.Address(0, 0, 78 << 16), 0, 1)

    async def body(node: Node) -> None:
        await asyncio.to_thread(play, node)

    run(tmp_path, 2, body)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_shard_comes_back_and_nothing_confirmed_is_lost(
    tmp_path: Path, victim: int, shard_pids: Pids
) -> None:
    """Load on all partitions; each is exactly once in the end, at the offset of its receipt."""
    kills = 2

    async def load(w: Client, partition: int, stop: asyncio.Event) -> list[tuple[bytes, int]]:
        confirmed = []
        async with w.producer("t", partition=partition, linger=0.001, window=16) as producer:
            sent = []
            n = 0
            while not stop.is_set():
                for _ in range(20):
                    value = b"%d-%06d" % (partition, n)
                    sent.append((value, producer.send(value)))
                    n += 1
                await sent[-10][1].wait()
            await producer.flush()
            for value, one in sent:
                confirmed.append((value, (await one.wait()).offset))
        return confirmed

    def turn(node: Node, partition: int, stop: asyncio.Event) -> list[bytes]:
        turned: list[bytes] = []
        with device.Client(
            node.host, node.port, hub=5, boot=1, topic="locks", partition=partition, timeout=50
        ) as lock:
            while not stop.is_set():
                turned.append(b"%d" % len(turned))
                assert lock.publish_sequenced(turned[-1], sn=1).code == 0
        return turned

    async def body(node: Node) -> None:
        stop = asyncio.Event()
        async with weir.connect(node.url) as w:
            await w.create_topic("locks", partitions=LOGS)
            info = await w.create_topic("t", partitions=LOGS)
            loads = [asyncio.ensure_future(load(w, p, stop)) for p in range(LOGS)]
            turns = [asyncio.to_thread(turn, node, p, stop) for p in range(2)]  # one each shard
            turning = asyncio.gather(*turns)
            ours = next(p for p, a in enumerate(info.addresses) if a.shard == victim)
            others = next(p for p, a in enumerate(info.addresses) if a.shard != victim)
            pids = shard_pids(node)
            pid, survivor = pids[victim], pids[1 - victim]
            for _ in range(kills):
                await w.publish("t", b"before", partition=ours)
                os.kill(pid, signal.SIGKILL)
                await w.publish("t", b"others go on", partition=others)
                await w.publish("t", b"after", partition=ours)
                while pid in (pids := shard_pids(node)) or len(pids) < 2:
                    await asyncio.sleep(0)
                (pid,) = set(pids) - {survivor}
            stop.set()
            found = await asyncio.gather(*loads)
            stored = await values_of(w, "t")
            turned = await turning
            assert (await values_of(w, "locks"))[:2] == turned
        marks = {b"before", b"after", b"others go on"}
        for partition, confirmed in enumerate(found):
            assert [stored[partition][offset] for _, offset in confirmed] == [
                value for value, _ in confirmed
            ]
            assert [v for v in stored[partition] if v not in marks] == [v for v, _ in confirmed]

    run(tmp_path, 2, body, seconds=60)


def test_the_node_ends_with_its_supervisor_and_starts_again(
    tmp_path: Path, shard_pids: Pids
) -> None:
    with running_node(tmp_path, shards=2, logs=LOGS, **SMALL) as node:
        pids = shard_pids(node)
        with BlockingClient(node.host, node.port, 10) as client:
            client.request(m.CreateTopic("t"))
        node.kill()
        with running_node(tmp_path, shards=2, logs=LOGS, **SMALL) as again:
            assert not set(pids) & set(shard_pids(again))
            with BlockingClient(again.host, again.port, 10) as client:
                assert client.describe("t").name == "t"


def test_logs_of_another_system_end_the_node_with_the_reason(tmp_path: Path) -> None:
    with running_node(tmp_path, shards=2, logs=2, **SMALL):
        pass
    file = tmp_path / "node.json"
    founded = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**founded, "system": 1}), encoding="utf-8")
    with (
        pytest.raises(NodeFailed, match=r"ended before it was up: .*system"),
        running_node(tmp_path, shards=2, logs=2, **SMALL),
    ):
        pass


def test_two_nodes_cannot_share_a_port(tmp_path: Path) -> None:
    with (
        running_node(tmp_path / "a", shards=2, logs=2, **SMALL) as node,
        pytest.raises(NodeFailed, match="in use"),
        running_node(tmp_path / "b", shards=2, logs=2, port=node.port, **SMALL),
    ):
        pass


def test_a_client_without_the_own_ports_goes_by_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(node: Node) -> None:
        loop = asyncio.get_running_loop()
        dial = loop.create_connection
        refused = []

        async def firewalled(protocol: Any, host: str, port: int) -> Any:
            if port != node.port:
                refused.append(port)
                raise ConnectionRefusedError
            return await dial(protocol, host, port)

        monkeypatch.setattr(loop, "create_connection", firewalled)
        async with weir.connect(node.url) as w:
            await w.create_topic("t", partitions=LOGS)
            for p in range(LOGS):
                assert (await w.publish("t", b"x", partition=p)).offset == 0
            assert await values_of(w, "t") == [[b"x"]] * LOGS
        assert refused

    run(tmp_path, 2, body)


def test_strangers_cannot_follow_the_registry(tmp_path: Path) -> None:
    def play(node: Node) -> None:
        with (
            BlockingClient(node.host, node.port, 10) as client,
            pytest.raises(UnknownOpcode, match="only a shard"),
        ):
            client.request(m.Follow(0))

    async def body(node: Node) -> None:
        await asyncio.to_thread(play, node)
        with socket.create_connection((node.host, node.port), 10) as raw:
            raw.sendall(b"\x03" + bytes(64))
            assert raw.recv(64) == b""

    run(tmp_path, 2, body)


def test_a_restarted_node_is_found_again(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        async with weir.connect(node.url, request_timeout=0.5) as w:
            await w.create_topic("t", partitions=LOGS)
            await asyncio.to_thread(node.stop)
            with pytest.raises(Disconnected):
                await w.publish("t", b"x", partition=1)

    run(tmp_path, 2, body)
