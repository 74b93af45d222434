"""`session`: the Spark that runs weir's queries: the one that is given, or else a local one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from weir.errors import MissingLibrary

try:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
except ModuleNotFoundError:
    raise MissingLibrary("PySpark is not installed: pip install 'weir-mq[spark]'") from None

from weir.spark.java import use_java
from weir.spark.source import WeirDataSource

#: Tries of a task: a broker that restarts while a task reads must not end the query.
TASK_TRIES = 4
#: spark-submit sets it for the Python program that it runs: the port of its JVM.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def session(
    app: str = "weir", cores: int = 2, memory: str = "2g", **conf: str | int | bool
) -> SparkSession:
    """Return a Spark session that knows `format("weir")`.

    A session that is running already is returned, and under spark-submit one with the master and
    the settings that spark-submit was given; both only with `conf` applied, and `app`, `cores` and
    `memory` are ignored. Otherwise Spark is started on this machine, and Java is found for it
    (`weir.spark.java`). `conf` overrides settings: pass dotted names as
    `**{"spark.ui.enabled": "true"}`. Raises `NoJava`.
    """
    # A context, unlike an active session, is there for every thread.
    if SparkContext._active_spark_context is not None or _SUBMITTED in os.environ:
        return _made(SparkSession.builder, conf)
    _prepare_environment()
    settings: dict[str, str | int | bool] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        # A micro-batch is short: planning it anew or spreading it wide costs more than it brings.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.streaming.metricsEnabled": "false",
    }
    settings.update(conf)
    return _made(SparkSession.builder.appName(app).master(f"local[{cores},{TASK_TRIES}]"), settings)


def _made(builder: SparkSession.Builder, settings: Mapping[str, str | int | bool]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else value)
    spark = builder.getOrCreate()
    spark.dataSource.register(WeirDataSource)
    return spark


def _prepare_environment() -> None:
    """Set what the JVM and its Python workers inherit; it counts only before the JVM starts."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers must import the weir that this process did, when it runs from a checkout too.
    source = str(Path(__file__).parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if source not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([source, *filter(None, paths)])
