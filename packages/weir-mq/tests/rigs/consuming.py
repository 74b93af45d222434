"""Take messages, and say that they are done: what most consumers of tests do."""

from __future__ import annotations

from weir.client.consumer.consumer import Consumer, LeasedMessage


async def take(consumer: Consumer) -> LeasedMessage:
    """Return the next message of a consumer, which is done."""
    message = await anext(consumer)
    await message.ack()
    return message


async def take_numbers(consumer: Consumer, count: int) -> list[int]:
    """Return the numbers that so many messages are, each of which is done."""
    return [int((await take(consumer)).value) for _ in range(count)]
