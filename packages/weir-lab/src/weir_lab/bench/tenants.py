"""Two namespaces on one node: one floods it as far as its quota goes, the other has a steady pace.

First the steady one publishes alone, then beside the flood. What counts is how much of its rate it
keeps, and how near the flood comes to its quota: neither far above, nor far below. The flood comes
by many connections, and each sends the next message as soon as the one before is confirmed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from weir.client.access import Quota
from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.testing.nodes import running_node
from weir_lab.bench.bounds import check_bounds

_FLOODED, _STEADY = "flood/orders", "steady/orders"
_ENTITY = "namespace:flood"
_PARTITIONS = 4
#: Messages of the flood that one connection has under way.
_AT_ONCE = 8
#: So long the flood goes on before it is measured: shares are dealt within that.
_WARM_S = 3.0
Progress = Callable[[int], None]


class Settings(msgspec.Struct, frozen=True):
    """What to measure: a quota of `quota` bytes a second for a flood by so many connections, beside
    a tenant that publishes `pace` messages a second; all of `size` bytes, for `seconds` each time.
    """

    quota: int = 1 << 20
    connections: int = 16
    pace: int = 200
    size: int = 1_000
    seconds: float = 10.0
    shards: int = 0
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            quota=(self.quota, 10_000, 1 << 30), connections=(self.connections, 1, 1_000),
            pace=(self.pace, 1, 10_000), size=(self.size, 1, 100_000),
            seconds=(int(self.seconds), 1, 600), shards=(self.shards, 0, 64),
        )  # fmt: skip


class Steady(msgspec.Struct, frozen=True):
    """What the steady tenant got: messages confirmed a second, and how long these took."""

    per_s: float
    p50_ms: float
    p99_ms: float


class Result(msgspec.Struct, frozen=True):
    """What came of it: the steady tenant alone and beside the flood, the part of its rate that it
    kept, the bytes a second that the flood got stored, and that by its quota.
    """

    alone: Steady
    beside: Steady
    kept: float
    flood_bytes_per_s: float
    share: float
    throttled_ms: int


def measure(settings: Settings, progress: Progress) -> Result:
    """Run the test on a node of its own, which is removed afterwards; tell seconds that are done.

    Raises `ValueError` for settings that make no sense, and `WeirError` for a run without a figure.
    """
    settings.check()
    folder = None if settings.folder is None else Path(settings.folder)
    with running_node(folder, shards=settings.shards) as node:
        return asyncio.run(_measure(settings, node.url, progress))


async def _measure(settings: Settings, url: str, progress: Progress) -> Result:
    async with AsyncExitStack() as stack:
        steady = await stack.enter_async_context(connect(url))
        watching = await stack.enter_async_context(connect(url))
        for topic in (_FLOODED, _STEADY):
            await watching.create_topic(topic, partitions=_PARTITIONS)
        await watching.quotas.set(_ENTITY, {"bytes_in": settings.quota})
        alone = await _steady(settings, steady)
        progress(int(settings.seconds))
        flooding = [asyncio.create_task(_flood(settings, url)) for _ in range(settings.connections)]
        try:
            await asyncio.sleep(_WARM_S)
            before, began = await _stored(watching), time.monotonic()
            beside = await _steady(settings, steady)
            stored, took = await _stored(watching) - before, time.monotonic() - began
            ended = [task for task in flooding if task.done()]
            used = await watching.quotas.describe(_ENTITY)
        finally:
            for task in flooding:
                task.cancel()
            found = await asyncio.gather(*flooding, return_exceptions=True)
        if ended:
            raise next(one for one in found if isinstance(one, Exception))
        progress(int(2 * settings.seconds))
    return _result(settings, alone, beside, stored / took, used)


def _result(
    settings: Settings, alone: Steady, beside: Steady, bytes_per_s: float, used: Quota
) -> Result:
    return Result(
        alone, beside, beside.per_s / alone.per_s, bytes_per_s, bytes_per_s / settings.quota,
        used.throttled_ms,
    )  # fmt: skip


async def _stored(client: Client) -> int:
    """Return how many bytes the flood's topic holds."""
    return sum(one.bytes for one in await client.topic_stats(_FLOODED))


async def _steady(settings: Settings, client: Client) -> Steady:
    """Publish at the pace, whatever becomes of the messages before; return what was confirmed."""
    took: list[float] = []
    value, begin = b"x" * settings.size, time.monotonic()

    async def one(number: int) -> None:
        due = begin + number / settings.pace
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        await client.publish(_STEADY, value)
        now = time.monotonic()
        if now - begin <= settings.seconds:
            took.append(now - due)

    count = int(settings.pace * settings.seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(settings.seconds + 5.0):
            await asyncio.gather(*(one(number) for number in range(count)))
    if not took:
        raise WeirError("nothing of the steady tenant was confirmed: give it more time")
    took.sort()
    p50, p99 = (took[int(len(took) * part)] * 1_000 for part in (0.5, 0.99))
    return Steady(len(took) / settings.seconds, p50, p99)


async def _flood(settings: Settings, url: str) -> None:
    """Publish as fast as that is confirmed, over a connection of its own."""
    value = b"x" * settings.size
    async with connect(url, request_timeout=60.0) as client:

        async def one() -> None:
            while True:
                await client.publish(_FLOODED, value)

        await asyncio.gather(*(one() for _ in range(_AT_ONCE)))
