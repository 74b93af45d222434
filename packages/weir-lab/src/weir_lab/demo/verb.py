"""`weir demo`: the verb and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Keep the files of the demo in this folder.")
    ] = None,
    flights: Annotated[
        int | None, typer.Option(min=1, help="Replay only this many flights.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show weir at work: airports, a consumer cluster and a Spark job over real flights."""
    from weir_lab.demo.run import run as run_demo

    raise typer.Exit(run_demo(out, flights, as_json))
