"""`weir dev --nodes N`: a set of real nodes on this machine, each a process with its own folder.

up       all nodes serve; with --json a line that says where, and which processes they are
ended    a node ended by itself, or was killed; with --restart it is started again
started  it serves again
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.bench.children import environment, python
from weir.bench.node import START_SECONDS, Node, NodeFailed
from weir.broker.identity import Member
from weir.cli.demo.signals import Interrupted, Signals
from weir.server.folder import BadFolder, Founded, NodeFolder, Part, new_system

_HOST = "127.0.0.1"
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 1.0
#: Below those that connections are given by themselves, so that they stay free until they are used.
_PORTS_TO = 32_000
_ports_from = [20_000 + os.getpid() % 10_000]
#: What a throw-away node needs less of than a real one; the environment wins.
_SMALL = {
    "WEIR__MEMORY__BUDGET_MIB": "128",
    "WEIR__MEMORY__CACHE_MIB": "64",
    "WEIR__LOG__SEGMENT_MIB": "32",
    "WEIR__LOG__SPARES": "0",
    "WEIR__STATUS__LEVEL": "warning",
}


@dataclass(slots=True)
class _Running:
    """A node of the set: where it lies and listens, and its process while there is one."""

    member: Member
    folder: Path
    output: Path
    figures: str
    shards: int
    node: Node | None = None
    #: When to start it again, if it is to be.
    again_at: float = 0.0

    def start(self) -> None:
        """Start its process."""
        command = python(
            "weir.cli", "serve", "--data", str(self.folder), "--host", self.member.host,
            "--port", str(self.member.port), "--shards", str(self.shards),
            "--metrics", self.figures, "--until-eof",
        )  # fmt: skip
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                command,
                # The pipe closes when this process ends, however it does, and the node follows.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_SMALL, **environment()},
                # Ctrl-C is for whoever started the set, who then stops the nodes in order.
                start_new_session=True,
            )
        self.node = Node(process, self.folder, self.output)

    @property
    def up(self) -> bool:
        """Whether it leads or follows in all it holds. Raises `NodeFailed` if it has ended."""
        assert self.node is not None
        endpoint = NodeFolder(self.folder).endpoint()
        if endpoint is not None and endpoint.pid == self.node.pid and _ready(self.figures):
            return True
        if not self.node.running:
            raise NodeFailed(f"node {self.member.node} ended: {self.node.last_words()}")
        return False

    def row(self) -> dict[str, Any]:
        """Return what a program needs to know of it."""
        assert self.node is not None
        return {
            "node": self.member.node,
            "pid": self.node.pid,
            "host": self.member.host,
            "port": self.member.port,
            "data": str(self.folder),
            "metrics": f"http://{self.figures}/metrics",
            "output": str(self.output),
        }


class DevSet:
    """The nodes of a set, from their start to their end."""

    def __init__(self, folder: Path, nodes: int, shards: int) -> None:
        """Found as many nodes in `folder`, or take those that were founded there."""
        ports = [free_ports(1 + shards) for _ in range(nodes)]
        founded = _founded(folder, nodes, shards, [first for first, *_ in ports])
        self.system = founded[0].system
        self.members = founded[0].members
        self._nodes = [
            _Running(
                member,
                _folder(folder, member.node),
                folder / f"node-{member.node}.log",
                f"{_HOST}:{ports[at][1]}",
                shards,
            )
            for at, member in enumerate(self.members)
        ]

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return "weir://" + ",".join(f"{member.host}:{member.port}" for member in self.members)

    def rows(self) -> list[dict[str, Any]]:
        """Return what a program needs to know of each node."""
        return [one.row() for one in self._nodes]

    def start(self, signals: Signals, seconds: float = START_SECONDS) -> None:
        """Start all nodes and return once clients may connect to each. Raises `NodeFailed`."""
        for one in self._nodes:
            one.start()
        self._wait(self._nodes, signals, seconds)

    def _wait(self, nodes: Sequence[_Running], signals: Signals, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # All are asked: one raises if its process has ended, though another is not up yet.
        while sum(one.up for one in nodes) < len(nodes):
            signals.check()
            if time.monotonic() > deadline:
                late = next(one for one in nodes if not one.up)
                assert late.node is not None
                raise NodeFailed(
                    f"node {late.member.node} is not up after {seconds:g} s: "
                    f"{late.node.last_words()}"
                )
            time.sleep(_LOOK_SECONDS)

    def events(self, restart: float | None) -> list[dict[str, Any]]:
        """Return what has happened since the last call; with `restart` a node that ended is started
        again so many seconds later.
        """
        found = []
        now = time.monotonic()
        for one in self._nodes:
            if one.node is None:
                if restart is not None and now >= one.again_at:
                    one.start()
                    found.append({"event": "started", **one.row()})
            elif not one.node.running:
                found.append({"event": "ended", "node": one.member.node, "pid": one.node.pid})
                one.node.kill()
                one.node, one.again_at = None, now + (restart or 0.0)
        return found

    def node(self, number: int) -> Node:
        """Return the process of a node that runs."""
        found = self._nodes[number - 1].node
        assert found is not None
        return found

    def restart(self, number: int, signals: Signals, seconds: float = START_SECONDS) -> None:
        """Start a node again that has ended; return once it serves. Raises `NodeFailed`."""
        one = self._nodes[number - 1]
        one.start()
        self._wait([one], signals, seconds)

    def stop(self) -> None:
        """Let all nodes drain and end; kill those that do not. Raises `NodeFailed` for them."""
        running = [one.node for one in self._nodes if one.node is not None]
        for node in running:
            node.terminate()
        failed = []
        for node in running:
            try:
                node.stop()
            except NodeFailed as error:
                failed.append(error)
        if failed:
            raise failed[0]


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


def _ready(figures: str) -> bool:
    """Return what a node says of itself at its address for figures."""
    host, _, port = figures.rpartition(":")
    asking = http.client.HTTPConnection(host, int(port), timeout=_ANSWER_SECONDS)
    try:
        asking.request("GET", "/readyz")
        return asking.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        asking.close()


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


def _founded(folder: Path, nodes: int, shards: int, ports: Sequence[int]) -> list[Founded]:
    known = NodeFolder(_folder(folder, 1)).founded()
    if known is not None and len(known.members) != nodes:
        raise BadFolder(
            f"{folder} holds a set of {len(known.members)} nodes, not {nodes}: give another folder"
        )
    members = known.members if known else tuple(
        Member(node, _HOST, ports[node - 1]) for node in range(1, nodes + 1)
    )  # fmt: skip
    system = known.system if known else new_system()
    logs = known.logs if known else shards
    return [
        NodeFolder(_folder(folder, member.node)).found(
            logs, None, Part(member.node, members, system)
        )
        for member in members
    ]


def _folder(folder: Path, node: int) -> Path:
    return folder / f"node-{node}"


def free_ports(count: int) -> range:
    """Return so many ports in a row that nobody listens on, and that no call returned before."""
    import socket

    for first in range(_ports_from[0], _PORTS_TO - count, count):
        found = range(first, first + count)
        try:
            for port in found:
                socket.create_server((_HOST, port)).close()
        except OSError:
            continue
        _ports_from[0] = found.stop
        return found
    raise NodeFailed("no ports are free: see what listens on this machine")
