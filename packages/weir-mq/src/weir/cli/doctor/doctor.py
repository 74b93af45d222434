"""`weir doctor`: is this machine, and this folder, fit for a node?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.cli.doctor.finding import Finding, Patient


def doctor(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The data folder. [default: as `weir serve` would take it]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this check; may be repeated. `endpoint` requires a running node."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Watch a node under load, and name what limits it.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=3.0, max=3600.0, help="With --live: how long to watch.")
    ] = 30.0,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --live: where the node serves its metrics. [default: metrics.listen]",
        ),
    ] = None,
    relay: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Look at the relay that was started with this as --metrics, and at nothing else.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, the folder and a running node; each finding says what to do.

    Exit code 1 if a check fails. Nothing is changed; a small file is written and removed.

    With --live, watch the node that runs on the folder under its load, and name what limits it:
    disk, processor (with the stages that use it), network, a slow follower, memory, or its clients.
    """
    import os

    from weir.cli.doctor.checks import CHECKS, examine
    from weir.cli.doctor.finding import Patient
    from weir.server.config_sources import resolve

    if relay:
        from weir.cli.doctor.relay import examine_relay

        _print(examine_relay(relay), {"relay": relay}, f"weir doctor --relay {relay}", as_json)
        return

    unknown = [name for name in only or () if name not in CHECKS]
    if unknown:
        raise typer.BadParameter(
            f"no check {unknown[0]!r}: there are {', '.join(CHECKS)}", param_hint="--only"
        )
    flags = {} if data is None else {"node.data": ("--data", data)}
    settings = resolve(config, os.environ, flags).config
    patient = Patient(settings, must_run="endpoint" in (only or ()))
    if live:
        _watch(patient, seconds, metrics or settings.metrics.listen, as_json)
        return
    findings = examine(patient, only or ())
    _print(findings, {"data": settings.node.data, "only": only}, "weir doctor", as_json)


def _print(findings: list[Finding], asked: object, again: str, as_json: bool) -> None:
    """Print what was found. Raises `typer.Exit` if a check failed; `again` is to be typed then."""
    from weir.cli.output import hint, print_json, print_table

    failed = [finding for finding in findings if finding.state == "fail"]
    if as_json:
        print_json("weir.doctor/1", asked, {"findings": findings})
    else:
        print_table(
            ("CHECK", "STATE", "FOUND", "WHAT TO DO"),
            [(one.check, one.state, one.found, one.advice) for one in findings],
        )
        if failed:
            hint(f"Fix what failed, then: {again}")
        elif again == "weir doctor":
            hint("Next: weir serve")
    if failed:
        raise typer.Exit(1)


def _watch(patient: Patient, seconds: float, metrics: str, as_json: bool) -> None:
    import msgspec

    from weir.cli.doctor.bottleneck import judge, watch
    from weir.cli.output import hint, print_json, print_table
    from weir.server.disk.node_folder import NodeFolder

    place = NodeFolder(patient.folder).endpoint()
    if place is None or not Path(f"/proc/{place.pid}").exists():
        raise typer.BadParameter(
            f"no node runs on {patient.folder}: give --data the folder of one that does",
            param_hint="--data",
        )
    if not metrics or metrics.endswith(":0"):
        raise typer.BadParameter(
            "give --metrics HOST:PORT, as the node was started with: its metrics are read there",
            param_hint="--metrics",
        )
    host = f"[{place.host}]" if ":" in place.host else place.host
    if not as_json:
        hint(f"Watching for {seconds:g} s ...")
    found = judge(watch(patient.folder, metrics, seconds, f"weir://{host}:{place.port}"))
    if as_json:
        settings = {"data": str(patient.folder), "seconds": seconds}
        print_json("weir.doctor.live/1", settings, msgspec.structs.asdict(found))
        return
    print_table(
        ("RESOURCE", "BUSY", "FOUND", "WHAT TO DO"),
        [(one.resource, f"{one.busy:.0%}", one.found, one.advice) for one in found.rows],
    )
    print(f"{found.messages_in:,.0f} messages/s in, {found.messages_out:,.0f} messages/s out")
    print(f"limited by: {found.limit} ({found.because})")
