"""A consumer that pauses can be sure that it is granted nothing, and holds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

import weir
from weir import testing
from weir.client.client import Client
from weir.client.connection.metadata import Places
from weir.client.consumer.pulls import PendingPulls
from weir.errors import UnknownOpcode
from weir.model.ids import Address
from weir.protocol.client import messages as m


async def consumers(w: Client) -> int:
    (cluster,) = await w.clusters("doors")
    return cluster.consumers


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_once_it_is_quiet_it_is_granted_nothing(mode: str, order: str) -> None:
    """Its pulls waited on, and what they were granted counted as tried if the process ended."""

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors", partitions=2, order=order)
            async with w.consumer("doors", cluster="c", mode=mode) as consumer:
                deliveries = consumer.deliveries()
                for round_ in range(5):
                    await w.publish("doors", b"%d" % round_, key=b"%d" % round_)
                    delivery = await anext(deliveries)
                    assert (delivery.message.value, delivery.attempts) == (b"%d" % round_, 1)
                    delivery.done()
                    # Some are told to pull when nothing is there, and some while something comes.
                    more = asyncio.ensure_future(deliveries.more())
                    await asyncio.sleep(0.01 * round_)
                    more.cancel()
                    deliveries.pause()
                    await deliveries.quiet()
                    assert await consumers(w) == 0

    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    asyncio.run(whole())


@pytest.mark.parametrize("mode", ["keyed", "ordered"])
def test_what_has_expired_of_what_comes_in_a_pause_is_held_by_nobody(mode: str) -> None:
    """It stayed with who paused, though nobody had it: no later one of its key came to others, and
    in order the turn was over with its lease, in the middle of the work that went on.
    """

    async def scenario(node: testing.Node) -> None:
        async with weir.connect(node.url) as w:
            await w.create_topic("doors")
            await w.publish("doors", b"gone", key=b"k", ttl=0.001)
            await asyncio.sleep(0.05)
            async with w.consumer("doors", cluster="c", mode=mode) as consumer:
                deliveries = consumer.deliveries()
                more = asyncio.ensure_future(deliveries.more())
                await asyncio.sleep(0)  # it pulls now
                more.cancel()
                while not (found := await w.clusters("doors")) or not found[0].shares[0].granted:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                deliveries.pause()
                await deliveries.quiet()
                (share,) = (await w.clusters("doors"))[0].shares
                assert share.granted == 0
                assert consumer.stale == 0

    async def whole() -> None:
        with testing.node() as node:
            async with asyncio.timeout(30):
                await scenario(node)

    asyncio.run(whole())


def test_a_broker_of_an_earlier_release_lets_it_be_quiet(fake_broker) -> None:
    """A last attempt never came: what it waits for was refused, again and again."""

    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            broker.script = lambda request: (
                m.Refusal(UnknownOpcode.code, "not known here")
                if isinstance(request, m.Withdraw)
                else None
            )
            async with w.consumer("t", cluster="c") as consumer:
                deliveries = consumer.deliveries()
                more = asyncio.ensure_future(deliveries.more())
                while not any(isinstance(request, m.Pull) for request in broker.seen):
                    await asyncio.sleep(0.01)
                more.cancel()
                deliveries.pause()
                await deliveries.quiet()
                assert isinstance(broker.seen[-1], m.Withdraw)

    asyncio.run(scenario())


def test_what_is_withdrawn_is_what_was_asked_of_the_partition_for_the_cluster() -> None:
    """What else awaits an answer says nothing of the connection by which a pull went."""
    here, elsewhere = Address(0, 0, 7), Address(1, 1, 8)
    followed: list[Callable[[m.Request], bool]] = []

    class Asked(list[Address]):
        async def ask(self, *_: object, behind: Callable[[m.Request], bool]) -> None:
            followed.append(behind)

    def pull(address: Address, cluster: str) -> m.Request:
        return m.Pull(address, cluster, 1, 1, 1, 1)

    def turn(address: Address, cluster: str) -> m.Request:
        return m.TakeTurn(address, cluster, (0,), 1, 1)

    async def scenario() -> None:
        pending = PendingPulls("c", cast(Places, Asked([here])))
        with pending.asks(0):
            withdrawing = asyncio.ensure_future(pending.withdraw())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await withdrawing

    asyncio.run(scenario())
    (is_followed,) = followed
    for ask in pull, turn:
        assert is_followed(ask(here, "c"))
        assert not is_followed(ask(elsewhere, "c"))
        assert not is_followed(ask(here, "d"))
    assert not is_followed(m.Withdraw(here, "c"))
