"""`weir doctor`: is this machine, and this folder, fit for a node?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The data folder. [default: as `weir serve` would take it]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this check; again for more. `endpoint`: a node must run."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, the folder and a running node; each finding says what to do.

    Exit code 1 if a check fails. Nothing is changed; a small file is written and removed.
    """
    import os

    from weir.cli.checkup import CHECKS, Patient, examine
    from weir.cli.output import hint, print_json, print_table
    from weir.server.sources import resolve

    unknown = [name for name in only or () if name not in CHECKS]
    if unknown:
        raise typer.BadParameter(
            f"no check {unknown[0]!r}: there are {', '.join(CHECKS)}", param_hint="--only"
        )
    flags = {} if data is None else {"node.data": ("--data", data)}
    settings = resolve(config, os.environ, flags).config
    patient = Patient(settings, must_run="endpoint" in (only or ()))
    findings = examine(patient, only or ())
    failed = [finding for finding in findings if finding.state == "fail"]
    if as_json:
        print_json(
            "weir.doctor/1", {"data": settings.node.data, "only": only}, {"findings": findings}
        )
    else:
        print_table(
            ("CHECK", "STATE", "FOUND", "WHAT TO DO"),
            [(one.check, one.state, one.found, one.advice) for one in findings],
        )
        hint("Next: weir serve" if not failed else "Mend what failed, then: weir doctor")
    if failed:
        raise typer.Exit(1)
