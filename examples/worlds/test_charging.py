import asyncio

import pytest
from charging import mended, naive

ORDERS = 30


def scenario_with(handlers):
    async def scenario(world):
        def make():
            return handlers(world.engine())

        async with world.connect() as w:
            await w.create_topic("orders", partitions=2)
            world.start(make)
            world.start(make)
            for number in range(ORDERS):
                await w.publish("orders", {"number": number})
                await asyncio.sleep(world.random.random())  # virtual: it costs nothing
            world.heal()  # no more faults: now all must come right
            async with asyncio.timeout(300):
                while sum(
                    share.lag
                    for found in await w.clusters("orders", "charging")
                    for share in found.shares
                ):
                    await asyncio.sleep(0.1)
        charged = sorted(number for (number,) in world.rows("select number from charges"))
        assert charged == list(range(ORDERS))

    return scenario


@pytest.mark.weir_world(seeds=10, nodes=3)
def test_naive(weir_world):
    weir_world.run(scenario_with(naive))


@pytest.mark.weir_world(seeds=10, nodes=3)
def test_mended(weir_world):
    weir_world.run(scenario_with(mended))
