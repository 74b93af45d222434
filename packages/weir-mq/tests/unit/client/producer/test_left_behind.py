"""What a producer that is closed leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rigs.clients import sender_of, streams_of
from weir import testing
from weir.client.client import connect
from weir.client.producer.receipts import SharedTimeout, Unconfirmed
from weir.errors import Disconnected, Fenced, WeirError
from weir.model.topic import partition_for


# A producer that was closed once forgot who waited: their timer was gone, and nothing told them.
def test_who_waits_for_what_is_never_settled_is_told_though_the_producer_is_closed() -> None:
    async def body() -> None:
        limits = SharedTimeout(0.05, lambda: Disconnected("nothing was confirmed"))
        waiter = Unconfirmed("t", 600, 1).begin(0).within(limits)
        limits.close()
        done, _ = await asyncio.wait([waiter], timeout=10)
        assert done, "it waits for ever"
        assert isinstance(waiter.exception(), Disconnected)

    asyncio.run(body())


def test_a_publish_that_moved_to_a_partition_given_up_does_not_wait_for_ever() -> None:
    async def body() -> None:
        keys = [b"k%d" % n for n in range(999)]
        # It falls into partition 2, and when that has ended into partition 1.
        key = next(k for k in keys if (partition_for(k, 4), partition_for(k, 4, {2})) == (2, 1))
        with testing.node() as node:
            async with connect(node.url, request_timeout=2.0) as w:
                await w.create_topic("t", 4)
                producer: Any = await w.producer("t", linger=0.05).open()
                sender_of(producer).senders[1].fail(Fenced("partition 1 is given up", 1))
                task = asyncio.ensure_future(producer.publish(b"x", key=key))
                await asyncio.sleep(0)
                await w.end_partition("t", 2)
                await asyncio.sleep(0.2)  # it was refused and moved
                assert not task.done()
                await producer.close()
                done, _ = await asyncio.wait([task], timeout=15)
                task.cancel()
                assert done, "it waits for ever"
                with pytest.raises(WeirError):
                    await task

    asyncio.run(asyncio.wait_for(body(), 20))


# A stream was once kept, with its connection, for each partition that was ever sent to.
def test_a_link_keeps_nothing_of_partitions_that_nothing_is_under_way_to() -> None:
    async def body() -> None:
        with testing.node() as node:
            async with connect(node.url) as w:
                for n in range(5):
                    await w.create_topic(f"t{n}")
                    async with w.producer(f"t{n}", linger=0) as producer:
                        await producer.publish(b"x")
                assert not streams_of(w)

    asyncio.run(asyncio.wait_for(body(), 20))
