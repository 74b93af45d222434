"""`weir-toc net up` as a process of its own, and what is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weir_toc
from rigs.programs import PATIENCE_SECONDS
from weir_toc.errors import TocError
from weir_toc.net.namespaces import check_needs

#: One host below one switch, for tests of what becomes of a tree.
SMALL = ("--hosts", "1", "--racks", "1", "--spines", "0", "--cores", "0", "--members", "1",
         "--interval-ms", "100")  # fmt: skip


def missing() -> str:
    """What this machine lacks for a tree; empty as root on a usual Linux."""
    try:
        check_needs()
    except TocError as error:
        return str(error)
    return ""


class TreeProcess:
    """A tree that is up. `facts` is what it printed last."""

    def __init__(self, process: subprocess.Popen[bytes], facts: dict[str, Any]) -> None:
        self.process = process
        self.facts = facts
        #: The first process of the tree, by its id outside.
        self.first = int(next(
            word for word in self.command("host-0") if word.startswith("--target=")
        ).partition("=")[2])  # fmt: skip
        self.namespace = namespace_of(self.first)

    def command(self, node: str) -> list[str]:
        """The words before a command that runs in a node."""
        return next(
            one["run"]
            for one in (*self.facts["hosts"], *self.facts["switches"])
            if one["name"] == node
        )

    def run(self, node: str, *words: str) -> str:
        """Run a command in a node; return what it prints."""
        done = subprocess.run([*self.command(node), *words], capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def start(*options: str) -> subprocess.Popen[bytes]:
    """Start `weir-toc net up --json`."""
    source = str(Path(weir_toc.__file__).parents[1])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "weir_toc", "net", "up", "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


@contextlib.contextmanager
def tree(*options: str) -> Iterator[TreeProcess]:
    """A tree that is ended by SIGTERM at the end, unless it has ended."""
    process = start(*options)
    try:
        yield TreeProcess(process, _last_line(process))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _last_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the line that says that the tree is up."""
    assert process.stdout is not None
    text, until = b"", time.monotonic() + PATIENCE_SECONDS
    while b'"event": "up"' not in text or not text.endswith(b"\n"):
        assert time.monotonic() < until, text
        ready, _, _ = select.select([process.stdout], (), (), 0.2)
        if ready:
            read = process.stdout.read(65_536)
            assert read or process.stderr is None, process.stderr.read()  # type: ignore[union-attr]
            text += read
    return dict(json.loads(text.splitlines()[-1]))


def namespace_of(process: int) -> int:
    """The network namespace of a process, by the number that the kernel gives it."""
    return os.stat(f"/proc/{process}/ns/net").st_ino


def processes_in(namespace: int) -> list[int]:
    """The processes in a network namespace."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and namespace_of(int(path.name)) == namespace:
                found.append(int(path.name))
    return found
