"""How fast a topic of several partitions is in total order, in partition order, and by a sequencer.

All three send the same messages from the same processes over the same node, and a run of one is
followed by a run of the next, so that what the machine does meanwhile harms all alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from weir.client.client import Client, connect
from weir.model.limits import BATCH_BYTES_MAX, MIB, PARTITIONS_PER_TOPIC_MAX
from weir.testing.nodes import HOST, free_ports
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.flow import FlowFailed, arrived
from weir_lab.bench.harness.led import Ready
from weir_lab.bench.harness.payload import SIZE_MIN, Checker
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.ordering import sequencer
from weir_lab.bench.ordering.reading import Order, Reading
from weir_lab.bench.ordering.sending import Begin, Lane, Plan, Push, Sent
from weir_lab.bench.sides.own import PROCESSES_MAX, Own, check_replicas, chunk_of, window_of

ORDERS: tuple[Order, ...] = ("partition", "total", "sequencer")
PRODUCERS_MAX = 10_000
#: An upper bound of what one lane sends; the counts are known in the end.
_MESSAGES_MAX = 1 << 30
#: Messages before the measured ones, so that all that is made once is there.
_WARM_UP = 200_000
_LED_WITHIN_S = 30.0
_POLL_S = 0.005

Say = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """What to measure: `messages` as fast as they go, then `rate` a second for `seconds`."""

    partitions: int = 8
    producers: int = 1
    messages: int = 1_500_000
    size: int = 100
    rate: int = 20_000
    seconds: float = 1.0
    runs: int = 3
    deadline_s: float = 120.0
    folder: str | None = None
    replicas: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        check_bounds(
            partitions=(self.partitions, 1, PARTITIONS_PER_TOPIC_MAX),
            producers=(self.producers, 1, PRODUCERS_MAX),
            messages=(self.messages, self.lanes, 1 << 40),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
            rate=(self.rate, 1, 1 << 30),
            runs=(self.runs, 1, 1_000),
        )
        if self.seconds <= 0 or self.deadline_s <= 0:
            raise ValueError("seconds and deadline must be above 0")

    @property
    def lanes(self) -> int:
        """Each producer sends to one partition, or to several if there are fewer of them."""
        return max(self.partitions, self.producers)


class Run(msgspec.Struct, frozen=True):
    """One run: messages a second from the first send to the last receive, and how late they are
    delivered at the rate; of batches.
    """

    messages_per_s: float
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    #: Batches that were given in front of one that belongs before them.
    misplaced: int


class Result(msgspec.Struct, frozen=True):
    """All runs of one number of partitions and producers; the figures are the worst of them."""

    partitions: int
    producers: int
    #: Total order against partition order, run by run: the lowest.
    throughput_ratio: float
    #: Total order against the sequencer, run by run: the lowest.
    sequencer_ratio: float
    total_per_s: float
    partition_per_s: float
    sequencer_per_s: float
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None
    partition_delivery_p99_ms: float | None
    sequencer_delivery_p99_ms: float | None
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    misplaced: int
    by_order: dict[str, list[Run]]

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        wrong = self.lost or self.repeated or self.reordered or self.corrupt or self.misplaced
        return not wrong


async def measure(side: Own, settings: Settings, say: Say) -> Result:
    """Measure a node of weir; `say` is told of each run."""
    settings.check()
    runs: dict[str, list[Run]] = {order: [] for order in ORDERS}
    url = side.node.url
    (port,) = free_ports(1)
    numbering = sequencer.Plan(HOST, port)
    async with (
        Crew("weir_lab.bench.ordering.sending", _plans(url, settings), Sent) as producers,
        Crew("weir_lab.bench.ordering.sequencer", [numbering], Ready) as numbers,
        connect(url, name="weir-bench") as client,
    ):
        await producers.ready()
        await numbers.ready()
        # A fresh node is slower: the first run would suffer from that, so it does not count.
        await _Measured(side, client, producers, settings, ORDERS[0]).run(Begin("warm-up"))
        for number in range(settings.runs):
            # Each is the first one in turn.
            for order in ORDERS[number % len(ORDERS) :] + ORDERS[: number % len(ORDERS)]:
                begin = Begin(f"{order}-{number}")
                if order == "sequencer":
                    numbers.go()  # from 0
                    await numbers.ready()
                    begin = Begin(begin.topic, (HOST, port))
                run = await _Measured(side, client, producers, settings, order).run(begin)
                runs[order].append(run)
                say(
                    f"{settings.partitions} partitions, {settings.producers} producers, {order}: "
                    f"{run.messages_per_s:,.0f} messages/s, delivery p99 "
                    f"{run.delivery_p99_ms:.1f} ms"
                )
    return result_of(settings, runs)


def _plans(url: str, settings: Settings) -> list[Plan]:
    """Return what each process of producers is to do."""
    lanes = [Lane(number, number % settings.partitions) for number in range(settings.lanes)]
    producers = [lanes[number :: settings.producers] for number in range(settings.producers)]
    processes = min(PROCESSES_MAX, settings.producers)
    chunk, window = chunk_of(settings.size), window_of(settings.lanes)
    return [
        Plan(url, producers[number::processes], settings.lanes, settings.size, chunk, window)
        for number in range(processes)
    ]


def result_of(settings: Settings, runs: dict[str, list[Run]]) -> Result:
    """Return the worst of the runs in each figure."""
    partition, total, by_number = (runs[order] for order in ORDERS)
    everything = [run for order in ORDERS for run in runs[order]]
    return Result(
        settings.partitions,
        settings.producers,
        _least(total, partition),
        _least(total, by_number),
        min(run.messages_per_s for run in total),
        min(run.messages_per_s for run in partition),
        min(run.messages_per_s for run in by_number),
        max(run.delivery_p50_ms or 0.0 for run in total),
        max(run.delivery_p99_ms or 0.0 for run in total),
        max(run.delivery_p99_ms or 0.0 for run in partition),
        max(run.delivery_p99_ms or 0.0 for run in by_number),
        sum(run.lost for run in everything),
        sum(run.repeated for run in everything),
        sum(run.reordered for run in everything),
        sum(run.corrupt for run in everything),
        sum(run.misplaced for run in everything),
        runs,
    )


def _least(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    return min(
        our.messages_per_s / their.messages_per_s for our, their in zip(ours, theirs, strict=True)
    )


class _Measured:
    """One run: a topic of its own, producers in processes, one reader in this one."""

    def __init__(
        self, side: Own, client: Client, producers: Crew[Sent], settings: Settings, order: Order
    ) -> None:
        self._side = side
        self._client = client
        self._producers = producers
        self._settings = settings
        self._order = order
        self._checker = Checker([_MESSAGES_MAX] * settings.lanes, settings.size)
        self._reading = Reading(order, self._checker)
        self._sent = 0

    async def run(self, begin: Begin) -> Run:
        """Warm up, send all at once, then at the rate; account for every message."""
        settings, lanes, topic = self._settings, self._settings.lanes, begin.topic
        await _made(self._client, topic, settings)
        self._producers.go(msgspec.json.encode(begin))
        await self._producers.ready()
        order: Literal["partition", "total"] = "total" if self._order == "total" else "partition"
        async with self._client.reader(topic, max_bytes=4 * MIB, order=order) as reader:
            reading = asyncio.ensure_future(self._reading.run(reader))
            try:
                await self._push(reading, Push(min(_WARM_UP, settings.messages) // lanes))
                began = await self._push(reading, Push(settings.messages // lanes))
                seconds = (self._reading.last_ns - began) / 1e9
                self._reading.delivery_ms.clear()
                due = max(1, int(settings.rate * settings.seconds) // lanes)
                await self._push(reading, Push(due, settings.seconds))
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
        await self._client.delete_topic(topic)
        return self._result(settings.messages // lanes * lanes / seconds)

    async def _push(self, reading: asyncio.Future[None], push: Push) -> int:
        """Order a push and wait for its last message; return when it began."""
        self._sent += push.messages * self._settings.lanes
        deadline_s = self._settings.deadline_s
        self._producers.go(msgspec.json.encode(push))
        try:
            async with asyncio.timeout(deadline_s):
                done = await self._producers.done()
        except TimeoutError:
            raise FlowFailed(
                f"{self._sent:,} messages were not confirmed within {deadline_s:g} s: give a "
                "longer --deadline"
            ) from None
        await arrived(self._side, self._checker, self._sent, reading, deadline_s)
        return min(one.first_send_ns for one in done)

    def _result(self, messages_per_s: float) -> Run:
        checker, lanes = self._checker, self._settings.lanes
        checker.expect([self._sent // lanes] * lanes)
        delivery = percentiles(self._reading.delivery_ms, 0.5, 0.99)
        return Run(
            messages_per_s,
            delivery[0],
            delivery[1],
            checker.lost,
            checker.repeated,
            checker.reordered,
            checker.corrupt,
            self._reading.misplaced,
        )


async def _made(client: Client, topic: str, settings: Settings) -> None:
    """Make a topic and wait until all its partitions are led."""
    await client.create_topic(topic, partitions=settings.partitions)
    async with asyncio.timeout(_LED_WITHIN_S):
        while client.welcome.nodes and not all(
            address.node for address in (await client.describe(topic)).addresses
        ):
            await asyncio.sleep(_POLL_S)
