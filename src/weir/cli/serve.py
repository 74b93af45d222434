"""`weir serve`: run a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.server.config import Config


def serve(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The folder to keep everything in. [default: ./weir-data]")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port; 0 takes a free one. [default: 6800]")
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Stop when stdin ends.")
    ] = False,
) -> None:
    """Run a node until Ctrl-C or SIGTERM; it stops once everything under way is done."""
    import errno
    import logging

    from weir.errors import WeirError
    from weir.server.main import run

    settings = _settings(config, data, host, port)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def started(host: str, port: int) -> None:
        if until_eof:
            _stop_at_eof()
        shown = f"[{host}]" if ":" in host else host
        print(f"weir serves weir://{shown}:{port} from {settings.node.data}", flush=True)

    try:
        drained = run(settings, started)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise WeirError(
            f"{settings.node.host}:{settings.node.port} is in use: stop what listens there, or "
            "give another --port; 0 takes a free one"
        ) from None
    if not drained:
        typer.echo(
            f"not everything was drained within {settings.stop.drain_seconds:g} s: what was not "
            "confirmed may be lost; raise drain_seconds in [stop]",
            err=True,
        )
        raise typer.Exit(1)


def _settings(config: Path | None, data: str | None, host: str | None, port: int | None) -> Config:
    """Return the file's settings with those flags over them that were given."""
    import msgspec

    from weir.server.config import load

    settings = load(config)
    given = {"data": data, "host": host, "port": port}
    node = {name: value for name, value in given.items() if value is not None}
    replaced = msgspec.structs.replace(settings.node, **node)
    return msgspec.structs.replace(settings, node=replaced).validate()


def _stop_at_eof() -> None:
    """Stop as if by SIGTERM once stdin ends: the process that holds its other end is gone."""
    import os
    import signal
    import sys
    import threading

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="weir-until-eof", daemon=True).start()
