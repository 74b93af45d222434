"""The real thing: a disk fails a write or a sync. The node ends at once and restarts soundly."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir.client.client import connect
from weir.client.core.retries import Backoff
from weir.errors import WeirError
from weir.server.interpreter import environment

EXIT_DISK = 74
ENDS_WITHIN_SECONDS = 60.0  # a second on a quiet machine: docs/PROOF.md has the figure
ROOT = Path(__file__).parents[4]

NODE = """
import sys
from weir.server.config import Config, LogConfig, MemoryConfig, NodeConfig
from weir.server.processes.node import run

config = Config(
    node=NodeConfig(data=sys.argv[1], port=0),
    memory=MemoryConfig(budget_mib=66, cache_mib=1),
    log=LogConfig(segment_mib=32, spares=0),
)
run(config, lambda host, port: print(port, flush=True))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the shim; `scripts/apt-install` brings a compiler where there is none."""
    if shutil.which("cc") is None:
        subprocess.run([ROOT / "scripts" / "apt-install", "gcc", "libc6-dev"], check=True)
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("disk_shim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


class Node:
    """A node over one folder, with a disk that can be told to fail."""

    def __init__(self, folder: Path, shim: Path, call: str) -> None:
        self.folder = folder
        self.trigger = folder / "trigger"
        self._environment = {
            **os.environ,
            "PYTHONPATH": environment()["PYTHONPATH"],
            "LD_PRELOAD": str(shim),
            "WEIR_SHIM_FOLDER": str(folder / "data"),
            "WEIR_SHIM_TRIGGER": str(self.trigger),
            "WEIR_SHIM_CALL": call,
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start the node; return its URL."""
        with (self.folder / "errors.txt").open("a", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", NODE, str(self.folder / "data")],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line, self.errors()
        return f"weir://127.0.0.1:{int(line)}"

    def errors(self) -> str:
        return (self.folder / "errors.txt").read_text(encoding="utf-8")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def node(tmp_path: Path, shim: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(tmp_path, shim, request.param)
    yield node
    node.end()


async def publish(url: str, confirmed: list[bytes], fail: Path, after: int) -> None:
    """Publish until the node is gone; the disk fails after so many confirms."""
    # Nobody serves this port again: one try is enough.
    retry = Backoff(first=0.01, most=0.01, attempts=1)
    async with connect(url, retry=retry, request_timeout=20.0) as client:
        await client.create_topic("t")
        for number in range(2_000):
            value = b"%06d" % number
            await client.publish("t", value)
            confirmed.append(value)
            if number == after:
                fail.touch()


async def read(url: str) -> list[bytes]:
    async with connect(url) as client, client.reader("t", follow=False) as reader:
        return [message.value async for message in reader]


# At first a thread runs the flushes, and where the disk is quick the loop does, later.
@pytest.mark.parametrize("after", [10, 200])
@pytest.mark.parametrize("node", ["sync", "write"], indirect=True)
def test_a_failed_disk_ends_the_node_and_loses_nothing(
    node: Node, after: int, tell: Callable[..., None]
) -> None:
    confirmed: list[bytes] = []
    url = node.start()
    with pytest.raises(WeirError):
        asyncio.run(publish(url, confirmed, node.trigger, after))
    assert node.process is not None
    assert node.process.wait(ENDS_WITHIN_SECONDS) == EXIT_DISK, node.errors()
    ended_s = time.time() - node.trigger.stat().st_mtime
    assert "What the disk holds is unknown now" in node.errors()
    assert len(confirmed) > after
    node.end()
    # What the page cache still has of the failed flush proves nothing: it may be there or not.
    node.trigger.unlink()
    values = asyncio.run(read(node.start()))
    assert values[: len(confirmed)] == confirmed
    assert len(values) <= len(confirmed) + 1
    tell(failures=1, confirmed=len(confirmed), ended_s=ended_s)
