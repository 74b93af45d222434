"""What many readers in total order of one topic cost beside one: promise rounds, and CPU time.

What idle readers cost is measured once they are idle. A poll of a partition lasts 5 s after a
message, and twice as long each time, so all of them last 60 s once 75 s have passed. They end
nearly together, for all readers got the last messages together. So it is measured over 60 s, in
which each of them ends once, wherever these seconds begin. Over 10 s soon behind the last message,
the figure would be that of the shortest polls.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.request import urlopen

import msgspec

from weir.client.client import Client, connect
from weir.client.reader.fetcher import LONGEST_POLL
from weir.client.reader.reader import Reader
from weir.errors import WeirError
from weir.testing.nodes import HOST, free_ports, running_node
from weir_lab.bench.harness.machine import families_cpu_seconds

#: A node listens for metrics at a port for each of its shards.
_SHARDS_MAX = 8
_ANSWER_S = 5.0
#: Metrics are as of the last second.
_AS_OF_S = 2.0
_ROUNDS = re.compile(r"^weir_promise_rounds_total(?:\{.*\})? ([\d.e+]+)$", re.M)
_TOPIC = "read-by-many"
#: So many readers share the connections of a client.
_TOGETHER = 20
_ARRIVES_WITHIN_S = 60.0
_POLL_S = 0.005


class Settings(msgspec.Struct, frozen=True):
    """So many readers of so many partitions; messages go one by one, with a pause between."""

    readers: int
    partitions: int = 16
    messages: int = 200
    pause_s: float = 0.05
    #: For how long nothing is published before idle readers are measured, and while they are.
    settled_s: float = 80.0
    idle_s: float = LONGEST_POLL


class Watched(msgspec.Struct, frozen=True):
    """What so many readers cost the node; CPU in percent of a core."""

    readers: int
    promise_rounds: float
    cpu_trickle: float
    cpu_idle: float


class Readers(msgspec.Struct, frozen=True):
    """One reader, and many: `promise_rounds_ratio` is of the second by the first."""

    one: Watched
    many: Watched
    promise_rounds_ratio: float


async def measure(settings: Settings) -> Readers:
    """Measure one reader and then many, each on a node of its own."""
    one = await _watch(settings, 1)
    many = await _watch(settings, settings.readers)
    return Readers(one, many, many.promise_rounds / max(one.promise_rounds, 1.0))


async def _watch(settings: Settings, count: int) -> Watched:
    ports = free_ports(_SHARDS_MAX)
    with running_node(listen=f"{HOST}:{ports[0]}") as node:
        async with connect(node.url, name="weir-bench") as client:
            await client.create_topic(_TOPIC, partitions=settings.partitions)
            async with _reading(node.url, count) as given:
                await _publish(client, given, settings, settings.partitions)  # all have begun
                before = await _rounds(ports)
                busy, began = _cpu(node.pids), time.monotonic()
                await _publish(client, given, settings, settings.messages)
                trickle = 100 * (_cpu(node.pids) - busy) / (time.monotonic() - began)
                rounds = await _rounds(ports) - before
                await asyncio.sleep(settings.settled_s)
                busy, began = _cpu(node.pids), time.monotonic()
                await asyncio.sleep(settings.idle_s)
                idle = 100 * (_cpu(node.pids) - busy) / (time.monotonic() - began)
    return Watched(count, rounds, trickle, idle)


@asynccontextmanager
async def _reading(url: str, count: int) -> AsyncIterator[list[int]]:
    """Let so many read from the end on, while the block runs; yield how much each was given."""
    given = [0] * count
    async with AsyncExitStack() as stack:
        tasks = []
        for first in range(0, count, _TOGETHER):
            client = await stack.enter_async_context(connect(url, name="weir-bench"))
            for place in range(first, min(first + _TOGETHER, count)):
                reader = client.reader(_TOPIC, order="total", start="latest")
                await stack.enter_async_context(reader)
                tasks.append(asyncio.create_task(_take(reader, given, place)))
        try:
            yield given
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _take(reader: Reader, given: list[int], place: int) -> None:
    async for _ in reader:
        given[place] += 1


async def _publish(client: Client, given: list[int], settings: Settings, messages: int) -> None:
    """Publish one by one to all partitions by turns, until all readers have all of it."""
    wanted = max(given) + messages
    for number in range(messages):
        await client.publish(_TOPIC, b"x" * 100, partition=number % settings.partitions)
        await asyncio.sleep(settings.pause_s)
    until = time.monotonic() + _ARRIVES_WITHIN_S
    while min(given) < wanted:
        if time.monotonic() >= until:
            raise WeirError(f"a reader has {min(given)} of {wanted} messages")
        await asyncio.sleep(_POLL_S)


async def _rounds(ports: Sequence[int]) -> float:
    """Return how many rounds of promises the node's shards have had since it started."""
    await asyncio.sleep(_AS_OF_S)
    total = 0.0
    for port in ports:
        try:
            with urlopen(f"http://{HOST}:{port}/metrics", timeout=_ANSWER_S) as answer:
                total += sum(map(float, _ROUNDS.findall(answer.read().decode())))
        except OSError:
            break  # it has no more shards
    return total


def _cpu(pids: Sequence[int]) -> float:
    used = families_cpu_seconds(pids)
    if used is None:
        raise WeirError("this system does not tell the CPU time of a process: run it on Linux")
    return used
