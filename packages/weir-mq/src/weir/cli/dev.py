"""`weir dev`: a node to play with, or a set of them; without --data its folder is removed."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.retention import duration

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.testing.nodes import NodeSet

EXAMPLE = "example"
_LOOK_SECONDS = 0.02


def dev(
    data: Annotated[
        Path | None,
        typer.Option(help="Keep the data in this folder. [default: one that is removed]"),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=9, help="How many nodes to run, one process each.")
    ] = 1,
    shards: Annotated[
        int, typer.Option(min=1, help="With --nodes: how many shards each of them has.")
    ] = 1,
    restart: Annotated[
        str | None,
        typer.Option(help="With --nodes: restart a node that ended after this time, as in `2s`."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --nodes: print one line of JSON per event.")
    ] = False,
) -> None:
    """Run a temporary node on free ports until Ctrl-C, with an example topic.

    With --nodes it runs a set of nodes that holds every message on up to three nodes.
    """
    if nodes > 1:
        pause = duration("--restart", restart) if restart else None
        with _folder(data) as folder:
            raise typer.Exit(_run_set(folder, nodes, shards, pause, as_json, data is None))
    if shards > 1 or restart is not None or as_json:
        raise typer.BadParameter("--shards, --restart and --json go with --nodes 2 and more")
    import threading

    from weir.server.config import (
        DEFAULT_PORT,
        Config,
        LogConfig,
        MemoryConfig,
        MetricsConfig,
        NodeConfig,
        StatusConfig,
    )
    from weir.server.network.addresses import in_words
    from weir.server.processes.node import run
    from weir.server.status import configure

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


def _run_set(
    folder: Path, nodes: int, shards: int, restart: float | None, as_json: bool, removed: bool
) -> int:
    """Run a set of nodes until a signal comes, and tell what happens; return the exit code.

    up       all nodes serve; with --json a line that says where, and which processes they are
    ended    a node ended by itself, or was killed; with --restart it is started again
    started  it serves again
    """
    import time

    from weir.cli.process import Interrupted, Signals
    from weir.testing.nodes import NodeSet

    with Signals() as signals:
        dev = NodeSet(folder, nodes, shards)
        try:
            dev.start(signals)
            _say_nodes(dev, folder, as_json, removed)
            while True:
                signals.check()
                for event in dev.events(restart):
                    _tell_event(event, as_json)
                time.sleep(_LOOK_SECONDS)
        except Interrupted:
            return 0
        finally:
            dev.stop()


def _say_nodes(dev: NodeSet, folder: Path, as_json: bool, removed: bool) -> None:
    if as_json:
        head = {"event": "up", "schema": "weir.set/1", "url": dev.url}
        _tell_event({**head, "system": f"{dev.system:x}", "nodes": dev.rows()}, as_json)
        return
    print(f"weir serves {dev.url} from {folder}{' (removed at the end)' if removed else ''}")
    for row in dev.rows():
        print(f"  node {row['node']}  port {row['port']}  process {row['pid']}  {row['metrics']}")
    print(
        "\nTry this in a second terminal:\n"
        f"  export WEIR_URL={dev.url}\n"
        "  weir node status\n"
        "  weir topic create example --partitions 3\n"
        "  weir tail example\n\n"
        "and kill a node while somebody publishes. Ctrl-C ends all of them.",
        flush=True,
    )


def _tell_event(event: Mapping[str, Any], as_json: bool) -> None:
    import msgspec

    if as_json:
        print(msgspec.json.encode(event).decode(), flush=True)
    elif event["event"] == "ended":
        print(f"node {event['node']} ended (process {event['pid']})", file=sys.stderr, flush=True)
    else:
        print(f"node {event['node']} started: process {event['pid']}", file=sys.stderr, flush=True)


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
