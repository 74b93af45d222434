"""`weir init`: found a node, and fix what cannot be changed later: its numbered logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    data: Annotated[Path, typer.Option(help="The folder to keep everything in.")] = Path(
        "./weir-data"
    ),
    logs: Annotated[
        int, typer.Option(min=0, help="Numbered logs, for good. [default: one a core, from 2]")
    ] = 0,
    log_dir: Annotated[
        list[str] | None,
        typer.Option(metavar="N=FOLDER", help="Keep log N there: each may have a disk of its own."),
    ] = None,
) -> None:
    """Found a node in a folder. `weir serve` does it by itself, with the defaults.

    Partitions are spread over the logs, and the logs dealt to the shards of `weir serve --shards`,
    of which there can be no more than logs: choose as many as the machine may ever have cores.
    """
    from weir.server.folder import BadFolder, NodeFolder

    folder = NodeFolder(data)
    places = dict(_place(text) for text in log_dir or ())
    if folder.founded() is not None:
        raise BadFolder(f"{data} holds a node already: give another folder")
    founded = folder.found(logs, places)
    for number in range(founded.logs):
        print(f"log {number}  {folder.log(number, founded)}")
    print(f"Next: weir serve --data {data}")


def _place(text: str) -> tuple[int, str]:
    number, equals, folder = text.partition("=")
    if not (equals and folder and number.isdecimal()):
        raise typer.BadParameter(
            f"{text!r}: write N=FOLDER, as in 1=/disk1/weir", param_hint="--log-dir"
        )
    return int(number), folder
