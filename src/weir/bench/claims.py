"""A claim in figures: the command that measures it, what is read from its output, and the goals."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Compare = Callable[[float, float], bool]
_COMPARE: dict[str, Compare] = {"≥": operator.ge, "≤": operator.le, "=": operator.eq}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a command's output: the path to it, perhaps divided by what another one names.

    A path goes through JSON by names and places, as in runs.0.seconds; `*` stands for every place,
    and the lowest number counts, or the highest if `highest`.
    """

    path: str
    over: str = ""
    highest: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach."""

    figure: str
    relation: Literal["≥", "≤", "="]
    value: float

    def met(self, value: float | None) -> bool:
        """Tell whether a value reaches it; one that is missing does not."""
        return value is not None and _COMPARE[self.relation](value, self.value)


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim. `words` is the command: `weir` and `python` stand for those that run now, another
    word for a script of the repository.

    The figure `passed` is the count of tests that passed, as pytest tells it; {TESTS:NAME} stands
    for the test files that read the variable NAME of the environment.
    """

    name: str
    what: str
    words: tuple[str, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 1_800.0


def bench(name: str, what: str, words: str, figures: dict[str, Figure], *goals: Goal) -> Proof:
    """Return a claim that `weir bench` measures."""
    return Proof(name, what, ("weir", "bench", *words.split(), "--json"), figures, goals)


def tests(name: str, what: str, paths: str, timeout_s: float, **environment: str) -> Proof:
    """Return a claim that tests check."""
    words = ("pytest", "-q", "-n0", "-o", f"timeout={timeout_s:.0f}", *paths.split())
    goals = (Goal("passed", "≥", 1),)
    return Proof(name, what, words, {"passed": Figure("passed")}, goals, environment, timeout_s)


WHOLE = {"lost": Figure("lost"), "repeated": Figure("repeated")}
NONE_LOST = (Goal("lost", "=", 0), Goal("repeated", "=", 0))
