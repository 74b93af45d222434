"""`weir bench compare` and `weir bench spark`."""

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
    Rest,
    Turns,
    finish,
    say,
    several,
    stop_as_by_ctrl_c,
    usage,
)

if TYPE_CHECKING:
    from weir_lab.bench.comparison.compare import Comparison
    from weir_lab.bench.comparison.round import Row
    from weir_lab.bench.spark.rows import Result

SHAPES = (
    "timeliness", "produce", "consume", "both", "singles", "workers", "burst", "latency",
    "dormitory",
)  # fmt: skip

Peers = Annotated[
    str,
    typer.Option(
        help="Peers: redis, nats, rabbitmq, activemq, or NAME:VARIANT; of shapes singles and "
        "workers also redis-py and nats-py; of shape dormitory direct and activemq."
    ),
]
Devices = Annotated[str, typer.Option(help="Devices, for shapes burst and dormitory.")]
Duration = Annotated[
    str, typer.Option("--seconds", help="About how long each side works in a round.")
]
Reruns = Annotated[
    int, typer.Option(help="Run again at most so often where others used over 0.2 cores.")
]


def compare(
    peer: Peers = "redis,nats",
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "timeliness",
    producers: Annotated[str, typer.Option(help="Producers; 1,50,200 for three rounds.")] = "1",
    connections: Annotated[str, typer.Option(help="For shape singles.")] = "1,10,100,1000",
    workers: Annotated[str, typer.Option(help="For shape workers.")] = "16",
    devices: Devices = "1000,8000",
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    duration: Duration = "8s",
    messages: Annotated[int, typer.Option(help="Most messages of a run.")] = 4_000_000,
    deadline: Annotated[str, typer.Option(help="Give up on a run after this long.")] = "2m",
    turns: Turns = 1,
    reruns: Reruns = 2,
    plot: Plot = None,
    rest: Rest = "40s",
    replicas: Replicas = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Run the same work on weir and on other brokers, started here one after the other.

    scripts/install-peers installs them. Each is durable; the result says which sync before they
    confirm. Kafka and RocketMQ servers are neither Debian packages nor Python wheels. With
    --replicas 3: RabbitMQ and NATS, on three nodes as weir is. Exit code 1 if weir failed or lost
    anything, or a peer did so twice.

    Shapes burst and latency give each side --rest to fill its files first. With --turns 5 one bad
    moment decides nothing; a peer that was twice as bad as weir at its first turn has no other.

    Shape singles: each connection awaits each confirm. One program in C drives weir, Redis and NATS
    on one node, then Python clients do; without a compiler Python alone does.

    Shape workers: consumers of one process share a filled topic and ack all of it, until the broker
    knows the last ack: Redis by the hundred, NATS each, RabbitMQ (but no stream) and ActiveMQ by
    the read. redis-py and nats-py are Redis and NATS with the Python clients that users have (pip
    install weir-lab[peers]). Shapes singles and workers leave out missing clients.

    FOREIGN is how many cores others used beside a run. A run beside which that was more than 0.2 is
    run again, at most --reruns times, and that run counts beside which it was least. weir:messages
    is weir by single messages. All have as many bytes under way.

    Shape dormitory: locks report within a second, and each record is committed to the same
    PostgreSQL (scripts/postgres-packages names what to install): by servers that the locks ask
    directly, by consumers behind ActiveMQ, or by handlers under `weir work`. The figure is the time
    to the last reply; the share is that of rows in the database to records sent. Exit code 1
    if a side failed, or weir lost a record.
    """
    with usage("compare"):
        from weir_lab.bench.comparison.compare import Settings
        from weir_lab.bench.comparison.compare import compare as run_all
        from weir_lab.bench.harness.runs import record as keep

        amounts = _amounts(shape, producers, connections, workers, devices)
        settings = Settings(
            peer.split(","), _shape(shape), amounts, size, seconds(duration), messages,
            seconds(deadline), folder, replicas, seconds(rest), turns, reruns=reruns,
        )  # fmt: skip
        settings.check()
    schema = "weir.bench.compare/1"
    with stop_as_by_ctrl_c():
        result = run_all(settings, say)
    for one in result.rounds:
        for row in one.rows:
            keep(record, schema, settings, row, None)
    if plot is not None:
        plot.write_text(_drawn(result, shape), encoding="utf-8")
    for line in (result.absent, *result.failures):
        say(line)
    finish(schema, [settings], [result], "times_best", most=False, as_json=as_json, show=_show)


def spark(
    messages: Annotated[int, typer.Option(help="How many messages the topic holds.")] = 4_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    partitions: Annotated[int, typer.Option(help="Partitions, so tasks of a query.")] = 2,
    rounds: Annotated[int, typer.Option(help="Queries of each kind that count.")] = 3,
    deadline: Annotated[str, typer.Option(help="Give up on a query after this long.")] = "5m",
    typed: Annotated[
        int, typer.Option(help="How many values of each format are typed; 0: none.")
    ] = 600_000,
    written: Annotated[
        int, typer.Option(help="How many rows are written to a topic; 0: none.")
    ] = 2_000_000,
    follow: Annotated[
        str, typer.Option(help="So long a query follows 10,000 messages/s; 0s: not at all.")
    ] = "20s",
    batches: Annotated[
        int, typer.Option(help="Micro-batches over 1 and 64 partitions that count; 0: none.")
    ] = 12,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Rows a second from a topic into Spark, and back, beside a bare Python data source and sink.

    The bare one yields the same record batches out of files. One query of each kind warms Spark
    up and is not counted. All columns are read, and every batch's CRC and hash are checked.
    Four more queries decode values of JSON, Avro, Protobuf and Arrow to typed columns. Two write
    the same rows: into a topic, synced to disk, and into a Python sink that discards them.
    Then a query follows a topic of each order, and others read small micro-batches over 1 and 64
    partitions.
    """
    with usage("spark"):
        from pyspark.sql import SparkSession

        from weir.spark import fetcher
        from weir.spark import typed as typed_columns
        from weir.spark.session import session
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.spark.following import Following
        from weir_lab.bench.spark.rows import Settings, measure

        followed = Following(seconds=seconds(follow), batches=batches, deadline_s=seconds(deadline))
        settings = Settings(
            messages, size, partitions, rounds, seconds(deadline), folder, typed, written, followed
        )
        settings.check()

    class Parts:
        """The Spark room, for a room that must not import it."""

        def session(self) -> Any:
            """Return a session."""
            return session("weir-bench", cores=partitions)

        combined = staticmethod(fetcher.combined)
        typed = staticmethod(typed_columns)

    schema = "weir.bench.spark/1"
    with stop_as_by_ctrl_c():
        try:
            result = measure(settings, Parts(), say)
        finally:
            if (active := SparkSession.getActiveSession()) is not None:
                active.stop()
    keep(record, schema, settings, result, result.queries)
    finish(
        schema, [settings], [result], "rows_per_s", most=False, as_json=as_json, show=_show_spark
    )


def _amounts(
    shape: str, producers: str, connections: str, workers: str, devices: str
) -> list[int]:  # fmt: skip
    if shape in ("burst", "dormitory"):
        return several(devices, "devices")
    if shape == "singles":
        return several(connections, "connections")
    if shape == "workers":
        return several(workers, "workers")
    return several(producers, "producers")


def _drawn(result: Comparison, shape: str) -> str:
    from weir_lab.bench.comparison.plot import svg, svg_of_dormitory

    return svg_of_dormitory(result) if shape == "dormitory" else svg(result, shape)


def _shape(text: str) -> Any:
    if text not in SHAPES:
        raise ValueError(f"shape={text}: it must be one of {', '.join(SHAPES)}")
    return text


def _show(result: Comparison) -> None:
    from weir.cli.output import print_table

    headings = [
        "SIDE",
        "VERSION",
        "FIGURE",
        "WEIR IS",
        "CLEAN",
        "SYNCED",
        "FOREIGN",
        "HELD BACK BY",
    ]
    with_shares = result.unit == "s to the last reply"
    if with_shares:
        headings.insert(4, "RECORDED")
    is_flow = result.unit == "messages/s"
    if is_flow:
        headings[4:4] = ["SENT BY", "PYTHON/S", "SERVER US"]
    is_burst = result.unit == "s to the last confirm"
    if is_burst:
        headings[4:4] = ["MS BEYOND", "CONFIRM P99 MS"]
    for one in result.rounds:
        print(f"{one.amount:,}: {result.unit}")
        table: list[list[object]] = []
        for row in one.rows:
            cells = [
                row.side, row.version, row.figure, _times(result.unit, one.figure, row.figure),
                row.clean, row.synced, _foreign(row),
                row.error or getattr(row.result, "bottleneck", None),
            ]  # fmt: skip
            if with_shares:
                share = getattr(row.result, "share_recorded", None)
                cells.insert(4, None if share is None else f"{share:.1%}")
            if is_flow:
                flow = row.result
                sent_by, per_s = (getattr(flow, n, None) for n in ("generator", "python_per_s"))
                cells[4:4] = [sent_by, per_s, _digits(getattr(flow, "server_us", None))]
            if is_burst:
                names = ("beyond_ms", "confirm_p99_ms")
                cells[4:4] = [getattr(row.result, name, None) for name in names]
            table.append(cells)
        print_table(headings, table)
        for row in one.rows:
            print(f"  {row.side}: {row.settings}")


def _foreign(row: Row) -> str | None:
    """Return how many cores others used, and how often it was run again for that."""
    cores = _digits(row.foreign_cores)
    return f"{cores} (run again {row.reruns}x)" if row.reruns else cores


def _digits(number: float | None) -> str | None:
    return None if number is None else f"{number:.2f}"


def _times(unit: str, own: float | None, other: float | None) -> str | None:
    if not other or not own:
        return None
    times = own / other if unit == "messages/s" else other / own
    return f"{times:.2f}x"


def _show_spark(result: Result) -> None:
    from weir.cli.output import print_table

    print_table(
        ("SOURCE", "ROWS/S", "ROWS/S, WHOLE QUERY"),
        [
            ("weir", result.rows_per_s, result.query_rows_per_s),
            ("weir, column value alone", result.columns_rows_per_s, None),
            ("bare Python source", result.bare_rows_per_s, result.bare_query_rows_per_s),
            *((f"typed, {one}", rate, None) for one, rate in result.typed_rows_per_s.items()),
            *([("written to a topic", result.sink_rows_per_s, None)] if result.sink_ratio else []),
        ],
    )
    print(
        f"weir reaches {result.ratio:.0%} of the bare source, and {result.columns_ratio:.2f} times "
        "that with the column value alone; medians, "
        f"{result.warm_up_queries_excluded} warm-up queries not counted"
    )
    if result.sink_ratio is not None:
        print(f"the sink reaches {result.sink_ratio:.0%} of one that discards all rows")
    if result.freshness_p99_ms is not None:
        print(
            f"a query that follows has a message {result.freshness_p99_ms:,.0f} ms after it was "
            f"sent (p99), and in total order {result.total_freshness_p99_ms:,.0f} ms"
        )
    if result.partitions_ratio is not None:
        print(
            f"a micro-batch takes {result.one_partition_ms:,.0f} ms over one partition, and "
            f"{result.partitions_ratio:.2f} times as long over 64"
        )
