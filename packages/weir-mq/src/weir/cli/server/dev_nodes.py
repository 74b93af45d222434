"""`weir dev --nodes N`: a set of real nodes on this machine, each a process with its own folder.

up       all nodes serve; with --json a line that says where, and which processes they are
ended    a node ended by itself, or was killed; with --restart it is started again
started  it serves again
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.cli.interrupts import Interrupted, Signals
from weir.testing.nodes.node_set import NodeSet as DevSet
from weir.testing.nodes.node_set import free_ports as free_ports

_LOOK_SECONDS = 0.02


def run_set(
    folder: Path, nodes: int, shards: int, restart: float | None, as_json: bool, removed: bool
) -> int:
    """Run a set until a signal comes; return the exit code."""
    with Signals() as signals:
        dev = DevSet(folder, nodes, shards)
        try:
            dev.start(signals)
            _say(dev, folder, as_json, removed)
            while True:
                signals.check()
                for event in dev.events(restart):
                    _tell(event, as_json)
                time.sleep(_LOOK_SECONDS)
        except Interrupted:
            return 0
        finally:
            dev.stop()


def _say(dev: DevSet, folder: Path, as_json: bool, removed: bool) -> None:
    if as_json:
        head = {"event": "up", "schema": "weir.set/1", "url": dev.url}
        _tell({**head, "system": f"{dev.system:x}", "nodes": dev.rows()}, as_json)
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


def _tell(event: Mapping[str, Any], as_json: bool) -> None:
    import msgspec

    if as_json:
        print(msgspec.json.encode(event).decode(), flush=True)
    elif event["event"] == "ended":
        print(f"node {event['node']} ended (process {event['pid']})", file=sys.stderr, flush=True)
    else:
        print(f"node {event['node']} started: process {event['pid']}", file=sys.stderr, flush=True)
