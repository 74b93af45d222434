"""A node in a process of its own: `weir serve` on a fresh folder and a free port.

with running_node() as node:
    async with weir.connect(node.url) as client: ...
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from weir.errors import WeirError
from weir.server.config.sections import Config
from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes.children import environment, python

START_SECONDS = 60.0
_KILL_AFTER_SECONDS = 5.0
_POLL_SECONDS = 0.01

Setting = str | int | float


class NodeFailed(WeirError):
    """A node did not come up, or did not end by itself; the message holds what it said last."""


class Serving(Protocol):
    """One node that runs, or a whole set of them."""

    folder: Path

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""

    @property
    def port(self) -> int:
        """Where devices connect: the port of one node."""

    @property
    def pids(self) -> list[int]:
        """The process ids of all nodes."""

    @property
    def running(self) -> bool:
        """Whether all nodes run."""

    def last_words(self) -> str:
        """Return what was said last, by the node that has ended if one has."""


class Node:
    """A running node process. It ends at `stop`, and with the process that started it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, output: Path) -> None:
        """Take a process that was just started; `wait_until_up` fills host and port."""
        self.folder = folder
        self.host = ""
        self.port = 0
        self._process = process
        self._output = output
        self._told = False

    @property
    def url(self) -> str:
        """What `weir.connect` takes."""
        return f"weir://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The process id, as that of a set of one."""
        return [self.pid]

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def said(self) -> str:
        """Return what the node wrote to stdout and stderr so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_until_up(self, seconds: float = START_SECONDS) -> None:
        """Return once clients may connect. Raises `NodeFailed`."""
        deadline = time.monotonic() + seconds
        while True:
            endpoint = NodeFolder(self.folder).endpoint()
            # The pid, because a node that was killed leaves its announcement behind.
            if endpoint is not None and endpoint.pid == self.pid:
                self.host, self.port = endpoint.host, endpoint.port
                return
            if not self.running:
                raise NodeFailed(f"the node ended before it was up: {self.last_words()}")
            if time.monotonic() > deadline:
                raise NodeFailed(f"the node is not up after {seconds:g} s: {self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def terminate(self) -> None:
        """Tell the node to drain and end; `stop` waits for it."""
        if self.running and not self._told:  # a second signal would not let it drain
            self._process.terminate()
            self._told = True

    def stop(self, seconds: float = 60.0) -> None:
        """Let the node drain and end; kill it and raise `NodeFailed` if that takes too long."""
        self.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise NodeFailed(
                f"the node did not stop within {seconds:g} s and was killed: {self.last_words()}"
            ) from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash would; what was confirmed stays in its folder."""
        if self.running:
            self._process.kill()
            self._process.wait(_KILL_AFTER_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def last_words(self) -> str:
        """Return the last line that the node wrote."""
        lines = self.said().splitlines()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def start_node(folder: Path, scratch: Path, **settings: Setting) -> Node:
    """Start a node on `folder` and return once it is up; its config and output go to `scratch`.

    `settings` are those of the configuration file by their bare names, as in `segment_mib=32`.
    """
    config = scratch / "node.toml"
    output = scratch / "node.log"
    config.write_text(_toml({"host": "127.0.0.1", "port": 0, **settings, "data": str(folder)}))
    with output.open("ab") as log:
        process = subprocess.Popen(
            python("weir.cli", "serve", "--config", str(config), "--until-eof"),
            # The pipe closes when this process ends, however it does, and the node follows.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            # Ctrl-C is for whoever started it, who then stops the node when he needs it no more.
            start_new_session=True,
        )
    node = Node(process, folder, output)
    try:
        node.wait_until_up()
    except BaseException:
        node.kill()
        raise
    return node


@contextmanager
def running_node(folder: Path | None = None, **settings: Setting) -> Iterator[Node]:
    """Run a node while the block runs, on `folder` or on a fresh one that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="weir-node-") as name:
        scratch = Path(name)
        with start_node(folder or scratch / "data", scratch, **settings) as node:
            yield node


def _toml(settings: dict[str, Setting]) -> str:
    """Return a configuration file; each setting goes to the section that has one of its name."""
    lines = []
    left = dict(settings)
    for section, value in msgspec.structs.asdict(Config()).items():
        lines.append(f"[{section}]")
        for name in msgspec.structs.asdict(value):
            if name in left:
                # A JSON string or number is a TOML one too.
                lines.append(f"{name} = {msgspec.json.encode(left.pop(name)).decode()}")
    if left:
        raise ValueError(f"no such setting of a node: {', '.join(left)}")
    return "\n".join(lines) + "\n"
