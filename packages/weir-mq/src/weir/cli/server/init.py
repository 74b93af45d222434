"""`weir init`: found a node, and fix what cannot be changed later: its logs, and its set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weir.broker.api.settings import Member
    from weir.server.disk.node_folder import Founded


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
) -> None:
    """Create a node in a folder. `weir serve` does so by itself, with the defaults.

    Partitions are spread over the logs, and the logs over the shards of `weir serve --shards`.
    There can be no more shards than logs: choose as many logs as the machine may ever have cores.

    Create several nodes with the same --set, one after the other: the first draws the id of the
    system and prints the commands for the others.
    """
    from weir.server.disk.node_folder import BadFolder, NodeFolder, Part

    folder = NodeFolder(data)
    places = dict(_place(text) for text in log_dir or ())
    if folder.founded() is not None:
        raise BadFolder(f"{data} holds a node already: give another folder")
    part = Part(node, parsed_set(members), _system(system))
    founded = folder.found(logs, places, part)
    for number in range(founded.logs):
        print(f"log {number}  {folder.log(number, founded)}")
    if not system:
        for line in for_others(founded, members):
            print(line)
    own = next((member for member in founded.members if member.node == node), None)
    where = f" --host {own.host} --port {own.port}" if own else ""
    print(f"Next: weir serve --data {data}{where}")


def for_others(founded: Founded, members: str) -> list[str]:
    """Return what to type to found the other nodes of a set."""
    others = [member.node for member in founded.members if member.node != founded.node]
    return [
        f"node {node}  weir init --node {node} --set {members} --system {founded.system:x} "
        f"--logs {founded.logs}"
        for node in others
    ]


def parsed_set(text: str) -> tuple[Member, ...]:
    """Read `1=host:port,2=host:port`. Raises `typer.BadParameter`."""
    return tuple(parsed_member(part) for part in text.split(",") if part)


def parsed_member(text: str) -> Member:
    """Read `1=host:port`. Raises `typer.BadParameter`."""
    from weir.broker.api.settings import Member
    from weir.server.config.sections import split_address

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
