"""`weir pipeline`: topics to bronze, silver and gold tables, and on to SQL and topics."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected
from weir.cli.spark.sessions import is_heard, master_of, spark_session, stopped

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.spark.pipeline.context import Ran, Told
    from weir.spark.pipeline.standing import Standing

app = typer.Typer(
    name="pipeline",
    help="Make tables of topics, layer by layer, in Spark. Needs weir-mq[spark,delta,schema].",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The pipeline's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
#: How often a step tells how far it is.
_TELL_SECONDS = 2.0


@app.callback(invoke_without_command=True)
def pipeline(context: typer.Context) -> None:
    """Make tables of topics, layer by layer, in Spark. Needs weir-mq[spark,delta,schema]."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def init(
    folder: Folder,
    topic: Annotated[str, typer.Option(help="The topic that the pipeline reads.")] = "locks",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write a pipeline that works, for events of locks, to be changed; create TOPIC.bad.

    TOPIC.bad is for values that do not parse. It is created here, with the retention and replicas
    of the topic, because a query creates no topics.
    """
    from weir.cli.admin.topics import create_bad_topic
    from weir.cli.output import hint, print_json
    from weir.spark.pipeline import template

    async def work(client: Client) -> str:
        await client.describe(topic)
        return await create_bad_topic(client, topic)

    bad = connected(url, work)
    files = [str(path) for path in template.write(folder, url, topic)]
    if as_json:
        settings = {"folder": str(folder), "topic": topic, "url": url}
        print_json("weir.pipeline-init/1", settings, {"files": files, "bad_topic": bad})
        return
    print("\n".join(files))
    hint(f"Next: weir pipeline run {folder} --once")


@app.command()
def run(
    folder: Folder,
    once: Annotated[
        bool, typer.Option("--once", help="End when all present messages were read.")
    ] = False,
    step: Annotated[str, typer.Option(help="Run this step alone.")] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics of the steps on this port of this host."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C, or with --once up to what is there now.

    Killed at any moment and started again, it goes on where it was, and adds nothing twice.
    """
    from contextlib import ExitStack

    from weir.spark.pipeline import plan, runs

    read = plan.read(folder)
    with ExitStack() as stack:
        spark = stack.enter_context(spark_session("pipeline", as_json))
        if metrics_port is not None:
            from weir.spark import watch

            page = stack.enter_context(watch(spark, read.url, port=metrics_port))
            if is_heard(as_json):
                print(f"metrics: {page.url}", file=sys.stderr, flush=True)
        stop = stack.enter_context(stopped(not once, as_json))
        master = master_of(spark)
        tell = _teller() if is_heard(as_json) else None
        done = runs.run(spark, read, once=once, only=step, tell=tell, is_stopped=stop)
    if as_json:
        from weir.cli.output import print_json

        settings = {"folder": str(folder), "once": once, "step": step}
        steps = [one.to_json() for one in done]
        print_json("weir.pipeline-run/1", settings, {"master": master, "steps": steps})
        return
    _print_runs(done)


@app.command()
def declare(folder: Folder, as_json: AsJson = False) -> None:
    """Write a pipeline's bronze and silver steps as a Spark Declarative Pipeline.

    What that engine cannot express is refused by name: gold steps, sinks, and bronze steps of
    several topics.
    """
    from weir.cli.output import hint, print_json
    from weir.spark.pipeline import declared

    files = [str(path) for path in declared.write(folder)]
    if as_json:
        print_json("weir.pipeline-declare/1", {"folder": str(folder)}, {"files": files})
        return
    print("\n".join(files))
    hint(f"Next: spark-pipelines run --spec {files[0]}")


@app.command()
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show how far each step is. Starts no Spark."""
    from weir.cli.output import print_json, print_table
    from weir.spark.pipeline import plan
    from weir.spark.pipeline.standing import standing

    found = standing(plan.read(folder))
    if as_json:
        steps = [one.to_json() for one in found]
        print_json("weir.pipeline-status/1", {"folder": str(folder)}, {"steps": steps})
        return
    columns = ("STEP", "LAYER", "BATCH", "ROWS IN", "ROWS OUT", "BAD", "LATE",
               "REPEATED", "LAG", "UP TO")  # fmt: skip
    print_table(columns, [_row(one) for one in found])


def _row(one: Standing) -> tuple[object, ...]:
    until = None
    if one.stamp_ms is not None:
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.stamp_ms / 1_000))
    return (one.step, one.layer, one.batch, one.rows_in, one.rows_out, one.bad, one.late,
            one.repeated, one.lag, until)  # fmt: skip


def _print_runs(done: list[Ran]) -> None:
    from weir.cli.output import print_table

    columns = ("STEP", "LAYER", "READ", "GOOD", "BAD", "LATE", "REPEATED", "ROWS", "BATCHES")
    rows: list[tuple[Any, ...]] = [
        (
            one.step,
            one.layer,
            one.messages,
            one.good,
            one.bad,
            one.late,
            one.repeated,
            one.rows,
            one.batches,
        )
        for one in done
    ]
    print_table(columns, rows)


def _teller() -> Told:
    """Return what shows on stderr how many rows each step has read, every few seconds."""
    due = time.monotonic() + _TELL_SECONDS
    shown = ""

    def tell(step: str, rows: int) -> None:
        nonlocal due, shown
        line = f"{step}: {rows:,} rows read"
        if rows and line != shown and time.monotonic() >= due:
            print(line, file=sys.stderr, flush=True)
            due, shown = time.monotonic() + _TELL_SECONDS, line

    return tell
