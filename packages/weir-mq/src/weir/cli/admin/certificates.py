"""`weir cert`: a private CA of a set, and certificates of its nodes, users and devices.

The folder of the CA stays with the operator. What is issued is copied to the machines by whatever
copies other secrets there; running nodes take it by themselves.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from weir.tls.authority import Issued
    from weir.tls.identity import Identity

app = typer.Typer(name="cert", help="Make and renew the certificates of nodes and clients.")

Folder = Annotated[
    Path,
    typer.Option(
        "--folder", envvar="WEIR_CA_FOLDER", show_envvar=True, help="The folder of the CA."
    ),
]
DEFAULT_FOLDER = Path("./weir-ca")
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Days = Annotated[
    int | None,
    typer.Option(help="How long it is valid. [default: node 397, user 90, device 3650]"),
]
Name = Annotated[str, typer.Argument(help="As `weir cert list` shows it, or a serial number.")]
#: How long `reload` waits for a node, in seconds: it looks at its files twice a second.
_RELOAD_SECONDS = 15.0
_POLL_SECONDS = 0.1
_SOON_DAYS = 14


class Kind(StrEnum):
    """What a certificate is for."""

    NODE = "node"
    USER = "user"
    DEVICE = "device"


class Step(StrEnum):
    """A step of replacing the CA."""

    PREPARE = "prepare"
    SWITCH = "switch"
    FINISH = "finish"


@app.callback(invoke_without_command=True)
def cert(context: typer.Context) -> None:
    """Make and renew the certificates of nodes and clients."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def init(
    folder: Folder = DEFAULT_FOLDER,
    system: Annotated[
        str, typer.Option(help="The id of the system, as `weir node status` shows it.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="Read the id of the system from this node's data folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the private CA of a set. Without --system or --data it is for a set to come."""
    from weir.cli.output import print_json
    from weir.server.disk.node_folder import new_system
    from weir.tls.authority import begun

    number = _system(system, data)
    is_new = number == 0
    with begun(folder, number or new_system()) as ca:
        found = {"system": f"{ca.system:x}", "ca": str(ca.bundle)}
        if as_json:
            print_json("weir.cert/1", {"folder": str(folder)}, found)
            return
        print(f"CA of system {ca.system:x} in {folder}: keep this folder, its keys are the set's")
        if is_new:
            print(f"Found its nodes by: weir init --system {ca.system:x} ...")
        print("Next: weir cert issue node 1 --host NAME")


@app.command()
def issue(
    kind: Annotated[Kind, typer.Argument(help="Its kind.")],
    who: Annotated[
        str, typer.Argument(help="A node's number, NAMESPACE/NAME, or HUB or HUB/GENERATION.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the node; may be given several times."),
    ] = None,
    brokerset: Annotated[
        int, typer.Option(min=0, help="Of a node: the id of its BrokerSet in the topology.")
    ] = 0,
    days: Days = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Issue a certificate with a new key."""
    from weir.tls.authority import opened

    if brokerset and kind is not Kind.NODE:
        raise typer.BadParameter(
            "users and devices belong to no BrokerSet: leave it out", param_hint="--brokerset"
        )
    with opened(folder) as ca:
        identity = _identity(ca.system, brokerset or ca.set, kind, who)
        _print_one(ca.issue(identity, host or (), days), as_json)


@app.command()
def renew(
    name: Name, days: Days = None, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False
) -> None:
    """Issue a certificate again, with a new key, by the CA that signs now."""
    from weir.tls.authority import opened

    with opened(folder) as ca:
        _print_one(ca.renew(name, days), as_json)


@app.command("list")
def list_issued(folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """List what was issued, and when it ends."""
    from weir.cli.output import print_json, print_table
    from weir.tls.authority import opened

    with opened(folder) as ca:
        found = ca.issued()
    if as_json:
        settings = {"folder": str(folder)}
        print_json("weir.certs/1", settings, {"certificates": [*map(_row, found)]})
    elif found:
        rows = [(one.name, str(one.identity), _ends(one), one.ca, one.serial) for one in found]
        print_table(("NAME", "IDENTITY", "ENDS", "CA", "SERIAL"), rows)
    else:
        print("nothing is issued yet: weir cert issue node 1 --host NAME")


@app.command()
def revoke(name: Name, folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Have nodes refuse a certificate, and end its sessions, once they have `revoked.txt`."""
    from weir.cli.output import print_json
    from weir.tls.authority import REVOKED, opened

    with opened(folder) as ca:
        one = ca.revoke(name)
    if as_json:
        print_json("weir.cert/1", {"folder": str(folder)}, _row(one))
        return
    print(f"{one.name}, serial {one.serial}, is revoked: copy {folder / REVOKED} to all nodes")


@app.command("rotate-ca")
def rotate_ca(
    step: Annotated[Step, typer.Argument(help="prepare, then switch, then finish.")],
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Take a step of replacing the CA: both are trusted until all certificates are of the new."""
    from weir.cli.output import print_json
    from weir.tls.authority import opened

    with opened(folder) as ca:
        next_step = ca.rotate(step.value)
    if as_json:
        print_json("weir.cert/1", {"folder": str(folder)}, {"step": step, "next": next_step})
    else:
        print(next_step)


@app.command()
def reload(
    data: Annotated[
        Path, typer.Option(help="The data folder of the node, or the folder of a relay.")
    ] = Path("./weir-data"),
    as_json: AsJson = False,
) -> None:
    """Have the node or relay of a folder read its files now, and say what it serves.

    It reads them by itself within a second of a change; this tells whether it took them.
    """
    from secrets import token_hex

    from weir.cli.output import LINE_SECONDS, print_json, tell_waiting
    from weir.server.disk.node_folder import BadFolder, NodeFolder
    from weir.server.network.certificate_files import ASKED, states

    is_relay = (data / "relay.json").exists()
    if not is_relay and NodeFolder(data).endpoint() is None:
        raise BadFolder(f"no node runs in {data}: it reads its files when it starts")
    shards = states(data)
    if not shards:
        given = "start it with --tls-certificate, --tls-key and --tls-trust" if is_relay else (
            "set tls.certificate, tls.key and tls.trust"
        )  # fmt: skip
        raise BadFolder(f"the process that serves {data} has no certificate: {given}")
    asked = token_hex(8)
    (data / ASKED).write_text(asked, encoding="utf-8")
    began = told = time.monotonic()
    while late := [shard for shard, state in shards.items() if state.asked != asked]:
        if (now := time.monotonic()) > began + _RELOAD_SECONDS:
            raise BadFolder(
                f"shards {late} did not answer within {_RELOAD_SECONDS:g} s: see whether the node "
                "runs (`weir node status`), and its log"
            )
        if now >= told + LINE_SECONDS:
            told = now
            tell_waiting(f"waiting for shards {late}", began)
        time.sleep(_POLL_SECONDS)
        shards = states(data)
    problems = sorted({state.problem for state in shards.values() if state.problem})
    if as_json:
        rows = [
            {"shard": shard, "serial": state.serial, "identity": state.identity,
             "ends": state.ends, "problem": state.problem}
            for shard, state in sorted(shards.items())
        ]  # fmt: skip
        print_json("weir.cert-reload/1", {"data": str(data)}, {"shards": rows})
    else:
        for shard, state in sorted(shards.items()):
            ends = time.strftime("%Y-%m-%d", time.gmtime(state.ends))
            print(f"shard {shard} serves {state.identity}, serial {state.serial}, until {ends}")
    if problems:
        for problem in problems:
            typer.echo(f"the files are not taken: {problem}", err=True)
        raise typer.Exit(1)


def _system(text: str, data: Path | None) -> int:
    from weir.server.disk.node_folder import BadFolder, NodeFolder

    if text and data is not None:
        raise typer.BadParameter("give --system or --data, not both", param_hint="--system")
    if data is not None:
        founded = NodeFolder(data).founded()
        if founded is None:
            raise BadFolder(f"{data} holds no node: `weir init --data {data}` founds one")
        return founded.system
    try:
        return int(text, 16) if text else 0
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: give the id as `weir node status` shows it", param_hint="--system"
        ) from None


def _identity(system: int, brokerset: int, kind: Kind, who: str) -> Identity:
    from weir.tls.identity import parse_identity

    if kind is Kind.USER and "/" not in who:
        who = f"default/{who}"
    if kind is Kind.DEVICE:
        hub, _, generation = who.partition("/")
        who = f"{_hub(hub)}/{generation or 0}"
    return parse_identity(f"weir://{system:x}/{brokerset}/{kind.value}/{who}")


def _hub(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no hub: give a number, as 2583 or 0xa17", param_hint="WHO"
        ) from None


def _row(one: Issued) -> dict[str, Any]:
    return {
        "name": one.name, "identity": str(one.identity), "serial": one.serial,
        "ends": one.ends.isoformat(), "hosts": list(one.hosts), "ca": one.ca,
        "revoked": one.revoked, "certificate": str(one.certificate), "key": str(one.key),
    }  # fmt: skip


def _ends(one: Issued) -> str:
    from datetime import UTC, datetime

    days = (one.ends - datetime.now(UTC)).days
    note = "" if days >= _SOON_DAYS else " expired" if days < 0 else f" in {days} days"
    return f"{one.ends:%Y-%m-%d}{note}"


def _print_one(one: Issued, as_json: bool) -> None:
    from weir.cli.output import print_json

    if as_json:
        print_json("weir.cert/1", {"folder": str(one.certificate.parent.parent)}, _row(one))
        return
    print(f"{one.identity} until {one.ends:%Y-%m-%d}: {one.certificate}, {one.key}")
