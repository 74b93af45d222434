"""How much a broker sustains: the load is raised until latency doubles.

First everything goes out as fast as it can, which bounds the search. The base step offers a tenth
of that, each further one a tenth more. A step is sustained if nearly all that was due could be sent
in its time, and the 99th percentile of its latency is at most twice the base step's. Each step has
three tries, and the base is the slower of two: one slow sync of a disk is not yet a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from weir.client.client import connect
from weir.client.reader.reader import Reader
from weir.model.limits import BATCH_BYTES_MAX, MIB
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.flow import Flow, FlowFailed, Shape, arrived, flow, shared_out
from weir_lab.bench.harness.machine import filesystem_of
from weir_lab.bench.harness.pace import Paced, PacePlan, Step
from weir_lab.bench.harness.payload import SIZE_MIN, Checker
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sides.own import PROCESSES_MAX, Own, check_replicas, chunk_of, window_of
from weir_lab.bench.sides.side import topic_name

PRODUCERS_MAX = 10_000
#: Shares of the flat-out rate: the base step, and where the search ends.
_TENTHS_MAX = 12
_OFFERED_MIN = 0.95
_LATENCY_FACTOR = 2.0
_TRIES = 3
#: The base step is done so often, and the slowest counts.
_BASES = 2
#: An upper bound of what one producer sends in all steps; the counts are known in the end.
_MESSAGES_MAX = 1 << 30

Say = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """What to measure: steps of `seconds`; `messages` are what shape consume reads."""

    shape: Shape = "both"
    size: int = 100
    producers: int = 1
    seconds: float = 2.0
    messages: int = 4_000_000
    deadline_s: float = 120.0
    folder: str | None = None
    replicas: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        check_bounds(
            producers=(self.producers, 1, PRODUCERS_MAX),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
            messages=(self.messages, self.producers, 1 << 40),
        )
        if self.seconds <= 0 or self.deadline_s <= 0:
            raise ValueError("seconds and deadline must be above 0")


class Stage(msgspec.Struct, frozen=True):
    """One step: what was offered (0: all that went), what got through, and how late it was."""

    offered_per_s: float
    messages_per_s: float
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None
    sustained: bool


class Result(msgspec.Struct, frozen=True):
    """The peak that is sustained. Latencies are those at the peak."""

    shape: Shape
    messages: int
    messages_per_s: float
    flat_out_messages_per_s: float
    base_p99_ms: float | None
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None
    share_delivered: float
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    filesystem: str | None
    stages: list[Stage]

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


async def measure(side: Own, settings: Settings, say: Say) -> Result:
    """Measure a node of weir; `say` is told what each step brought."""
    settings.check()
    if settings.shape == "consume":
        counts = shared_out(settings.messages, settings.producers)
        found = await flow(
            side, topic_name(1), "consume", counts, settings.size, settings.deadline_s
        )
        return _drained(found, side)
    return await _Ramp(side, settings, say).run()


def _drained(found: Flow, side: Own) -> Result:
    """A drain has no load to raise: it takes all it can from the beginning."""
    return Result(
        "consume", found.messages, found.messages_per_s, found.messages_per_s,
        None, None, None, None, None,
        1 - found.lost / found.messages, found.lost, found.repeated, found.reordered, found.corrupt,
        filesystem_of(side.folder), [],
    )  # fmt: skip


class _Arrivals:
    """Reads and checks what arrives, and how late; batch by batch."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        #: Of batches, from when they were packed.
        self.delivery_ms: list[float] = []

    async def read(self, reader: Reader) -> None:
        take = self._checker.take
        async for delivered in reader.batches():
            column = delivered.batch.value_column
            first = delivered.skip
            take(column.offsets[first : first + len(delivered) + 1], column.data)
            late = time.time_ns() // 1_000 - delivered.batch.header.base_time
            self.delivery_ms.append(late / 1e3)


class _Ramp:
    """Raises the load, step by step."""

    def __init__(self, side: Own, settings: Settings, say: Say) -> None:
        self._side = side
        self._settings = settings
        self._say = say
        self._checker = Checker([_MESSAGES_MAX] * settings.producers, settings.size)
        self._arrivals = _Arrivals(self._checker)
        self._totals = dict.fromkeys(range(settings.producers), 0)
        self._topic = topic_name(1)

    async def run(self) -> Result:
        """Search the peak, then account for every message."""
        await self._side.prepare(self._topic)
        async with (
            connect(self._side.node.url, name="weir-bench") as client,
            Crew("weir_lab.bench.harness.pace", self._plans(), Paced) as crew,
        ):
            await crew.ready()
            async with client.reader(self._topic, max_bytes=4 * MIB) as reader:
                reading = None
                if self._settings.shape == "both":
                    reading = asyncio.ensure_future(self._arrivals.read(reader))
                try:
                    stages = await self._search(crew, reading)
                    reading = reading or asyncio.ensure_future(self._arrivals.read(reader))
                    await self._all_here(reading)
                finally:
                    if reading is not None:
                        reading.cancel()
                        await asyncio.wait((reading,))
        return self._result(stages)

    async def _search(self, crew: Crew[Paced], reading: asyncio.Future[None] | None) -> list[Stage]:
        flat_out = await self._stage(crew, reading, 0.0, None)
        tenth = flat_out.messages_per_s / 10
        bases = [await self._stage(crew, reading, tenth, None) for _ in range(_BASES)]
        stages = [flat_out, *bases]
        base = max(bases, key=lambda stage: stage.confirm_p99_ms or 0.0)
        for tenths in range(2, _TENTHS_MAX + 1):
            for _ in range(_TRIES):
                stage = await self._stage(crew, reading, tenths * tenth, base)
                stages.append(stage)
                if stage.sustained:
                    break
            if not stage.sustained:
                break
        return stages

    async def _stage(
        self,
        crew: Crew[Paced],
        reading: asyncio.Future[None] | None,
        rate: float,
        base: Stage | None,
    ) -> Stage:
        self._arrivals.delivery_ms = []
        crew.go(msgspec.json.encode(Step(rate, self._settings.seconds)))
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                done = await crew.done()
        except TimeoutError:
            raise FlowFailed(
                f"a step of {self._settings.seconds:g} s was not confirmed within "
                f"{self._settings.deadline_s:g} s: give a longer --deadline"
            ) from None
        self._side.running()
        for one in done:
            self._totals |= one.totals
        if reading is not None:
            await self._all_here(reading)
        stage = self._judged(done, rate, base)
        self._say(_line(stage))
        return stage

    def _judged(self, done: list[Paced], rate: float, base: Stage | None) -> Stage:
        seconds = self._settings.seconds
        if rate == 0:
            last, first = (
                max(one.last_confirm_ns for one in done),
                min(one.began_ns for one in done),
            )
            seconds = (last - first) / 1e9
        per_s = sum(one.sent for one in done) / seconds
        confirm = percentiles([late for one in done for late in one.confirm_ms], 0.5, 0.99)
        delivery = percentiles(self._arrivals.delivery_ms, 0.5, 0.99)
        late = [(confirm[1], base.confirm_p99_ms if base else None)]
        if self._settings.shape == "both":
            late.append((delivery[1], base.delivery_p99_ms if base else None))
        in_time = all(now is None or then is None or now <= _LATENCY_FACTOR * then
                      for now, then in late)  # fmt: skip
        sustained = base is None or (per_s >= _OFFERED_MIN * rate and in_time)
        return Stage(rate, per_s, confirm[0], confirm[1], delivery[0], delivery[1], sustained)

    async def _all_here(self, reading: asyncio.Future[None]) -> None:
        """Return when all that was sent so far has arrived."""
        sent = sum(self._totals.values())
        await arrived(self._side, self._checker, sent, reading, self._settings.deadline_s)

    def _plans(self) -> list[PacePlan]:
        settings = self._settings
        numbers = [*range(settings.producers)]
        processes = min(PROCESSES_MAX, settings.producers)
        return [
            PacePlan(
                self._side.node.url,
                self._topic,
                numbers[number::processes],
                settings.producers,
                settings.size,
                chunk_of(settings.size),
                window_of(settings.producers),
            )
            for number in range(processes)
        ]

    def _result(self, stages: list[Stage]) -> Result:
        checker = self._checker
        checker.expect([self._totals[number] for number in range(self._settings.producers)])
        paced = [stage for stage in stages[1:] if stage.sustained]
        peak = paced[-1]
        return Result(
            self._settings.shape,
            sum(self._totals.values()),
            peak.messages_per_s,
            stages[0].messages_per_s,
            max(stage.confirm_p99_ms or 0.0 for stage in stages[1 : 1 + _BASES]),
            peak.confirm_p50_ms,
            peak.confirm_p99_ms,
            peak.delivery_p50_ms,
            peak.delivery_p99_ms,
            1 - checker.lost / sum(self._totals.values()),
            checker.lost,
            checker.repeated,
            checker.reordered,
            checker.corrupt,
            filesystem_of(self._side.folder),
            stages,
        )


def _line(stage: Stage) -> str:
    offered = f"{stage.offered_per_s:,.0f}" if stage.offered_per_s else "all it can"
    late = f"confirm p99 {stage.confirm_p99_ms or 0:.2f} ms"
    if stage.delivery_p99_ms is not None:
        late += f", delivery p99 {stage.delivery_p99_ms:.2f} ms"
    verdict = "sustained" if stage.sustained else "not sustained"
    return f"offered {offered}: {stage.messages_per_s:,.0f} messages/s, {late}: {verdict}"
