"""How fast a topic of several partitions is in total order, in partition order, and by a sequencer.

All three send the same messages from the same processes over the same node, and a run of one is
followed by a run of the next, so that what the machine does meanwhile harms all alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from weir.bench.led import Ready
from weir.bench.node_set import HOST, free_ports
from weir.bench.ordering import sequencer
from weir.bench.ordering.reading import Order, Reading
from weir.bench.ordering.sending import Lane, Plan, Push, Sent
from weir.bench.own import PROCESSES_MAX, Own, check_replicas, chunk_of, window_of
from weir.bench.payload import SIZE_MIN, Checker
from weir.bench.producers import Crew
from weir.bench.spread import percentiles
from weir.client.client import Client
from weir.client.connect import connect
from weir.errors import WeirError
from weir.model.limits import BATCH_BYTES_MAX, MIB, PARTITIONS_PER_TOPIC_MAX

ORDERS: tuple[Order, ...] = ("partition", "total", "sequencer")
PRODUCERS_MAX = 10_000
#: An upper bound of what one lane sends; the counts are known in the end.
_MESSAGES_MAX = 1 << 30
_LED_WITHIN_S = 30.0
_POLL_S = 0.005

Say = Callable[[str], None]


class OrderFailed(WeirError):
    """A run came to no figure; the message says how far it got."""


class Settings(msgspec.Struct, frozen=True):
    """What to measure: `messages` as fast as they go, then `rate` a second for `seconds`."""

    partitions: int = 8
    producers: int = 1
    messages: int = 1_000_000
    size: int = 100
    rate: int = 20_000
    seconds: float = 2.0
    runs: int = 3
    deadline_s: float = 120.0
    folder: str | None = None
    replicas: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        bounds = {
            "partitions": (self.partitions, 1, PARTITIONS_PER_TOPIC_MAX),
            "producers": (self.producers, 1, PRODUCERS_MAX),
            "messages": (self.messages, self.lanes, 1 << 40),
            "size": (self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
            "rate": (self.rate, 1, 1 << 30),
            "runs": (self.runs, 1, 1_000),
        }
        for name, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise ValueError(f"{name}={value:,}: it must be {least:,} to {most:,}")
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
    for number in range(settings.runs):
        for order in ORDERS:
            run = await _Measured(side, settings, order, number).run()
            runs[order].append(run)
            say(
                f"{settings.partitions} partitions, {settings.producers} producers, {order}: "
                f"{run.messages_per_s:,.0f} messages/s, delivery p99 {run.delivery_p99_ms:.1f} ms"
            )
    return result_of(settings, runs)


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

    def __init__(self, side: Own, settings: Settings, order: Order, number: int) -> None:
        self._side = side
        self._settings = settings
        self._order = order
        self._topic = f"{order}-{number}"
        self._checker = Checker([_MESSAGES_MAX] * settings.lanes, settings.size)
        self._reading = Reading(order, self._checker)
        self._sent = 0

    async def run(self) -> Run:
        """Warm up, send all at once, then at the rate; account for every message."""
        settings, lanes = self._settings, self._settings.lanes
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                connect(self._side.node.url, name="weir-bench")
            )
            await _made(client, self._topic, settings)
            numbered = None
            if self._order == "sequencer":
                numbered = await stack.enter_async_context(_numbering())
            plans = self._plans(numbered)
            crew = await stack.enter_async_context(Crew("weir.bench.ordering.sending", plans, Sent))
            await crew.ready()
            order = "total" if self._order == "total" else "partition"
            reader = await stack.enter_async_context(
                client.reader(self._topic, max_bytes=4 * MIB, order=order)
            )
            reading = asyncio.ensure_future(self._reading.run(reader))
            stack.push_async_callback(_ended, reading)
            await self._push(crew, reading, Push(chunk_of(settings.size)))
            began = await self._push(crew, reading, Push(settings.messages // lanes))
            seconds = (self._reading.last_ns - began) / 1e9
            self._reading.delivery_ms.clear()
            due = max(1, int(settings.rate * settings.seconds) // lanes)
            await self._push(crew, reading, Push(due, settings.seconds))
            await client.delete_topic(self._topic)
        return self._result(settings.messages // lanes * lanes / seconds)

    async def _push(self, crew: Crew[Sent], reading: asyncio.Future[None], push: Push) -> int:
        """Order a push and wait for its last message; return when it began."""
        self._sent += push.messages * self._settings.lanes
        deadline_s = self._settings.deadline_s
        crew.go(msgspec.json.encode(push))
        try:
            async with asyncio.timeout(deadline_s):
                done = await crew.done()
                while self._checker.received < self._sent:
                    if reading.done():
                        reading.result()
                    self._side.running()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise OrderFailed(
                f"{self._checker.received:,} of {self._sent:,} messages arrived within "
                f"{deadline_s:g} s: give a longer --deadline"
            ) from None
        return min(one.first_send_ns for one in done)

    def _plans(self, numbered: tuple[str, int] | None) -> list[Plan]:
        settings = self._settings
        lanes = [Lane(number, number % settings.partitions) for number in range(settings.lanes)]
        producers = [lanes[number :: settings.producers] for number in range(settings.producers)]
        processes = min(PROCESSES_MAX, settings.producers)
        return [
            Plan(
                self._side.node.url,
                self._topic,
                producers[number::processes],
                settings.lanes,
                settings.size,
                chunk_of(settings.size),
                window_of(settings.lanes),
                numbered,
            )
            for number in range(processes)
        ]

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


@asynccontextmanager
async def _numbering() -> AsyncIterator[tuple[str, int]]:
    """Run a sequencer; its address."""
    (port,) = free_ports(1)
    plan = sequencer.Plan(HOST, port)
    async with Crew("weir.bench.ordering.sequencer", [plan], Ready) as crew:
        await crew.ready()
        yield HOST, port


async def _made(client: Client, topic: str, settings: Settings) -> None:
    """Make a topic and wait until all its partitions are led."""
    await client.create_topic(topic, partitions=settings.partitions)
    async with asyncio.timeout(_LED_WITHIN_S):
        while client.welcome.nodes and not all(
            address.node for address in (await client.describe(topic)).addresses
        ):
            await asyncio.sleep(_POLL_S)


async def _ended(reading: asyncio.Future[None]) -> None:
    reading.cancel()
    await asyncio.wait((reading,))
