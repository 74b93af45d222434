"""What silver and gold steps have in common: streams of tables below, and a table of their own.

A micro-batch's rows and the account of what was read are one transaction of the table. What else is
written, to quarantine and to sinks, is remembered there by (query, micro-batch) as well; so when a
run is killed between any two writes, the micro-batch that runs again adds what is missing and
nothing else.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame

from weir.errors import BadPipeline
from weir.spark.jobs import archive
from weir.spark.jobs.queries import run
from weir.spark.lake.stream import NAME, cut_of
from weir.spark.lake.tables import Account, Table
from weir.spark.pipeline import checkpoints
from weir.spark.pipeline.context import Context, Ran
from weir.spark.pipeline.functions import Functions
from weir.spark.pipeline.plan import FILE, Layer, watermark_seconds
from weir.spark.pipeline.sinks import open_sinks

#: What a plan of Spark says where withWatermark was called.
_WATERMARK = "EventTimeWatermark"


class TableStep(ABC):
    """A step that makes rows of tables."""

    layer: Layer = "silver"
    #: Whether Spark keeps state of it in the checkpoint, which nothing else can give back.
    has_state = True

    def __init__(
        self, context: Context, name: str, sources: Sequence[Path], sinks: Sequence[str]
    ) -> None:
        """Take a step by its name and what it reads; nothing is read yet. Raises `BadPipeline`."""
        self.name = name
        self.context = context
        self._sources = sources
        self._checkpoint = context.plan.checkpoint_of(name)
        self._sinks = open_sinks(context.plan, sinks, name)
        self._after = ""
        self._batches = 0
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """The step's table, once it is prepared."""
        assert self._table is not None
        return self._table

    def prepare(self) -> None:
        """Check the functions, and create the table. Raises `BadPipeline` and `LakeMismatch`."""
        made = self.made(self.streams(0))
        self._table = Table(self.context.plan.table_of(self.layer, self.name), made.schema)
        for sink in self._sinks:
            sink.check(made.schema)
        self._check_checkpoint()

    def is_behind(self) -> bool:
        """Whether the tables below have more than was read, or a micro-batch was begun."""
        if checkpoints.is_unfinished(self._checkpoint):
            return True
        return self._until() > self.table.account.stamp

    def run(self) -> Ran:
        """Read what the tables below have up to now, all of them up to one stamp."""
        started = time.monotonic()
        before, batches = self.table.account, self._batches
        context, tell = self.context, self.context.tell
        run(
            self.followed(self.streams(self._until())),
            self.take,
            f"file://{self._checkpoint}",
            name=self.name,
            progress=None if tell is None else lambda rows: tell(self.name, rows),
            is_stopped=context.is_stopped,
        )
        after = self.table.account
        messages, bad = after.messages - before.messages, after.bad - before.bad
        late = after.late - before.late
        return Ran(
            self.name,
            self.layer,
            messages=messages,
            good=messages - bad - late,
            bad=bad,
            late=late,
            repeated=after.repeated - before.repeated,
            rows=after.rows - before.rows,
            batches=self._batches - batches,
            seconds=time.monotonic() - started,
        )

    def tidy(self, upkeep: archive.Upkeep) -> None:
        """Compact crowded days, and delete what nobody needs any more."""
        archive.tidy(self.table, self.context.spark, upkeep)

    @abstractmethod
    def made(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the rows that the step makes of streams, as its table has them."""

    def followed(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return the stream whose micro-batches `take` is given."""
        return self.made(frames)

    def reading(self) -> Mapping[str, str]:
        """Return what more the streams of the tables below are told."""
        return {}

    @abstractmethod
    def take(self, frame: DataFrame, query: str, number: int) -> None:
        """Add a micro-batch, wherever an earlier try of it ended."""

    def add(self, rows: DataFrame, query: str, number: int, account: Account) -> None:
        """Add a micro-batch's rows to the table, with the account beside `rows`; and to sinks."""
        self._batches += 1
        if self._sinks:
            rows = rows.persist()
        try:
            if self.table.has(query, number):
                # State is remembered only of what was computed: Spark refuses to go on without.
                rows.write.format("noop").mode("overwrite").save()
            else:
                files = self.table.write(rows, number)
                total = account.rows + sum(file.rows for file in files)
                self.table.add(query, number, files, replace(account, rows=total))
            for sink in self._sinks:
                sink.add(rows, query, number)
        finally:
            if self._sinks:
                rows.unpersist()

    def end(self, number: int) -> checkpoints.End:
        """Return where a micro-batch ends."""
        return checkpoints.end(self._checkpoint, number)

    def _until(self) -> int:
        return min(cut_of(source).stamp for source in self._sources)

    def streams(self, until: int) -> list[DataFrame]:
        """Return a stream of each table below, which all end micro-batches at the same stamps."""
        return [self._stream(source, until) for source in self._sources]

    def _stream(self, source: Path, until: int) -> DataFrame:
        others = [str(one) for one in self._sources if one != source]
        reader = self.context.spark.readStream.format(NAME).option("path", str(source))
        reader = reader.option("with", json.dumps(others)).option("until", str(until))
        reader = reader.option("maxRowsPerBatch", str(self.context.plan.rows_per_batch))
        for option, value in self.reading().items():
            reader = reader.option(option, value)
        return (reader.option("after", self._after) if self._after else reader).load()

    def _check_checkpoint(self) -> None:
        """Raise `BadPipeline` if table and checkpoint are not of one life."""
        account, where = self.table.account, f"step {self.name}: {self._checkpoint}"
        logged = checkpoints.last(self._checkpoint, "offsets")
        committed = checkpoints.last(self._checkpoint, "commits")
        again = f"delete {self.table.folder} and the checkpoint, and the step is made again"
        if logged < 0:
            if account.batch >= 0 and self.has_state:
                raise BadPipeline(f"{where} is gone, and with it the state of the step: {again}")
            if account.batch >= 0:
                self._after = json.dumps({"n": account.messages, "s": account.stamp})
        elif committed >= 0 and self.end(committed).stamp > account.stamp:
            raise BadPipeline(
                f"{where} is ahead of {self.table.folder}, which was changed: {again}"
            )
        elif self.end(logged).stamp < account.stamp:
            raise BadPipeline(f"{where} is behind {self.table.folder}, so it is older: {again}")


class GoldStep(TableStep):
    """A gold step: what a function makes of silver tables as streams, such as windows, joins of
    several up to one cut, and sessions with state.
    """

    layer = "gold"

    def __init__(self, context: Context, name: str, functions: Functions) -> None:
        """Take a step by its name, and the functions of its layer."""
        self._step = context.plan.gold[name]
        sources = [context.plan.table_of("silver", one) for one in self._step.source]
        super().__init__(context, name, sources, self._step.to)
        self._functions = functions

    def prepare(self) -> None:
        """Check the function, and create the table. Raises `BadPipeline` and `LakeMismatch`."""
        plain = self._functions.call(self._step.function or self.name, self.streams(0))
        if _WATERMARK in plain._jdf.queryExecution().analyzed().toString():
            raise BadPipeline(
                f"{FILE}: gold.{self.name}: the function calls withWatermark, and nothing counts "
                "the rows that Spark drops: remove the call, and set `time` and `watermark` there"
            )
        super().prepare()

    def reading(self) -> Mapping[str, str]:
        """Return what late rows are."""
        step = self._step
        return {"time": step.time, "watermark": step.watermark} if step.time else {}

    def made(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return what the function makes of the streams, which have a watermark where one is set.

        It is Spark's own and never above that of the streams, so Spark itself drops no row.
        """
        if self._step.time:
            delay = f"{watermark_seconds(self.name, self._step):f} seconds"
            frames = [frame.withWatermark(self._step.time, delay) for frame in frames]
        return self._functions.call(self._step.function or self.name, frames)

    def take(self, frame: DataFrame, query: str, number: int) -> None:
        """Add the rows of a micro-batch to the table and to sinks."""
        end, before = self.end(number), self.table.account
        account = Account(number, end.stamp, end.rows, rows=before.rows, late=end.late)
        self.add(frame, query, number, account)
