"""`weir bench toc`: packets in total order, between real processes on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir_lab.cli.bench_runs import Json, stop_as_by_ctrl_c, usage

if TYPE_CHECKING:
    from weir_lab.bench.toc.conformance import Result

Folder = Annotated[
    str | None,
    typer.Option(
        help="Keep the logs of controller and processes in a new folder in here. "
        "[default: where temporary files go]"
    ),
]

app = typer.Typer(
    name="toc", help="Measure packets in total order, between real processes on loopback."
)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"--losses: {text!r} is no share, and no list such as 0,0.01") from None


@app.command()
def conformance(
    place: Annotated[
        str, typer.Option(help="Where barriers are aggregated: host, switch, xdp, or all.")
    ] = "all",
    processes: Annotated[int, typer.Option(help="How many, spread over the racks.")] = 8,
    span: Annotated[float, typer.Option("--seconds", help="How long, at each loss.")] = 60.0,
    losses: Annotated[
        str, typer.Option(help="Shares of packets that each link loses; a run each.")
    ] = "0,0.01",
    pace: Annotated[
        float, typer.Option(help="Scatterings a second of each process and service.")
    ] = 10.0,
    interval_ms: Annotated[float, typer.Option(help="Time between beacons.")] = 5.0,
    racks: Annotated[int, typer.Option(help="Switches to which processes are linked.")] = 4,
    spines: Annotated[int, typer.Option(help="Switches that join the racks.")] = 2,
    cores: Annotated[int, typer.Option(help="Switches that join the spines.")] = 1,
    seed: Annotated[int, typer.Option(help="Of what is sent, and of what is lost.")] = 1,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Check all guarantees of both services on every message, at each place of aggregation.

    As root on Linux in a tree of network namespaces. Elsewhere the host representative runs on
    loopback, and the other places say what is missing. Exit code 1 if a guarantee is broken, a
    process is taken for dead that is not, or a place is missing as root.
    """
    import msgspec

    from weir.cli.output import progress

    with usage("toc conformance"):
        from weir_lab.bench.toc.conformance import PLACES, Settings, measure
        from weir_lab.bench.toc.tree import missing_for
        from weir_lab.cli.measured import print_measured
        from weir_toc.places import Place

        places = PLACES if place == "all" else (place,)
        settings = Settings(places, processes, span, _shares(losses), pace, interval_ms, racks,
                            spines, cores, seed=seed, folder=folder)  # fmt: skip
        settings.check()
    runs = len(settings.losses) * sum(not missing_for(Place(one)) for one in settings.places)
    with stop_as_by_ctrl_c(), progress("runs", runs) as show:
        result = measure(settings, show)
    if as_json:
        print_measured("weir.bench.toc.conformance/1", settings, msgspec.to_builtins(result))
    else:
        _show(result)
    if not result.clean:
        raise typer.Exit(1)


def _show(result: Result) -> None:
    from weir.cli.output import print_table

    rows: list[tuple[object, ...]] = []
    for place in result.places:
        for run in place.runs:
            rows.append((place.name, run.loss, run.scatterings, run.messages, run.violations,
                         run.false_removals, run.late, run.nak, run.told, run.resent,
                         run.runs))  # fmt: skip
    print_table(("PLACE", "LOSS", "SCATTERINGS", "MESSAGES", "VIOLATIONS", "FALSE REMOVALS",
                 "LATE", "NAK", "TOLD", "RESENT", "RUNS"), rows)  # fmt: skip
    for place in result.places:
        if place.missing:
            print(f"{place.name} is missing: {place.missing}")
        for run in place.runs:
            for example in run.examples:
                print(f"{place.name} at loss {run.loss:g}: {example}")


@app.command()
def rate(
    messages: Annotated[int, typer.Option(help="Sent as fast as possible by each service.")] = (
        500_000
    ),
    lone: Annotated[int, typer.Option(help="Sent one by one, for the latency.")] = 200,
    size: Annotated[int, typer.Option(help="Bytes of a message, from 16 on.")] = 64,
    interval_ms: Annotated[float, typer.Option(help="Time between beacons.")] = 5.0,
    place: Annotated[
        str,
        typer.Option(
            help="Through an aggregator on loopback; or host, switch, or xdp: as root through a "
            "tree of network namespaces with switches of this place, rack, spine and rack."
        ),
    ] = "loopback",
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Send from one process to another: messages a second, and latency.

    Exit code 1 if a message was lost without a word, or came out of order, or a process failed, or
    something is missing as root. A machine that has no trees says what it lacks.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("toc rate"):
        from weir_lab.bench.toc.rate import RateSettings, measure_rate
        from weir_lab.cli.measured import print_measured

        settings = RateSettings(messages, lone, size, interval_ms, folder, place)
        settings.check()
    with stop_as_by_ctrl_c(), progress("steps", 4) as show:
        result = measure_rate(settings, show)
    if as_json:
        print_measured("weir.bench.toc.rate/1", settings, msgspec.to_builtins(result))
    elif result.missing:
        print(f"{place} is missing: {result.missing}")
    else:
        print_table(
            ("SERVICE", "MESSAGES/S", "RECEIVED", "FAILED", "MISPLACED", "LOST", "P50 MS",
             "P99 MS", "P50 T", "SENDER us", "RECEIVER us"),
            [(one.name, one.messages_per_s, one.received, one.failed, one.misplaced, one.lost,
              one.latency_p50_ms, one.latency_p99_ms, one.latency_p50_t, one.sender_us,
              one.receiver_us) for one in result.services if not one.problem],
        )  # fmt: skip
        for one in result.services:
            if one.problem:
                print(f"{one.name} could not be measured: {one.problem}")
        if result.idle_rss_mb:
            print(f"an idle process has {result.idle_rss_mb:g} MB")
    if not result.clean:
        raise typer.Exit(1)


@app.command()
def skew(
    processes: Annotated[int, typer.Option(help="How many, each with a clock of its own.")] = 8,
    span: Annotated[float, typer.Option("--seconds", help="How long, in each of two runs.")] = 30.0,
    offset_ms: Annotated[
        float, typer.Option(help="Clocks are wrong by up to so much, both ways.")
    ] = 250.0,
    drift_ppm: Annotated[
        int, typer.Option(help="How fast they go wrong, in parts per million.")
    ] = 50,
    pace: Annotated[
        float, typer.Option(help="Scatterings a second of each process and service.")
    ] = 20.0,
    interval_ms: Annotated[float, typer.Option(help="Time between beacons.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of what is sent.")] = 1,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Compare clocks that are wrong with the leader's, and all messages, also as clocks jump.

    As root, time namespaces shift CLOCK_MONOTONIC of each process. Exit code 1 if a guarantee is
    broken, an error is above its stated bound, or a process is taken for dead that is not.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("toc skew"):
        from weir_lab.bench.toc.skew import RUNS, SkewSettings, measure_skew
        from weir_lab.cli.measured import print_measured

        settings = SkewSettings(processes, span, offset_ms, drift_ppm, pace, interval_ms, seed,
                                folder)  # fmt: skip
        settings.check()
    with stop_as_by_ctrl_c(), progress("runs", len(RUNS)) as show:
        result = measure_skew(settings, show)
    if as_json:
        print_measured("weir.bench.toc.skew/1", settings, msgspec.to_builtins(result))
    else:
        print_table(
            ("CLOCKS", "READINGS", "OUTSIDE", "P50 us", "P99 us", "MAX us", "BOUND P50 us",
             "MESSAGES", "VIOLATIONS", "FALSE REMOVALS"),
            [(one.name, one.readings, one.outside, one.error_p50_us, one.error_p99_us,
              one.error_max_us, one.bound_p50_us, one.messages, one.violations, one.false_removals)
             for one in result.runs],
        )  # fmt: skip
        for one in result.runs:
            for example in one.examples:
                print(f"{one.name}: {example}")
    if not result.clean:
        raise typer.Exit(1)


@app.command()
def buffers(
    per_ms: Annotated[int, typer.Option(help="Messages that are sent in each ms.")] = 20,
    size: Annotated[int, typer.Option(help="Bytes of a message.")] = 64,
    as_json: Json = False,
) -> None:
    """Compare what a receiver holds while one link is up to 125 ms late, in virtual time.

    In the last run more is sent than fits in its memory. Exit code 1 if it holds more than its
    budget, or is sent a packet for which it gave no window.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("toc buffers"):
        from weir_lab.bench.toc.limits.buffers import BufferSettings, measure_buffers
        from weir_lab.cli.measured import print_measured

        settings = BufferSettings(per_ms=per_ms, size=size)
        settings.check()
    with stop_as_by_ctrl_c(), progress("runs", len(settings.delays_ms) + 1) as show:
        result = measure_buffers(settings, show)
    if as_json:
        print_measured("weir.bench.toc.limits.buffers/1", settings, msgspec.to_builtins(result))
    else:
        print_table(
            ("DELAY MS", "HELD BYTES", "DELIVERED", "OVER BUDGET"),
            [(one.delay_ms, one.held, one.delivered, one.over_budget)
             for one in (*result.runs, result.flood)],
        )  # fmt: skip
        print(f"{100 * result.bend:.2f} % from a straight line at most, before the last run")
    if not result.clean:
        raise typer.Exit(1)


@app.command()
def ports(
    links: Annotated[int, typer.Option(help="Idle processes that are linked to it.")] = 32,
    span: Annotated[float, typer.Option("--seconds", help="How long.")] = 10.0,
    interval_ms: Annotated[float, typer.Option(help="Time between beacons.")] = 1.0,
    place: Annotated[
        str, typer.Option(help="host, or xdp: a switch in the kernel, in a tree of namespaces.")
    ] = "host",
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Measure the processor time of an aggregator to which many idle processes are linked.

    In place xdp that of the switch's thread in the kernel counts, too, but for what that does as
    the receiver of its neighbours, and that of the program on its ports. Each is measured for so
    long.

    Exit code 1 if it took one of them for silent: the machine is too busy for the interval then.
    """
    import msgspec

    from weir.cli.output import print_table

    with usage("toc ports"):
        from weir_lab.bench.toc.limits.ports import PortSettings, measure_ports
        from weir_lab.bench.toc.limits.xdp_ports import measure_xdp_ports
        from weir_lab.cli.measured import print_measured
        from weir_toc.places import XDP_NEIGHBOURS_MAX, Place

        if place not in (Place.HOST.value, Place.XDP.value):
            raise ValueError(f"--place is host or xdp, and not {place!r}")
        if place == Place.XDP.value and links > XDP_NEIGHBOURS_MAX:
            raise ValueError(f"a switch in the kernel has at most {XDP_NEIGHBOURS_MAX} links")
        settings = PortSettings(links, span, interval_ms, folder)
        settings.check()
    with stop_as_by_ctrl_c():
        measure = measure_xdp_ports if place == Place.XDP.value else measure_ports
        result = measure(settings)
    if as_json:
        schema = "weir.bench.toc.limits.ports/1"
        if place == Place.XDP.value:
            schema = "weir.bench.toc.limits.xdp_ports/2"
        print_measured(schema, settings, msgspec.to_builtins(result))
    else:
        print_table(
            ("LINKS", "CORES", "BEACONS IN/S", "BEACONS OUT/S", "FENCED", "LATE MS", "MB"),
            [(result.ports, result.cores, result.beacons_in_per_s, result.beacons_out_per_s,
              result.fenced, result.late_ms, result.rss_mb)],
        )  # fmt: skip
    if result.fenced:
        raise typer.Exit(1)


@app.command()
def alarm(
    rounds: Annotated[int, typer.Option(help="Of each cause, at a process and a switch.")] = 3,
    quiet: Annotated[
        float, typer.Option("--quiet-seconds", help="How long nothing is wrong before.")
    ] = 600.0,
    causes: Annotated[
        str, typer.Option(help="clock, stopped process, queue and loss, or some of them.")
    ] = "clock,stopped process,queue,loss",
    processes: Annotated[int, typer.Option(help="How many, on two racks.")] = 8,
    interval_ms: Annotated[float, typer.Option(help="Time between beacons.")] = 20.0,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Let links lag, and see whether the alarm names them: where, why, and how soon.

    Exit code 1 if a link was not named, or another hop or cause was, or an alarm came while nothing
    was wrong.
    """
    import msgspec

    from weir.cli.output import print_table, progress

    with usage("toc alarm"):
        from weir_lab.bench.toc.limits.alarm import AlarmSettings, measure_alarm
        from weir_lab.cli.measured import print_measured

        settings = AlarmSettings(rounds, quiet, tuple(causes.split(",")), processes, interval_ms,
                                 folder=folder)  # fmt: skip
        settings.check()
    steps = len([*settings.plan(("",))])
    with stop_as_by_ctrl_c(), progress("rounds", steps) as show:
        result = measure_alarm(settings, show)
    if as_json:
        print_measured("weir.bench.toc.limits.alarm/1", settings, msgspec.to_builtins(result))
    else:
        print_table(
            ("CAUSE", "LINK", "T UNTIL NAMED", "WRONG"),
            [(one.cause, " to ".join(one.link), one.named_t, one.wrong) for one in result.each],
        )  # fmt: skip
        print(f"{result.quiet_seconds:g} s without a fault: {result.false_alarms} alarms, "
              f"{result.removed_in_quiet} processes taken for dead")  # fmt: skip
        for example in result.examples:
            print(example)
    if not result.clean:
        raise typer.Exit(1)
