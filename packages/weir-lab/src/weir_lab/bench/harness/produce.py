"""The producer process of a measurement: `python -m weir_lab.bench.harness.produce`, led over its
pipes.

It takes a `Plan`, reports `Ready`, waits for the order to go, and reports `Done`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from weir.client.client import connect
from weir.client.core.batcher import MESSAGE_OVERHEAD
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import BatchReceipt
from weir.model.limits import MIB
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.payload import Block

#: Long enough for a clear figure, short beside the measurement.
_REHEARSAL_MESSAGES = 100_000
#: As the client has it.
_LINGER = "5ms"
_BUFFERED = 64 * MIB


class Plan(msgspec.Struct, frozen=True):
    """How much each producer sends: `shares` holds (producer, messages, partition) each. Producers
    that are `lone` publish message by message, and await each before the next; those that send
    `by_message` hand over one after the other, and await none.
    """

    url: str
    topic: str
    shares: list[tuple[int, int, int]]
    size: int
    chunk: int
    window: int
    timeout_s: float
    connect_timeout_s: float = 30.0
    lone: bool = False
    by_message: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All is confirmed. Times are on CLOCK_MONOTONIC, CPU time is since the order to go."""

    first_send_ns: int
    confirmed: int
    duplicates: int
    batches: int
    cpu_s: float
    last_confirm_ns: int = 0


class Tally:
    """What the broker has confirmed to all producers of this process."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.first_send_ns = 0
        self.confirmed = 0
        self.duplicates = 0
        self.batches = 0

    def confirm(self, batch: BatchReceipt) -> None:
        """Count a batch."""
        self.confirmed += batch.count
        self.duplicates += batch.count * batch.duplicate
        self.batches += 1


async def produce(plan: Plan, orders: Orders) -> Done:
    """Open every producer on a connection of its own, wait for the order, send, await confirms."""
    tally = Tally()
    block = Block(plan.size, plan.chunk)
    made_per_s = rehearse(block.values_of, block.count_max)
    async with AsyncExitStack() as stack:
        opening = [_opened(stack, plan, tally, partition) for _, _, partition in plan.shares]
        producers = await asyncio.gather(*opening)
        report(Ready(made_per_s))
        await orders.get()
        send = _send_each if plan.lone else _send_singly if plan.by_message else _send
        cpu = time.process_time()
        tally.first_send_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(plan.timeout_s):
                await asyncio.gather(
                    *(
                        send(producer, block, number, messages)
                        for producer, (number, messages, _) in zip(
                            producers, plan.shares, strict=True
                        )
                    )
                )
        except TimeoutError:
            raise TimeoutError(
                f"not everything was confirmed within {plan.timeout_s:g} s"
            ) from None
        done_ns = time.monotonic_ns()
        cpu = time.process_time() - cpu
    return Done(tally.first_send_ns, tally.confirmed, tally.duplicates, tally.batches, cpu, done_ns)


async def _opened(stack: AsyncExitStack, plan: Plan, tally: Tally, partition: int) -> Producer:
    client = await stack.enter_async_context(
        connect(plan.url, name="weir-bench", request_timeout=plan.connect_timeout_s)
    )
    whole = plan.chunk * (plan.size + MESSAGE_OVERHEAD)
    producer = client.producer(
        plan.topic,
        # A chunk is a batch: nothing is cut, nothing lingers. Of single messages one is made when
        # they are as many, and no more are under way than of chunks.
        batch_bytes=whole if plan.by_message else MIB,
        max_buffered=plan.window * whole if plan.by_message else _BUFFERED,
        linger=0 if plan.lone else _LINGER,
        window=plan.window,
        partition=partition,
        on_confirm=tally.confirm,
    )
    return await stack.enter_async_context(producer)


async def _send(producer: Producer, block: Block, number: int, messages: int) -> None:
    for first in range(0, messages, block.count_max):
        count = min(block.count_max, messages - first)
        await producer.send_many(block.values_of(number, first, count))
    await producer.flush()


async def _send_singly(producer: Producer, block: Block, number: int, messages: int) -> None:
    for first in range(0, messages, block.count_max):
        count = min(block.count_max, messages - first)
        for value in block.values_of(number, first, count):
            await producer.ready()
            producer.send(value)
    await producer.flush()


async def _send_each(producer: Producer, block: Block, number: int, messages: int) -> None:
    for first in range(messages):
        (value,) = block.values_of(number, first, 1)
        await producer.publish(value)


def rehearse(make: Callable[[int, int, int], object], chunk: int) -> float:
    """Return how many messages a second are made when nothing else is done."""
    began = time.perf_counter()
    for first in range(0, _REHEARSAL_MESSAGES, chunk):
        make(0, first, chunk)
    return _REHEARSAL_MESSAGES / (time.perf_counter() - began)


if __name__ == "__main__":
    be_led(Plan, produce)
