"""How long one message takes: to its confirm, and to its consumer.

First one message at a time, each sent when the last one is confirmed. Then so many a second,
whether or not anything comes back. This disk's own sync is timed beside it, before and after, at
the pace of the lone messages.

Two sides are measured by turns, a part of each at a time: what else the machine does meanwhile is
the same for both.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from weir.errors import WeirError
from weir.model.limits import KIB, MIB
from weir_lab.bench.harness.machine import Foreign
from weir_lab.bench.harness.payload import SIZE_MIN, Checker
from weir_lab.bench.harness.resting import disk_at_rest
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sides.own import check_replicas
from weir_lab.bench.sides.side import Side, topic_name

_SYNCS = 200
_WARM_MESSAGES = 50
_FIRST_TOPIC = 90
#: Each has topics of its own, below that one.
TURNS_MAX = 40
_WRITE = bytes(4 * KIB)
_FILE_BYTES = 4 * MIB
#: What a broker that gets one message at a time does between two syncs takes about so long. A disk
#: and cores that have rested for a moment are slower than those that are kept busy.
_REST_SECONDS = 0.0005


class LatencyFailed(WeirError):
    """A measurement came to no figure; the message says how far it got."""


class Settings(msgspec.Struct, frozen=True):
    """`lone` messages one at a time, then `rate` a second for `seconds`, of `size` bytes each."""

    lone: int = 2_000
    rate: int = 1_000
    seconds: float = 5.0
    size: int = 100
    deadline_s: float = 60.0
    folder: str | None = None
    replicas: int = 1
    #: It begins once the disk is at rest, or after this long.
    rest_s: float = 0.0
    tls: bool = False
    #: So many parts, by turns with the other side if there is one.
    turns: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        if self.size < SIZE_MIN:
            raise ValueError(f"size={self.size}: it must be at least {SIZE_MIN}")
        if self.lone < 1 or self.rate < 1 or self.messages < 1 or self.deadline_s <= 0:
            raise ValueError("lone, rate, seconds and deadline must be above 0")
        if not 1 <= self.turns <= min(self.lone, self.messages, TURNS_MAX):
            raise ValueError(f"turns={self.turns}: it must be 1 to {TURNS_MAX}, and not above lone")

    @property
    def messages(self) -> int:
        """How many messages are sent at a rate."""
        return int(self.rate * self.seconds)

    @property
    def part(self) -> Settings:
        """What is measured in a turn."""
        return replace(self, lone=self.lone // self.turns, seconds=self.seconds / self.turns)


class Result(msgspec.Struct, frozen=True):
    """Milliseconds. A message's time begins when it is handed to the client."""

    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    confirm_p999_ms: float | None
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None
    delivery_p999_ms: float | None
    fdatasync_p50_ms: float | None
    fdatasync_p99_ms: float | None
    #: The confirm's median less the disk's own.
    over_fdatasync_ms: float
    messages: int
    messages_per_s: float
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    share_delivered: float
    #: What others used meanwhile, in cores.
    foreign_cores: float | None = None
    tls: bool = False
    #: By TLS, its medians less those without.
    tls_confirm_more_ms: float | None = None
    tls_delivery_more_ms: float | None = None

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


class Samples(msgspec.Struct, frozen=True):
    """Every sample of a run, in milliseconds and in order."""

    confirm_ms: list[float]
    delivery_ms: list[float]
    fdatasync_ms: list[float]


class _Parts:
    """What was measured of one side so far."""

    def __init__(self, side: Side, settings: Settings) -> None:
        """Begin with nothing of `side`."""
        self._side, self._settings = side, settings
        self._confirms: list[float] = []
        self._deliveries: list[float] = []
        self._syncs: list[float] = []
        self._checkers: list[Checker] = []
        self._seconds = 0.0

    async def prepare(self) -> None:
        """Bring its logs into use."""
        await self._side.prepare(topic_name(_FIRST_TOPIC))

    async def measure(self, turn: int) -> None:
        """Measure the part of a turn, 0 and up. Raises `LatencyFailed` and what the side raises."""
        side, part = self._side, self._settings.part
        syncs = max(_SYNCS // self._settings.turns, 1)
        self._syncs += sync_ms(side.folder.parent, syncs)
        self._confirms += await _lone(side, part, topic_name(2 * turn + 1))
        self._syncs += sync_ms(side.folder.parent, syncs)
        checker, deliveries, seconds = await _at_a_rate(side, part, topic_name(2 * turn + 2))
        self._checkers.append(checker)
        self._deliveries += deliveries
        self._seconds += seconds

    def result(self, foreign_cores: float | None) -> tuple[Result, Samples]:
        """Return what came of it, while others used so many cores."""
        settings, checkers = self._settings, self._checkers
        confirm = percentiles(self._confirms, 0.5, 0.99, 0.999)
        delivery = percentiles(self._deliveries, 0.5, 0.99, 0.999)
        sync = percentiles(self._syncs, 0.5, 0.99)
        messages, lost = settings.part.messages * settings.turns, sum(one.lost for one in checkers)
        result = Result(
            confirm_p50_ms=confirm[0],
            confirm_p99_ms=confirm[1],
            confirm_p999_ms=confirm[2],
            delivery_p50_ms=delivery[0],
            delivery_p99_ms=delivery[1],
            delivery_p999_ms=delivery[2],
            fdatasync_p50_ms=sync[0],
            fdatasync_p99_ms=sync[1],
            over_fdatasync_ms=(confirm[0] or 0.0) - (sync[0] or 0.0),
            messages=messages,
            messages_per_s=messages / self._seconds,
            lost=lost,
            repeated=sum(one.repeated for one in checkers),
            reordered=sum(one.reordered for one in checkers),
            corrupt=sum(one.corrupt for one in checkers),
            share_delivered=1 - lost / messages,
            foreign_cores=foreign_cores,
            tls=settings.tls,
        )
        return result, Samples(self._confirms, self._deliveries, self._syncs)


async def measure(side: Side, settings: Settings) -> tuple[Result, Samples]:
    """Measure one broker. Raises `LatencyFailed` and what the side raises."""
    (found,) = await measure_by_turns([(side, settings)])
    return found


async def measure_by_turns(
    plans: Sequence[tuple[Side, Settings]],
) -> list[tuple[Result, Samples]]:
    """Measure sides as `measure` does, a part of each in a turn; who was last is first in the next.

    Raises `LatencyFailed` and what the sides raise. All have as many turns as the first one.
    """
    for _, settings in plans:
        settings.check()
    (_, first), parts = plans[0], [_Parts(side, settings) for side, settings in plans]
    for one in parts:
        await one.prepare()  # before it rests, for then its logs are in use
    await disk_at_rest(first.rest_s)
    foreign = Foreign()
    for turn in range(first.turns):
        for one in parts if turn % 2 == 0 else reversed(parts):
            await one.measure(turn)
    cores = foreign.cores()
    return [one.result(cores) for one in parts]


def beside_plain(secure: Result, plain: Result) -> Result:
    """Return a result by TLS with what its medians are above those of the side without."""
    return replace(
        secure,
        tls_confirm_more_ms=_more(secure.confirm_p50_ms, plain.confirm_p50_ms),
        tls_delivery_more_ms=_more(secure.delivery_p50_ms, plain.delivery_p50_ms),
    )


def _more(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


async def _lone(side: Side, settings: Settings, topic: str) -> list[float]:
    await side.prepare(topic)
    found = []
    async with side.lone(topic, settings.size) as lone:
        try:
            async with asyncio.timeout(settings.deadline_s):
                for _ in range(_WARM_MESSAGES):
                    await lone.confirmed()
                for _ in range(settings.lone):
                    began = time.perf_counter()
                    await lone.confirmed()
                    found.append((time.perf_counter() - began) * 1e3)
        except TimeoutError:
            raise LatencyFailed(
                f"{side.label} confirmed {len(found):,} of {settings.lone:,} lone messages within "
                f"{settings.deadline_s:g} s: give a longer --deadline, or fewer messages"
            ) from None
    return found


async def _at_a_rate(
    side: Side, settings: Settings, topic: str
) -> tuple[Checker, list[float], float]:
    """Return the checker, the latencies in the order of arrival, and the seconds it took."""
    count = settings.messages
    await side.prepare(topic)
    checker = Checker([count], settings.size)
    sent, came = array("d"), array("d")
    complete = asyncio.Event()

    def take(offsets: memoryview, data: memoryview) -> None:
        now = time.perf_counter()
        checker.take(offsets, data)
        came.extend([now] * (len(offsets) - 1))
        if checker.received >= count:
            complete.set()

    async with (
        side.consume(topic, settings.size, take) as consuming,
        side.lone(topic, settings.size) as lone,
    ):
        failing = asyncio.ensure_future(consuming.failed())
        failing.add_done_callback(lambda _: complete.set())
        try:
            async with asyncio.timeout(settings.seconds + settings.deadline_s):
                began = time.perf_counter()
                while len(sent) < count:
                    now = time.perf_counter()
                    due = min(count, int((now - began) * settings.rate) + 1)
                    while len(sent) < due:
                        sent.append(time.perf_counter())
                        lone.hand_over()
                    await asyncio.sleep(max(0.0, began + due / settings.rate - now))
                seconds = time.perf_counter() - began
                await complete.wait()
        except TimeoutError:
            raise LatencyFailed(
                f"{side.label} delivered {checker.received:,} of {count:,} messages within "
                f"{settings.seconds + settings.deadline_s:g} s"
            ) from None
        finally:
            if failing.done() and not failing.cancelled():
                failing.result()
            failing.cancel()
    return checker, [(b - a) * 1e3 for a, b in zip(sent, came, strict=False)], seconds


def sync_ms(folder: Path, count: int) -> list[float]:
    """Write 4 KiB into a file that is there already and fdatasync, `count` times; milliseconds.

    As a log does in a segment that was prepared: no size changes, so only data is synced. And at
    the pace of lone messages, with a rest of 0.5 ms before each, which is not counted.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        handle = file.fileno()
        os.pwrite(handle, bytes(_FILE_BYTES), 0)
        os.fsync(handle)
        found = []
        for number in range(count):
            at = number * len(_WRITE) % _FILE_BYTES
            time.sleep(_REST_SECONDS)
            began = time.perf_counter()
            os.pwrite(handle, _WRITE, at)
            os.fdatasync(handle)
            found.append((time.perf_counter() - began) * 1e3)
    return found
