import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        await w.create_topic("jobs")
        await w.create_topic("dead-jobs")
        for number in range(4):
            await w.publish("jobs", str(number))

        async with w.consumer("jobs", cluster="workers", dead_letter="dead-jobs") as consumer:
            async for message in consumer:
                if message.value == b"0":
                    await message.ack()  # done
                elif message.value == b"1":
                    async with message:  # done at the end of the block
                        print("working on", message.value)
                elif message.value == b"2":
                    async with message:
                        raise weir.Reject("nobody can do that")
                else:
                    print("attempt", message.attempts)
                    break  # 3 has no outcome: it goes to another consumer

        async with w.consumer("jobs", cluster="workers") as consumer:
            async for batch in consumer.batches():  # whole grants: the fast way
                print([message.value for message in batch.messages()], "attempt", batch.attempts)
                print("in time:", bool(await batch.ack(confirmed=True)))
                break


asyncio.run(main())
