"""Silver: typed rows of a topic, each message once by its id; the others in quarantine, with why.

Ids are remembered by the broker's time and not by a time in the messages. So no message is ever too
late to be counted, and one that claims to be of the year 9999 moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from weir.client.sync import client as sync
from weir.errors import BadName, BadPipeline, CheckpointMismatch, UnknownTopic
from weir.model.topic import BAD
from weir.schema import Schema
from weir.spark.columns import DATA, REASON, add_columns
from weir.spark.jobs import archive
from weir.spark.jobs.queries import reason
from weir.spark.lake.tables import Account, Table
from weir.spark.pipeline.context import Context
from weir.spark.pipeline.functions import Functions
from weir.spark.pipeline.plan import FILE, full_name, seconds_within
from weir.spark.pipeline.sinks import TopicSink
from weir.spark.pipeline.steps import TableStep

_ID, _AT = "_weir_id", "_weir_at"
#: What quarantine keeps of a message.
QUARANTINE = ("topic", "partition", "offset", "stamp", "time", "key", "tag", "value", REASON)


class SilverStep(TableStep):
    """A silver step of a pipeline."""

    layer = "silver"

    def __init__(self, context: Context, name: str, functions: Functions) -> None:
        """Take a step by its name, and the functions of its layer."""
        self._step = context.plan.silver[name]
        source = context.plan.lake_of(full_name(self._step.topic))
        super().__init__(context, name, [source], self._step.to)
        self.has_state = bool(self._step.id)
        self._functions = functions
        self._schema: Schema | None = None
        self._quarantine: Table | None = None
        self._bad_topic: TopicSink | None = None

    def prepare(self) -> None:
        """Read the schema, check rules and function, and create the tables."""
        self.read_schema()
        super().prepare()
        folder = self.context.plan.quarantine_of(self.name)
        columns = self.followed(self.streams(0)).select(*QUARANTINE).schema
        self._quarantine = Table(folder, columns)
        self._bad_topic = self._find_bad_topic()

    def read_schema(self) -> None:
        """Read the schema, from a file or the broker. Raises `BadPipeline`."""
        self._schema = self._read_schema()

    def tidy(self, upkeep: archive.Upkeep) -> None:
        """Compact crowded days, and delete what nobody needs any more."""
        super().tidy(upkeep)
        assert self._quarantine is not None
        archive.tidy(self._quarantine, self.context.spark, upkeep)

    def made(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return what the function makes of good rows."""
        return self.good(self.ruled(frames[0]))

    def followed(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Return good rows and bad ones, without those whose id came before."""
        rows = self.ruled(frames[0])
        if not self._step.id:
            return rows
        place = F.concat_ws("/", F.lit("m"), "topic", "partition", "offset")
        id = F.concat(F.lit("i"), self._expression("id", self._step.id).cast("string"))
        known = F.when(F.col(REASON).isNull() & id.isNotNull(), id).otherwise(place)
        at = F.timestamp_millis(F.shiftright("stamp", 16))
        delay = f"{seconds_within(self.name, self._step):.0f} seconds"
        return (
            rows.withColumn(_ID, known)
            .withColumn(_AT, at)
            .withWatermark(_AT, delay)
            .dropDuplicatesWithinWatermark([_ID])
            .drop(_ID, _AT)
        )

    def take(self, frame: DataFrame, query: str, number: int) -> None:
        """Add good rows to the table, and bad ones to quarantine."""
        before = self.table.account
        frame = frame.persist()
        try:
            self._keep_bad(frame.where(F.col(REASON).isNotNull()), query, number)
            rows, bad = frame.agg(F.count(F.lit(1)), F.count(REASON)).collect()[0]
            account = before
            if not self.table.has(query, number):
                account = self._account(before, number, rows, bad)
            self.add(self.good(frame), query, number, account)
        finally:
            frame.unpersist()

    def _keep_bad(self, rows: DataFrame, query: str, number: int) -> None:
        """Add bad messages to quarantine, and to the topic for them where there is one."""
        assert self._quarantine is not None
        if not self._quarantine.has(query, number):
            files = self._quarantine.write(rows, number)
            end, kept = self.end(number), self._quarantine.account.rows
            kept += sum(file.rows for file in files)
            account = Account(number, end.stamp, end.rows, rows=kept)
            self._quarantine.add(query, number, files, account)
        if self._bad_topic is not None:
            told = {REASON: REASON, "topic": "topic", "partition": "partition", "offset": "offset"}
            pairs = [(F.lit(name), F.col(of).cast("string")) for name, of in told.items()]
            headers = F.create_map(*(part for pair in pairs for part in pair)).alias("headers")
            self._bad_topic.add(rows.select("value", "key", headers), query, number)

    def _find_bad_topic(self) -> TopicSink | None:
        """Return the topic for bad messages; None if nobody has created it, and no query does."""
        plan, bad = self.context.plan, full_name(self._step.topic) + BAD
        with sync.connect(plan.url) as client:
            try:
                client.describe(bad)
            except (UnknownTopic, BadName):
                return None
        return TopicSink(plan.url, bad, self.name)

    def _account(self, before: Account, number: int, rows: int, bad: int) -> Account:
        end = self.end(number)
        read = end.rows - before.messages
        repeated = read - rows
        if repeated < 0 or (repeated and not self._step.id):
            raise CheckpointMismatch(
                f"step {self.name}: {rows:,} rows came of {read:,} messages: somebody else changed "
                f"{self.table.folder} or the lake below: delete it and the checkpoint of the step"
            )
        return Account(
            number,
            end.stamp,
            end.rows,
            before.bad + bad,
            before.repeated + repeated,
            before.rows,
        )

    def good(self, rows: DataFrame) -> DataFrame:
        """Return what the function makes of the good ones of ruled rows."""
        good = rows.where(F.col(REASON).isNull()).drop(REASON)
        made = self._functions.call(self._step.function or self.name, [good])
        self._functions.keep_place(self._step.function or self.name, made)
        return made

    def ruled(self, rows: DataFrame) -> DataFrame:
        """Return messages with the columns `data` and `reason`."""
        assert self._schema is not None
        typed = add_columns(
            rows, self._schema, framed=self._step.framed, checked=self._step.checked
        )
        why = F.col(REASON)
        for name, text in self._step.rules.items():
            rule = self._expression(f"rules.{name}", text)
            try:
                kind = typed.select(rule).schema[0].dataType
            except PySparkException as error:
                raise self._bad(f"rules.{name}", reason(error)) from None
            if not isinstance(kind, BooleanType):
                raise self._bad(f"rules.{name}", "it is no condition: neither true nor false")
            broken = why.isNull() & ~F.coalesce(rule, F.lit(False))
            why = F.when(broken, F.lit(f"it breaks the rule {name}")).otherwise(why)
        if self._step.id:
            try:
                typed.select(self._expression("id", self._step.id))
            except PySparkException as error:
                raise self._bad("id", reason(error)) from None
        return typed.withColumn(REASON, why).withColumn(
            DATA, F.when(F.col(REASON).isNull(), F.col(DATA))
        )

    def _expression(self, what: str, text: str) -> Column:
        try:
            return F.expr(text)
        except PySparkException as error:
            raise self._bad(what, reason(error)) from None

    def _read_schema(self) -> Schema:
        step, plan = self._step, self.context.plan
        if step.schema != "topic":
            path = plan.folder / step.schema
            if not path.is_file():
                raise self._bad("schema", f'{path} is not there: give a file, or "topic"')
            return Schema.read(path, step.message)
        with sync.connect(plan.url) as client:
            versions = client.schemas.versions(step.topic).versions
        if not versions:
            raise self._bad("schema", f"{step.topic} has none: weir schema add {step.topic} FILE")
        newest = versions[-1].schema
        if len(versions) > 1 and newest.format == "avro":
            raise self._bad(
                "schema",
                "a lake does not keep which version an Avro value has, and the topic's schema has "
                f"{len(versions)}: give a file",
            )
        return newest

    def _bad(self, what: str, why: str) -> BadPipeline:
        return BadPipeline(f"{FILE}: silver.{self.name}.{what}: {why}")
