"""The producer process of a measurement: `python -m weir.bench.produce`, led over its pipes.

stdin    a `Plan` as one line of JSON, then a line to go; its end is the order to stop at once
stdout   a `Ready`, then a `Done`, a line of JSON each; or a `Failed` in place of either
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import AsyncExitStack

import msgspec

from weir.bench.loop import run
from weir.bench.payload import Block
from weir.client.connect import connect
from weir.client.producer import Producer
from weir.client.receipts import Confirmed
from weir.errors import WeirError
from weir.model.limits import MIB

#: Long enough for a clear figure, short beside the measurement.
_REHEARSAL_MESSAGES = 100_000


class Plan(msgspec.Struct, frozen=True):
    """Who sends how much: `shares` holds (producer, messages, partition) each."""

    url: str
    topic: str
    shares: list[tuple[int, int, int]]
    size: int
    chunk: int
    window: int
    timeout_s: float
    connect_timeout_s: float = 30.0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """All producers are open; messages alone are made at this rate."""

    made_per_s: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All is confirmed. `first_send_ns` is on CLOCK_MONOTONIC; CPU time since the order to go."""

    first_send_ns: int
    confirmed: int
    duplicates: int
    batches: int
    cpu_s: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Producing ended early, and why."""

    error: str


Report = Ready | Done | Failed


class Tally:
    """What the broker has confirmed to all producers of this process."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.first_send_ns = 0
        self.confirmed = 0
        self.duplicates = 0
        self.batches = 0

    def confirm(self, batch: Confirmed) -> None:
        """Count a batch."""
        self.confirmed += batch.count
        self.duplicates += batch.count * batch.duplicate
        self.batches += 1


async def produce(plan: Plan, go: asyncio.Event) -> Done:
    """Open every producer on a connection of its own, wait for `go`, send, wait for confirms."""
    tally = Tally()
    block = Block(plan.size, plan.chunk)
    made_per_s = _rehearse(block)
    async with AsyncExitStack() as stack:
        opening = [_opened(stack, plan, tally, partition) for _, _, partition in plan.shares]
        producers = await asyncio.gather(*opening)
        _report(Ready(made_per_s))
        await go.wait()
        cpu = time.process_time()
        tally.first_send_ns = time.monotonic_ns()
        async with asyncio.timeout(plan.timeout_s):
            await asyncio.gather(
                *(
                    _send(producer, block, number, messages)
                    for producer, (number, messages, _) in zip(producers, plan.shares, strict=True)
                )
            )
        cpu = time.process_time() - cpu
    return Done(tally.first_send_ns, tally.confirmed, tally.duplicates, tally.batches, cpu)


async def _opened(stack: AsyncExitStack, plan: Plan, tally: Tally, partition: int) -> Producer:
    client = await stack.enter_async_context(
        connect(plan.url, name="weir-bench", request_timeout=plan.connect_timeout_s)
    )
    producer = client.producer(
        plan.topic,
        # A chunk is a batch: nothing is cut, nothing lingers.
        batch_bytes=MIB,
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


def _rehearse(block: Block) -> float:
    """Return how many messages a second are made when nothing else is done."""
    began = time.perf_counter()
    for first in range(0, _REHEARSAL_MESSAGES, block.count_max):
        block.values_of(0, first, block.count_max)
    return _REHEARSAL_MESSAGES / (time.perf_counter() - began)


def _report(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _follow(loop: asyncio.AbstractEventLoop, go: asyncio.Event) -> None:
    """Pass on the order to go; end with the process that leads this one."""
    if sys.stdin.buffer.readline():
        loop.call_soon_threadsafe(go.set)
        sys.stdin.buffer.readline()
    os._exit(1)


async def _main() -> Report:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    go = asyncio.Event()
    follower = threading.Thread(
        target=_follow, args=(asyncio.get_running_loop(), go), name="weir-follow", daemon=True
    )
    follower.start()
    try:
        return await produce(plan, go)
    except TimeoutError:
        return Failed(f"not everything was confirmed within {plan.timeout_s:g} s")
    except (WeirError, OSError) as error:
        return Failed(str(error))


if __name__ == "__main__":
    _report(run(_main()))
    # The follower still waits for stdin, and holds its lock: a normal exit would stumble over it.
    os._exit(0)
