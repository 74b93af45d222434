"""A driver whose queries log in, and which shows all that Spark tells of them.

Usage: login_query.py URL FOLDER. WEIR_PASSWORD has the password. It reads the topic `doors` as a
table and as a stream, writes it to `copies`, and leaves in FOLDER the event log, the checkpoints,
`plans.txt`, and `pages.txt`: what the web interface answers. The description of its jobs is a word
that a test must find there.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from weir.spark.session import session

_PAGES = ("environment", "jobs", "stages", "executors", "SQL", "StreamingQuery")
_API = ("environment", "jobs", "stages", "sql?details=true&planDescription=true")


def main() -> None:
    url, name = sys.argv[1:]
    folder = Path(name)
    (folder / "events").mkdir()
    spark = session("login", cores=2, memory="1g", **{
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": False,
        "spark.ui.enabled": True,
        "spark.ui.port": 0,
        "spark.log.level": "INFO",
        "spark.sql.debug.maxToStringFields": 1_000,
    })  # fmt: skip
    table = spark.read.format("weir").option("url", url).option("topic", "doors").load()
    stream = spark.readStream.format("weir").option("url", url).option("topic", "doors").load()
    with (folder / "plans.txt").open("w") as file, redirect_stdout(file):
        explain(table)
        explain(stream)
    spark.sparkContext.setJobDescription("c0ntrol-word")
    assert table.count() == 20
    query = (
        stream.select("value")
        .writeStream.format("weir")
        .option("url", url)
        .option("topic", "copies")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    (folder / "pages.txt").write_text("\n".join([*pages(spark), str(query.recentProgress)]))
    spark.stop()


def explain(frame: DataFrame) -> None:
    """Print all plans of a frame."""
    for mode in ("extended", "formatted", "codegen", "cost"):
        frame.explain(mode=mode)
    print(frame._jdf.queryExecution().logical().toJSON())


def pages(spark: SparkSession) -> Iterator[str]:
    """Yield what the web interface shows to people and to programs."""
    context = spark.sparkContext
    base = context.uiWebUrl
    api = f"{base}/api/v1/applications/{context.applicationId}"
    for address in (
        *(f"{base}/{page}/" for page in _PAGES),
        *(f"{base}/SQL/execution/?id={number}" for number in range(3)),
        *(f"{api}/{page}" for page in _API),
    ):
        with urllib.request.urlopen(address, timeout=30) as answer:
            yield answer.read().decode()


if __name__ == "__main__":
    main()
