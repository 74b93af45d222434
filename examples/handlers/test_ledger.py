import asyncio

from ledger import app, engine
from sqlalchemy import text

import weir


def unlocks():
    with engine.connect() as connection:
        return [*connection.scalars(text("select door from unlocks"))]


async def until(done):
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.01)


async def letters(w):
    return [m.headers["weir-reason"] async for m in w.reader("unlocks.dead", follow=False)]


def test_each_unlock_is_recorded_once_whatever_happens():
    async def test():
        with weir.testing.node() as node:
            async with weir.connect(node.url) as w:
                await w.create_topic("unlocks")
                await w.publish("unlocks", {"door": "A17"})
                await w.publish("unlocks", {"window": "B2"})
                async with app.running(node.url):
                    await until(lambda: unlocks() == ["A17"])
                # All is handled again: from the beginning, by a cluster that knows what it did.
                await w.seek_cluster("unlocks", "ledger", "earliest")
                async with app.running(node.url):
                    await w.publish("unlocks", {"door": "C3"})
                    await until(lambda: "C3" in unlocks())
                assert unlocks() == ["A17", "C3"]
                assert b"no door is named" in await letters(w)

    asyncio.run(test())
