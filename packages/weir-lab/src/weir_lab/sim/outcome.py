"""What became of one seed, and what a person needs to see it again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from weir_lab.sim.shape import SHAPES, Shape

#: The promise that an exception breaks which nobody expected.
CRASH = "Crash"
#: What `weir sim run --scenario` calls the worlds with users.
USERS = "users"
_BROKEN_MAX = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed. `violations` are (promise, sentence); empty if all was kept."""

    seed: int
    shape: Shape
    #: The sizes that the seed drew.
    machine: str
    faults: int
    operations: int
    violations: list[tuple[str, str]]
    trace_hash: str
    #: Of the machine's time, and of the run's own.
    seconds: float
    virtual_seconds: float
    #: The last notes of the trace, (virtual µs, what, ...), for a run that failed.
    recent: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    #: The promises that the run could have broken.
    promises: frozenset[str] = frozenset()
    #: Whether the seed drew the shape.
    is_drawn: bool = False
    #: The scenario that was played instead of a world of a shape; empty if none.
    scenario: str = ""

    def beside(self, other: Outcome) -> Outcome:
        """Return what became of a world and of a scenario beside it; operations and faults are
        those of the world.
        """
        return replace(
            self,
            violations=self.violations + other.violations,
            trace_hash=f"{self.trace_hash}-{other.trace_hash}",
            seconds=self.seconds + other.seconds,
            promises=self.promises | other.promises,
        )

    def report(self) -> str:
        """Return what a person needs: the broken promises, and how to see them break again."""
        if not self.violations:
            return f"seed {self.seed}: {self.operations} operations, {self.faults} faults, all kept"
        broken = [f"  {promise}: {text}" for promise, text in self.violations[:_BROKEN_MAX]]
        if len(self.violations) > len(broken):
            broken.append(f"  and {len(self.violations) - len(broken)} more")
        return "\n".join(
            [
                f"the last {len(self.recent)} events of seed {self.seed}, virtual µs first:",
                *(f"  {line}" for line in self.recent),
                f"played on {self.machine}",
                f"in {self.shape}",
                f"seed {self.seed} broke {len(self.violations)} promises:",
                *broken,
                f"replay: {self.replay}   (trace hash {self.trace_hash})",
            ]
        )

    @property
    def replay(self) -> str:
        """What to type to see it again."""
        if self.is_drawn:
            return f"weir sim run --seed {self.seed} --seeds 1"
        if self.scenario:
            return f"weir sim run --scenario {self.scenario} --seed {self.seed} --seeds 1"
        for name, shape in SHAPES.items():
            if shape == self.shape:
                return f"weir sim run --shape {name} --seed {self.seed} --seeds 1"
        return f"weir_lab.sim.run.run_seed({self.seed}, {self.shape})"
