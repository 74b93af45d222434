"""`weir init`, `weir serve`, `weir config`: found a node, run it, show its settings.

Exit codes of `serve`: 0 stopped with everything drained; 1 an error, or not drained in time; 2
wrong usage; 74 the disk failed; 130 or 143 a second SIGINT or SIGTERM ended it at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weir.broker.api.settings import Member
    from weir.server.config_sources import Resolved
    from weir.server.disk.node_folder import Founded

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
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure",
        show_default=False,
        help="Listen beyond loopback though the set is not closed: anyone may do everything.",
    ),
]
SetId = Annotated[
    int,
    typer.Option(
        min=0,
        help="The id of the node's BrokerSet in the topology, for good. 0: there is one set.",
    ),
]
config_app = typer.Typer(name="config", help="Check and show a node's settings.")


def init(
    data: Annotated[Path, typer.Option(help="The data folder.")] = Path("./weir-data"),
    logs: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            help="How many numbered logs, fixed for good. [default: one per core, at least 2]",
        ),
    ] = 0,
    log_dir: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N=FOLDER", help="Keep log N in this folder, for example on a disk of its own."
        ),
    ] = None,
    node: Annotated[int, typer.Option(min=1, help="The number of this node in its set.")] = 1,
    members: Annotated[
        str,
        typer.Option(
            "--set",
            metavar="1=HOST:PORT,2=HOST:PORT,...",
            help="All nodes of the set; the same for each of them.",
        ),
    ] = "",
    system: Annotated[
        str, typer.Option(help="The id of the system that the node joins. [default: a new one]")
    ] = "",
    brokerset: SetId = 0,
    closed: Annotated[
        bool,
        typer.Option("--closed", help="The set that it joins is closed: no --insecure is needed."),
    ] = False,
    join: Annotated[
        str,
        typer.Option(metavar="SECRET", help="The secret that `weir node add` printed."),
    ] = "",
) -> None:
    """Create a node in a folder. `weir serve` does so by itself, with the defaults.

    Partitions are spread over the logs, and the logs over the shards of `weir serve --shards`.
    There can be no more shards than logs: choose as many logs as the machine may ever have cores.

    Create several nodes with the same --set, one after the other: the first draws the id of the
    system and prints the commands for the others. Nodes of several BrokerSets are created with the
    same --set as well, each with the --brokerset that the topology has it in.
    """
    from weir.server.disk.node_folder import BadFolder, NodeFolder, Part

    folder = NodeFolder(data)
    if closed and not system:
        raise typer.BadParameter(
            "a new system is open: give it with --system, for a node that joins a closed set",
            param_hint="--closed",
        )
    places = dict(_place(text) for text in log_dir or ())
    if folder.founded() is not None:
        raise BadFolder(f"{data} holds a node already: give another folder")
    part = Part(node, parsed_set(members), _system(system), brokerset, _join_key(join))
    founded = folder.found(logs, places, part)
    if closed:
        folder.note_access_mode("closed")
    for number in range(founded.logs):
        print(f"log {number}  {folder.log(number, founded)}")
    if not system:
        for line in for_others(founded, members):
            print(line)
    own = next((member for member in founded.members if member.node == node), None)
    where = f" --host {own.host} --port {own.port}" if own else ""
    print(f"Next: weir serve --data {data}{where}")


def _join_key(text: str) -> bytes:
    """Return what a secret of `weir node add` is kept as; nothing of no secret."""
    from weir.model.limits import JOIN_SECRET_BYTES
    from weir.protocol.link import join_key

    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b"?"
    if text and len(secret) != JOIN_SECRET_BYTES:
        raise typer.BadParameter(
            f"it has {2 * JOIN_SECRET_BYTES} hexadecimal digits, as `weir node add` prints it",
            param_hint="--join",
        )
    return join_key(secret) if secret else b""


def for_others(founded: Founded, members: str) -> list[str]:
    """Return what to type to found the other nodes of a set."""
    others = [member.node for member in founded.members if member.node != founded.node]
    more = " --brokerset SET" if founded.brokerset else ""
    return [
        f"node {node}  weir init --node {node} --set {members} --system {founded.system:x} "
        f"--logs {founded.logs}{more}"
        for node in others
    ]


def parsed_set(text: str) -> tuple[Member, ...]:
    """Read `1=host:port,2=host:port`. Raises `typer.BadParameter`."""
    return tuple(parsed_member(part) for part in text.split(",") if part)


def parsed_member(text: str) -> Member:
    """Read `1=host:port`. Raises `typer.BadParameter`."""
    from weir.broker.api.settings import Member
    from weir.server.config import split_address

    node, equals, address = text.partition("=")
    try:
        if not (equals and node.isdecimal()):
            raise ValueError(f"is {text!r}: write N=HOST:PORT, as in 2=10.0.0.2:6800")
        host, port = split_address(address)
    except ValueError as error:
        raise typer.BadParameter(f"an address {error}", param_hint="--set") from None
    return Member(int(node), host, port)


def _system(text: str) -> int:
    try:
        return int(text, 16) if text else 0
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: give the id that the first node printed", param_hint="--system"
        ) from None


def _place(text: str) -> tuple[int, str]:
    number, equals, folder = text.partition("=")
    if not (equals and folder and number.isdecimal()):
        raise typer.BadParameter(
            f"{text!r}: write N=FOLDER, as in 1=/disk1/weir", param_hint="--log-dir"
        )
    return int(number), folder


def serve(
    config: FromFile = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    shards: Shards = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    insecure: Insecure = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Stop when stdin ends.")
    ] = False,
) -> None:
    """Run a node until Ctrl-C or SIGTERM; it finishes what is under way, then stops.

    A second Ctrl-C or SIGTERM ends it at once. Settings: `weir config show`.
    """
    from weir.server.network.addresses import in_words
    from weir.server.processes.node import run
    from weir.server.status import configure

    settings = resolved(config, data, host, port, shards, metrics, log_format, insecure).config
    configure(settings.status)

    def started(host: str, port: int) -> None:
        if until_eof:
            stop_at_eof()
        shown = f"[{host}]" if ":" in host else host
        print(f"weir serves weir://{shown}:{port} from {settings.node.data}", flush=True)

    with in_words(settings.node.host, settings.node.port, "--port"):
        drained = run(settings, started)
    if not drained:
        typer.echo(
            f"not everything was drained within {settings.stop.drain_seconds:g} s: unconfirmed "
            "messages may be lost; free some room if a flush waited for it, else raise "
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
    insecure: bool | None = None,
) -> Resolved:
    """Return the file's settings, those of the environment over them, and the given flags'."""
    import os

    from weir.server.config_sources import resolve

    flags: dict[str, tuple[str, Any]] = {
        "node.data": ("--data", data),
        "node.host": ("--host", host),
        "node.port": ("--port", port),
        "node.shards": ("--shards", shards),
        "metrics.listen": ("--metrics", metrics),
        "status.format": ("--log-format", log_format),
        "access.insecure": ("--insecure", insecure),
    }
    given = {key: flag for key, flag in flags.items() if flag[1] is not None}
    return resolve(config, os.environ, given)


def stop_at_eof() -> None:
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


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Check and show a node's settings."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@config_app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a file and the environment; print one line per problem. Exit code 1 if there is one."""
    from weir.cli.output import hint, print_json
    from weir.server.config import BadConfig
    from weir.server.config_sources import resolve

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


@config_app.command()
def show(
    file: FromFile = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    shards: Shards = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    insecure: Insecure = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every setting as `weir serve` would take it here, and where it comes from."""
    from weir.cli.output import hint, print_json, print_table
    from weir.server.config import settings

    found = resolved(file, data, host, port, shards, metrics, log_format, insecure)
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


@config_app.command()
def sample() -> None:
    """Print a commented file of all settings with their defaults."""
    from weir.server.config_sources import sample as text

    print(text(), end="")
