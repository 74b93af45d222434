"""Producers that keep to a rate: `python -m weir_lab.bench.harness.pace`, led over its pipes.

It takes a `PacePlan`, reports `Ready`, and for each `Step` that is ordered a `Paced`. What is due
is due whether or not anything was confirmed: latencies count from then, so that a broker that
stalls does not look better for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack

import msgspec

from weir.client.client import connect
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import BatchReceipt
from weir.model.limits import MIB
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.payload import Block

#: What came due within this time goes out as one batch, as a producer's linger would do it.
_TICK_S = 0.005
#: With more producers each sends more seldom, so that the batches do not get tiny.
_PRODUCERS_A_TICK = 8
_CONNECT_SECONDS = 30.0


class PacePlan(msgspec.Struct, frozen=True):
    """The `producers` (by number) of this process, of `of` in all; they share the `partitions`."""

    url: str
    topic: str
    producers: list[int]
    of: int
    size: int
    chunk: int
    window: int
    partitions: int = 1


class Step(msgspec.Struct, frozen=True):
    """Send `rate` messages a second, all producers of all processes together; 0: all you can."""

    rate: float
    seconds: float


class Paced(msgspec.Struct, frozen=True, tag="paced"):
    """What became of a step: messages sent and confirmed by then, and confirms' latencies."""

    sent: int
    began_ns: int
    last_confirm_ns: int
    confirm_ms: list[float]
    #: By producer: how many messages it has sent in all steps.
    totals: dict[int, int]
    cpu_s: float


class Pacer:
    """One producer with its sequence."""

    def __init__(self, number: int, plan: PacePlan, block: Block) -> None:
        """Take the number of the producer; `producer` is set before the first step."""
        self.number = number
        self.total = 0
        self.last_ns = 0
        self.latencies: list[float] = []
        self.producer: Producer | None = None
        self._plan = plan
        self._block = block
        self._due: deque[float] = deque()

    def confirm(self, _: BatchReceipt) -> None:
        """Note a confirm; they come in the order of the batches."""
        self.last_ns = time.monotonic_ns()
        self.latencies.append(self.last_ns / 1e6 - self._due.popleft() * 1e3)

    async def run(self, step: Step, began: float) -> None:
        """Send what the step says, and return when it is confirmed."""
        assert self.producer is not None
        if step.rate == 0:
            while time.monotonic() < began + step.seconds:
                await self._send(time.monotonic(), self._block.count_max)
        else:
            await self._paced(step.rate / self._plan.of, began, step.seconds)
        await self.producer.flush()

    async def _paced(self, rate: float, began: float, seconds: float) -> None:
        tick = _TICK_S * max(1, self._plan.of // _PRODUCERS_A_TICK)
        first = began + tick * self.number / self._plan.of
        sent = turn = 0
        while (due := first + turn * tick) < began + seconds:
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            turn += 1
            while sent < int(rate * turn * tick) and time.monotonic() < began + seconds:
                count = min(self._block.count_max, int(rate * turn * tick) - sent)
                await self._send(due, count)
                sent += count

    async def _send(self, due: float, count: int) -> None:
        assert self.producer is not None
        values = self._block.values_of(self.number, self.total, count)
        self.total += count
        self._due.append(due)
        await self.producer.send_many(values)


async def pace(plan: PacePlan, orders: Orders) -> msgspec.Struct:
    """Open every producer, then do each step that is ordered, until the leader ends."""
    block = Block(plan.size, plan.chunk)
    pacers = [Pacer(number, plan, block) for number in plan.producers]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(_open(stack, plan, pacer) for pacer in pacers))
        report(Ready())
        while True:
            step = msgspec.json.decode(await orders.get(), type=Step)
            report(await _step(pacers, step))


async def _open(stack: AsyncExitStack, plan: PacePlan, pacer: Pacer) -> None:
    client = await stack.enter_async_context(
        connect(plan.url, name="weir-bench", request_timeout=_CONNECT_SECONDS)
    )
    producer = client.producer(
        plan.topic,
        # What is sent at once is a batch: nothing is cut, nothing lingers.
        batch_bytes=MIB,
        window=plan.window,
        partition=pacer.number % plan.partitions,
        on_confirm=pacer.confirm,
    )
    pacer.producer = await stack.enter_async_context(producer)


async def _step(pacers: list[Pacer], step: Step) -> Paced:
    before = sum(pacer.total for pacer in pacers)
    for pacer in pacers:
        pacer.latencies = []
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.gather(*(pacer.run(step, began) for pacer in pacers))
    return Paced(
        sum(pacer.total for pacer in pacers) - before,
        int(began * 1e9),
        max(pacer.last_ns for pacer in pacers),
        [latency for pacer in pacers for latency in pacer.latencies],
        {pacer.number: pacer.total for pacer in pacers},
        time.process_time() - cpu,
    )


if __name__ == "__main__":
    be_led(PacePlan, pace)
