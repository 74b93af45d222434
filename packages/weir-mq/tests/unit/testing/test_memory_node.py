"""A node in memory is the broker: it serves, loses power, comes back, and moves with its clock. A
crash of its disk takes back what was not synced, and nothing else.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

import weir
from rigs.drivers import disk_of
from weir import device, sync, testing
from weir.broker.api import events as ev
from weir.errors import Disconnected
from weir.order.clock import milliseconds_of
from weir.testing.memory_node import MemoryDisk


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def test_an_async_application_is_served() -> None:
    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t")
            await w.publish("t", b"x")
            assert [message.value async for message in w.reader("t", follow=False)] == [b"x"]

    asyncio.run(scenario())
    assert "weir-node" not in {thread.name for thread in threading.enumerate()}


def test_what_was_confirmed_survives_a_power_cut(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", partitions=2)
        for i in range(20):
            w.publish("t", b"%d" % i, key=b"k")
            if i % 7 == 0:
                node.restart()
        values = [message.value for message in w.reader("t", follow=False)]
        assert values == [b"%d" % i for i in range(20)]


def test_publishes_go_through_crashes_and_cuts_exactly_once(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        with w.producer("t", linger=0) as producer:
            sent = []
            for i in range(30):
                sent.append(producer.send(b"%d" % i))
                if i % 10 == 3:
                    node.cut()
                if i % 10 == 7:
                    node.restart()
            assert [one.wait().offset for one in sent] == [*range(30)]
        assert len(list(w.reader("t", follow=False))) == 30


def test_while_it_is_down_nobody_is_there(node: testing.Node) -> None:
    url = node.url
    node.crash()
    assert not node.up
    with pytest.raises(Disconnected):
        sync.connect(url, request_timeout=0.05)
    node.crash()
    node.start()
    node.start()
    assert (node.up, node.url) == (True, url)
    with sync.connect(url) as w:
        w.ping()


def test_time_moves_on_as_told(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        before = w.publish("t", b"early").stamp
        node.advance(3_600)
        after = w.publish("t", b"late").stamp
        assert 3_600_000 <= milliseconds_of(after) - milliseconds_of(before) < 3_630_000
        node.restart()
        assert w.publish("t", b"later").stamp > after
        with pytest.raises(ValueError, match="0 or more"):
            node.advance(-1)


def test_a_lease_ends_when_its_time_has_come(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        w.publish("t", b"job")
        with w.consumer("t", cluster="c", lease="1h") as hung:
            held = next(hung.batches())
            assert held.attempts == 1
            node.advance(3_600)
            with w.consumer("t", cluster="c") as other, next(other.batches()) as again:
                assert again.attempts == 2


def test_devices_are_served_too(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t")
        with device.Client("127.0.0.1", node.port, hub=7, boot=1, topic="t") as hub:
            hub.publish_sequenced(b"door opened", sn=3)
        assert [message.value for message in w.reader("t", follow=False)] == [b"door opened"]


def test_nodes_that_are_added_and_removed_are_not_linked_to() -> None:
    """Counterexample: it broke at the first tick that knew of another node."""

    async def scenario() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.nodes.raise_level()
            await w.nodes.add("localhost", 6800, node=1)
            await w.nodes.add("localhost", 6801)
            await asyncio.to_thread(node.advance, 1)
            await w.nodes.drain(2)
            await w.nodes.remove(2)
            await asyncio.to_thread(node.advance, 1)
            await asyncio.to_thread(node.restart)
            await asyncio.to_thread(node.advance, 1)
            assert [one.id for one in (await w.nodes.list()).nodes] == [1]

    asyncio.run(scenario())


def test_garbage_ends_its_connection_only(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        with socket.create_connection(("127.0.0.1", node.port), 5) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(100) == b""
        w.ping()


def test_what_broke_the_node_is_raised_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(shard: object, *events: ev.Event) -> list[object]:
        raise ZeroDivisionError("planted")

    node = testing.node().start()
    monkeypatch.setattr("weir.broker.shard.Shard.step", broken)
    node.advance(1)
    with pytest.raises(ZeroDivisionError, match="planted"):
        node.close()
    node.close()


def test_a_disk_that_raises_breaks_the_node(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sync.connect(node.url, request_timeout=1.5) as w:
        w.create_topic("t")

        def broken(*_: object) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(disk_of(node), "write", broken)
        with pytest.raises(Disconnected):
            w.publish("t", b"x")
        assert not node.up
        monkeypatch.undo()
    with pytest.raises(OSError, match="disk is full"):
        node.close()


def test_a_crash_takes_back_writes_since_the_last_sync() -> None:
    disk = MemoryDisk()
    disk.create("log", 8)
    disk.write("log", 0, [b"ab", b"cd"])
    disk.sync("log")
    disk.write("log", 2, [b"XY"])
    disk.write("log", 3, [b"Z"])
    assert disk.read("log", 0, 100) == b"abXZ\0\0\0\0"
    disk.crash()
    assert disk.read("log", 0, 100) == b"abcd\0\0\0\0"
    disk.crash()
    assert disk.read("log", 1, 2) == b"bc"


def test_files_come_and_go_at_once() -> None:
    disk = MemoryDisk()
    disk.create("a", 4)
    disk.replace("b", b"new")
    disk.write("a", 0, [b"1234"])
    disk.zero("a")
    disk.crash()
    assert sorted(disk.names()) == ["a", "b"]
    assert (disk.size("a"), disk.read("a", 0, 4), disk.read("b", 0, 4)) == (4, bytes(4), b"new")
    disk.write("a", 0, [b"1"])
    disk.remove("a")
    disk.crash()
    assert disk.names() == ["b"]


def test_misuse_is_told() -> None:
    disk = MemoryDisk()
    disk.create("a", 4)
    with pytest.raises(FileExistsError):
        disk.create("a", 4)
    with pytest.raises(ValueError, match="past a's end"):
        disk.write("a", 3, [b"12"])
    for call in (disk.size, disk.sync, disk.remove, disk.zero):
        with pytest.raises(FileNotFoundError):
            call("b")
