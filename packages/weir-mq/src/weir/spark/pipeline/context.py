"""What all steps of a run share, and what each of them tells in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from weir.spark.jobs.queries import Asked
from weir.spark.pipeline.plan import Layer, Plan

#: Told a step's name and how many rows it has read in this run.
Told = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Context:
    """A run: its session, its pipeline, whether it must end, and the receiver of its progress."""

    spark: SparkSession
    plan: Plan
    is_stopped: Asked | None = None
    tell: Told | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What a step did in a run: it read `messages`, of which `good`, `bad` and `late` ones are all.

    `lost` ones are none of them: retention deleted them before they were read. Of the good ones,
    `repeated` have an id that came before and were left out. A gold step's messages are rows of
    silver tables; `late` ones came behind its watermark. `rows` were added to its table.
    """

    step: str
    layer: Layer
    messages: int = 0
    good: int = 0
    bad: int = 0
    late: int = 0
    lost: int = 0
    repeated: int = 0
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0

    def plus(self, other: Ran) -> Ran:
        """Return this one and a later run of the same step together."""
        mine, its = asdict(self), asdict(other)
        names = mine.keys() - {"step", "layer"}
        return Ran(self.step, self.layer, **{name: mine[name] + its[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}
