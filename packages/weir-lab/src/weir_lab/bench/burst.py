"""The burst test (SmartDep §3): a platform's devices all wake up within the same second.

Each connects, sends one record of 24 bytes and waits for its confirm; a consumer counts what is
delivered. The clock runs from the first connect to the last confirm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from weir_lab.bench.flow import Cpu, bottleneck
from weir_lab.bench.harness.machine import Foreign
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.harness.payload import Checker
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.harness.resting import disk_at_rest
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sides.device_logins import Auth, Login
from weir_lab.bench.sides.devices import VALUE_BYTES, Burst, BurstPlan
from weir_lab.bench.sides.fleets import TAGS_MAX
from weir_lab.bench.sides.own import Own, check_replicas
from weir_lab.bench.sides.side import Side

DEVICES_MAX = 18_000
#: One process drives so many devices within a second without being what is slow.
_DEVICES_PER_PROCESS = 10_000
_POLL_S = 0.01
_BESIDE, _BESIDE_EVERY_S = "beside", 0.005


class Settings(msgspec.Struct, frozen=True):
    """How many devices, and over how many seconds they connect."""

    devices: int = 8_000
    over_s: float = 1.0
    deadline_s: float = 60.0
    folder: str | None = None
    replicas: int = 1
    #: The devices wake up once the disk is at rest, or after this long.
    rest_s: float = 0.0
    #: What they prove their identity by; and among how many fleets, each with a tag (0: one
    #: without).
    auth: Auth = "none"
    tags: int = 0
    #: A producer publishes beside them, message by message.
    beside: bool = False

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        if not 1 <= self.devices <= DEVICES_MAX:
            raise ValueError(f"devices={self.devices:,}: it must be 1 to {DEVICES_MAX:,}")
        proves = self.auth in ("secret", "signed")
        if self.tags and not (proves and 1 <= self.tags <= min(TAGS_MAX, self.devices)):
            raise ValueError(
                f"tags={self.tags}: tags are of fleets, with --auth secret or signed; 1 to "
                f"{TAGS_MAX:,}, and no more than devices"
            )
        if self.over_s <= 0 or self.deadline_s <= 0:
            raise ValueError("over and deadline must be above 0 s")


class Result(msgspec.Struct, frozen=True):
    """`seconds` is to the last confirm, of those that came; latencies begin with the connect."""

    devices: int
    seconds: float
    #: To the last confirm, beyond the time over which the devices wake up.
    beyond_ms: float
    delivery_seconds: float
    share_confirmed: float
    share_delivered: float
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    lost: int
    repeated: int
    corrupt: int
    problems: dict[str, int]
    devices_cpu_s: float
    server_cpu_s: float | None
    bottleneck: str
    #: From publish to confirm of the producer beside them, while they were under way.
    beside_p99_ms: float | None = None
    #: What others used meanwhile, in cores.
    foreign_cores: float | None = None

    @property
    def clean(self) -> bool:
        """Whether every device's message was confirmed and arrived exactly once, unchanged."""
        return self.share_confirmed == 1 and not (self.lost or self.repeated or self.corrupt)


class Samples(msgspec.Struct, frozen=True):
    """Every confirm's latency."""

    confirm_ms: list[float]


async def measure(side: Side, settings: Settings, topic: str) -> tuple[Result, Samples]:
    """Let the devices go, once."""
    settings.check()
    allow_connections(settings.devices)
    await side.prepare(topic)
    await disk_at_rest(settings.rest_s)
    checker = Checker([1] * settings.devices, VALUE_BYTES)
    last_ns = 0

    def take(offsets: memoryview, data: memoryview) -> None:
        nonlocal last_ns
        checker.take(offsets, data)
        last_ns = time.monotonic_ns()

    async with (
        Crew("weir_lab.bench.sides.devices", _plans(side, settings, topic), Burst) as crew,
        side.consume(topic, VALUE_BYTES, take),
    ):
        await crew.ready()
        async with _beside(side, settings) as beside_ms:
            cpu, foreign = side.cpu_s(), Foreign()
            crew.go()
            done = await crew.done()
            foreign_cores = foreign.cores()
        side.running()
        # What is confirmed must arrive; a consumer has the rest of the time for it.
        deadline = time.monotonic() + settings.deadline_s
        confirmed = sum(one.confirmed for one in done)
        while checker.received < confirmed and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        used = side.cpu_s()
    server = None if used is None else used - (cpu or 0)
    result, samples = _result(settings, checker, done, last_ns, server, side.one_thread, beside_ms)
    return replace(result, foreign_cores=foreign_cores), samples


@asynccontextmanager
async def _beside(side: Side, settings: Settings) -> AsyncIterator[list[float]]:
    """Publish message by message to another topic while the block runs, if that is asked for; yield
    how long each confirm took, in ms.
    """
    took: list[float] = []
    if not settings.beside:
        yield took
        return
    await side.prepare(_BESIDE)
    async with side.lone(_BESIDE, VALUE_BYTES) as lone:

        async def publish() -> None:
            while True:
                began = time.monotonic()
                await lone.confirmed()
                took.append((time.monotonic() - began) * 1e3)
                await asyncio.sleep(_BESIDE_EVERY_S)

        await lone.confirmed()  # the first one finds its way
        task = asyncio.ensure_future(publish())
        try:
            yield took
        finally:
            task.cancel()
            await asyncio.wait((task,))
    if not task.cancelled():
        task.result()  # it ended by itself, and not well


def _plans(side: Side, settings: Settings, topic: str) -> list[BurstPlan]:
    processes = -(-settings.devices // _DEVICES_PER_PROCESS)
    return [
        BurstPlan(
            side.label,
            side.port,
            topic,
            number,
            processes,
            settings.devices,
            settings.over_s,
            settings.deadline_s,
            side.login if isinstance(side, Own) else Login(),
        )
        for number in range(processes)
    ]


def _result(
    settings: Settings,
    checker: Checker,
    done: list[Burst],
    last_ns: int,
    server_cpu_s: float | None,
    one_thread: bool,
    beside_ms: list[float],
) -> tuple[Result, Samples]:
    began = min(one.began_ns for one in done)
    latencies = [latency for one in done for latency in one.confirm_ms]
    problems: dict[str, int] = {}
    for one in done:
        for what, count in one.problems.items():
            problems[what] = problems.get(what, 0) + count
    p50, p99 = percentiles(latencies, 0.5, 0.99)
    (beside,) = percentiles(beside_ms, 0.99)
    seconds = max(0, max(one.last_confirm_ns for one in done) - began) / 1e9
    cpu = Cpu(server_cpu_s, sum(one.cpu_s for one in done), 0.0)
    busiest = max(one.cpu_s for one in done)
    result = Result(
        devices=settings.devices,
        seconds=seconds,
        beyond_ms=(seconds - settings.over_s) * 1e3,
        delivery_seconds=max(0, last_ns - began) / 1e9,
        share_confirmed=len(latencies) / settings.devices,
        share_delivered=1 - checker.lost / settings.devices,
        confirm_p50_ms=p50,
        confirm_p99_ms=p99,
        lost=checker.lost,
        repeated=checker.repeated,
        corrupt=checker.corrupt,
        problems=problems,
        devices_cpu_s=cpu.producers,
        server_cpu_s=server_cpu_s,
        bottleneck=bottleneck(one_thread, cpu, max(seconds, settings.over_s), busiest),
        beside_p99_ms=beside,
    )
    return result, Samples(latencies)
