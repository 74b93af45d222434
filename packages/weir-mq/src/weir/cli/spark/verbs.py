"""`weir spark`: archive, audit, delays, devices, figures, flights; and `program`, for spark-submit.

    spark-submit --master spark://host:7077 $(weir spark program) archive flights /lake/flights

runs a verb on the cluster that spark-submit names: this file is the program that it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from weir.cli.connection import DEFAULT_URL, Url
from weir.cli.spark.sessions import is_heard, master_of, place_of, spark_session, stopped, watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.jobs.queries import Topic, Totals

app = typer.Typer(
    name="spark",
    help="Run jobs in Spark: keep topics in a lake, audit, and report. Needs weir-mq[spark].",
)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder for results.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="The folder of the query's checkpoint. [default: within OUT or LAKE]"),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on until Ctrl-C instead of to today's end.")
]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Messages in a micro-batch, at most.")]
FromLake = Annotated[
    str | None, typer.Option("--lake", help="Read this lake, where the topic was archived.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ROWS = 1_000_000
T = TypeVar("T")


class LakeFormat(StrEnum):
    """How a lake is kept."""

    delta = "delta"
    parquet = "parquet"


@app.callback(invoke_without_command=True)
def spark(context: typer.Context) -> None:
    """Run jobs in Spark: keep topics in a lake, audit, and report. Needs weir-mq[spark]."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def program() -> None:
    """Print the program that spark-submit starts: a verb and its arguments follow it."""
    print(Path(__file__).resolve())


@app.command()
def archive(
    topic: TopicName,
    lake: Annotated[
        str, typer.Argument(metavar="LAKE", help="The lake's folder, the same on all machines.")
    ],
    format: Annotated[
        LakeFormat | None, typer.Option(help="Of a new lake. [default: delta]")
    ] = None,
    checkpoint: Checkpoint = None,
    follow: Follow = False,
    rows: Rows = ROWS,
    compact: Annotated[
        int, typer.Option(min=0, help="Compact a day once it has so many small files; 0: never.")
    ] = 16,
    keep: Annotated[
        str, typer.Option(help="Delete replaced files after this time, at least 1h; 0s: never.")
    ] = "7d",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Add what a topic holds, and the lake does not, to the lake; each message once."""
    from weir.cli.retention import duration
    from weir.spark.jobs import archive as job

    seconds = duration("--keep", keep)
    if 0 < seconds < 3_600:
        raise typer.BadParameter("give 1h or more, or 0s to delete nothing", param_hint="--keep")
    upkeep = job.Upkeep(compact, seconds / 3_600 if seconds else None)
    with (
        _progress("archive", url, topic, follow, as_json) as progress,
        spark_session("archive", as_json) as spark,
        stopped(follow, as_json) as stop,
    ):
        master = master_of(spark)
        done = job.archive(
            spark,
            url,
            topic,
            lake,
            format=format.value if format else None,
            checkpoint=place_of(checkpoint) if checkpoint else None,
            rows_per_batch=rows,
            available_now=not follow,
            is_stopped=stop,
            upkeep=upkeep,
            progress=progress,
        )
    if as_json:
        settings = {"url": url, "topic": topic, "lake": lake, "rows": rows, "keep": keep}
        _print_json("archive", master, settings, done.to_json())
        return
    print(
        f"{done.messages:,} messages read: {done.good:,} added, {done.bad:,} of them without their "
        "value"
        if done.bad
        else f"{done.messages:,} messages read: {done.good:,} added"
    )
    if done.repeated:
        print(f"{done.repeated:,} micro-batches were in the lake already")
    if done.compacted or done.deleted:
        print(f"{done.compacted:,} small files merged, {done.deleted:,} old ones deleted")
    print(f"{lake} holds {done.lake_messages:,} messages in {done.lake_files:,} files")


@app.command()
def audit(
    records: Annotated[
        list[str],
        typer.Argument(metavar="RECORD", help="Files that --record of pub, sub and tail wrote."),
    ],
    topic: Annotated[
        str | None, typer.Option(help="Also take this topic's messages for a reader's.")
    ] = None,
    lake: FromLake = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Join what producers wrote down with what consumers did; exit code 1 if messages were lost or
    came twice.
    """
    from weir.spark.jobs import archive as lakes
    from weir.spark.jobs import audit as job

    with spark_session("audit", as_json) as spark, watched("audit", spark, as_json):
        master = master_of(spark)
        rows = job.records(spark, [*map(place_of, records)])
        if topic is not None:
            rows = rows.unionByName(job.received_from(_topic(url, topic).table(spark), "topic"))
        if lake is not None:
            rows = rows.unionByName(job.received_from(lakes.read(spark, lake, topic=topic), "lake"))
        done = job.audit(rows)
    if as_json:
        settings = {"records": records, "topic": topic, "lake": lake}
        _print_json("audit", master, settings, done.to_json())
    else:
        _print_audit(done)
    if not done.is_clean:
        raise typer.Exit(1)


@app.command()
def delays(
    topic: TopicName,
    out: Out,
    checkpoint: Checkpoint = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Count flights by carrier and hour: how many were cancelled, and how late they were."""
    from weir.spark.jobs import delays as job

    with (
        _progress("delays", url, topic, False, as_json) as progress,
        spark_session("delays", as_json) as spark,
    ):
        master = master_of(spark)
        place = place_of(checkpoint or f"{out}/checkpoint")
        done = job.run(spark, url, topic, place_of(out), place, progress=progress)
    if as_json:
        results = {
            "messages": done.flights + done.left_out,
            "good": done.flights,
            "bad": done.left_out,
            "cancelled": done.cancelled,
            "rows": done.rows,
            "delays": done.path,
        }
        _print_json("delays", master, {"url": url, "topic": topic, "out": out}, results)
        return
    print(f"{done.flights:,} flights, {done.cancelled:,} cancelled, {done.left_out:,} bad messages")
    print(f"{out}/delays")


@app.command()
def flights(
    topic: TopicName,
    out: Out,
    lake: FromLake = None,
    checkpoint: Checkpoint = None,
    follow: Follow = False,
    rows: Rows = ROWS,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Report delays by carrier, airport and hour, and how planes rotate over airports."""
    from weir.spark.jobs import flights as job

    query = _Query("flights", url, topic, out, lake, checkpoint, follow, rows, as_json)
    master, done = query.reported(
        job.flights, lambda kept, place: job.report(job.parse(kept), place)
    )
    if as_json:
        _print_json("flights", master, {"url": url, "topic": topic, "out": out}, done.to_json())
        return
    _print_totals(done.totals, "flights")
    print(f"{done.cancelled:,} cancelled, {done.late:,} late by {job.LATE_MINUTES} min or more")
    print(
        f"{done.planes:,} planes: {done.changes:,} changes of airport, {done.inverted:,} flights "
        "before one that was scheduled earlier"
    )
    print(f"{out}/delays\n{out}/rotations")


@app.command()
def devices(
    topic: TopicName,
    out: Out,
    lake: FromLake = None,
    checkpoint: Checkpoint = None,
    follow: Follow = False,
    rows: Rows = ROWS,
    gap: Annotated[str, typer.Option(help="A session ends after so long without an event.")] = "5m",
    window: Annotated[str, typer.Option(help="Unlocks are counted by this window.")] = "5m",
    stuck: Annotated[str, typer.Option(help="A lock unlocked for so long is stuck.")] = "10m",
    chatter: Annotated[
        int, typer.Option(min=2, help="A device with so many events in a minute chatters.")
    ] = 10,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Report sessions, unlock rates, locks that are stuck or chatter, and unusual windows."""
    from weir.spark.jobs import devices as job

    rules = job.Rules(
        gap=_seconds("--gap", gap),
        window=_seconds("--window", window),
        stuck=_seconds("--stuck", stuck),
        chatter_events=chatter,
    )
    query = _Query("devices", url, topic, out, lake, checkpoint, follow, rows, as_json)
    master, done = query.reported(
        partial(job.devices, rules=rules),
        lambda kept, place: job.report(job.parse(kept), place, rules),
    )
    if as_json:
        _print_json("devices", master, {"url": url, "topic": topic, "out": out}, done.to_json())
        return
    from weir.cli.output import print_table

    _print_totals(done.totals, "events")
    counts = (done.sessions, done.rates, done.stuck, done.chattering, done.anomalies)
    print(f"{done.devices:,} devices")
    print_table(
        ("TABLE", "ROWS", "PATH"),
        [(name, n, f"{out}/{name}") for name, n in zip(done.tables, counts, strict=True)],
    )


@app.command()
def figures(
    records: Annotated[
        list[str],
        typer.Argument(metavar="RECORD", help="Files that --record of pub, sub and tail wrote."),
    ],
    out: Annotated[str, typer.Option(help="The folder for the figures.")] = "figures",
    as_json: AsJson = False,
) -> None:
    """Draw rates, latencies and order of a run as SVG, from records."""
    from weir.spark.jobs import audit
    from weir.spark.jobs import figures as job

    with spark_session("figures", as_json) as spark, watched("figures", spark, as_json):
        master = master_of(spark)
        done = job.figures(audit.records(spark, [*map(place_of, records)]), out)
    if as_json:
        _print_json("figures", master, {"records": records, "out": out}, done.to_json())
        return
    _print_totals(done.totals, "records")
    print("\n".join(done.files))


class _Query(msgspec.Struct, frozen=True):
    """What a verb reads that reports on a topic, or on the lake that keeps it, and where to."""

    verb: str
    url: str
    topic: str
    out: str
    lake: str | None
    checkpoint: str | None
    follow: bool
    rows: int
    as_json: bool

    def reported(
        self, of_topic: Callable[..., T], of_lake: Callable[[DataFrame, str], T]
    ) -> tuple[str, T]:
        """Return the master, and what the report came to."""
        if self.follow and self.lake is not None:
            raise typer.BadParameter(
                "a lake is read to its end: leave --lake to follow the topic", param_hint="--follow"
            )
        from weir.spark.jobs import archive

        with spark_session(self.verb, self.as_json) as spark:
            master, place = master_of(spark), place_of(self.out)
            if self.lake is not None:
                with watched(self.verb, spark, self.as_json):
                    return master, of_lake(archive.read(spark, self.lake, topic=self.topic), place)
            with (
                _progress(self.verb, self.url, self.topic, self.follow, self.as_json) as progress,
                stopped(self.follow, self.as_json) as stop,
            ):
                return master, of_topic(
                    spark,
                    _topic(self.url, self.topic, self.rows),
                    place,
                    place_of(self.checkpoint or f"{self.out}/checkpoint"),
                    available_now=not self.follow,
                    is_stopped=stop,
                    progress=progress,
                )


def _topic(url: str, topic: str, rows: int | None = None) -> Topic:
    from weir.spark.jobs.queries import Topic

    options: Mapping[str, str | int] = {"largeValues": "null"}
    return Topic(url, topic, {**options, "maxRowsPerBatch": rows} if rows else options)


@contextmanager
def _progress(
    label: str, url: str, topic: str, follow: bool, as_json: bool
) -> Iterator[Callable[[int], None] | None]:
    """Yield what shows how many messages were read: of how many, where that is known."""
    from weir.cli.connection import connected
    from weir.cli.output import progress

    if not is_heard(as_json):
        yield None
        return
    if follow:
        yield lambda done: print(f"{label}: {done:,} messages", file=sys.stderr, flush=True)
        return
    begins, ends = connected(url, lambda client: client.positions(topic))
    with progress(label, sum(ends) - sum(begins)) as show:
        yield show


def _seconds(option: str, text: str) -> int:
    from weir.cli.retention import duration

    seconds = duration(option, text)
    if seconds < 1:
        raise typer.BadParameter("give 1s or more", param_hint=option)
    return int(seconds)


def _print_json(job: str, master: str, settings: object, results: Mapping[str, Any]) -> None:
    from weir.cli.output import print_json

    print_json(f"weir.spark.{job}/1", settings, {"master": master, **results})


def _print_totals(totals: Totals, what: str) -> None:
    print(f"{totals.messages:,} read: {totals.good:,} {what}, {totals.bad:,} bad")


def _print_audit(done: Any) -> None:
    from weir.cli.output import print_table

    _print_totals(done.totals, "records")
    columns = ("GROUP", "TOPIC", "EXPECTED", "RECEIVED", "LOST", "REPEATED", "UNKNOWN",
               "OUT OF ORDER", "ACROSS")  # fmt: skip
    rows: Sequence[Sequence[object]] = [
        (g.name, g.topic, g.expected, g.received, g.lost, g.repeated, g.unknown, g.out_of_order,
         g.out_of_order_across)
        for g in done.groups
    ]  # fmt: skip
    print_table(columns, rows)
    if done.latencies:
        print()
        print_table(
            ("DEVICE", "HOUR", "MESSAGES", "P50 MS", "P90 MS", "P99 MS", "MAX MS"),
            [(x.device, x.hour, x.count, x.p50, x.p90, x.p99, x.max) for x in done.latencies],
        )
    for what, examples in (("lost", done.lost), ("repeated", done.repeated)):
        for example in examples:
            print(f"{what}: {example}")


if __name__ == "__main__":
    # Not by name: the module that knows all verbs imports this one.
    run: Callable[[Sequence[str]], int] = import_module("weir.cli.main").main
    words = sys.argv[1:]
    sys.exit(run(words if words[:1] == ["pipeline"] else ["spark", *words]))
