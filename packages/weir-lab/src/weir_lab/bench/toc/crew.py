"""The processes of one network on loopback: controller, aggregators, and workers that print JSON.

A worker prints one JSON array a line, of which the first element is a word, and ends when its
standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weir_lab
import weir_raft
import weir_toc
from weir.errors import WeirError
from weir_toc.topology import Topology

#: How long a process may take to say what is waited for, beside the time that it was given.
PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.2


class CrewFailed(WeirError):
    """A process of the network ended, or did not get on; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The tree of switches, the members of the controller, and the interval in ms."""

    racks: int = 1
    spines: int = 0
    cores: int = 0
    members: int = 1
    interval_ms: float = 5.0

    @property
    def switches(self) -> list[str]:
        """The names of all switches."""
        topology = Topology.tree(self.racks, self.spines, self.cores)
        return [one.name for one in topology.switches.values()]


class Crew:
    """Processes that end with the block that started them."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape
        self.url = "toc://" + ",".join(f"127.0.0.1:{port}" for port in _free_ports(shape.members))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        #: The words before commands in the hosts of a tree, if this network runs in one.
        self._hosts: list[list[str]] = []

    def move_in(self, tree: dict[str, Any]) -> None:
        """Let workers run in the hosts of a tree, as `weir-toc net up` describes it."""
        self.url = tree["url"]
        self._hosts = [one["run"] for one in tree["hosts"]]

    def start_in(self, host: int, name: str, *arguments: str) -> None:
        """Start a worker in a host of the tree; on loopback without a tree."""
        self.start(name, *arguments, before=self._hosts[host] if self._hosts else ())

    def start(
        self, name: str, *arguments: str, is_worker: bool = True, before: Sequence[str] = ()
    ) -> None:
        """Start `python` with arguments under a name, behind the words of `before`.

        What a worker prints is read by `wait_for`, and nobody reads what others print: that goes to
        a file.
        """
        sources = {str(Path(one.__path__[0]).parent) for one in (weir_lab, weir_raft, weir_toc)}
        path = os.pathsep.join([*sources, *filter(None, [os.environ.get("PYTHONPATH")])])
        with contextlib.ExitStack() as stack:
            errors, output = (
                stack.enter_context((self.folder / f"{name}.{end}").open("ab"))
                for end in ("err", "out")
            )
            self.running[name] = subprocess.Popen(
                [*before, sys.executable, *arguments], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if is_worker else output,
                stderr=errors, bufsize=0, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    def start_network(self, loss: float = 0.0, seed: int = 0) -> None:
        """Start the controller and an aggregator for each switch, which loses packets."""
        for id in range(1, self.shape.members + 1):
            self.start_member(id)
        for number, switch in enumerate(self.shape.switches):
            self.start_switch(switch, loss, seed * 1_000 + number)

    def start_member(self, id: int) -> None:
        """Start a member of the controller, or start it again."""
        shape = self.shape
        self.start(
            f"controller-{id}", "-m", "weir_toc", "controller", "--id", str(id), "--members",
            self.url, "--folder", str(self.folder / f"controller-{id}"),
            "--racks", str(shape.racks), "--spines", str(shape.spines),
            "--cores", str(shape.cores), "--interval-ms", str(shape.interval_ms), "--json",
            is_worker=False,
        )  # fmt: skip

    def start_switch(self, switch: str, loss: float = 0.0, seed: int = 0) -> None:
        """Start the aggregator of a switch, or start it again."""
        self.start(switch, "-m", "weir_lab.bench.toc.lossy", self.url, switch, str(loss), str(seed),
                   is_worker=False)  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill one by SIGKILL, and wait until it is gone."""
        process = self.running.pop(name)
        process.kill()
        process.wait()
        _close(process)

    def wait_for(self, name: str, word: str, seconds: float = 0.0) -> list[Any]:
        """Return the next line of a worker, which must begin with this word."""
        line = self.next_line(name, word, time.monotonic() + PATIENCE_SECONDS + seconds)
        found = json.loads(line)
        if found[0] != word:
            raise CrewFailed(f"{name} said {found}, and {word!r} was due")
        return list(found)

    def next_line(self, name: str, word: str, until: float) -> bytes:
        """Return the next line of a worker. Raises CrewFailed if `word` is not said in time."""
        process = self.running[name]
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            self.check()
            ready, _, _ = select.select([process.stdout], [], [], _LOOK_SECONDS)
            if ready:
                line += process.stdout.read(65_536)
            elif time.monotonic() > until:
                raise CrewFailed(f"{name} did not say {word!r}: {self._last_words(name)}")
        return line.splitlines()[-1]

    def check(self) -> None:
        """Raise CrewFailed if any process has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise CrewFailed(f"{name} ended: {self._last_words(name)}")

    def tell(self, name: str, line: str = "") -> None:
        """Give a process a line."""
        stdin = self.running[name].stdin
        assert stdin is not None
        stdin.write(line.encode() + b"\n")

    def end_politely(self, name: str) -> None:
        """End one by SIGTERM, so that it can take down what it has built; wait for that."""
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)

    def end(self) -> None:
        """Kill all processes, the workers first."""
        for process in [*self.running.values()][::-1]:
            process.kill()
        for process in self.running.values():
            process.wait()
            _close(process)

    def _last_words(self, name: str) -> str:
        text = (self.folder / f"{name}.err").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it wrote no error"


@contextlib.contextmanager
def crew(folder: Path, shape: Shape) -> Iterator[Crew]:
    """Processes in a folder, which are ended at the end."""
    made = Crew(folder, shape)
    try:
        yield made
    finally:
        made.end()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found
