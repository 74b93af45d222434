import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        receipt = await w.publish("flights", "UA1545 EWR IAH", key="EWR")
        print("confirmed at offset", receipt.offset)
        async with w.producer("flights") as producer:
            await producer.send_many([b"DL461 LGA ATL", b"B6725 JFK BQN"], keys=[b"LGA", b"JFK"])


asyncio.run(main())
