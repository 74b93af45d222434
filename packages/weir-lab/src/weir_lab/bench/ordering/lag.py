"""How far readers fall behind when the leader of one partition is slow, pauses, or is killed.

Three nodes, a topic with partitions led by each, a producer that keeps to a rate, and two readers:
one in total order, which has to wait for the partitions that are struck, and one in partition
order, which shows how long these were away.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from weir.client.client import Client, connect
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import PendingMessage
from weir.client.reader.reader import Reader
from weir.errors import WeirError
from weir.testing.nodes import NodeSet
from weir_lab.bench.harness.spread import percentiles

_TOPIC = "lag"
#: For each node, so that each leads some: they are spread together with all other groups.
_PARTITIONS = 2
_TICK_S = 0.01
_LED_WITHIN_S = 60.0
_CALM_S = 2.0
_AFTER_S = 4.0
#: Of every so many seconds a slow node stands still for so many.
_SLOW_OF, _SLOW_FOR, _SLOW_S = 0.1, 0.06, 3.0
_PAUSED_S = 2.0
_VALUE = bytes(100)

#: What can happen to a leader.
FAULTS = ("slow", "paused", "killed")


class Lag(msgspec.Struct, frozen=True):
    """One fault; times in ms. *Unconfirmed*: the longest time without a confirm of a partition.
    *Away*: without a message of it, in partition order. *Silent*: the longest time without any
    message, in total order.
    """

    fault: str
    unconfirmed_ms: float
    away_ms: float
    silent_ms: float
    #: What total order adds to being away.
    added_ms: float
    late_p50_ms: float
    late_max_ms: float
    #: Before the fault.
    calm_late_p50_ms: float
    messages: int
    misplaced: int


class _Ear:
    """What one reader gets, and when."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.last_of: dict[int, float] = defaultdict(time.monotonic)
        self.begin()
        self.misplaced = self.received = 0
        self._place = (0, 0, 0)

    def begin(self) -> None:
        """Forget what was measured."""
        self.silent = 0.0
        self.away: dict[int, float] = defaultdict(float)
        self.late_ms: list[float] = []

    async def run(self, reader: Reader) -> None:
        """Take what comes until it is cancelled."""
        async for one in reader.batches():
            now = time.monotonic()
            self.silent = max(self.silent, now - self.last)
            self.away[one.partition] = max(
                self.away[one.partition], now - self.last_of[one.partition]
            )
            self.last = self.last_of[one.partition] = now
            self.late_ms.append(time.time_ns() / 1e6 - one.batch.header.base_time / 1e3)
            self.received += len(one)
            place = one.batch.header.stamp, one.partition, one.offset
            self.misplaced += place <= self._place
            self._place = place


class _Confirms:
    """How long a partition goes without a confirm, while there is something to be confirmed."""

    def __init__(self, partitions: int) -> None:
        self.longest = 0.0
        self.sent: list[asyncio.Queue[PendingMessage]] = [
            asyncio.Queue() for _ in range(partitions)
        ]

    async def run(self) -> None:
        """Take what is confirmed until it is cancelled."""
        await asyncio.gather(*map(self._watch, self.sent))

    async def _watch(self, sent: asyncio.Queue[PendingMessage]) -> None:
        last = math.inf
        while True:
            await (await sent.get())
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now


async def measure(nodes: NodeSet, rate: int, faults: Sequence[str] = FAULTS) -> list[Lag]:
    """Measure a set of three: each fault in turn, and `rate` messages a second meanwhile."""
    partitions = _PARTITIONS * len(nodes.members)
    async with connect(nodes.url, name="weir-bench") as client:
        await client.create_topic(_TOPIC, partitions=partitions)
        return [await _struck(client, nodes, name, rate) for name in faults]


async def _struck(client: Client, nodes: NodeSet, name: str, rate: int) -> Lag:
    leaders = await _led(client, len(nodes.members))
    in_total, in_partition, confirms = _Ear(), _Ear(), _Confirms(len(leaders))
    async with (
        connect(nodes.url, name="weir-bench") as reading,
        reading.reader(_TOPIC, order="total", start="latest") as total,
        reading.reader(_TOPIC, order="partition", start="latest") as single,
        client.producer(_TOPIC, linger=0) as producer,
    ):
        tasks = [
            asyncio.ensure_future(in_total.run(total)),
            asyncio.ensure_future(in_partition.run(single)),
            asyncio.ensure_future(confirms.run()),
            asyncio.ensure_future(_publish(producer, confirms, rate)),
        ]
        try:
            await _unless(tasks, _CALM_S)
            in_total.begin()
            await _unless(tasks, _CALM_S)
            calm = percentiles(in_total.late_ms, 0.5)[0] or 0.0
            in_total.begin()
            in_partition.begin()
            confirms.longest = 0.0
            await _STRIKES[name](nodes, leaders[-1])
            await _unless(tasks, _AFTER_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    late = [late or 0.0 for late in percentiles(in_total.late_ms, 0.5, 1.0)]
    away, silent = max(in_partition.away.values()) * 1e3, in_total.silent * 1e3
    return Lag(
        name,
        confirms.longest * 1e3,
        away,
        silent,
        silent - away,
        late[0],
        late[1],
        calm,
        in_total.received,
        in_total.misplaced,
    )


async def _publish(producer: Producer, confirms: _Confirms, rate: int) -> None:
    """Send to all partitions in turn, at the rate, whether or not anything is confirmed."""
    began, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * rate)
        while sent < due:
            partition = sent % len(confirms.sent)
            confirms.sent[partition].put_nowait(producer.send(_VALUE, partition=partition))
            sent += 1
        await asyncio.sleep(_TICK_S)


async def _led(client: Client, nodes: int) -> list[int]:
    """Return the leader of each partition, as soon as all have one, and all nodes lead some."""
    async with asyncio.timeout(_LED_WITHIN_S):
        while True:
            leaders = [address.node for address in (await client.describe(_TOPIC)).addresses]
            if all(leaders) and len(set(leaders)) == nodes:
                return leaders
            await asyncio.sleep(0.1)


async def _unless(tasks: Sequence[asyncio.Future[None]], seconds: float) -> None:
    """Wait for a while, unless one of the tasks ends, which none should."""
    ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
        raise WeirError("a reader ended")


async def _slowed(nodes: NodeSet, node: int) -> None:
    until = time.monotonic() + _SLOW_S
    while time.monotonic() < until:
        await _still(nodes, node, _SLOW_FOR)
        await asyncio.sleep(_SLOW_OF - _SLOW_FOR)


async def _paused(nodes: NodeSet, node: int) -> None:
    await _still(nodes, node, _PAUSED_S)


async def _still(nodes: NodeSet, node: int, seconds: float) -> None:
    pid = nodes.node(node).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _killed(nodes: NodeSet, node: int) -> None:
    nodes.kill([node])
    # It comes back when the others have gone on without it.
    await asyncio.sleep(_PAUSED_S)
    nodes.start_again([node])


_STRIKES: dict[str, Callable[[NodeSet, int], Awaitable[None]]] = {
    "slow": _slowed,
    "paused": _paused,
    "killed": _killed,
}
