"""How likely the worlds of the default distribution catch a planted bug: the simulator's power.

Results are kept in a file, so that a measurement of hours can be gone on with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import msgspec

from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import MUTANTS, complaints
from weir_lab.sim.run import run_drawn

#: A bug that so many worlds have caught is played no more.
ENOUGH = 5
#: In how many worlds a bug is played at most.
WORLDS = 200
#: One world in so many must have the bug's promises at stake.
RARE = 10
#: Of a normal distribution: 95 % lie within so many standard deviations.
_Z = 1.959964
#: For how many seconds a bug is played at most. The clock alone ends it, so that the share of the
#: worlds until then is as good an estimate, with a wider interval.
LONGEST_S = 800.0
#: So many of the bugs that are caught least are told by name.
_WEAKEST = 10


class Power(msgspec.Struct, frozen=True):
    """In how many worlds a bug was caught. `percent` is an estimate, of 100 worlds in which it
    could be; with 95 % confidence it is between `low` and `high`.
    """

    name: str
    rule: str
    #: Worlds that were played, and those in which a promise of the bug was at stake.
    played: int
    worlds: int
    caught: int
    percent: float
    low: float
    high: float
    seconds: float
    #: The first seeds that caught it.
    seeds: tuple[int, ...] = ()
    #: Worlds that ran a planted line; -1 of a bug that is not planted by source text.
    touched: int = -1

    @property
    def is_rare(self) -> bool:
        """Whether too few worlds could have caught it."""
        return self.worlds * RARE < self.played


class Powers(msgspec.Struct, frozen=True):
    """The power of all bugs together, in percent."""

    planted: int
    missed: int
    rare: int
    #: Those planted by source text whose lines no world ran.
    untouched: int
    median_caught: float
    least_caught: float
    #: The names of those that are caught least, the least first.
    weakest: tuple[str, ...]
    seconds: float


def measure(
    bug: Mutant, worlds: int = WORLDS, enough: int = ENOUGH, longest_s: float = LONGEST_S
) -> Power:
    """Play one bug until `enough` worlds have caught it, or so many `worlds` were played, or
    `longest_s` seconds are over.

    Worlds in which none of its promises was at stake are played, and do not count; there are at
    most `RARE` times as many.
    """
    began = time.perf_counter()
    counted = played = touched = 0
    caught: list[int] = []
    with bug.planted() as patch:
        by_source = patch.touched >= 0
        for seed in count():
            if counted == worlds or len(caught) == enough or played == worlds * RARE:
                break
            if played and time.perf_counter() - began > longest_s:
                break
            before = patch.touched
            outcome = run_drawn(seed)
            played += 1
            touched += patch.touched > before
            is_caught = bool(complaints(bug, outcome))
            if is_caught:
                caught.append(seed)
            counted += is_caught or bool(bug.breaks & outcome.promises)
    share, low, high = estimate(len(caught), counted, enough)
    return Power(
        bug.name,
        bug.rule,
        played,
        counted,
        len(caught),
        round(100 * share, 2),
        round(100 * low, 2),
        round(100 * high, 2),
        seconds=round(time.perf_counter() - began, 3),
        seeds=tuple(caught),
        touched=touched if by_source else -1,
    )


def estimate(caught: int, worlds: int, enough: int) -> tuple[float, float, float]:
    """Return the share of worlds that catch a bug, and the ends of its interval (Wilson, 95 %).

    Where playing ended with the last of `enough` catches, that one was certain, so that it and its
    world are left out of the share.
    """
    if not worlds:
        return 0.0, 0.0, 1.0
    share = caught / worlds
    middle = share + _Z**2 / (2 * worlds)
    spread = _Z * math.sqrt(share * (1 - share) / worlds + _Z**2 / (4 * worlds**2))
    scale = 1 + _Z**2 / worlds
    low, high = max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
    if caught == enough > 1 and worlds > 1:
        share = (caught - 1) / (worlds - 1)
    return share, low, high


def measure_many(bugs: Sequence[Mutant], worlds: int, enough: int, jobs: int) -> Iterator[Power]:
    """Measure each, `jobs` at a time; results come in their order."""
    if jobs == 1:
        yield from (measure(bug, worlds, enough) for bug in bugs)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        running = [pool.submit(_measure_named, bug.name, worlds, enough) for bug in bugs]
        for one in running:
            yield one.result()


def _measure_named(name: str, worlds: int, enough: int) -> Power:
    return measure(next(bug for bug in MUTANTS if bug.name == name), worlds, enough)


def together(found: Sequence[Power]) -> Powers:
    """Return the power of all bugs together."""
    weakest = sorted(found, key=lambda one: (one.percent, one.high, one.name))[:_WEAKEST]
    return Powers(
        len(found),
        sum(not one.caught for one in found),
        sum(one.is_rare for one in found),
        sum(not one.touched for one in found),
        median(one.percent for one in found),
        min(one.percent for one in found),
        tuple(one.name for one in weakest),
        round(sum(one.seconds for one in found), 3),
    )


class _Line(msgspec.Struct, frozen=True):
    """What was measured on some code, and how."""

    code: str
    worlds: int
    enough: int
    power: Power


def read(path: Path) -> list[Power]:
    """Return the latest result of each bug in a file, whatever code it was measured on."""
    return [*{line.power.name: line.power for line in _lines(path)}.values()]


def _lines(path: Path) -> list[_Line]:
    return [msgspec.json.decode(text, type=_Line) for text in path.read_bytes().splitlines()]


class Kept:
    """What a file holds that was measured on this very code in the same way."""

    def __init__(self, path: Path | None, code: str, worlds: int, enough: int) -> None:
        """Read the file, if it is there; without a path nothing is kept."""
        self._path = path
        self._code = code
        self._worlds = worlds
        self._enough = enough
        #: By the names of the bugs.
        self.known: dict[str, Power] = {}
        mine = (code, worlds, enough)
        for line in _lines(path) if path is not None and path.exists() else ():
            if (line.code, line.worlds, line.enough) == mine:
                self.known[line.power.name] = line.power

    def add(self, power: Power) -> None:
        """Write a result down at once."""
        if self._path is not None:
            line = _Line(self._code, self._worlds, self._enough, power)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
