"""`weir dev`: a node to play with, in one command; what it holds goes with it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli.retention import duration

if TYPE_CHECKING:
    from weir.client.client import Client

EXAMPLE = "example"


def dev(
    data: Annotated[
        Path | None,
        typer.Option(help="Keep everything in this folder. [default: one that is removed]"),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=9, help="How many nodes, a process each, share the data.")
    ] = 1,
    shards: Annotated[
        int, typer.Option(min=1, help="With --nodes: how many shards each of them has.")
    ] = 1,
    restart: Annotated[
        str | None,
        typer.Option(help="With --nodes: start one that ended again, after so long: `2s`."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --nodes: a line of JSON for all that happens.")
    ] = False,
) -> None:
    """Run a throw-away node on free ports until Ctrl-C, with a topic to try things with.

    With --nodes, a set of them that holds every message on up to three nodes.
    """
    if nodes > 1:
        from weir.cli.server.dev_nodes import run_set

        pause = duration("--restart", restart) if restart else None
        with _folder(data) as folder:
            raise typer.Exit(run_set(folder, nodes, shards, pause, as_json, data is None))
    if shards > 1 or restart is not None or as_json:
        raise typer.BadParameter("--shards, --restart and --json go with --nodes 2 and more")
    import threading

    from weir.server.config.sections import (
        DEFAULT_PORT,
        Config,
        LogConfig,
        MemoryConfig,
        MetricsConfig,
        NodeConfig,
        StatusConfig,
    )
    from weir.server.network.addresses import in_words
    from weir.server.observability.status import configure
    from weir.server.processes.node import run

    quiet = StatusConfig(level="warning")
    configure(quiet)
    figures = f"127.0.0.1:{_free(DEFAULT_PORT + 1)}"

    def started(host: str, port: int) -> None:
        # A thread of its own: the node's loop must go on while the topic is made.
        words = (f"weir://{host}:{port}", f"http://{figures}/metrics", str(folder), data is None)
        threading.Thread(target=_welcome, args=words, name="weir-dev", daemon=True).start()

    with _folder(data) as folder:
        config = Config(
            node=NodeConfig(
                data=str(folder), port=_free(DEFAULT_PORT), shards=1, logs=_logs(folder)
            ),
            memory=MemoryConfig(budget_mib=128, cache_mib=64),
            # Small files, none ahead: the folder is soon made and soon removed.
            log=LogConfig(segment_mib=32, spares=0),
            metrics=MetricsConfig(figures),
            status=quiet,
        )
        with in_words(config.node.host, config.node.port, "--port"):
            drained = run(config, started)
    if not drained:
        raise typer.Exit(1)


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="weir-dev-") as name:
        yield Path(name)


def _logs(folder: Path) -> int:
    """Return how many logs to found a node with: one, or 0 for what one that is there has.

    Raises `BadFolder` if a set of nodes is there.
    """
    from weir.server.disk.node_folder import BadFolder, NodeFolder

    if NodeFolder(folder / "node-1").founded() is not None:
        raise BadFolder(f"{folder} holds a set of nodes: say how many by --nodes")
    return 0 if NodeFolder(folder).founded() is not None else 1


def _free(port: int) -> int:
    """Return `port` if nobody listens there, else one that is free now."""
    import socket

    for wanted in (port, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", wanted)) as one:
            found: int = one.getsockname()[1]
            return found
    return 0


def _welcome(url: str, figures: str, folder: str, removed: bool) -> None:
    from weir.cli.connection import connected
    from weir.cli.output import hint
    from weir.errors import WeirError

    async def make(client: Client) -> None:
        await client.create_topic(EXAMPLE, 2)

    try:
        connected(url, make)
    except WeirError as error:  # it is being stopped already, as a rule
        print(error, file=sys.stderr)
        return
    # Nothing to type where the address is the one that every verb takes by itself.
    given = "" if url.endswith(":6800") else f"export WEIR_URL={url}\n  "
    print(
        f"weir serves {url} from {folder}{' (removed at the end)' if removed else ''}\n"
        f"figures: {figures}\n\n"
        "Try this in a second terminal:\n"
        f"  {given}weir tail {EXAMPLE}\n\n"
        "and in a third:\n"
        f"  {given}weir pub {EXAMPLE} hello --key me\n\n"
        "or from Python:\n"
        f'  async with weir.connect("{url}") as w:\n'
        f'      await w.publish("{EXAMPLE}", b"hello")\n',
        flush=True,
    )
    hint("Ctrl-C ends it. A tour: weir demo")
