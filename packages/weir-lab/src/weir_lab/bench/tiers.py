"""Relays one below the other: what each hop adds to a delivery, takes of a processor, and whether
all of them keep up with a producer.

A chain of relays pulls from a core of one node. Messages carry the time at which they were sent.
First one message at a time is sent, to one partition of a topic in total order: a reader of the
core and one of the last relay say how long deliveries take, in the partition's order, and in the
total one over partitions that are idle. Then batches are sent at a rate, by default a thousand of a
hundred messages each second, and once a second it is asked how many messages the last relay lacks.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import msgspec

from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.model.limits import MIB
from weir.testing.nodes import Node, RelayProcess, free_ports, running_node
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.machine import cpu_seconds

#: One at a time, and in batches.
LONE, BULK = "lone", "bulk"
_PARTITIONS = 8
_REQUEST_S = 60.0
_LONE_EVERY_S = 0.02
#: What lies behind by so little is what is on its way.
_ON_ITS_WAY_S = 0.5
_SENT_AT = struct.Struct("<q")
_NS_PER_MS = 1e6
Progress = Callable[[int], None]
Order = Literal["partition", "total"]


class Settings(msgspec.Struct, frozen=True):
    """So many relays one below the other, and so many messages of `size` bytes a second."""

    depth: int = 5
    rate: int = 100_000
    seconds: int = 60
    size: int = 100
    #: Messages of one batch.
    batch: int = 100
    #: Seconds in which one message at a time is sent.
    lone_seconds: int = 10
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            depth=(self.depth, 1, 20), rate=(self.rate, 100, 10_000_000),
            seconds=(self.seconds, 4, 3_600), size=(self.size, _SENT_AT.size, 100_000),
            batch=(self.batch, 1, 10_000),
            lone_seconds=(self.lone_seconds, 1, 600),
        )  # fmt: skip


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from when messages were sent until a reader was given them."""

    messages: int
    p50_ms: float
    p99_ms: float


class Bulk(msgspec.Struct, frozen=True):
    """Batches at a rate, and how long they took to a reader of the last relay. `lag_half` and
    `lag_end` are how many messages that relay lacked, at the median of the second quarter of the
    time and of the last one; `growing` is 1 if that grew by more than what is on its way.
    """

    messages: int
    messages_per_s: float
    batches: int
    batches_per_s: float
    cpu_us_per_batch_and_hop: float
    delivered: Latency
    lag_half: float
    lag_end: float
    growing: int


class Result(msgspec.Struct, frozen=True):
    """What was measured. `behind_confirm_p99_ms` is how long after its confirm a message
    was given to the reader in total order of the last relay.
    """

    depth: int
    core: Latency
    last: Latency
    hop_added_p50_ms: float
    total_core: Latency
    total_last: Latency
    behind_confirm_p50_ms: float
    behind_confirm_p99_ms: float
    bulk: Bulk


def measure(settings: Settings, progress: Progress) -> Result:
    """Measure; `progress` is told how many messages the producer has sent in batches.

    Raises `ValueError`, and `WeirError` where processes do not start, or a reader lacks messages.
    """
    settings.check()
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=settings.folder) as name,
        running_node(Path(name) / "core", shards=1) as node,
    ):
        relays: list[RelayProcess] = []
        upper: tuple[str, ...] = ()
        for number, port in enumerate(free_ports(settings.depth), 1):
            folder = Path(name) / f"relay-{number}"
            relays.append(RelayProcess(node.url, folder, port, *upper, number=number))
            upper = ("--upper", relays[-1].url)
        try:
            return asyncio.run(_measured(settings, node, relays, progress))
        finally:
            for one in relays:
                one.kill()


async def _measured(
    settings: Settings, node: Node, relays: Sequence[RelayProcess], progress: Progress
) -> Result:
    async with AsyncExitStack() as stack:
        core = await stack.enter_async_context(connect(node.url, request_timeout=_REQUEST_S))
        for topic in (LONE, BULK):
            await core.create_topic(topic, _PARTITIONS if topic == LONE else 1, order="total")
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in relays))
        last = await stack.enter_async_context(connect(relays[-1].url, request_timeout=_REQUEST_S))
        for topic in (LONE, BULK):
            await _known(last, topic)
        orders: tuple[Order, ...] = ("partition", "total")
        alone = {order: await _lone(settings, core, last, order) for order in orders}
        bulk = await _bulk(settings, core, last, relays, progress)
    (near, far, _), (total_near, total_far, behind) = alone["partition"], alone["total"]
    return Result(
        depth=settings.depth,
        core=_latency(near),
        last=_latency(far),
        hop_added_p50_ms=(statistics.median(far) - statistics.median(near)) / settings.depth,
        total_core=_latency(total_near),
        total_last=_latency(total_far),
        behind_confirm_p50_ms=statistics.median(behind),
        behind_confirm_p99_ms=_p99(behind),
        bulk=bulk,
    )


async def _known(client: Client, topic: str) -> None:
    """Wait until a relay serves a topic. Raises `WeirError`."""
    until = time.monotonic() + _REQUEST_S
    while True:
        try:
            await client.positions(topic)
        except WeirError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(_LONE_EVERY_S)
        else:
            return


async def _lone(
    settings: Settings, core: Client, last: Client, order: Order
) -> tuple[list[float], list[float], list[float]]:
    """Send one message at a time to partition 0. Return the latencies of a reader of the core and
    of one of the last relay, and how long behind its confirm that got each message, all in ms.
    """
    count = round(settings.lone_seconds / _LONE_EVERY_S)
    _, ends = await core.positions(LONE)
    start = dict(enumerate(ends))
    reading = [asyncio.ensure_future(_read(client, order, start, count)) for client in (core, last)]
    confirmed: dict[int, int] = {}
    pad = bytes(settings.size - _SENT_AT.size)
    try:
        async with core.producer(LONE, linger=0) as producer:
            for _ in range(count):
                sent_at = time.monotonic_ns()
                await producer.send(_SENT_AT.pack(sent_at) + pad, partition=0)
                confirmed[sent_at] = time.monotonic_ns()
                await asyncio.sleep(_LONE_EVERY_S)
        async with asyncio.timeout(_REQUEST_S):
            near, far = await asyncio.gather(*reading)
    except TimeoutError:
        raise WeirError(f"a reader was not given all of {count} messages") from None
    finally:
        for one in reading:
            one.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    latencies = [[(at - sent) / _NS_PER_MS for sent, at in found] for found in (near, far)]
    behind = [(at - confirmed[sent]) / _NS_PER_MS for sent, at in far]
    return latencies[0], latencies[1], behind


async def _read(
    client: Client, order: Order, start: Mapping[int, int], count: int
) -> list[tuple[int, int]]:
    """Return when each of the next messages was sent, and when it was given to a reader, in ns."""
    found: list[tuple[int, int]] = []
    async with client.reader(LONE, start=start, order=order) as reader:
        async for one in reader:
            (sent_at,) = _SENT_AT.unpack_from(one.value)
            found.append((sent_at, time.monotonic_ns()))
            if len(found) == count:
                break
    return found


class _Watch:
    """What came of the batches: how many messages the last relay lacked, second by second."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.given = 0
        self.lags: list[int] = []
        #: Of each batch, how long it took, in ms.
        self.latencies: list[float] = []

    async def read(self, client: Client) -> None:
        """Count what a reader is given, for ever."""
        async with client.reader(BULK, order="partition") as reader:
            async for batch in reader.batches():
                self.given += len(batch)
                (sent_at,) = _SENT_AT.unpack_from(batch.batch.value_column.data)
                self.latencies.append((time.monotonic_ns() - sent_at) / _NS_PER_MS)

    async def watch(self, core: Client, last: Client) -> None:
        """Note each second how far the last relay is behind the core, for ever."""
        while True:
            await asyncio.sleep(1.0)
            (_, ends), (_, behind) = await asyncio.gather(
                core.positions(BULK), last.positions(BULK)
            )
            self.lags.append(max(ends[0] - behind[0], 0))


async def _bulk(
    settings: Settings, core: Client, last: Client, relays: Sequence[RelayProcess],
    progress: Progress,
) -> Bulk:  # fmt: skip
    """Send batches at the rate; look how far the last relay is."""
    bulk, before = _Watch(), _cpu(relays)
    tasks = [asyncio.ensure_future(bulk.read(last)), asyncio.ensure_future(bulk.watch(core, last))]
    try:
        began = time.monotonic()
        messages, batches = await _send(settings, core, progress)
        seconds, found = time.monotonic() - began, [*bulk.lags] or [0]
        until = time.monotonic() + _REQUEST_S
        while bulk.given < messages:
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                raise WeirError(f"{bulk.given:,} of {messages:,} messages came to the last relay")
            await asyncio.sleep(_LONE_EVERY_S)
        cpu = _cpu(relays) - before
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    each = cpu * 1e6 / (batches * settings.depth)
    return Bulk(
        messages, messages / seconds, batches, batches / seconds, each, _latency(bulk.latencies),
        *lags(found, settings.rate),
    )  # fmt: skip


def lags(found: Sequence[int], rate: float) -> tuple[float, float, int]:
    """Return the medians of the second quarter and of the last one of what was found second by
    second, and 1 if that grew by more than what is on its way at a rate, else 0.
    """
    quarter = max(len(found) // 4, 1)
    half = statistics.median(found[quarter : 2 * quarter] or found)
    end = statistics.median(found[-quarter:])
    return half, end, int(end > half + rate * _ON_ITS_WAY_S)


async def _send(settings: Settings, core: Client, progress: Progress) -> tuple[int, int]:
    """Send for so many seconds; return how many messages, and in how many batches."""
    values = [bytes(settings.size)] * settings.batch
    every = settings.batch / settings.rate
    messages = batches = 0
    async with core.producer(BULK, batch_bytes=MIB, linger=0) as producer:
        began = time.monotonic()
        for turn in range(round(settings.seconds / every)):
            await asyncio.sleep(max(0.0, began + turn * every - time.monotonic()))
            values[0] = _SENT_AT.pack(time.monotonic_ns()) + values[-1][_SENT_AT.size :]
            batches += len(await producer.send_many(values))
            messages += len(values)
            progress(messages)
        await producer.flush()
    return messages, batches


def _cpu(relays: Sequence[RelayProcess]) -> float:
    """Return the seconds of processor time that relays have used."""
    return sum(cpu_seconds(one.pid) or 0.0 for one in relays)


def _latency(found: Sequence[float]) -> Latency:
    return Latency(len(found), statistics.median(found), _p99(found))


def _p99(found: Sequence[float]) -> float:
    return sorted(found)[min(len(found) * 99 // 100, len(found) - 1)]
