import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        await w.create_topic("jobs")
        for number in range(3):
            await w.publish("jobs", str(number))

        async with w.consumer("jobs", cluster="workers", lease="30s") as consumer:
            async for message in consumer:
                if message.value == b"2":
                    print("attempt", consumer.attempts)
                    break  # 0 and 1 are done; 2 was not acked, nobody asked for a message behind it

        async with w.consumer("jobs", cluster="workers") as consumer:
            async for grant in consumer.batches():  # whole grants, acked by hand
                print([message.value for message in grant.messages()], "attempt", grant.attempts)
                print("in time:", bool(await consumer.ack(grant)))
                break


asyncio.run(main())
