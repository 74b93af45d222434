import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        await w.create_topic("flights", partitions=3)
        receipt = await w.publish("flights", "UA1545 EWR IAH", key="EWR", tag="departure")
        print(receipt.offset, receipt.duplicate)


asyncio.run(main())
