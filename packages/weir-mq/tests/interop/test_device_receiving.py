"""Devices that receive, over sockets, from a whole node: persist, notify, pull, ack."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import weir
from rigs.clients import break_connection, close_connection
from weir.device import Client
from weir.device.client import Received, Subscription
from weir.errors import BadRequest, ErasedBoot, StaleGrant, TooLarge, UnknownTopic
from weir.protocol.device import ALL_PARTITIONS, PULL_BYTES_MIN, PULL_VALUE_BYTES_MAX
from weir.server.assembly import serve
from weir.server.config import Config, LogConfig, NodeConfig

Publish = Callable[..., None]


def on_a_node(folder: Path, body: Callable[[int, Publish], None], partitions: int = 1) -> None:
    """Run a node with topic t; `body` runs in a thread and gets its port and a way to publish."""

    async def whole() -> None:
        config = Config(
            node=NodeConfig(data=str(folder), port=0), log=LogConfig(segment_mib=32, spares=0)
        )
        loop = asyncio.get_running_loop()
        port: asyncio.Future[int] = loop.create_future()
        stop = asyncio.Event()
        task = asyncio.ensure_future(serve(config, lambda _, p: port.set_result(p), stop))
        async with weir.connect(f"weir://127.0.0.1:{await port}") as client:
            await client.create_topic("t", partitions=partitions)

            def publish(*values: bytes, partition: int = 0) -> None:
                async def all_of_them() -> None:
                    for value in values:
                        await client.publish("t", value, partition=partition)

                asyncio.run_coroutine_threadsafe(all_of_them(), loop).result(30)

            await asyncio.wait_for(asyncio.to_thread(body, port.result(), publish), 60)
        stop.set()
        assert await task

    asyncio.run(whole())


def values(messages: list[Received]) -> list[bytes]:
    return [message.value for message in messages]


def all_of(lock: Subscription, count: int) -> list[Received]:
    """Take so many messages, in one pull or in several."""
    found: list[Received] = []
    while len(found) < count:
        found += lock.take(30)
    return found


def test_erased_flash_does_not_fence_a_hub(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with (
            pytest.raises(ErasedBoot, match="store 1 in flash, and say hello with boot=1"),
            Client("127.0.0.1", port, hub=1, boot=0xFFFFFFFF, topic="t") as hub,
        ):
            hub.publish_sequenced(b"erased", sn=3)
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as hub:
            hub.publish_sequenced(b"mended", sn=3)

    on_a_node(tmp_path, body)


def test_a_device_is_told_pulls_and_acks(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as hub:
            lock = hub.subscribe("locks", "t", sn=3, in_hand=8)
            assert lock.take(0.05) == []
            publish(b"open 12", b"close 12")
            messages = all_of(lock, 2)
            assert values(messages) == [b"open 12", b"close 12"]
            lock.ack(messages)
            lock.ack(messages)  # as after a reply that was lost
            hub.publish(b"from a device")
            while not (served := lock.serve(lambda message: None, 0.2)):
                pass  # it is notified a moment later
            assert served == 1
            with pytest.raises(BadRequest, match="lock 3 is subscribed"):
                hub.subscribe("others", "t", sn=3)
            with pytest.raises(UnknownTopic):
                hub.subscribe("locks", "nowhere", sn=4)

    on_a_node(tmp_path, body)


def test_what_was_not_acked_comes_again_to_whoever_is_left(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as first:
            lock = first.subscribe("locks", "t", partition=ALL_PARTITIONS)
            publish(b"a", partition=1)
            (lost,) = lock.take(30)
        with Client("127.0.0.1", port, hub=2, boot=1, topic="t") as second:
            other = second.subscribe("locks", "t", partition=ALL_PARTITIONS)
            (again,) = other.take(30)
            assert (again.value, again.partition, again.attempts) == (b"a", 1, 2)
            with pytest.raises(StaleGrant):
                other.ack([lost])
            other.ack([again])
            assert other.take(0.05) == []

    on_a_node(tmp_path, body, partitions=2)


def test_messages_are_given_back_and_kept_longer(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with (
            Client("127.0.0.1", port, hub=1, boot=1, topic="t") as first,
            Client("127.0.0.1", port, hub=2, boot=1, topic="t") as second,
        ):
            lock = first.subscribe("locks", "t", 0, in_hand=8)
            other = second.subscribe("locks", "t", 0)
            publish(b"a", b"b", b"c")
            pulled = all_of(lock, 3)
            lock.nack(pulled[:1])
            (again,) = other.take(30)
            assert (again.value, again.attempts) == (b"a", 2)
            lock.nack(pulled[1:2], delay=3600.0)
            lock.extend(pulled[2:], 3600.0)
            with pytest.raises(StaleGrant):
                lock.ack(pulled[1:])
            other.ack([again])
            assert other.take(0.05) == []

    on_a_node(tmp_path, body)


def test_a_device_acks_before_it_pulls_the_next(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with (
            Client("127.0.0.1", port, hub=1, boot=1, topic="t") as first,
            Client("127.0.0.1", port, hub=2, boot=1, topic="t") as second,
        ):
            publish(b"a", b"b", b"c", b"d")
            lock = first.subscribe("locks", "t", lease=60.0)
            pulled = lock.take(30)
            assert values(pulled) == [b"a"]
            assert lock.take(0.2) == []
            hub = second.subscribe("locks", "t", lease=60.0, in_hand=2)
            assert values(all_of(hub, 2)) == [b"b", b"c"]
            assert hub.take(0.2) == []
            lock.ack(pulled)
            assert values(lock.take(30)) == [b"d"]
            with pytest.raises(BadRequest, match=r"1 to 1,024 messages"):
                hub = second.subscribe("locks", "t", sn=1, in_hand=1_025)

    on_a_node(tmp_path, body)


def test_a_subscription_outlives_its_connection(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as hub:
            lock = hub.subscribe("locks", "t")
            publish(b"a", b"b")
            (first,) = lock.pull(1)
            break_connection(hub)
            lock.ack([first])  # its connection is gone, and nobody else was granted it
            messages = lock.take(30)
            assert values(messages) == [b"b"]
            lock.ack(messages)

    on_a_node(tmp_path, body)


def test_a_subscription_ends_with_its_topic_and_the_hub_goes_on(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        async def administer(create: bool) -> None:
            async with weir.connect(f"weir://127.0.0.1:{port}") as client:
                await (client.create_topic("u") if create else client.delete_topic("u"))

        asyncio.run(administer(create=True))
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as hub:
            lock = hub.subscribe("locks", "u", sn=3)
            asyncio.run(administer(create=False))
            with pytest.raises(UnknownTopic, match="subscribe anew"):
                lock.take(30)
            close_connection(hub)
            assert hub.publish(b"over a new connection").code == 0
            asyncio.run(administer(create=True))
            assert hub.subscribe("locks", "u", sn=3).take(0.05) == []

            asyncio.run(administer(create=False))
            close_connection(hub)
            assert hub.publish_sequenced(b"told by the new connection").code == 0
            with pytest.raises(UnknownTopic):
                hub.subscribe("locks", "u", sn=3)

    on_a_node(tmp_path, body)


def test_what_does_not_fit_is_skipped_when_it_is_acked(tmp_path: Path) -> None:
    def body(port: int, publish: Publish) -> None:
        with Client("127.0.0.1", port, hub=1, boot=1, topic="t") as hub:
            lock = hub.subscribe("locks", "t", in_hand=2)
            publish(bytes(PULL_VALUE_BYTES_MAX + 1), bytes(PULL_VALUE_BYTES_MAX), b"small")
            with pytest.raises(TooLarge, match="more than fit"):
                lock.take(30)
            assert lock.unfit is not None
            lock.ack([lock.unfit])
            (largest,) = lock.take(30)
            assert largest.value == bytes(PULL_VALUE_BYTES_MAX)
            (small,) = lock.pull(9, PULL_BYTES_MIN + 5)
            assert small.value == b"small"
            lock.ack([largest, small])

    on_a_node(tmp_path, body)
