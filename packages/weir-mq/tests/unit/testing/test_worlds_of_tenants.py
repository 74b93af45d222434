"""Two namespaces in worlds: one floods the set, and gets what its quota says; the other does not
notice. The clients, the connections and the shards are those that ship.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from rigs.shards import meter_of
from weir.broker.metadata.quotas import RATES
from weir.client.client import Client
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL
from weir.testing import World, world

FLOOD = "namespace:flood"
#: Bytes a second of the flood, and of one of its messages; messages a second of the other.
QUOTA, SIZE, PACE = 40_000, 1_000, 10
CONNECTIONS = 4
#: How long is measured, in virtual seconds.
SPAN = 10


class Watch:
    """The checker: shares that are in force, as all shards that run go by them."""

    def __init__(self, world: World) -> None:
        self._brokers = cast(Any, world)._brokers
        self.most = 0

    def shares(self, quota: str = "bytes_in") -> dict[str, int]:
        """Return by shard which share of the flood's rate it holds, in thousandths."""
        found = {}
        for host in self._brokers.all:
            for number, process in enumerate(host.running):
                account = meter_of(process.shard).accounts.get(FLOOD)
                if account is not None:
                    found[f"{host.node}.{number}"] = account.shares[RATES.index(quota)]
        return found

    def look(self) -> None:
        """Look now."""
        self.most = max(self.most, sum(self.shares().values()))


async def begin(w: Client) -> None:
    """Let there be two tenants, of which one has a quota."""
    while (await w.nodes.list()).level < FORMAT_LEVEL:
        with suppress(WeirError):  # a node has not said yet what it reads
            await w.nodes.raise_level(FORMAT_LEVEL)
        await asyncio.sleep(0.5)
    await w.create_topic("flood/orders", partitions=3)
    await w.create_topic("steady/orders", partitions=3)
    await w.quotas.set(FLOOD, {"bytes_in": QUOTA})


def start_flood(world: World) -> None:
    async def flood() -> None:
        async with world.connect() as w:

            async def one(partition: int) -> None:
                while True:
                    with suppress(WeirError):
                        await w.publish("flood/orders", b"x" * SIZE, partition=partition)

            await asyncio.gather(*(one(number % 3) for number in range(12)))

    for number in range(CONNECTIONS):
        world.start(flood, f"flood{number}")


async def stored(w: Client) -> int:
    return sum(one.bytes for one in await w.topic_stats("flood/orders"))


async def measure(w: Client, watch: Watch) -> tuple[float, float]:
    """Return which part of its quota the flood gets, and the steady tenant of its pace."""
    loop, confirmed = asyncio.get_running_loop(), 0
    before, began = await stored(w), loop.time()

    async def one(number: int) -> None:
        nonlocal confirmed
        await asyncio.sleep(number / PACE)
        await w.publish("steady/orders", b"steady")
        confirmed += loop.time() - began <= SPAN

    tasks = [asyncio.create_task(one(number)) for number in range(SPAN * PACE)]
    for _ in range(SPAN * 4):
        watch.look()
        await asyncio.sleep(0.25)
    bytes_per_s = (await stored(w) - before) / (loop.time() - began)
    await asyncio.gather(*tasks)
    return bytes_per_s / QUOTA, confirmed / (SPAN * PACE)


async def one_floods(world: World) -> None:
    watch = Watch(world)
    async with world.connect() as w:
        await begin(w)
        start_flood(world)
        await asyncio.sleep(8)
        watch.look()
        share, kept = await measure(w, watch)
        # Of twelve seeds one gets 0.89, the others 0.91 to 0.99.
        assert 0.85 <= share <= 1.1
        assert kept >= 0.9
        assert 0 < watch.most <= QUOTA * 1_000
        assert (await w.quotas.describe(FLOOD)).throttled_ms > 0


async def one_floods_while_all_may_fail(world: World) -> None:
    """Once faults have ended, and shards that are gone for good count as gone, all is as before."""
    watch = Watch(world)
    async with world.connect() as w:
        await begin(w)
        start_flood(world)
        await asyncio.sleep(20)
        world.heal()
        await asyncio.sleep(75)
        watch.look()
        share, kept = await measure(w, watch)
        # A flood over few shards stays up to a tenth below, and faults moved its leaders.
        assert 0.85 <= share <= 1.1
        assert kept >= 0.9
        assert 0 < watch.most <= QUOTA * 1_000


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))]
)
def test_a_flood_gets_its_share_and_the_other_keeps_its_pace(seed: int) -> None:
    world(seed, nodes=3, faults=False).run(one_floods)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_shares_come_back_after_faults(seed: int) -> None:
    world(seed, nodes=3).run(one_floods_while_all_may_fail)
