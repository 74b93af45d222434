import asyncio

import weir


async def main():
    async with weir.connect("weir://localhost:6800") as w:
        await w.create_topic("shop.orders")
        await w.publish("shop.orders", "from before")

        # Every topic that begins so, also those that come later. A cluster that has no position
        # in a topic begins behind what is there.
        async with w.consumer("shop.*", cluster="audit", start="latest") as consumer:
            await w.create_topic("shop.refunds")
            await w.publish("shop.refunds", "a refund")
            async with await anext(consumer) as message:
                print(message.topic, message.value)

        await w.publish("shop.orders", "while nobody consumed")

        # Two topics by name; the cluster has a position in both, so start= moves nothing.
        topics = ["shop.orders", "shop.refunds"]
        async with w.consumer(topics, cluster="audit", start="earliest") as consumer:
            message = await anext(consumer)
            print(message.topic, message.value)
            await message.ack()


asyncio.run(main())
