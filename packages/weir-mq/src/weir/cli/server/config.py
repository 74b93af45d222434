"""`weir config`: check a node's settings, show whence each comes, print a commented file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.server.serve import Data, FromFile, Host, LogFormat, Metrics, Port, Shards, resolved

app = typer.Typer(name="config", help="Check and show a node's settings.")


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Check and show a node's settings."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a file and the environment; print one line per problem. Exit code 1 if there is one."""
    from weir.cli.output import hint, print_json
    from weir.server.config.sections import BadConfig
    from weir.server.config.sources import resolve

    problems: tuple[str, ...] = ()
    try:
        resolve(file, os.environ)
    except BadConfig as error:
        problems = error.problems
    if as_json:
        print_json("weir.config.check/1", {"file": str(file)}, {"problems": problems})
    else:
        for problem in problems:
            print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(1)
    if not as_json:
        print(f"{file}: fine")
        hint(f"Next: weir serve --config {file}")


@app.command()
def show(
    file: FromFile = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    shards: Shards = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every setting as `weir serve` would take it here, and where it comes from."""
    from weir.cli.output import hint, print_json, print_table
    from weir.server.config.sections import settings

    found = resolved(file, data, host, port, shards, metrics, log_format)
    rows = [(one, found.config.value(one), found.origins[one.key]) for one in settings()]
    if as_json:
        values = {
            one.key: {"value": value, "unit": one.unit or None, "from": origin}
            for one, value, origin in rows
        }
        given = {"config": str(file) if file else None}
        print_json("weir.config/1", given, {"values": values})
        return
    print_table(
        ("SETTING", "VALUE", "FROM"),
        [(one.key, f"{value}" if value != "" else None, origin) for one, value, origin in rows],
    )
    hint("Next: weir config sample > weir.toml, then edit it")


@app.command()
def sample() -> None:
    """Print a commented file of all settings with their defaults."""
    from weir.server.config.sources import sample as text

    print(text(), end="")
