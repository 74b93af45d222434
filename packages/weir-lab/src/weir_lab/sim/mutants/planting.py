"""How a mutant is planted: one rule of the code is changed, and changed back.

@mutant(seed=3, breaks={"Durable"})
def acks_come_early(patch: Patch) -> None:
    '''What rule is gone, and where it is written.'''
    patch.setattr(Writer, "start_work", ...)

@bug(breaks={"Live"})                          # no seed is kept: `weir sim power` plays it
def a_hold_is_never_released(patch: Patch) -> None:
    '''What rule is gone.'''
    patch.source("weir.host.connections", "one.update()", "pass")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

from weir_lab.sim.mutants.source import TOUCHED, replaced
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.run import run_drawn, run_seed
from weir_lab.sim.shape import NODE, Shape

_MISSING = object()


class Patch:
    """Attributes that were changed, and what they were."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._before: list[tuple[object, str, object]] = []
        #: How often a line was run that was planted by source text; -1 if none was.
        self.touched = -1

    def setattr(self, target: object, name: str, value: object) -> None:
        """Change an attribute of a module or class that has it."""
        getattr(target, name)  # a rule that is not there any more cannot be changed
        # What a class inherits is taken off it again, and not put on it.
        before = vars(target).get(name, _MISSING)
        if isinstance(target, FunctionType):
            before = getattr(target, name)  # a function's code is not among its variables
        self._before.append((target, name, before))
        setattr(target, name, value)

    def source(self, module: str, old: str, new: str) -> None:
        """Replace a piece of a module's text, which must stand there exactly once.

        Raises `PlantingRefused` where it does not.
        """
        room = import_module(module)
        changed = replaced(room, old, new)
        if TOUCHED not in vars(room):
            self._before.append((room, TOUCHED, _MISSING))
            setattr(room, TOUCHED, self._touch)
        self.touched = max(self.touched, 0)
        for function, code in changed:
            self.setattr(function, "__code__", code)

    def _touch(self) -> None:
        self.touched += 1

    def undo(self) -> None:
        """Change everything back, the latest change first."""
        while self._before:
            target, name, value = self._before.pop()
            if value is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, value)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change that takes one rule away, and the seed that shows it where it is played."""

    name: str
    #: The rule that is gone.
    rule: str
    plant: Callable[[Patch], None]
    #: The seed that catches it, played in `shape`; -1 if none is kept: drawn worlds do.
    seed: int
    shape: Shape
    #: The promises of which a checker must name one.
    breaks: frozenset[str]
    #: A whole world, as a rule.
    play: Callable[[int, Shape], Outcome] = run_seed

    @property
    def is_kept(self) -> bool:
        """Whether a seed is kept with it."""
        return self.seed >= 0

    @contextmanager
    def planted(self) -> Iterator[Patch]:
        """Let the code be as the mutant has it."""
        patch = Patch()
        try:
            self.plant(patch)
            yield patch
        finally:
            patch.undo()


def mutant(
    seed: int,
    breaks: set[str],
    shape: Shape = NODE,
    play: Callable[[int, Shape], Outcome] = run_seed,
) -> Callable[[Callable[[Patch], None]], Mutant]:
    """Make a function that plants a bug a `Mutant` of its name; its docstring is the rule."""

    def make(plant: Callable[[Patch], None]) -> Mutant:
        name = plant.__name__.replace("_", "-")
        rule = " ".join((plant.__doc__ or "").split())
        return Mutant(name, rule, plant, seed, shape, frozenset(breaks), play)

    return make


def bug(breaks: set[str]) -> Callable[[Callable[[Patch], None]], Mutant]:
    """Make a function that plants a bug a `Mutant` that is played in drawn worlds alone."""
    return mutant(-1, breaks, play=lambda seed, _: run_drawn(seed))


def all_in(module: dict[str, Any]) -> list[Mutant]:
    """Return the mutants among a module's names, in the order in which they are written."""
    return [value for value in module.values() if isinstance(value, Mutant)]
