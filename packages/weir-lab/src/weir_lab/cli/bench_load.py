"""`weir bench throughput`, `burst` and `latency`."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.client.core.retries import seconds
from weir_lab.cli.bench_runs import (
    Folder,
    Json,
    Record,
    Replicas,
    Rest,
    finish,
    say,
    several,
    stop_as_by_ctrl_c,
    usage,
)

if TYPE_CHECKING:
    from weir_lab.bench.burst import Result as BurstResult
    from weir_lab.bench.latency import Result as LatencyResult
    from weir_lab.bench.throughput import Result as ThroughputResult


def throughput(
    shape: Annotated[str, typer.Option(help="produce, consume or both.")] = "both",
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    producers: Annotated[str, typer.Option(help="Producers; 1,50,200 for three runs.")] = "1",
    duration: Annotated[str, typer.Option("--seconds", help="Length of a step, as in 2s.")] = "2s",
    messages: Annotated[int, typer.Option(help="What shape consume reads.")] = 4_000_000,
    deadline: Annotated[str, typer.Option(help="Give up on a step after this long.")] = "2m",
    replicas: Replicas = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Raise the load until latency doubles, and tell the peak that is sustained.

    First all that goes, then a tenth of that, two tenths, and so on. A step is sustained if at
    least 95 % of what is due gets through and the p99 of confirms (for both: of deliveries too) is
    at most twice the first step's. Shape consume drains a topic that was filled before.
    """
    with usage("throughput"):
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.sides.own import running_own
        from weir_lab.bench.throughput import Settings, measure

        counts = several(producers, "producers")
        plans = [
            Settings(
                _shape(shape),
                size,
                count,
                seconds(duration),
                messages,
                seconds(deadline),
                folder,
                replicas,
            )
            for count in counts
        ]
        for plan in plans:
            plan.check()
    schema, results = "weir.bench.throughput/1", []
    with stop_as_by_ctrl_c():
        for plan in plans:
            with running_own(folder, replicas) as side:
                results.append(run(measure(side, plan, say)))
            keep(record, schema, plan, results[-1], results[-1].stages)
    finish(
        schema, plans, results, "messages_per_s", most=False, as_json=as_json,
        show=_show_throughput,
    )  # fmt: skip


def burst(
    devices: Annotated[
        str, typer.Option(help="Devices; 1000,8000 for two runs.")
    ] = "1000,2000,4000,6000,8000",
    over: Annotated[str, typer.Option(help="They connect within this time.")] = "1s",
    auth: Annotated[
        str,
        typer.Option(help="none, secret, signed or tls; none,secret for two runs of each number."),
    ] = "none",
    tags: Annotated[
        str, typer.Option(help="Fleets with a tag each, by secret or signed; 1,100 for two runs.")
    ] = "",
    beside: Annotated[
        bool, typer.Option("--beside", help="Time a producer that publishes beside them.")
    ] = False,
    deadline: Annotated[str, typer.Option(help="Give up on confirms after this long.")] = "60s",
    rest: Rest = "40s",
    replicas: Replicas = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Let devices connect within a second, send one 24-byte record each, and await its confirm.

    Each has a connection of its own in the device dialect, kept until all are done. A consumer
    counts what is delivered. With --auth secret they prove their identity, with signed they sign
    each frame besides, and with tls they connect by TLS. Exit code 1 unless every record was
    confirmed and delivered once.
    """
    with usage("burst"):
        from weir_lab.bench.burst import Settings, measure
        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.open_files import allow_connections
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.sides.device_logins import check_auth
        from weir_lab.bench.sides.fleets import running_for
        from weir_lab.bench.sides.side import topic_name

        counts = several(devices, "devices")
        ways = [check_auth(way) for way in auth.split(",")]
        plans = [
            Settings(
                count,
                seconds(over),
                seconds(deadline),
                folder,
                replicas,
                seconds(rest),
                way,
                tag,
                beside,
            )
            for count, way, tag in product(counts, ways, several(tags, "tags") if tags else [0])
        ]
        for plan in plans:
            plan.check()
    schema, results = "weir.bench.burst/1", []
    with stop_as_by_ctrl_c():
        # Before the node starts, which inherits the limit.
        allow_connections(max(counts))
        for plan in plans:
            with running_for(plan.auth, plan.devices, plan.tags, folder, replicas) as side:
                result, samples = run(measure(side, plan, topic_name(1)))
            results.append(result)
            keep(record, schema, plan, result, samples)
            say(f"{plan.devices:,} devices, auth {plan.auth}: {result.seconds:.3f} s")
    finish(schema, plans, results, "seconds", most=True, as_json=as_json, show=_show_burst)


def latency(
    lone: Annotated[int, typer.Option(help="Messages one at a time.")] = 2_000,
    rate: Annotated[int, typer.Option(help="Then so many a second.")] = 1_000,
    duration: Annotated[str, typer.Option("--seconds", help="For this long.")] = "5s",
    size: Annotated[int, typer.Option(help="Bytes of a message's value, from 16 on.")] = 100,
    deadline: Annotated[str, typer.Option(help="Give up after this long.")] = "60s",
    rest: Rest = "40s",
    replicas: Replicas = 1,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Measure a node by TLS as well: how much longer that takes."),
    ] = False,
    turns: Annotated[
        int, typer.Option(help="Measure in so many parts; with --tls, by turns without and with.")
    ] = 1,
    folder: Folder = None,
    record: Record = None,
    as_json: Json = False,
) -> None:
    """Time to a lone confirm, and from publish to delivery at a steady rate.

    This disk's own fdatasync of 4 KiB is timed in the same run, before and after the lone messages.
    """
    with usage("latency"):
        from msgspec.structs import replace

        from weir_lab.bench.harness.loop import run
        from weir_lab.bench.harness.runs import record as keep
        from weir_lab.bench.latency import Settings, beside_plain, measure_by_turns
        from weir_lab.bench.sides.fleets import running_certified
        from weir_lab.bench.sides.own import running_own

        plan = Settings(
            lone, rate, seconds(duration), size, seconds(deadline), folder, replicas, seconds(rest),
            turns=turns,
        )  # fmt: skip
        plan.check()
        plans = [plan, replace(plan, tls=True)] if tls else [plan]
    schema = "weir.bench.latency/1"
    results: list[LatencyResult] = []
    with stop_as_by_ctrl_c(), ExitStack() as stack:
        running = [running_certified if plan.tls else running_own for plan in plans]
        sides = [stack.enter_context(one(folder, replicas)) for one in running]
        found = run(measure_by_turns([*zip(sides, plans, strict=True)]))
    for plan, (result, samples) in zip(plans, found, strict=True):
        results.append(beside_plain(result, results[0]) if plan.tls else result)
        keep(record, schema, plan, results[-1], samples)
    finish(
        schema, plans, results, "confirm_p50_ms", most=True, as_json=as_json, show=_show_latency
    )  # fmt: skip


def _shape(text: str) -> Any:
    if text not in ("produce", "consume", "both"):
        raise ValueError(f"shape={text}: it must be produce, consume or both")
    return text


def _show_throughput(result: ThroughputResult) -> None:
    from weir.cli.output import print_table

    print(f"sustained, shape {result.shape}: {result.messages_per_s:,.0f} messages/s")
    print_table(
        ("FLAT OUT/S", "CONFIRM p50 ms", "p99 ms", "DELIVERY p50 ms", "p99 ms", "LOST", "REPEATED"),
        [
            (
                result.flat_out_messages_per_s,
                result.confirm_p50_ms,
                result.confirm_p99_ms,
                result.delivery_p50_ms,
                result.delivery_p99_ms,
                result.lost,
                result.repeated,
            )
        ],
    )


def _show_burst(result: BurstResult) -> None:
    print(
        f"{result.devices:,} devices: last confirm after {result.seconds:.3f} s, "
        f"last delivery after {result.delivery_seconds:.3f} s, "
        f"{result.share_confirmed:.2%} confirmed, {result.share_delivered:.2%} delivered, "
        f"confirm p50 {result.confirm_p50_ms or 0:.1f} ms, p99 {result.confirm_p99_ms or 0:.1f} ms"
    )
    if result.beside_p99_ms is not None:
        print(f"a producer beside them: confirm p99 {result.beside_p99_ms:.1f} ms")
    for problem, count in result.problems.items():
        print(f"  {count:,} devices: {problem}")


def _show_latency(result: LatencyResult) -> None:
    from weir.cli.output import print_table

    if result.tls:
        print("by TLS:")
    print_table(
        ("MILLISECONDS", "p50", "p99", "p99.9"),
        [
            ("lone confirm", result.confirm_p50_ms, result.confirm_p99_ms, result.confirm_p999_ms),
            ("delivery", result.delivery_p50_ms, result.delivery_p99_ms, result.delivery_p999_ms),
            ("this disk's fdatasync", result.fdatasync_p50_ms, result.fdatasync_p99_ms, None),
        ],
    )
    print(f"a lone confirm takes {result.over_fdatasync_ms:.3f} ms more than the disk's own sync")
    if result.tls_confirm_more_ms is not None and result.tls_delivery_more_ms is not None:
        print(
            f"by TLS a lone confirm takes {result.tls_confirm_more_ms:.3f} ms more, a delivery "
            f"{result.tls_delivery_more_ms:.3f} ms more"
        )
