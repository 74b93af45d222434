"""One breakfast on one platform: all locks report within a second, and the records are counted.

Response time runs from the first connect to the last reply. The share is that of rows in the
database to records sent, counted once all are there or none has come for a while.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec

from weir.errors import WeirError
from weir_lab.bench.consumers.dormitory.ledger import TOPIC, Book
from weir_lab.bench.consumers.postgres import Postgres
from weir_lab.bench.harness.machine import family_cpu_seconds
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sides.devices import Burst, BurstPlan

#: As many locks report before the others, but no more than are measured: a broker on a fresh JVM
#: is slow at what it does for the first time.
WARM_UP_MAX = 1_000
OVER_S = 1.0
#: Longer than ActiveMQ's pauses, which looks through a queue anew every 30 s.
_STILL_S = 40.0
_LOOK_S = 0.02
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class AtWork:
    """A back end that runs: the CPU time it has used, in s, and its most processes so far.

    `troubles` ends it, and says what kept records from being recorded.
    """

    cpu_s: Callable[[], float | None]
    processes: Callable[[], int]
    troubles: Callable[[], Awaitable[dict[str, int]]]


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform whose locks may connect once its back end is `working`."""

    label: str
    version: str
    settings: str
    port: int
    #: CPU seconds of the broker; where there is none the back end is all there is.
    broker_cpu_s: Callable[[], float | None]
    working: Callable[[], AbstractAsyncContextManager[AtWork]]
    #: What is acknowledged survives the loss of power, on all three.
    synced: bool = True


class Result(msgspec.Struct, frozen=True):
    """`seconds` is to the last reply; `recorded_seconds` to when all was in the database.

    `lost` counts records without a row, `repeated` rows beyond one for each record.
    """

    devices: int
    seconds: float
    recorded_seconds: float
    share_confirmed: float
    share_recorded: float
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    lost: int
    repeated: int
    problems: dict[str, int]
    back_end_processes: int
    devices_cpu_s: float
    server_cpu_s: float | None
    back_end_cpu_s: float | None
    database_cpu_s: float | None
    bottleneck: str

    @property
    def clean(self) -> bool:
        """Whether every lock was answered, and has one row."""
        return self.share_confirmed == 1 and not (self.lost or self.repeated)


class BreakfastFailed(WeirError):
    """The records of a few locks did not arrive, so many were not let go."""


async def measure(
    platform: Platform, postgres: Postgres, devices: int, deadline_s: float
) -> Result:
    """Let so many locks report, once. Raises `BreakfastFailed` if it does not work with a few."""
    allow_connections(devices + WARM_UP_MAX)
    book = Book(postgres.url)
    try:
        async with platform.working() as back_end:
            await _warm_up(platform, back_end, book, devices, deadline_s)
            return await _measured(platform, back_end, postgres, book, devices, deadline_s)
    finally:
        book.close()


async def _warm_up(
    platform: Platform, back_end: AtWork, book: Book, devices: int, deadline_s: float
) -> None:
    """Let locks with numbers above all others report."""
    count = min(devices, WARM_UP_MAX)
    plan = _plan(platform, devices, devices + count, deadline_s)
    async with Crew("weir_lab.bench.sides.devices", [plan], Burst) as crew:
        await crew.ready()
        crew.go()
        (done,) = await crew.done()
    if await _counted(book, count, deadline_s, deadline_s) != count:
        raise BreakfastFailed(
            f"{platform.label} answered {done.confirmed} of {count} locks and recorded "
            f"{book.rows()}: {done.problems}, {await back_end.troubles()}"
        )


async def _measured(
    platform: Platform,
    back_end: AtWork,
    postgres: Postgres,
    book: Book,
    devices: int,
    deadline_s: float,
) -> Result:
    def used() -> dict[str, float]:
        return {
            "broker": platform.broker_cpu_s() or 0.0,
            "back end": back_end.cpu_s() or 0.0,
            "database": family_cpu_seconds(postgres.pid) or 0.0,
        }

    plan = _plan(platform, 0, devices, deadline_s)
    async with Crew("weir_lab.bench.sides.devices", [plan], Burst) as crew:
        await crew.ready()
        known, before = book.rows(), used()
        crew.go()
        (done,) = await crew.done()
        cpu = {name: seconds - before[name] for name, seconds in used().items()}
        rows = await _counted(book, known + devices, deadline_s, _STILL_S) - known
        recorded = time.monotonic() - done.began_ns / 1e9
    problems = {**done.problems, **({} if rows == devices else await back_end.troubles())}
    p50, p99 = percentiles(done.confirm_ms, 0.5, 0.99)
    seconds = max(0, done.last_confirm_ns - done.began_ns) / 1e9
    return Result(
        devices=devices,
        seconds=seconds,
        recorded_seconds=recorded,
        share_confirmed=done.confirmed / devices,
        share_recorded=min(rows, devices) / devices,
        confirm_p50_ms=p50,
        confirm_p99_ms=p99,
        lost=max(0, devices - rows),
        repeated=max(0, rows - devices),
        problems=problems,
        back_end_processes=back_end.processes(),
        devices_cpu_s=done.cpu_s,
        server_cpu_s=cpu["broker"],
        back_end_cpu_s=cpu["back end"],
        database_cpu_s=cpu["database"],
        bottleneck=held_back(max(seconds, OVER_S), done.cpu_s, cpu),
    )


def _plan(platform: Platform, first: int, behind: int, deadline_s: float) -> BurstPlan:
    return BurstPlan(platform.label, platform.port, TOPIC, first, 1, behind, OVER_S, deadline_s)


async def _counted(book: Book, wanted: int, deadline_s: float, still_s: float) -> int:
    """Return how many rows there are, once all are there or none has come for so long."""
    began = moved = time.monotonic()
    rows = book.rows()
    while rows < wanted and time.monotonic() < min(moved + still_s, began + deadline_s):
        await asyncio.sleep(_LOOK_S)
        found = book.rows()
        if found != rows:
            rows, moved = found, time.monotonic()
    return rows


def held_back(seconds: float, devices_cpu_s: float, cpu: dict[str, float]) -> str:
    """Say what was used up until the last reply: the locks' core, all cores, or none of them."""
    cores = len(os.sched_getaffinity(0))
    everything = {"locks": devices_cpu_s, **cpu}
    shares = ", ".join(f"{name} {used / seconds:.0%}" for name, used in everything.items() if used)
    if devices_cpu_s >= _FULL * seconds:
        return f"client: the locks ({shares} of a core)"
    if sum(everything.values()) >= _FULL * seconds * cores:
        most = max(everything, key=lambda name: everything[name])
        return f"all {cores} cores, most of all the {most} ({shares} of a core)"
    return f"waiting for the disk and for replies ({shares} of a core)"
