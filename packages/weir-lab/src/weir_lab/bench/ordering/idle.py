"""What total order costs where little or nothing is published: promises, and how late it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import msgspec

from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.model.topic import check_order
from weir_lab.bench.harness.machine import families_cpu_seconds
from weir_lab.bench.harness.payload import Block, Checker
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.ordering.reading import Order, Reading
from weir_lab.bench.sides.own import Own

_TOPIC = "idle"
#: Of DESIGN §7: how long after a commit all idle partitions have promised, at most.
PROMISE_MS = 10.0
_SIZE = 100
_MESSAGES_MAX = 1 << 20
_REST_S = 1.0
_PINGS = 200
_POLL_S = 0.000_2
_ARRIVES_WITHIN_S = 30.0


class Settings(msgspec.Struct, frozen=True):
    """So many partitions; each figure of a node's CPU time is the least of so many, which are taken
    by turns, over so many seconds each: whatever else a machine does only adds to it. What one
    costs beside another is the median of what it was in each turn: a machine is not always as fast.
    """

    partitions: int = 100
    #: What a node does for partitions that are new is over then, and it has made files in reserve.
    settled_s: float = 25.0
    seconds: float = 6.0
    turns: int = 5
    #: Messages a second into one of the partitions, for what promises cost then.
    rate: float = 20.0
    #: Messages published one by one, for the way of each.
    lone: int = 200


class Idle(msgspec.Struct, frozen=True):
    """CPU in percent of a core of the whole node; times in ms, from publishing on."""

    partitions: int
    cpu_nobody_reads: float
    cpu_partition_reader_waits: float
    cpu_partition_order_trickle: float
    cpu_total_reader_waits: float
    cpu_total_order_trickle: float
    #: A reader in total order beside nobody, while nothing is published; and beside one in
    #: partition order, while a message now and then goes to one partition.
    promises_idle: float
    promises_trickle: float
    confirm_p50_ms: float
    round_trip_p50_ms: float
    delivery_p50_ms: float
    delivery_p99_ms: float
    #: Of DESIGN §7: commit + promise interval + a round trip.
    budget_ms: float
    #: The same message in partition order.
    partition_delivery_p50_ms: float


async def measure(side: Own, settings: Settings) -> Idle:
    """Measure a node of weir that has nothing else to do."""
    async with connect(side.node.url, name="weir-bench") as client:
        await client.create_topic(_TOPIC, partitions=settings.partitions)
        await asyncio.sleep(settings.settled_s)
        lone = _Lone(client)
        turns = [await _turn(lone, side, settings) for _ in range(settings.turns)]
        nobody, partition_waits, partition_trickle, total_waits, total_trickle = map(
            min, zip(*turns, strict=True)
        )
        promises_idle = median(waits - none for none, _, _, waits, _ in turns)
        promises_trickle = median(total - partition for _, _, partition, _, total in turns)
        async with lone.read("partition"):
            _, in_partition = await lone.one_by_one(settings.lone)
        async with lone.read("total"):
            confirm, delivery = await lone.one_by_one(settings.lone)
        trip = await _round_trip_ms(client)
    confirm_p50 = percentiles(confirm, 0.5)[0] or 0.0
    delivered = [late or 0.0 for late in percentiles(delivery, 0.5, 0.99)]
    return Idle(
        settings.partitions,
        nobody,
        partition_waits,
        partition_trickle,
        total_waits,
        total_trickle,
        promises_idle,
        promises_trickle,
        confirm_p50,
        trip,
        delivered[0],
        delivered[1],
        confirm_p50 + PROMISE_MS + trip,
        percentiles(in_partition, 0.5)[0] or 0.0,
    )


class _Lone:
    """One producer of single messages, and one reader of all partitions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._values = Block(_SIZE, 1)
        self._sent = 0
        self._checker: Checker
        self._task: asyncio.Task[None]

    @asynccontextmanager
    async def read(self, order: Order) -> AsyncIterator[None]:
        """Read from the end on, while the block runs."""
        self._sent, self._checker = 0, Checker([_MESSAGES_MAX], _SIZE)
        reading = Reading(order, self._checker)
        asked = check_order(order)
        async with self._client.reader(_TOPIC, order=asked, start="latest") as reader:
            task = asyncio.create_task(reading.run(reader))
            self._task = task
            try:
                # Only once something comes is it sure that it has found its place.
                while not self._checker.received:
                    await self._publish()
                    await asyncio.sleep(_REST_S)
                    if task.done():
                        task.result()
                yield
            finally:
                task.cancel()
                await asyncio.wait((task,))

    async def trickle(self, side: Own, settings: Settings) -> float:
        """Return the node's CPU time while a message now and then goes to one partition."""
        publishing = asyncio.ensure_future(self._trickle(settings.rate))
        try:
            return await _cpu(side, settings.seconds)
        finally:
            publishing.cancel()
            await asyncio.wait((publishing,))

    async def one_by_one(self, messages: int) -> tuple[list[float], list[float]]:
        """Publish one after the other; return when each was confirmed, and when delivered."""
        confirmed, delivered = [], []
        for _ in range(messages):
            before = self._checker.received
            began = time.perf_counter()
            await self._publish()
            confirmed.append((time.perf_counter() - began) * 1e3)
            async with asyncio.timeout(_ARRIVES_WITHIN_S):
                while self._checker.received == before:
                    if self._task.done():
                        self._task.result()
                        raise WeirError("the reader ended")
                    await asyncio.sleep(_POLL_S)
            delivered.append((time.perf_counter() - began) * 1e3)
        return confirmed, delivered

    async def _trickle(self, rate: float) -> None:
        while True:
            await self._publish()
            await asyncio.sleep(1 / rate)

    async def _publish(self) -> None:
        (value,) = self._values.values_of(0, self._sent, 1)
        self._sent += 1
        await self._client.publish(_TOPIC, value, partition=0)


async def _turn(lone: _Lone, side: Own, settings: Settings) -> tuple[float, ...]:
    """Return the node's CPU time while nobody reads, and while somebody waits and gets a message
    now and then, in partition order and in total order.
    """
    found = [await _cpu(side, settings.seconds)]
    for order in ("partition", "total"):
        async with lone.read(order):
            found += [await _cpu(side, settings.seconds), await lone.trickle(side, settings)]
    return tuple(found)


async def _cpu(side: Own, seconds: float) -> float:
    """Return the node's CPU time over a while, in percent of a core."""
    before, began = families_cpu_seconds(side.node.pids), time.monotonic()
    await asyncio.sleep(seconds)
    after, passed = families_cpu_seconds(side.node.pids), time.monotonic() - began
    if before is None or after is None:
        raise WeirError("this system does not tell the CPU time of a process: run it on Linux")
    return 100 * (after - before) / passed


async def _round_trip_ms(client: Client) -> float:
    found = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        await client.ping()
        found.append((time.perf_counter() - began) * 1e3)
    return percentiles(found, 0.5)[0] or 0.0
