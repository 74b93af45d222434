"""What `weir pipeline init` writes: a pipeline that works, for events of locks."""

from __future__ import annotations

from pathlib import Path

from weir.errors import BadPipeline
from weir.spark.pipeline.plan import FILE

PLAN = """\
# A pipeline: topics -> bronze -> silver -> gold -> SQL. Paths are relative to this folder.
url = "{url}"
lake = "lake"                # the tables; on a cluster, a folder that all machines see
checkpoints = "checkpoints"  # how far each step is
rows_per_batch = 1_000_000   # at most, in a micro-batch
every = "10s"                # a round begins no sooner behind the last one

# Bronze keeps topics as they are, each message once.
[bronze.events]
topics = ["{topic}"]

# Silver: typed rows, by silver.py. What does not fit is in lake/quarantine, with the reason.
[silver.locks]
topic = "{topic}"
schema = "lock.json"         # or "topic": the topic's own schema
id = "data.id"               # a message with an id that came before is left out,
within = "1h"                # if it came in this time

[silver.locks.rules]
known_event = "data.event in ('locked', 'unlocked')"
not_from_the_future = "data.at <= shiftright(stamp, 16) + 60000"

# Gold, by gold.py.
[gold.unlocks]
from = ["locks"]
time = "at"                  # a row is late if its time is so far
watermark = "10m"            # behind the highest: it is counted, and left out
to = ["report"]

[gold.sessions]
from = ["locks"]

[sinks.report]
sql = "sqlite:///report.db"
"""

SCHEMA = """\
{
  "type": "object",
  "properties": {
    "id": {"type": "string"},
    "device": {"type": "string"},
    "event": {"type": "string"},
    "at": {"type": "integer"}
  },
  "required": ["id", "device", "event", "at"]
}
"""

SILVER = '''\
"""Silver: rows of one topic. A function has the name of its step."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def locks(rows: DataFrame) -> DataFrame:
    """`rows` has the columns of the topic, and `data`; keep these four for the next layer."""
    return rows.select(
        "topic",
        "partition",
        "offset",
        "stamp",
        "data.device",
        "data.event",
        F.timestamp_millis("data.at").alias("at"),
    )
'''

GOLD = '''\
"""Gold: what silver tables say together, as streams."""

from collections.abc import Iterator

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


def unlocks(locks: DataFrame) -> DataFrame:
    """How often each device was unlocked, by five minutes."""
    return (
        locks.where("event = 'unlocked'")
        .groupBy("device", F.window("at", "5 minutes"))
        .count()
        .select("device", F.col("window.start").alias("start"), F.col("count").alias("unlocks"))
    )


def sessions(locks: DataFrame) -> DataFrame:
    """A row for each time that a device was unlocked and then locked."""
    return (
        locks.groupBy("device")
        .transformWithState(
            Session(),
            outputStructType="device string, unlocked timestamp, locked timestamp",
            outputMode="append",
            timeMode="none",
        )
    )


class Session(StatefulProcessor):
    """Remembers since when a device is unlocked."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._since = handle.getValueState("since", "at timestamp")

    def handleInputRows(self, key: tuple, rows: Iterator[Row], timer: object) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: (row.at, row.stamp)):
            if row.event == "unlocked":
                if not self._since.exists():
                    self._since.update((row.at,))
            elif self._since.exists():
                yield Row(device=key[0], unlocked=self._since.get()[0], locked=row.at)
                self._since.clear()

    def close(self) -> None:
        pass
'''


def write(folder: Path, url: str, topic: str) -> list[Path]:
    """Write a pipeline for a topic to a folder; return the files. Raises `BadPipeline` if one of
    them is there, and writes none then.
    """
    texts = {
        FILE: PLAN.format(url=url, topic=topic),
        "lock.json": SCHEMA,
        "silver.py": SILVER,
        "gold.py": GOLD,
    }
    paths = {folder / name: text for name, text in texts.items()}
    if there := [path for path in paths if path.exists()]:
        raise BadPipeline(f"{there[0]} is there already: give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
    return [*paths]
