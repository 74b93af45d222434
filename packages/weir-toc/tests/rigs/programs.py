"""Real processes: members of the controller, aggregators and what tests run beside them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weir_toc

#: Tests wait for states, and fail when one does not come for so long.
PATIENCE_SECONDS = 60.0


def free_ports(count: int, kind: int = socket.SOCK_STREAM) -> list[int]:
    """Return ports that nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_INET, kind))
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found


class Programs:
    """Processes that end with the test, each started by a command of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = free_ports(3)
        self.url = "toc://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `python` with arguments; its output goes to files of its name."""
        source = str(Path(weir_toc.__file__).parents[1])
        paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / f"{name}.out").open("ab") as out, (
            self.folder / f"{name}.err"
        ).open("ab") as err:  # fmt: skip
            one = subprocess.Popen(
                [sys.executable, *arguments], stdout=out, stderr=err, stdin=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
            )  # fmt: skip
        self.running[name] = one
        return one

    def controller(self, id: int, *more: str) -> None:
        """Start or restart a member of the controller."""
        self.start(f"controller-{id}", "-m", "weir_toc", "controller", "--id", str(id), "--members",
                   self.url, "--folder", str(self.folder / f"member-{id}"), *more)  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill one by SIGKILL, and wait until it is gone."""
        one = self.running.pop(name)
        one.send_signal(signal.SIGKILL)
        one.wait()
        if one.stdin is not None:
            one.stdin.close()

    def errors(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def status(self) -> tuple[int, dict[str, Any]]:
        """Return exit code and answer of `weir-toc status --json`."""
        source = str(Path(weir_toc.__file__).parents[1])
        paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "weir_toc", "status", self.url, "--json"], check=False,
            capture_output=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    def leader(self) -> dict[str, Any]:
        """Wait for a leader that has founded the network; return its status."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            for one in self.status()[1]["members"]:
                if one.get("role") == "leader" and one.get("network"):
                    return dict(one)
            time.sleep(0.05)
        raise AssertionError(f"no leader: {self.status()}")

    def end(self) -> None:
        for name in [*self.running]:
            self.kill(name)


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Programs]:
    """Processes in a folder, which are ended at the end."""
    made = Programs(folder)
    try:
        yield made
    finally:
        made.end()
