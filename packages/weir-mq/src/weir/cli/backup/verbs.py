"""The verbs `backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.connection import DEFAULT_URL, Url, connected

if TYPE_CHECKING:
    from weir.cli.backup.manifest import Manifest
    from weir.client.client import Client


KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="WEIR__ACCESS__KEY_FILE",
        help="The nodes' key file: it authenticates the backup, and may encrypt it.",
    ),
]


def backup(
    to: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    folder: Annotated[
        Path | None,
        typer.Argument(help="A stopped node's data folder. [default: topics of a running node]"),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; may be repeated. [default: all]")
    ] = None,
    key_file: KeyFile = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt the files of the backup by the key file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Copy a stopped node's folder, or the topics of a running node; verified when written.

    A copy of the folder keeps everything. Topics of a running node: settings and messages with
    keys, tags, times and headers; not clusters' positions, producers, devices' origins, delays or
    expiries. A backup skips damaged places of the log, names them, and exits with code 1.
    """
    from weir.cli.backup import folders, topics
    from weir.cli.backup.sealing import new_seal
    from weir.cli.output import progress

    seal = new_seal(key_file, encrypt)
    if folder is not None:
        if topic:
            raise typer.BadParameter("a folder is copied whole", param_hint="--topic")
        _tell(folders.back_up(folder, to, seal), to, as_json)
        return

    async def work(client: Client) -> Manifest:
        names = topic or [f"{info.namespace}/{info.name}" for info in await client.topics()]
        ends = [await client.positions(name) for name in names]
        total = sum(sum(behind) - sum(first) for first, behind in ends)
        with progress("messages", total) as show:
            return await topics.back_up(client, names, to, show, seal)

    manifest = connected(url, work)
    missing = _missing(manifest)
    _tell(manifest, to, as_json, changes=missing)
    if missing:
        typer.echo("the backup holds all that can be read, and not everything", err=True)
        raise typer.Exit(1)


def restore(
    backup: Annotated[Path, typer.Argument(help="A folder that `weir backup` wrote.")],
    data: Annotated[
        Path | None, typer.Option(help="Restore a node's folder to this one; new or empty.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="weir://HOST[:PORT]", help="Publish the topics to this node."),
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Restore all topics to this namespace. [default: their own]")
    ] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Only check the backup.")] = False,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Restore a backup and verify it; nothing is overwritten.

    A folder is restored to --data, unchanged: never run it beside the node that it was copied from.
    Topics are published to --to: offsets are the same where the backup begins at 0, stamps are
    new, and messages that were delayed or had expired are delivered like all others. In a closed
    set, this needs the right to restore in the namespaces of the backup and in those of the topics.
    """
    from weir.cli.backup import folders, topics
    from weir.cli.backup.manifest import BadBackup, decrypted, read_sealed
    from weir.cli.backup.manifest import verify as check
    from weir.cli.output import hint, progress

    manifest, seal = read_sealed(backup, key_file)
    if verify:
        check(backup, manifest)
        _tell(manifest, backup, as_json, "Next: weir restore")
        return
    if manifest.kind == "folder":
        if data is None or to is not None or namespace:
            raise BadBackup(f"{backup} is a node's folder: put it back with --data FOLDER")
        if seal is not None:
            check(backup, manifest)
        data.absolute().parent.mkdir(parents=True, exist_ok=True)
        with decrypted(backup, manifest, seal, data.absolute().parent) as (plain, opened):
            folders.restore(plain, opened, data)
        _tell(manifest, data, as_json, f"Next: weir serve --data {data}")
        return
    if to is None or data is not None:
        raise BadBackup(
            f"{backup} holds topics: start a node (`weir serve --data FOLDER`), then give --to "
            "weir://HOST:PORT"
        )
    check(backup, manifest)
    total = sum(part.messages for topic in manifest.topics for part in topic.partitions)
    address = to if "://" in to else f"weir://{to}"

    async def work(client: Client) -> list[str]:
        with progress("messages", total) as show:
            return await topics.restore(client, plain, opened, show, namespace)

    with decrypted(backup, manifest, seal) as (plain, opened):
        changes = connected(address, work)
    _tell(manifest, address, as_json, "", changes)
    if not as_json:
        hint(f"Next: weir topic list --url {address}")


def _tell(
    manifest: Manifest,
    place: Path | str,
    as_json: bool,
    next_: str = "",
    changes: list[str] | None = None,
) -> None:
    from weir.cli.output import counted, hint, print_json

    messages = sum(part.messages for topic in manifest.topics for part in topic.partitions)
    size = sum(file.bytes for file in manifest.files)
    results = {
        "kind": manifest.kind,
        "files": len(manifest.files),
        "bytes": size,
        "topics": len(manifest.topics),
        "messages": messages,
        "changes": changes or [],
    }
    if as_json:
        print_json("weir.backup/1", {"place": str(place)}, results)
        return
    what = "a node's folder" if manifest.kind == "folder" else (
        f"{counted(len(manifest.topics), 'topic')}, {counted(messages, 'message')}"
    )  # fmt: skip
    print(f"{place}: {what}, {counted(size, 'byte')} in {counted(len(manifest.files), 'file')}")
    for line in changes or ():
        print(f"  {line}")
    hint(next_ or f"Next: weir restore {place} --verify")


def _missing(manifest: Manifest) -> list[str]:
    """Return a line for each place that could not be read."""
    return [
        f"{topic.full_name}/{part.partition}: offsets {first:,} to {behind - 1:,} are missing: "
        "the log is damaged there"
        for topic in manifest.topics
        for part in topic.partitions
        for first, behind in part.holes
    ]
