"""All guarantees of both services, on every message of real processes, at each place for barriers.

The network is a tree: of network namespaces, as `weir-toc net up` builds it, or on loopback where
that is not possible, which leaves the host representative. Processes send scatterings of both
services to some of all processes at random, some of them many at once, and write down what they
send and what they are given. A share of all packets is lost, on each link that they cross. Then the
logs are compared.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.toc.accounts import Account, lines_of, violations
from weir_lab.bench.toc.conformance_worker import Orders
from weir_lab.bench.toc.crew import Crew, Shape, crew
from weir_lab.bench.toc.tree import missing_for, missing_for_trees, tree_crew
from weir_toc.places import Place

#: Where barriers can be aggregated.
PLACES = tuple(one.value for one in Place)
_EXAMPLES_MAX = 20
Progress = Callable[[int], None]


class Settings(msgspec.Struct, frozen=True):
    """So many processes on a tree of switches, for so long at each share of lost packets."""

    places: tuple[str, ...] = PLACES
    processes: int = 8
    seconds: float = 60.0
    losses: tuple[float, ...] = (0.0, 0.01)
    #: Scatterings a second, of each process and service.
    pace: float = 10.0
    interval_ms: float = 5.0
    racks: int = 4
    spines: int = 2
    cores: int = 1
    members: int = 3
    seed: int = 1
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            processes=(self.processes, 2, 100), racks=(self.racks, 1, 100),
            members=(self.members, 1, 7),
        )  # fmt: skip
        if not self.places or not {*self.places} <= {*PLACES}:
            raise ValueError(f"place: {', '.join(PLACES)} or all are possible")
        if not self.losses or not all(0 <= one <= 0.5 for one in self.losses):
            raise ValueError("losses: shares of 0 to 0.5 are possible")
        if self.seconds <= 0 or not 0 < self.pace <= 10_000 or not 0.1 <= self.interval_ms <= 1_000:
            raise ValueError("seconds and pace must be above 0, the interval 0.1 to 1000 ms")


class Run(msgspec.Struct, frozen=True):
    """What came out at one share of lost packets."""

    loss: float
    seconds: float
    #: Scatterings and messages of both services.
    scatterings: int
    messages: int
    violations: int
    #: Processes that were taken for dead, and none was.
    false_removals: int
    #: Best effort packets that came below a barrier already used, and the answers to them.
    late: int
    nak: int
    #: Best effort parts of which their sender was told that they are missing.
    told: int
    resent: int
    #: Runs of packets that were taken at once.
    runs: int
    examples: list[str]

    @property
    def clean(self) -> bool:
        """Whether nothing was broken."""
        return not self.violations and not self.false_removals


class Runs(msgspec.Struct, frozen=True):
    """The runs at one place of aggregation, or why there are none."""

    name: str
    runs: list[Run]
    missing: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran, and nothing was broken."""
        return bool(self.runs) and all(run.clean for run in self.runs)


class Result(msgspec.Struct, frozen=True):
    """All places; the sums are over those that ran."""

    #: Whether this machine builds trees of namespaces: then no place may be missing.
    trees: bool
    places: list[Runs]
    passed: int
    missing: int
    messages: int
    violations: int
    false_removals: int
    late: int
    nak: int
    #: Messages that came too late although no packet was lost: a link was not FIFO.
    late_without_loss: int

    @property
    def clean(self) -> bool:
        """Whether nothing was broken where something ran, and all ran that can run here."""
        is_skipped = self.trees and self.missing > 0
        return not self.violations and not self.false_removals and not is_skipped


def measure(settings: Settings, progress: Progress = lambda _: None) -> Result:
    """Run each place that exists at each loss."""
    places = []
    done = 0
    has_trees = not missing_for_trees()
    for name in settings.places:
        runs = []
        missing = missing_for(Place(name))
        for loss in () if missing else settings.losses:
            runs.append(_run(settings, Place(name), loss, has_trees))
            done += 1
            progress(done)
        places.append(Runs(name, runs, missing))
    all_runs = [run for place in places for run in place.runs]
    return Result(
        has_trees,
        places,
        sum(place.passed for place in places),
        sum(bool(place.missing) for place in places),
        sum(run.messages for run in all_runs),
        sum(run.violations for run in all_runs),
        sum(run.false_removals for run in all_runs),
        sum(run.late for run in all_runs),
        sum(run.nak for run in all_runs),
        sum(run.late for run in all_runs if not run.loss),
    )


def _run(settings: Settings, place: Place, loss: float, has_trees: bool) -> Run:
    shape = Shape(settings.racks, settings.spines, settings.cores, settings.members,
                  settings.interval_ms)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder:
        path = Path(folder)
        if has_trees:
            with tree_crew(path, shape, place, settings.processes, loss) as made:
                return _exchange(made, settings, loss, 0.0)
        with crew(path, shape) as made:
            made.start_network(loss, settings.seed)
            return _exchange(made, settings, loss, loss)


def _exchange(made: Crew, settings: Settings, loss: float, own_loss: float) -> Run:
    """Let processes exchange messages; `own_loss` is the share that they themselves lose."""
    names = [f"p{number}" for number in range(settings.processes)]
    for number, name in enumerate(names):
        orders = Orders(
            made.url, name, number % settings.racks, names, settings.seconds, settings.pace,
            settings.interval_ms, own_loss, settings.seed * 1_000 + 500 + number,
            str(made.folder / f"{name}.log"),
        )  # fmt: skip
        made.start_in(number, name, "-m", "weir_lab.bench.toc.conformance_worker",
                      msgspec.json.encode(orders).decode())  # fmt: skip
    ids = {name: made.wait_for(name, "ready")[1] for name in names}
    begun = time.monotonic()
    for name in names:
        made.tell(name, json.dumps([*ids.values()]))
    told = [made.wait_for(name, "done", settings.seconds)[1] for name in names]
    seconds = time.monotonic() - begun
    accounts = {
        id: Account.read(id, lines_of(str(made.folder / f"{name}.log"))) for name, id in ids.items()
    }
    found = violations(accounts, {id for id, one in zip(ids.values(), told, strict=True)
                                  if one["fenced"]})  # fmt: skip
    return Run(
        loss, round(seconds, 1),
        sum(len(one.sent) for one in accounts.values()),
        sum(one.messages for one in accounts.values()),
        len(found),
        sum(one["fenced"] + one["failed"] + one["excluded"] for one in told),
        sum(one["late"] for one in told),
        sum(one["naks"] for one in told),
        sum(len(to) for one in accounts.values() for to in one.lost.values()),
        sum(one["resent"] for one in told),
        sum(one["runs"] for one in told),
        found[:_EXAMPLES_MAX],
    )  # fmt: skip
