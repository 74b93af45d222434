"""`weir bench`: measure on this machine, and check every message while at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.client.core.retries import seconds
from weir_lab.cli.bench_compare import compare, spark
from weir_lab.cli.bench_handlers import handlers, readers, workers
from weir_lab.cli.bench_load import burst, latency, throughput
from weir_lab.cli.bench_order import order
from weir_lab.cli.bench_runs import (
    Folder,
    Json,
    Record,
    Replicas,
    finish,
    several,
    stop_as_by_ctrl_c,
    usage,
)
from weir_lab.cli.bench_toc import app as toc_app
from weir_lab.cli.world import Proxies, compare_cities

if TYPE_CHECKING:
    from weir_lab.bench.tiers import Settings as TiersSettings
    from weir_lab.bench.timeliness import Result

app = typer.Typer(
    name="bench",
    help="Measure weir on this machine, on a node of its own; every message is checked.",
)


for verb in (throughput, burst, latency, order, handlers, workers, readers, spark, compare):
    app.command()(verb)


app.add_typer(toc_app)
_TURNS_MAX = 100


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure weir on this machine, on a node of its own; every message is checked."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def timeliness(
    messages: Annotated[int, typer.Option(help="How many messages in all.")] = 4_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    producers: Annotated[
        str, typer.Option(help="Producers, each with its connection; 1,50,200 for three runs.")
    ] = "1",
    partitions: Annotated[int, typer.Option(help="Partitions, no more than producers.")] = 1,
    deadline: Annotated[str, typer.Option(help="Give up after this long, as in 90s or 5m.")] = "5m",
    replicas: Replicas = 1,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Run each again by TLS, and say by what part it is slower."),
    ] = False,
    closed: Annotated[
        bool,
        typer.Option("--closed", help="Run each again on a closed set, to which clients log in."),
    ] = False,
    turns: Annotated[
        int, typer.Option(help="Run all of it so often, in turns; the median run is shown.")
    ] = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Time from the first send to the last receive: many producers, one consumer.

    A node is started on a fresh folder and removed afterwards; it syncs before it confirms, as
    always. Exit code 1 if a message was lost, repeated, reordered or changed.
    """
    from weir.cli.output import progress

    with usage("timeliness"):
        from msgspec.structs import replace

        from weir_lab.bench.bounds import check_bounds
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.timeliness import Settings, measure, median_run

        check_bounds(turns=(turns, 1, _TURNS_MAX))
        counts = several(producers, "producers")
        plans = [
            Settings(messages, size, count, partitions, seconds(deadline), folder, replicas)
            for count in counts
        ]
        others = [{"tls": True}] * tls + [{"closed": True}] * closed
        plans = [replace(plan, **other) for plan in plans for other in ({}, *others)]
        for plan in plans:
            plan.check()
    schema = "weir.bench.timeliness/1"
    runs: list[list[Result]] = [[] for _ in plans]
    plain = 0.0
    with stop_as_by_ctrl_c():
        for _ in range(turns):
            for plan, found in zip(plans, runs, strict=True):
                with progress("received", messages) as show:
                    run = measure(plan, show)
                if not (plan.tls or plan.closed):
                    plain = run.messages_per_s
                ratio = run.messages_per_s / plain
                if plan.tls:
                    run = replace(run, tls_ratio=ratio)
                if plan.closed:
                    run = replace(run, closed_ratio=ratio)
                found.append(run)
                keep(record, schema, plan, run, None)
    results = [median_run(found) for found in runs]
    finish(schema, plans, results, "messages_per_s", most=False, as_json=as_json, show=_print)


@app.command()
def handshakes(
    count: Annotated[int, typer.Option("--handshakes", help="How many, one by one.")] = 2_000,
    mutual: Annotated[
        bool, typer.Option("--mutual", help="Let each device show a certificate.")
    ] = False,
    idle: Annotated[int, typer.Option(help="Connections whose memory is measured.")] = 1_000,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure TLS handshakes of one core of a node, the memory of idle connections, and what it
    takes to sign a device's frame.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("handshakes"):
        from weir_lab.bench.handshakes import Settings, measure
        from weir_lab.cli.measured import print_measured

        settings = Settings(count, mutual, idle, folder)
        settings.check()
    with stop_as_by_ctrl_c(), progress("handshakes", count) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.bench.handshakes/1", settings, msgspec.structs.asdict(result))
        return
    print_table(
        ("HANDSHAKES", "PER CORE AND S", "CONNECTIONS BY TLS", "PLAIN", "IDLE BYTES BY TLS",
         "PLAIN", "SIGN us", "CHECK us"),
        [(result.handshakes, result.per_core_s, result.tls_per_core_s, result.plain_per_core_s,
          result.tls_bytes, result.plain_bytes, result.sign_us, result.check_us)],
    )  # fmt: skip


@app.command()
def tenants(
    quota: Annotated[int, typer.Option(help="Bytes a second that the flood may publish.")] = 1
    << 20,
    connections: Annotated[int, typer.Option(help="Of the flood.")] = 16,
    pace: Annotated[int, typer.Option(help="Messages a second of the steady tenant.")] = 200,
    size: Annotated[int, typer.Option(help="Bytes of a message.")] = 1_000,
    span: Annotated[float, typer.Option("--seconds", help="How long, each time.")] = 10.0,
    shards: Annotated[int, typer.Option(help="Of the node; 0: one a core.")] = 0,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure what a namespace with a steady pace keeps beside one that floods."""
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("tenants"):
        from weir_lab.bench.tenants import Settings, measure
        from weir_lab.cli.measured import print_measured

        settings = Settings(quota, connections, pace, size, span, shards, folder)
        settings.check()
    with stop_as_by_ctrl_c(), progress("seconds", int(2 * span)) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.bench.tenants/1", settings, msgspec.structs.asdict(result))
        return
    print_table(
        ("KEPT", "SHARE OF QUOTA", "ALONE PER S", "BESIDE PER S", "P99 MS ALONE", "BESIDE"),
        [(result.kept, result.share, result.alone.per_s, result.beside.per_s, result.alone.p99_ms,
          result.beside.p99_ms)],
    )  # fmt: skip


@app.command()
def revocations(
    revocations: Annotated[int, typer.Option(help="How many users and devices.")] = 200,
    load: Annotated[int, typer.Option(help="Messages a second meanwhile.")] = 500,
    size: Annotated[int, typer.Option(help="Bytes of such a message, from 8 on.")] = 100,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Revoke users and devices in a closed set of three nodes under load: time until they end.

    Sessions are those of producers, readers, consumers, readers by a token, devices, scatterings,
    readers in total order, consumers that take turns, clients that wait for messages or for a
    quota, readers at a relay, and users and devices by certificates. Exit code 1 if one continues,
    or gets a message that was sent after its revocation was confirmed.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("revocations"):
        from weir_lab.bench.revocations import Settings, measure
        from weir_lab.cli.measured import print_measured

        settings = Settings(revocations, load, size, folder)
        settings.check()
    with stop_as_by_ctrl_c(), progress("revocations", revocations) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.bench.revocations/1", settings, msgspec.to_builtins(result))
    else:
        rows = [(one.kind, one.ended, one.p50_ms, one.p99_ms, one.max_ms) for one in result.kinds]
        ended = result.revocations - result.unended
        rows.append(("all", ended, result.p50_ms, result.p99_ms, result.max_ms))
        print_table(("SESSIONS", "ENDED", "P50 MS", "P99 MS", "MAX MS"), rows)
        print(
            f"{result.unended} went on, {result.late} were served behind their revocation; the "
            f"load had {result.load_per_s:,.0f} messages/s"
        )
    if not result.clean:
        raise typer.Exit(1)


@app.command("filter")
def filtering(
    tags: Annotated[int, typer.Option(help="Tags that messages have by turns.")] = 10,
    messages: Annotated[int, typer.Option(help="Messages of each topic.")] = 2_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a message's value.")] = 100,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure reads of one tag: bytes moved and read from disk, over bytes that match.

    Once with all tags in each batch, once with long runs of one tag.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("filter"):
        from weir_lab.bench.filtering import Settings, measure
        from weir_lab.cli.measured import print_measured

        settings = Settings(tags, messages, size, folder)
        settings.check()
    with stop_as_by_ctrl_c(), progress("messages", 2 * messages) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.bench.filter/1", settings, msgspec.to_builtins(result))
        return
    print_table(
        ("TAGS", "BYTES MOVED / MATCHING", "READ / MATCHING", "SCANNED PER S", "AGAIN PER S"),
        [(one.shape, one.bytes_ratio, one.disk_ratio, one.scanned_per_s, one.again_per_s)
         for one in result.shapes],
    )  # fmt: skip


@app.command()
def tiers(
    depth: Annotated[int, typer.Option(help="Relays, one below the other.")] = 5,
    rate: Annotated[
        int | None, typer.Option(help="Messages a second. [default: 100,000; 200 with --cities]")
    ] = None,
    seconds: Annotated[
        int | None, typer.Option(help="How long is sent. [default: 60; 20 with --cities]")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Bytes of a value. [default: 100; 1,000 with --cities]")
    ] = None,
    batch: Annotated[int, typer.Option(help="Messages of a batch.")] = 100,
    cities: Annotated[
        int | None,
        typer.Option(help="Compare bytes that go to so many cities, with and without relays."),
    ] = None,
    readers: Annotated[int, typer.Option(help="Readers in each of the cities.")] = 20,
    proxies: Proxies = False,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure a chain of relays: what each adds to a delivery, takes of a processor, and whether it
    keeps up. Exit code 1 if the last relay falls behind more and more.

    With --cities: how many bytes go to cities whose readers read at a relay in their city, over
    those with the same readers at the core; on an emulated network. Exit code 1 if a reader was not
    given what the core holds.
    """
    if cities is not None:
        chosen = {"rate": rate, "seconds": seconds, "size": size}
        compare_cities(cities, readers, chosen, folder, proxies, as_json)
        return
    with usage("tiers"):
        from weir_lab.bench.tiers import Settings

        defaults = Settings()
        settings = Settings(
            depth, rate or defaults.rate, seconds or defaults.seconds, size or defaults.size, batch,
            folder=folder,
        )  # fmt: skip
        settings.check()
    _chain(settings, as_json)


def _chain(settings: TiersSettings, as_json: bool) -> None:
    """Measure relays one below the other, and print what came of it."""
    import msgspec

    from weir.cli.output import print_table, progress
    from weir_lab.bench.tiers import measure
    from weir_lab.cli.measured import print_measured

    depth = settings.depth
    with stop_as_by_ctrl_c(), progress("messages", settings.rate * settings.seconds) as show:
        result = measure(settings, show)
    bulk = result.bulk
    if as_json:
        print_measured("weir.bench.tiers/1", settings, msgspec.to_builtins(result))
    else:
        rows = (
            ("core, by partition", result.core),
            (f"relay {depth}, by partition", result.last),
            ("core, in total order", result.total_core),
            (f"relay {depth}, in total order", result.total_last),
            (f"relay {depth}, batches at the rate", bulk.delivered),
        )
        print_table(
            ("DELIVERED", "MESSAGES", "P50 MS", "P99 MS"),
            [(name, one.messages, one.p50_ms, one.p99_ms) for name, one in rows],
        )
        print(
            f"each hop adds {result.hop_added_p50_ms:.2f} ms at the median; {bulk.messages:,} "
            f"messages at {bulk.messages_per_s:,.0f}/s in {bulk.batches_per_s:,.0f} batches/s took "
            f"{bulk.cpu_us_per_batch_and_hop:,.0f} "
            f"µs of a processor for each batch and hop; the last relay lacked {bulk.lag_half:,.0f} "
            f"messages at first, {bulk.lag_end:,.0f} in the end"
        )
    if bulk.growing:
        raise typer.Exit(1)


@app.command()
def codec(
    messages: Annotated[int, typer.Option(min=1, help="Messages in the batch.")] = 1_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value.")] = 100,
    mixed: Annotated[bool, typer.Option(help="Values of many widths, not of one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the time to pack, open, check and split one batch, hash included."""
    import msgspec

    from weir.cli.output import print_table
    from weir_lab.bench.codec import Settings, measure
    from weir_lab.cli.measured import print_measured

    settings = Settings(messages, size, mixed)
    result = measure(settings)
    if as_json:
        print_measured("weir.bench.codec/1", settings, msgspec.structs.asdict(result))
        return
    print(f"a batch of {messages:,} messages of {size} bytes takes {result.batch_bytes:,} bytes")
    print_table(
        ("ENCODE ns/msg", "DECODE ns/msg", "OPEN us", "OPEN+CHECK us"),
        [(result.encode_ns, result.decode_ns, result.open_us, result.check_us)],
    )


@app.command()
def producers(
    ids: Annotated[int, typer.Option(min=1_000, help="Producer ids.")] = 1_000_000,
    window: Annotated[
        int, typer.Option(min=0, max=64, help="Batches under way; 0: ids without a window.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what producer ids take on a replica, and how long a snapshot stops its shard."""
    import msgspec

    from weir_lab.bench.producers import Settings, measure
    from weir_lab.cli.measured import print_measured

    settings = Settings(ids, window)
    found = measure(settings)
    if as_json:
        print_measured("weir.bench.producers/1", settings, msgspec.structs.asdict(found))
        return
    print(
        f"{ids:,} ids of window {window} take {found.memory_mb:,.1f} MB: "
        f"{found.partition_bytes_per_id:,.0f} bytes each in a partition that they wrote to, "
        f"{found.registry_bytes_per_id:,.0f} in the registry"
    )
    print(
        f"a snapshot stops the shard for {found.taken_ms:.2f} ms while it is taken, and one write "
        f"after it for {found.write_ms:.2f} ms at most; a checkpoint has "
        f"{found.checkpoint_bytes_per_id:,.0f} bytes for each id"
    )


@app.command()
def journey(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the Python calls of one publish, pull, ack and barrier on three nodes.

    Those of a lone publish are of a node that is alone. Disks and network are in memory, so the
    counts are the same on every machine.
    """
    from weir.cli.output import print_table
    from weir_lab.bench.journey import KINDS, Settings, figures, measure
    from weir_lab.cli.measured import print_measured

    settings = Settings()
    found = measure(settings)
    if as_json:
        print_measured("weir.bench.journey/1", settings, figures(found))
        return
    rows = [
        (kind, one.calls, one.files, one.changes, one.package_changes, one.host_calls)
        for kind, one in zip(KINDS, found, strict=True)
    ]
    print_table(("REQUEST", "CALLS", "FILES", "CHANGES", "OF PACKAGE", "CALLS IN host"), rows)


def _print(result: Result) -> None:
    from weir.cli.output import hint, print_table

    many = "producers" if result.producers > 1 else "producer"
    size = result.bytes // result.messages
    print(
        f"{result.messages:,} messages of {size} bytes, {result.producers:,} {many}: "
        f"{result.seconds:.2f} s from the first send to the last receive"
    )
    print_table(
        ("MESSAGES/S", "MB/S", "LOST", "REPEATED", "REORDERED", "CORRUPT"),
        [
            (
                result.messages_per_s,
                result.bytes / result.seconds / 1e6,
                result.lost,
                result.repeated,
                result.reordered,
                result.corrupt,
            )
        ],
    )
    cpu = result.cpu_s
    print(
        f"CPU seconds: producers {cpu.producers:.2f}, consumer {cpu.consumer:.2f}"
        + (f", server {cpu.server:.2f}" if cpu.server is not None else "")
    )
    if result.filesystem == "tmpfs":
        print(
            "the node's folder lay in memory (tmpfs), where no sync costs: give --folder on a disk"
        )
    hint("Next: the same with --producers 50, or --json to keep it")
