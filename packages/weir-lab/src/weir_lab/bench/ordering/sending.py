"""Producers over partitions: `python -m weir_lab.bench.ordering.sending`, led over its pipes.

It takes a `Plan` and reports `Ready`, and again when a run that is ordered may begin; for each
`Push` it reports a `Sent`. A *lane* is what a producer sends to one partition: its messages are
numbered, and checked where they arrive.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from contextlib import AsyncExitStack

import msgspec

from weir.client.client import Client, connect
from weir.client.producer.producer import Producer
from weir.model.limits import MIB
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.ordering.sequencer import Sequencer, connected

#: What came due within this time goes out as one batch.
TICK_S = 0.005
#: With more lanes each sends more seldom, so that the batches do not get tiny.
LANES_A_TICK = 8
_CONNECT_SECONDS = 30.0
#: So many batches of a producer have a sequencer's number before they are made.
_NUMBERS_AHEAD = 8
#: In front of each batch that a sequencer has numbered: the number, and when that was asked for, in
#: µs since 1970.
MARK = struct.Struct("<QQ")


class Lane(msgspec.Struct, frozen=True):
    """What a producer sends to a partition; `number` tells it from the others."""

    number: int
    partition: int


class Plan(msgspec.Struct, frozen=True):
    """The lanes of each producer of this process; `lanes` is how many all processes have."""

    url: str
    producers: list[list[Lane]]
    lanes: int
    size: int
    chunk: int
    window: int


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """A run: send to this topic from now on; `sequencer` is (host, port), if there is one."""

    topic: str
    sequencer: tuple[str, int] | None = None


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Send so many messages in each lane: all at once, or within so many seconds."""

    messages: int
    seconds: float = 0.0


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """All of a push is confirmed. Times are on CLOCK_MONOTONIC."""

    first_send_ns: int
    last_confirm_ns: int
    cpu_s: float


#: A batch's number, as soon as it is known, and when it was asked for.
_Numbered = tuple[asyncio.Future[int], int]


class _Sending:
    """One producer of a run: its lanes in turn."""

    def __init__(self, plan: Plan, client: Client, lanes: list[Lane]) -> None:
        self._plan = plan
        self._client = client
        self._lanes = lanes
        self._block = Block(plan.size, plan.chunk)
        self._sent = dict.fromkeys((lane.number for lane in lanes), 0)
        self._producer: Producer
        self._sequencer: Sequencer | None = None

    async def open(self, begin: Begin, stack: AsyncExitStack) -> None:
        """Begin to send to a topic, and connect to the sequencer."""
        # A chunk is a batch: nothing is cut, nothing lingers.
        producer = self._client.producer(begin.topic, batch_bytes=MIB, window=self._plan.window)
        self._producer = await stack.enter_async_context(producer)
        if begin.sequencer is not None:
            self._sequencer = await connected(*begin.sequencer)
            stack.callback(self._sequencer.close)

    async def push(self, push: Push) -> None:
        """Send what is ordered and wait until it is confirmed."""
        if push.seconds:
            await self._paced(push)
        else:
            await self._at_once(push.messages)
        await self._producer.flush()

    async def _at_once(self, messages: int) -> None:
        chunk = self._block.count_max
        turns = [
            (lane, min(chunk, messages - first))
            for first in range(0, messages, chunk)
            for lane in self._lanes
        ]
        # The next batches' numbers are on their way while a batch is made and sent.
        numbers = deque(self._number() for _ in turns[:_NUMBERS_AHEAD])
        for at, (lane, count) in enumerate(turns, 1):
            await self._send(lane, count, numbers.popleft())
            if at + len(numbers) < len(turns):
                numbers.append(self._number())

    async def _paced(self, push: Push) -> None:
        tick = TICK_S * max(1, self._plan.lanes // LANES_A_TICK)
        turns = max(1, round(push.seconds / tick))
        began = time.monotonic()
        for turn in range(turns):
            due = push.messages * (turn + 1) // turns - push.messages * turn // turns
            for at, lane in enumerate(self._lanes):
                # Lanes do not all send in the same moment.
                when = began + tick * (
                    turn + (lane.number + at) % self._plan.lanes / self._plan.lanes
                )
                if (early := when - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                if due:
                    await self._send(lane, due, self._number())

    def _number(self) -> _Numbered | None:
        if self._sequencer is None:
            return None
        return self._sequencer.ask(), time.time_ns() // 1_000

    async def _send(self, lane: Lane, count: int, number: _Numbered | None) -> None:
        values = self._block.values_of(lane.number, self._sent[lane.number], count)
        self._sent[lane.number] += count
        if number is not None:
            values.insert(0, MARK.pack(await number[0], number[1]))
        await self._producer.send_many(values, partition=lane.partition)


async def send(plan: Plan, orders: Orders) -> msgspec.Struct:
    """Connect every producer, then do what is ordered, until the leader ends."""
    decoder = msgspec.json.Decoder(Begin | Push)
    sending: list[_Sending] = []
    async with AsyncExitStack() as connections, AsyncExitStack() as running:
        clients = await asyncio.gather(*(_connected(plan, connections) for _ in plan.producers))
        report(Ready())
        while True:
            order = decoder.decode(await orders.get())
            if isinstance(order, Begin):
                await running.aclose()
                sending = [
                    _Sending(plan, *one) for one in zip(clients, plan.producers, strict=True)
                ]
                await asyncio.gather(*(one.open(order, running) for one in sending))
                report(Ready())
                continue
            cpu, began = time.process_time(), time.monotonic_ns()
            await asyncio.gather(*(one.push(order) for one in sending))
            report(Sent(began, time.monotonic_ns(), time.process_time() - cpu))


async def _connected(plan: Plan, stack: AsyncExitStack) -> Client:
    return await stack.enter_async_context(
        connect(plan.url, name="weir-bench", request_timeout=_CONNECT_SECONDS)
    )


if __name__ == "__main__":
    be_led(Plan, send)
