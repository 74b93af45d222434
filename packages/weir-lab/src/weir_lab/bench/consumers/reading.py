"""The reader process of a measurement: `python -m weir_lab.bench.consumers.reading`, led over its
pipes.

It takes a `Plan`, reports `Ready`, waits for the order to go, and reports `Read`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import msgspec

from weir.client.client import connect
from weir.client.reader.reader import Reader
from weir.model.limits import MIB
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.payload import Checker


class Plan(msgspec.Struct, frozen=True):
    """So many `readers`, each of which reads all of a topic: `counts[p]` messages of producer p."""

    url: str
    topic: str
    readers: int
    counts: list[int]
    size: int
    timeout_s: float


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Every reader has everything. Times are on CLOCK_MONOTONIC, CPU time is since the order to go;
    counts are of all readers.
    """

    began_ns: int
    #: When each reader had its last message.
    ended_ns: list[int]
    cpu_s: float
    lost: int
    repeated: int
    reordered: int
    corrupt: int


async def read(plan: Plan, orders: Orders) -> Read:
    """Open every reader on a connection of its own, wait for the order, and read."""
    wanted = sum(plan.counts)
    checkers = [Checker(plan.counts, plan.size) for _ in range(plan.readers)]
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(plan.readers):
            client = await stack.enter_async_context(connect(plan.url, name="weir-bench"))
            reader = client.reader(plan.topic, max_bytes=4 * MIB)
            readers.append(await stack.enter_async_context(reader))
        report(Ready())
        await orders.get()
        cpu, began = time.process_time(), time.monotonic_ns()
        pairs = zip(readers, checkers, strict=True)
        try:
            async with asyncio.timeout(plan.timeout_s):
                ended = await asyncio.gather(*(_take(*pair, wanted) for pair in pairs))
        except TimeoutError:
            least = min(checker.received for checker in checkers)
            raise TimeoutError(
                f"a reader got {least:,} of {wanted:,} messages within {plan.timeout_s:g} s"
            ) from None
        cpu = time.process_time() - cpu
    return Read(
        began,
        ended,
        cpu,
        lost=sum(checker.lost for checker in checkers),
        repeated=sum(checker.repeated for checker in checkers),
        reordered=sum(checker.reordered for checker in checkers),
        corrupt=sum(checker.corrupt for checker in checkers),
    )


async def _take(reader: Reader, checker: Checker, wanted: int) -> int:
    """Check what comes; return when the last of it was here."""
    async for delivered in reader.batches():
        column = delivered.batch.value_column
        first = delivered.skip
        checker.take(column.offsets[first : first + len(delivered) + 1], column.data)
        if checker.received >= wanted:
            break
    return time.monotonic_ns()


if __name__ == "__main__":
    be_led(Plan, read)
