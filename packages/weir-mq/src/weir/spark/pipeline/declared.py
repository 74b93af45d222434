"""Bronze and silver of a pipeline as a Spark Declarative Pipeline, by the same lakes and tables.

That engine runs flows of its own: it has no micro-batch that ends several tables at one cut, no
number of one that SQL could keep, and no sessions with state. What needs these is refused by name.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.client.sync import client as sync
from weir.errors import BadPipeline
from weir.spark.columns import REASON
from weir.spark.jobs import archive
from weir.spark.lake import Home, delta_log, open_lake
from weir.spark.lake.stream import NAME
from weir.spark.lake.tables import Table
from weir.spark.pipeline import checkpoints
from weir.spark.pipeline import plan as plans
from weir.spark.pipeline.context import Context
from weir.spark.pipeline.functions import Functions
from weir.spark.pipeline.plan import FILE, Plan, full_name
from weir.spark.pipeline.silver import QUARANTINE, SilverStep

FOLDER = "declared"
SPECIFICATION = """\
# Written by `weir pipeline declare`: spark-pipelines run --spec {path}
name: {name}
storage: file://{storage}
libraries:
  - glob:
      include: transformations/**
"""
PROGRAM = '''\
"""Written by `weir pipeline declare`: the bronze and silver steps of a pipeline."""

from pathlib import Path

from weir.spark.pipeline.declared import declare

declare(Path({folder!r}))
'''


def check(plan: Plan) -> None:
    """Raise `BadPipeline` for the first step that Spark Declarative Pipelines cannot express."""
    for name, bronze in plan.bronze.items():
        if len(bronze.topics) > 1:
            raise _refused(f"bronze.{name}", "several topics that end at one cut")
        if bronze.on_data_loss != "fail":
            raise _refused(f"bronze.{name}", "gaps that are told beside the rows")
    for layer, steps in (("silver", plan.silver), ("gold", plan.gold)):
        for name, step in steps.items():
            for sink in step.to:
                kind = "SQL" if plan.sinks[sink].sql else "a topic"
                raise _refused(f"{layer}.{name}", f"{kind} by the number of the micro-batch")
    for name in plan.gold:
        raise _refused(
            f"gold.{name}",
            "windows with late rows that are counted, joins at one cut, and sessions",
        )


def _refused(step: str, what: str) -> BadPipeline:
    return BadPipeline(
        f"{FILE}: {step}: Spark Declarative Pipelines cannot express {what}: take it out of the "
        "pipeline that is declared, or use weir pipeline run"
    )


def write(folder: Path) -> list[Path]:
    """Write the files that `spark-pipelines` runs, below a pipeline's folder; return them.

    Raises `BadPipeline`, also for what that engine cannot express.
    """
    plan = plans.read(folder)
    check(plan)
    root = plan.folder / FOLDER
    specification = root / "spark-pipeline.yml"
    program = root / "transformations" / "tables.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    text = SPECIFICATION.format(
        path=specification, name=plan.folder.name, storage=plan.checkpoints / FOLDER
    )
    specification.write_text(text, encoding="utf-8")
    program.write_text(PROGRAM.format(folder=str(plan.folder)), encoding="utf-8")
    return [specification, program]


def check_tables(plan: Plan) -> None:
    """Raise `BadPipeline` for a silver table with rows whose flow would begin anew: that adds all
    rows again.
    """
    root = plan.checkpoints / FOLDER
    for name in plan.silver:
        tables = _tables(plan, name)
        both = " and ".join(str(folder) for _, folder in tables)
        for flow, folder in tables:
            if not delta_log.is_at(folder) or Table(folder).account.batch < 0:
                continue
            if not _is_begun(plan, flow):
                raise BadPipeline(
                    f"step {name}: {folder} has rows, and {root} no checkpoint of the flow {flow}, "
                    "which would add them again: weir pipeline run made the table, so go on by it; "
                    f"or the checkpoint is gone: restore it, or delete {both} and what {root} has "
                    "of their flows, and the step is made again"
                )


def _tables(plan: Plan, name: str) -> list[tuple[str, Path]]:
    """Return the flows of a silver step, each with the table that it writes."""
    return [(name, plan.table_of("silver", name)), (f"{name}_bad", plan.quarantine_of(name))]


def _is_begun(plan: Plan, flow: str) -> bool:
    """Whether a flow has offsets, in the newest of its checkpoints: it goes on by that one.

    Spark keeps them in STORAGE/_checkpoints/SINK/FLOW/NUMBER, and may qualify the sink's name.
    """
    root = plan.checkpoints / FOLDER / "_checkpoints"
    found = [path for path in root.glob(f"**/{_sink(flow)}/{flow}/[0-9]*") if path.name.isdecimal()]
    newest = max(found, key=lambda path: int(path.name), default=None)
    return newest is not None and checkpoints.last(newest, "offsets") >= 0


def declare(folder: Path) -> None:
    """Declare the sinks and flows of a pipeline; `spark-pipelines` calls it by the program.

    Bronze goes on where its lake ends. Silver reads what bronze had when the run began, so it is
    one run behind. Raises `BadPipeline`, also for tables that would have rows twice, and what the
    broker refuses.
    """
    plan = plans.read(folder)
    check(plan)
    check_tables(plan)
    spark = SparkSession.active()
    with sync.connect(plan.url) as client:
        for name, bronze in plan.bronze.items():
            topic = full_name(bronze.topics[0])
            lake = plan.lake_of(topic)
            open_lake(str(lake), Home(topic, client.describe(topic).id), "delta")
            _flow(name, {"path": str(lake)}, _messages(spark, plan, topic))
    functions = Functions(plan.folder, "silver")
    for name in plan.silver:
        step = SilverStep(Context(spark, plan), name, functions)
        step.read_schema()
        below = _below(spark, step, plan)
        bad = step.ruled(below).where(F.col(REASON).isNotNull()).select(*QUARANTINE)
        made = (step.good(step.followed([below])), bad)
        for (flow, table), rows in zip(_tables(plan, name), made, strict=True):
            _flow(flow, {"path": str(table), "exclusive": "true"}, rows)


def _flow(name: str, options: dict[str, str], rows: DataFrame) -> None:
    from pyspark import pipelines

    # Columns are looked up while a DataFrame is made, which a function of a flow must not do.
    pipelines.create_sink(_sink(name), NAME, options)
    pipelines.append_flow(target=_sink(name), name=name)(lambda: rows)


def _sink(flow: str) -> str:
    return f"{flow}_table"


def _messages(spark: SparkSession, plan: Plan, topic: str) -> DataFrame:
    lake = open_lake(str(plan.lake_of(topic)))
    reader = spark.readStream.format("weir").option("url", plan.url).option("topic", topic)
    for name, value in (archive.options(lake, plan.rows_per_batch) | {"order": "total"}).items():
        reader = reader.option(name, str(value))
    return reader.load()


def _below(spark: SparkSession, step: SilverStep, plan: Plan) -> DataFrame:
    path = plan.lake_of(full_name(plan.silver[step.name].topic))
    reader = spark.readStream.format(NAME).option("path", str(path))
    return reader.option("maxRowsPerBatch", str(plan.rows_per_batch)).load()
