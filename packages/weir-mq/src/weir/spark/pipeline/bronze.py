"""Bronze: topics kept in lakes, whole; all topics of a step up to one cut.

A micro-batch ends at a barrier, whatever the order of the topics, so a lake has everything up to
its highest stamp. Only when all lakes of the step have a micro-batch does a file in each say so,
and the layers above read up to there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weir.client.sync import client as sync
from weir.errors import BadPipeline, RangeLost
from weir.spark.jobs import archive
from weir.spark.jobs.queries import Topic, run
from weir.spark.lake import Home, open_lake
from weir.spark.lake.delta import DeltaLake
from weir.spark.lake.layout import Cut, read_cut, write_cut
from weir.spark.lake.stamps import newest_stamp
from weir.spark.pipeline import checkpoints
from weir.spark.pipeline.context import Context, Ran
from weir.spark.pipeline.plan import FILE, Layer, full_name


class BronzeStep:
    """A bronze step of a pipeline."""

    layer: Layer = "bronze"

    def __init__(self, context: Context, name: str) -> None:
        """Take a step by its name; nothing is read yet."""
        self.name = name
        self._context = context
        self._topics = [*map(full_name, context.plan.bronze[name].topics)]
        self._lakes: dict[str, DeltaLake] = {}
        self._checkpoint = context.plan.checkpoint_of(name)
        self._over_gaps = context.plan.bronze[name].on_data_loss == "earliest"
        self._done = archive.Archived()
        self._lost = 0

    def prepare(self) -> None:
        """Open the lakes, or found them. Raises `UnknownTopic`, `LakeMismatch`, `BadPipeline`."""
        plan = self._context.plan
        with sync.connect(plan.url) as client:
            homes = [Home(topic, client.describe(topic).id) for topic in self._topics]
        for home in homes:
            folder = plan.lake_of(home.topic)
            self._lakes[home.topic] = _opened(folder, home)
        begun = checkpoints.last(self._checkpoint, "offsets") >= 0
        if (
            len(homes) > 1
            and not begun
            and any(lake.snapshot().files for lake in self._lakes.values())
        ):
            raise BadPipeline(
                f"step {self.name}: {self._checkpoint} is gone, and the lakes of several topics do "
                "not say where they go on together: give each topic a step of its own, or begin "
                "with new lakes"
            )

    def is_behind(self) -> bool:
        """Whether the topics have messages that the lakes have not, or a micro-batch was begun, or
        a lake does not say how far it is whole.
        """
        if checkpoints.is_unfinished(self._checkpoint):
            return True
        if any(read_cut(lake.folder) is None for lake in self._lakes.values()):
            return True
        with sync.connect(self._context.plan.url) as client:
            for topic, lake in self._lakes.items():
                there = lake.snapshot().positions
                _, ends = client.positions(topic)
                if any(end > there.get(partition, 0) for partition, end in enumerate(ends)):
                    return True
        return False

    def run(self) -> Ran:
        """Add what the topics hold up to now."""
        started = time.monotonic()
        before, lost = self._done, self._lost
        with self._telling_gaps():
            self._follow()
        done = self._done
        return Ran(
            self.name,
            self.layer,
            messages=done.messages - before.messages,
            good=done.good - before.good,
            bad=done.bad - before.bad,
            lost=self._lost - lost,
            rows=done.messages - before.messages,
            batches=done.batches - before.batches,
            seconds=time.monotonic() - started,
        )

    def _follow(self) -> None:
        context, tell = self._context, self._context.tell
        run(
            self._stream(),
            self._take,
            f"file://{self._checkpoint}",
            name=self.name,
            progress=None if tell is None else lambda rows: tell(self.name, rows),
            is_stopped=context.is_stopped,
        )
        if not checkpoints.is_unfinished(self._checkpoint):
            self._mark()  # else it was stopped between two lakes, which are not whole

    @contextlib.contextmanager
    def _telling_gaps(self) -> Iterator[None]:
        """Say in the file's own words what to do when retention has passed the step."""
        try:
            yield
        except RangeLost as error:
            raise BadPipeline(
                f'step {self.name}: {error}; in {FILE}: on_data_loss = "earliest" in '
                f"[bronze.{self.name}]"
            ) from None

    def tidy(self, upkeep: archive.Upkeep) -> None:
        """Compact crowded days, and delete what nobody needs any more."""
        for lake in self._lakes.values():
            archive.tidy(lake, self._context.spark, upkeep)

    def _stream(self) -> DataFrame:
        plan = self._context.plan
        rows = plan.rows_per_batch
        if len(self._topics) == 1:
            (lake,) = self._lakes.values()
            options = archive.options(lake, rows) | {"order": "total"} | self._gaps()
            return Topic(plan.url, self._topics[0], options).stream(self._context.spark)
        reader = self._context.spark.readStream.format("weir").option("url", plan.url)
        return (
            reader.option("topics", json.dumps(self._topics))
            .option("maxRowsPerBatch", rows)
            .option("largeValues", "null")
            .options(**self._gaps())
            .load()
        )

    def _gaps(self) -> dict[str, str]:
        return {"onDataLoss": "earliest"} if self._over_gaps else {}

    def _take(self, messages: DataFrame, query: str, number: int) -> None:
        is_kept = len(self._lakes) > 1 or self._over_gaps
        if is_kept:
            messages = messages.persist()
        try:
            if self._over_gaps:
                (row,) = messages.agg(F.sum("lost")).collect()
                self._lost += row[0] or 0
            for topic, lake in self._lakes.items():
                its = messages if len(self._lakes) == 1 else messages.where(F.col("topic") == topic)
                if self._over_gaps:
                    its = its.where("lost IS NULL").drop("lost")
                self._done = archive.plus(self._done, archive.take(lake, its, query, number))
        finally:
            if is_kept:
                messages.unpersist()
        self._mark()

    def _mark(self) -> None:
        """Say how far all lakes are whole: up to the highest stamp in any of them."""
        stamp = max(newest_stamp(lake.folder) for lake in self._lakes.values())
        for topic, lake in self._lakes.items():
            cut = Cut(stamp, lake.snapshot().rows)
            told = read_cut(lake.folder)
            if told is not None and told.stamp > cut.stamp:
                raise BadPipeline(
                    f"step {self.name}: {lake.folder} was whole up to stamp {told.stamp}, and its "
                    f"messages of {topic!r} now end at {cut.stamp}: it was changed by somebody else"
                )
            if told != cut:
                write_cut(lake.folder, cut)


def _opened(folder: Path, home: Home) -> DeltaLake:
    lake = open_lake(str(folder), home, "delta")
    assert isinstance(lake, DeltaLake)
    return lake
