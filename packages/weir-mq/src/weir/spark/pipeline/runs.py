"""Runs a pipeline in rounds: bronze, silver, gold, each up to what the layer below has.

Each step reads up to a cut that is fixed when its part of the round begins. So behind a round all
tables, and what was written to SQL, are as of one cut of the topics.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weir.errors import BadPipeline, WeirError
from weir.spark.jobs.archive import Upkeep
from weir.spark.jobs.queries import Asked, raise_ours, reason
from weir.spark.lake.stream import LakeDataSource
from weir.spark.pipeline.bronze import BronzeStep
from weir.spark.pipeline.context import Context, Ran, Told
from weir.spark.pipeline.functions import Functions
from weir.spark.pipeline.plan import FILE, Layer, Plan
from weir.spark.pipeline.silver import SilverStep
from weir.spark.pipeline.steps import GoldStep

_LOCK = "lock"
_PROBE = ".weir-probe"
#: A pipeline that goes on looks for small files and old ones after so many rounds.
_TIDY_EVERY = 32
#: How often a pipeline that waits asks whether it is to end.
_LOOK_SECONDS = 0.2
#: What all steps need: state on disk and not in Spark's memory, and times in UTC.
_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.session.timeZone": "UTC",
}


class Step(Protocol):
    """A step of any layer."""

    name: str

    @property
    def layer(self) -> Layer:
        """The layer that its table is in."""

    def prepare(self) -> None:
        """Check all there is to check, and create what is to be written to."""

    def is_behind(self) -> bool:
        """Whether there is more to read, or a micro-batch to be ended."""

    def run(self) -> Ran:
        """Read up to now."""

    def tidy(self, upkeep: Upkeep, /) -> None:
        """Compact crowded days, and delete what nobody needs any more."""


def run(
    spark: SparkSession,
    plan: Plan,
    *,
    once: bool = True,
    only: str = "",
    tell: Told | None = None,
    is_stopped: Asked | None = None,
    upkeep: Upkeep | None = None,
) -> list[Ran]:
    """Run a pipeline, or one step of it, up to today's end, or until `is_stopped`; return what each
    step did. All steps are checked before the first one reads.

    Raises `BadPipeline`, also for what Spark and users' functions raise, with the step's name; and
    what the broker refuses.
    """
    if only and only not in [name for _, name in plan.steps()]:
        names = ", ".join(name for _, name in plan.steps())
        raise BadPipeline(f"{plan.folder / FILE} has no step {only!r}: it has {names}")
    asked = None if is_stopped is None else _for_good(is_stopped)
    context = Context(spark, plan, asked, tell)
    with locked(plan), _settings(spark):
        spark.dataSource.register(LakeDataSource)
        steps = _prepared(context)
        chosen = [step for step in steps if only in ("", step.name)]
        done = {step.name: Ran(step.name, step.layer) for step in chosen}
        rounds = 0
        while True:
            begun = time.monotonic()
            for step in chosen:
                with _named(step.name):
                    if step.is_behind():
                        done[step.name] = done[step.name].plus(step.run())
                if asked is not None and asked():
                    break
            if once or rounds % _TIDY_EVERY == _TIDY_EVERY - 1:
                for step in chosen:
                    with _named(step.name):
                        step.tidy(upkeep or Upkeep())
            rounds += 1
            if once or not _waits(begun + plan.every, asked):
                return [*done.values()]


@contextlib.contextmanager
def locked(plan: Plan) -> Iterator[None]:
    """Keep other runs of a pipeline away in the block; a run that is killed keeps nobody away.

    Raises `BadPipeline` if there is another, with its process, or if a folder cannot be written.
    """
    for folder in (plan.checkpoints, plan.lake):
        _check_writable(folder)
    path = plan.checkpoints / _LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another"
            raise BadPipeline(
                f"{plan.folder} is run by process {holder} already: wait until it has ended, or "
                "stop it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _check_writable(folder: Path) -> None:
    probe = folder / f"{_PROBE}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0" * 4_096)
    except OSError as error:
        raise BadPipeline(
            f"{folder} cannot be written ({error.strerror}): free space there, or give another "
            f"folder in {FILE}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _prepared(context: Context) -> list[Step]:
    """Return all steps, checked in their order: each finds the tables of those below."""
    plan = context.plan
    functions = {layer: Functions(plan.folder, layer) for layer in ("silver", "gold")}
    steps: list[Step] = []
    for layer, name in plan.steps():
        step: Step
        with _named(name):
            if layer == "bronze":
                step = BronzeStep(context, name)
            elif layer == "silver":
                step = SilverStep(context, name, functions["silver"])
            else:
                step = GoldStep(context, name, functions["gold"])
            step.prepare()
        steps.append(step)
    return steps


@contextlib.contextmanager
def _named(step: str) -> Iterator[None]:
    """Say of which step an error is."""
    try:
        try:
            yield
        except PySparkException as error:
            raise_ours(error)
    except BadPipeline:
        raise
    except WeirError as error:
        raise BadPipeline(f"step {step}: {error}") from error
    except PySparkException as error:
        raise BadPipeline(f"step {step}: {reason(error)}") from error
    except OSError as error:
        raise BadPipeline(f"step {step}: {error.filename or ''}: {error.strerror}") from error


@contextlib.contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """Set what queries need in the block; they keep what is set when they begin."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _for_good(is_stopped: Asked) -> Asked:
    """Return what says so for good once it was said, and asks no more then."""
    said: list[bool] = []

    def asked() -> bool:
        if not said and is_stopped():
            said.append(True)
        return bool(said)

    return asked


def _waits(until: float, is_stopped: Asked | None) -> bool:
    """Wait for the next round; return False if there is to be none."""
    while is_stopped is None or not is_stopped():
        if time.monotonic() >= until:
            return True
        time.sleep(_LOOK_SECONDS)
    return False
