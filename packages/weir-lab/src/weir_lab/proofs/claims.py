"""A claim in figures: the command that measures it, what is read from its output, and the goals."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Compare = Callable[[float, float], bool]
#: No step of a proof lasts longer.
STEP_SECONDS_MAX = 900.0
_COMPARE: dict[str, Compare] = {
    "≥": operator.ge,
    "≤": operator.le,
    "<": operator.lt,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a command's output: the path to it, perhaps divided by what another one names.

    A path goes through JSON by names and places, as in runs.0.seconds; `*` stands for every place,
    and the lowest number counts, or the highest if `highest`; [NAME] stands for the places whose
    `side` is NAME. The figure of a sweep is made of those of its steps as `whole` says.
    """

    path: str
    over: str = ""
    highest: bool = False
    whole: Literal["sum", "least", "most", "mean", "median"] = "sum"

    def of_steps(self, values: Sequence[float]) -> float:
        """Return the figure of a sweep whose steps came to these values."""
        match self.whole:
            case "sum":
                return sum(values)
            case "least":
                return min(values)
            case "most":
                return max(values)
            case "mean":
                return sum(values) / len(values)
            case "median":
                return median(values)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach."""

    figure: str
    relation: Literal["≥", "≤", "<", "="]
    value: float

    def met(self, value: float | None) -> bool:
        """Tell whether a value reaches it; one that is missing does not."""
        return value is not None and _COMPARE[self.relation](value, self.value)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Many seeds, played in steps whose figures are kept: a sweep goes on where it was left.

    Sweeps with the same `name` share their steps, so they must have the same command, in whose
    words {SEED} stands for the first seed of a step and {SEEDS} for their number. So many steps run
    `at_once`: two of a command that uses one core.
    """

    name: str
    seeds: int
    step: int = 100
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim. `words` is the command: `weir` and `python` stand for those that run now, another
    word for a script of the repository.

    {TESTS:NAME} stands for the test files that read the variable NAME of the environment. Tests
    give figures with the fixture `tell`; several values of one name become one as `whole` says.
    The path `passed` is the number of tests that passed, as pytest prints it; for `weir` it leads
    into its JSON like any other.
    A command, or each step of a `sweep`, may take `timeout_s` at most. `seconds` is an estimate of
    how long all of it takes on two idle cores; it counts until a run with this command is kept.
    `named` is a list in the output, and a figure of each of its items, as in bugs.percent: the page
    shows the items with the lowest by their names.
    """

    name: str
    what: str
    words: tuple[str, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = STEP_SECONDS_MAX
    sweep: Sweep | None = None
    seconds: float | None = None
    named: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Proofs that `make NAME` runs, all of them within so many `minutes` on two idle cores."""

    name: str
    what: str
    minutes: int
    proofs: tuple[Proof, ...]


def bench(
    name: str,
    what: str,
    words: str,
    figures: dict[str, Figure],
    *goals: Goal,
    seconds: float | None = None,
) -> Proof:
    """Return a claim that `weir bench` measures."""
    command = ("weir", "bench", *words.split(), "--json")
    return Proof(name, what, command, figures, goals, seconds=seconds)


def tests(
    name: str,
    what: str,
    paths: str,
    figures: dict[str, Figure],
    *goals: Goal,
    seconds: float | None = None,  # noqa: PT028  this is no test
    **environment: str,
) -> Proof:
    """Return a claim that tests check, and what they must have counted."""
    words = ("pytest", "-q", "-n0", "-o", f"timeout={STEP_SECONDS_MAX:.0f}", *paths.split())
    return Proof(name, what, words, figures, goals, environment, seconds=seconds)


WHOLE = {"lost": Figure("lost"), "repeated": Figure("repeated")}
NONE_LOST = (Goal("lost", "=", 0), Goal("repeated", "=", 0))
