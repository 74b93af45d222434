"""`weir serve`: run a node.

Exit codes: 0 stopped with everything drained; 1 an error, or not drained in time; 2 wrong usage;
74 the disk failed; 130 or 143 a second SIGINT or SIGTERM ended it at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weir.server.config.sources import Resolved


FromFile = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
Data = Annotated[str | None, typer.Option(help="The data folder. [default: ./weir-data]")]
Host = Annotated[str | None, typer.Option(help="The address to listen on. [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="The port; 0 takes a free one. [default: 6800]")]
Shards = Annotated[
    int | None, typer.Option(help="Processes that share the work. [default: one a core]")
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there."),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", help="The format of the log: text or json. [default: text]"),
]


def serve(
    config: FromFile = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    shards: Shards = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Stop when stdin ends.")
    ] = False,
) -> None:
    """Run a node until Ctrl-C or SIGTERM; it finishes what is under way, then stops.

    A second Ctrl-C or SIGTERM ends it at once. Settings: `weir config show`.
    """
    from weir.server.network.addresses import in_words
    from weir.server.observability.status import configure
    from weir.server.processes.node import run

    settings = resolved(config, data, host, port, shards, metrics, log_format).config
    configure(settings.status)

    def started(host: str, port: int) -> None:
        if until_eof:
            _stop_at_eof()
        shown = f"[{host}]" if ":" in host else host
        print(f"weir serves weir://{shown}:{port} from {settings.node.data}", flush=True)

    with in_words(settings.node.host, settings.node.port, "--port"):
        drained = run(settings, started)
    if not drained:
        typer.echo(
            f"not everything was drained within {settings.stop.drain_seconds:g} s: what was not "
            "confirmed may be lost; free some room if a flush waited for it, else raise "
            "drain_seconds in [stop]",
            err=True,
        )
        raise typer.Exit(1)


def resolved(
    config: Path | None,
    data: str | None,
    host: str | None,
    port: int | None,
    shards: int | None,
    metrics: str | None,
    log_format: str | None,
) -> Resolved:
    """Return the file's settings, those of the environment over them, and the given flags'."""
    import os

    from weir.server.config.sources import resolve

    flags: dict[str, tuple[str, Any]] = {
        "node.data": ("--data", data),
        "node.host": ("--host", host),
        "node.port": ("--port", port),
        "node.shards": ("--shards", shards),
        "metrics.listen": ("--metrics", metrics),
        "status.format": ("--log-format", log_format),
    }
    given = {key: flag for key, flag in flags.items() if flag[1] is not None}
    return resolve(config, os.environ, given)


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
