"""`weir bench order`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.client.core.retries import seconds
from weir_lab.cli.bench_runs import (
    Folder,
    Json,
    Plot,
    Record,
    Replicas,
    say,
    several,
    stop_as_by_ctrl_c,
    usage,
)

if TYPE_CHECKING:
    from weir_lab.bench.ordering.report import Report


def order(
    partitions: Annotated[
        str, typer.Option(help="Partitions of the topic, a row of runs for each.")
    ] = "1,2,4,8,16",
    producers: Annotated[str, typer.Option(help="Producers, a row of runs for each.")] = "1,50,200",
    messages: Annotated[int, typer.Option(help="Messages sent as fast as they go.")] = 1_500_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    rate: Annotated[int, typer.Option(help="Then so many a second, for latency.")] = 20_000,
    duration: Annotated[str, typer.Option("--seconds", help="For this long.")] = "1s",
    runs: Annotated[int, typer.Option(min=1, help="Of each row; the worst one counts.")] = 3,
    idle: Annotated[
        int, typer.Option(min=0, help="Idle partitions whose promises are measured; 0: none.")
    ] = 100,
    faults: Annotated[
        bool, typer.Option(help="Also let a leader of three nodes be slow, pause, and die.")
    ] = True,
    readers: Annotated[
        int, typer.Option(min=0, help="Readers of one topic, beside one reader; 0: none.")
    ] = 0,
    deadline: Annotated[str, typer.Option(help="Give up on a run after this long.")] = "2m",
    replicas: Replicas = 1,
    folder: Folder = None,
    plot: Plot = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """What one order over all partitions costs, beside partition order and beside a sequencer.

    Total order, partition order, and a sequencer node that numbers batches do the same work by
    turns; throughput is from the first send to the last receive. Then what promises of idle
    partitions cost, what many readers cost beside one, and how far readers fall behind when a
    partition's leader is in trouble. Exit code 1 if a message was lost, repeated, changed, or out
    of its order.
    """
    with usage("order"):
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.ordering.measure import Settings
        from weir_lab.bench.ordering.report import measure_all

        plans = [
            Settings(
                parts, count, messages, size, rate, seconds(duration), runs, seconds(deadline),
                folder, replicas,
            )
            for parts in several(partitions, "partitions")
            for count in several(producers, "producers")
        ]  # fmt: skip
        for plan in plans:
            plan.check()
    with stop_as_by_ctrl_c():
        report = run(measure_all(plans, idle, faults, folder, say, readers))
    keep(record, "weir.bench.order/1", plans[0], report, None)
    if plot is not None:
        from weir_lab.bench.ordering.report import svg

        plot.write_text(svg(report.rows), encoding="utf-8")
    if as_json:
        import msgspec

        from weir_lab.cli.measured import print_measured

        print_measured("weir.bench.order/1", plans, msgspec.structs.asdict(report))
    else:
        _show(report)
    if not report.clean:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    from weir.cli.output import print_table

    print(
        f"the worst runs of total order: {report.throughput_ratio:.2f} of partition order, "
        f"{report.sequencer_ratio:.2f} of a sequencer, {report.producers_ratio:.2f} with most "
        "producers of what it is with fewest"
    )
    rows: list[tuple[Any, ...]] = [
        (
            row.partitions,
            row.producers,
            row.total_per_s,
            row.partition_per_s,
            row.sequencer_per_s,
            row.throughput_ratio,
            row.delivery_p99_ms,
            row.partition_delivery_p99_ms,
            row.sequencer_delivery_p99_ms,
        )
        for row in report.rows
    ]
    print_table(
        ("PARTITIONS", "PRODUCERS", "TOTAL/S", "PARTITION/S", "SEQUENCER/S", "RATIO",
         "TOTAL p99 ms", "PARTITION", "SEQUENCER"),
        rows,
    )  # fmt: skip
    if (idle := report.idle) is not None:
        print(
            f"{idle.partitions} idle partitions: promises take {idle.promises_idle:.2f} % of a "
            f"core while nothing is published, {idle.promises_trickle:.2f} % with 20 messages/s\n"
            f"a lone message is delivered after {idle.delivery_p50_ms:.2f} ms (p99 "
            f"{idle.delivery_p99_ms:.2f}); budget: commit {idle.confirm_p50_ms:.2f} + promise "
            f"10 + round trip {idle.round_trip_p50_ms:.2f} = {idle.budget_ms:.2f} ms"
        )
    if (many := report.readers) is not None:
        print(
            f"{many.many.readers} readers: {many.promise_rounds_ratio:.2f} times the promise "
            f"rounds of one reader; while nothing is published they take {many.many.cpu_idle:.2f} "
            "% of a core"
        )
    if report.lags:
        print_table(
            ("LEADER IS", "NO CONFIRM ms", "PARTITION AWAY ms", "TOTAL ORDER SILENT ms",
             "LATE p50 ms", "MOST"),
            [(lag.fault, lag.unconfirmed_ms, lag.away_ms, lag.silent_ms, lag.late_p50_ms,
              lag.late_max_ms) for lag in report.lags],
        )  # fmt: skip
