"""How far clocks of processes are from the leader's, and that order does not rest on them.

Each process has a clock that is shifted and drifts by amounts that are known, so the error of the
synchronised time is measured against the truth. In a second run each clock jumps as the exchange
begins, and is drawn back so slowly that it is wrong to the end. In both, every message is compared.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.toc.accounts import Account, lines_of, violations
from weir_lab.bench.toc.conformance_worker import Orders
from weir_lab.bench.toc.crew import Crew, Shape, crew
from weir_lab.bench.toc.skew_worker import ReferenceOrders, SkewOrders

RUNS = ("followed", "jumped")
_EXAMPLES_MAX = 20
_NS_PER_MS = 1_000_000
Progress = Callable[[int], None]


class SkewSettings(msgspec.Struct, frozen=True):
    """So many processes, whose clocks are spread over `-offset_ms` to `offset_ms`."""

    processes: int = 8
    seconds: float = 30.0
    offset_ms: float = 250.0
    #: Every second clock is as much too slow as the others are too fast.
    drift_ppm: int = 50
    #: Scatterings a second of each process and service.
    pace: float = 20.0
    interval_ms: float = 5.0
    seed: int = 1
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(processes=(self.processes, 2, 100), drift_ppm=(self.drift_ppm, 0, 100))
        if not 0 < self.offset_ms <= 10_000:
            raise ValueError("offset_ms: it must be above 0, and 10000 at most")
        if self.seconds <= 0 or not 0 < self.pace <= 10_000 or not 0.1 <= self.interval_ms <= 1_000:
            raise ValueError("seconds and pace must be above 0, the interval 0.1 to 1000 ms")


class SkewRun(msgspec.Struct, frozen=True):
    """What came out of one run. Errors are absolute, in microseconds."""

    name: str
    #: Readings of all clocks, and those of which the error was above the bound that was stated.
    readings: int
    outside: int
    error_p50_us: float
    error_p99_us: float
    error_max_us: float
    bound_p50_us: float
    messages: int
    violations: int
    #: Processes that were taken for dead, and none was.
    false_removals: int
    examples: list[str]


class SkewResult(msgspec.Struct, frozen=True):
    """Both runs."""

    #: Whether CLOCK_MONOTONIC was shifted by time namespaces.
    namespaces: bool
    violations: int
    #: Readings outside their bounds while clocks were followed.
    outside: int
    false_removals: int
    runs: list[SkewRun]

    @property
    def clean(self) -> bool:
        """Whether order held, errors were as stated, and nobody was taken for dead."""
        return not self.violations and not self.outside and not self.false_removals


def measure_skew(settings: SkewSettings, progress: Progress = lambda _: None) -> SkewResult:
    """Do both runs, one after the other."""
    runs = []
    is_shifted = True
    for number, name in enumerate(RUNS):
        with (
            tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder,
            crew(Path(folder), Shape(interval_ms=settings.interval_ms)) as made,
        ):
            run, shifted = _run(made, settings, name)
        runs.append(run)
        is_shifted &= shifted
        progress(number + 1)
    return SkewResult(
        is_shifted, sum(one.violations for one in runs), runs[0].outside,
        sum(one.false_removals for one in runs), runs,
    )  # fmt: skip


def _run(made: Crew, settings: SkewSettings, name: str) -> tuple[SkewRun, bool]:
    names = [f"p{number}" for number in range(settings.processes)]
    _start(made, settings, name, names)
    ids = {one: made.wait_for(one, "ready")[1] for one in names}
    for one in names:
        made.tell(one, json.dumps([*ids.values()]))
    told = [made.wait_for(one, "done", settings.seconds)[1] for one in names]
    made.tell("controller-1")
    reference = made.wait_for("controller-1", "reference")[1]
    accounts = {
        id: Account.read(id, lines_of(str(made.folder / f"{one}.log"))) for one, id in ids.items()
    }
    removed = {id for id, one in zip(ids.values(), told, strict=True) if one["fenced"]}
    found = violations(accounts, removed)
    messages = sum(one.messages for one in accounts.values())
    run = judged(name, reference, told, messages, found)
    return run, all(one["is_shifted"] for one in told)


def _start(made: Crew, settings: SkewSettings, name: str, names: list[str]) -> None:
    shape = made.shape
    reference = ReferenceOrders(
        made.url, str(made.folder / "controller-1"), shape.racks, shape.spines, shape.cores,
        int(settings.interval_ms * _NS_PER_MS),
    )  # fmt: skip
    _worker(made, "controller-1", reference)
    for switch in shape.switches:
        made.start_switch(switch)
    for number, one in enumerate(names):
        exchange = Orders(
            made.url, one, 0, names, settings.seconds, settings.pace, settings.interval_ms, 0.0,
            settings.seed * 1_000 + number, str(made.folder / f"{one}.log"),
        )  # fmt: skip
        offset = offset_of(number, settings)
        drift = settings.drift_ppm if number % 2 else -settings.drift_ppm
        step = offset if name == "jumped" else 0
        _worker(made, one, SkewOrders(exchange, offset, drift, step))


def _worker(made: Crew, name: str, orders: SkewOrders | ReferenceOrders) -> None:
    text = msgspec.json.encode(orders).decode()
    made.start(name, "-m", "weir_lab.bench.toc.skew_worker", text)


def offset_of(number: int, settings: SkewSettings) -> int:
    """Return by how much the clock of a process is wrong, in nanoseconds: evenly spread."""
    share = 2 * number / (settings.processes - 1) - 1
    return int(share * settings.offset_ms * _NS_PER_MS)


def judged(
    name: str, reference: int, told: list[dict[str, Any]], messages: int, found: list[str]
) -> SkewRun:
    """Return what a run showed.

    `told` has what each process said; its samples are how far its time was from CLOCK_MONOTONIC,
    and the stated bound. `reference` is how far the leader's was. `found` are broken guarantees.
    """
    errors, bounds, outside = [], [], 0
    for process in told:
        for distance, bound in process["samples"]:
            error = abs(distance - reference)
            errors.append(error)
            outside += bound is None or error > bound
            bounds.append(bound or 0)
    p50, p99 = (one or 0.0 for one in percentiles(errors, 0.5, 0.99))
    (bound_p50,) = (one or 0.0 for one in percentiles(bounds, 0.5))
    removals = sum(one["fenced"] + one["failed"] + one["excluded"] for one in told)
    return SkewRun(
        name, len(errors), outside, round(p50 / 1e3, 1), round(p99 / 1e3, 1),
        round(max(errors, default=0) / 1e3, 1), round(bound_p50 / 1e3, 1), messages, len(found),
        removals, found[:_EXAMPLES_MAX],
    )  # fmt: skip
