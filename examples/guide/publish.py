import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        await w.create_topic("doors", partitions=2)
        await w.publish("doors", {"door": 3, "open": True}, key="hub-7", headers={"unit": b"A"})

        # A producer packs messages into batches and keeps many of them under way.
        async with w.producer("doors", linger="5ms") as producer:
            for number in range(1_000):
                await producer.ready()  # room for one more: else `send` raises Overloaded
                producer.send(b"door %d" % number, key=b"hub-%d" % (number % 10))
            # Many at once, column by column, are the fastest way.
            await producer.send_many([b"a", b"b"], keys=[b"hub-1", b"hub-2"], tags=["x", None])
        # Leaving it waited for all confirms, and would have raised what went wrong.
        async for message in w.reader("doors", start="earliest", key="hub-7"):
            print(message.json()["door"], message.headers)
            break
        print(sum((await w.positions("doors"))[1]))


asyncio.run(main())
