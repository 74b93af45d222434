"""What all verbs that run Spark share: the session, signals, and what they tell meanwhile."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How often a job that reads no stream tells how far it is.
WATCH_SECONDS = 2.0


@contextmanager
def spark_session(job: str, as_json: bool) -> Iterator[SparkSession]:
    """Yield a session, and end it: the one that spark-submit gave, or else one of this machine.

    What fails in Spark is one line on stderr, and exit code 1.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    from weir.spark.jobs.queries import raise_ours, reason
    from weir.spark.session import session  # says what to install where PySpark is not

    is_ours = SparkContext._active_spark_context is None
    spark = session(f"weir-{job}")

    if is_heard(as_json):
        print(f"Spark {spark.version} at {master_of(spark)}", file=sys.stderr, flush=True)
    try:
        yield spark
    except PySparkException as error:
        with suppress(PySparkException):
            raise_ours(error)
        print(f"Spark: {reason(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        if is_ours:
            spark.stop()


@contextmanager
def stopped(follow: bool, as_json: bool) -> Iterator[Callable[[], bool] | None]:
    """Yield what says whether a signal has come that ends a job which follows its topic.

    Enter it behind the session: PySpark takes Ctrl-C, and cancels the micro-batch under way. The
    next signal is none of ours: it ends the job at once, whatever that is doing.
    """
    if not follow:
        yield None
        return
    from weir.cli.process import Signals

    with Signals(once=True) as signals:

        def is_stopped() -> bool:
            if signals.number is None:
                return False
            if is_heard(as_json):
                print("stopped: adding up; Ctrl-C ends at once", file=sys.stderr, flush=True)
            return True

        yield is_stopped


@contextmanager
def watched(label: str, spark: SparkSession, as_json: bool) -> Iterator[None]:
    """Tell, while the block runs, how many tasks of the stages at work are done."""
    if not is_heard(as_json):
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(WATCH_SECONDS):
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            stages = [stage for stage in found if stage is not None]
            done = sum(stage.numCompletedTasks for stage in stages)
            if tasks := sum(stage.numTasks for stage in stages):
                print(f"{label}: {done:,} of {tasks:,} tasks", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=tell, name="weir-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(WATCH_SECONDS + 10)


def place_of(path: str) -> str:
    """Return a path that means the same to Java as to this process; URLs stay as they are."""
    return path if "://" in path else f"file://{Path(path).expanduser().absolute()}"


def master_of(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.master"))


def is_heard(as_json: bool) -> bool:
    """Whether what goes to stderr stays apart: spark-submit joins it with what goes to stdout."""
    return not (as_json and "PYSPARK_GATEWAY_PORT" in os.environ)
