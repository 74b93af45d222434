"""How long a node with a large log takes to start: `python -m weir_lab.bench.storage.restart --gib
10`.

A node takes messages until its log is that large. Then it is started three times: after a kill -9,
after an orderly stop, and after an orderly stop without the index files of its log. Each time ends
with the first confirm of a new message, and all messages must still be there. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weir.client.client import connect
from weir.errors import WeirError
from weir.storage.format.index_file import is_index
from weir.testing.nodes import Node, start_node
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import Machine, this_machine
from weir_lab.bench.sides.own import Own
from weir_lab.bench.sides.side import topic_name

#: Of a message that fills the log, and of what a message takes beside its value.
_SIZE = 1_000
_OVERHEAD = 8
_DEADLINE_S = 600.0
_MEBIBYTE = 1 << 20


class RestartFailed(WeirError):
    """Messages are not there after a start; the message says how many."""


class Shape(msgspec.Struct, frozen=True):
    """A log of about `gib` GiB, in messages of 1,000 bytes over as many partitions as logs."""

    gib: float = 10.0


class Result(msgspec.Struct, frozen=True):
    """Seconds from the start of the process to the first confirm."""

    shape: Shape
    machine: Machine
    log_bytes: int
    messages: int
    write_seconds: float
    after_kill_seconds: float
    after_stop_seconds: float
    without_index_seconds: float

    @property
    def restart_seconds(self) -> float:
        """The slower of the two starts with index files."""
        return max(self.after_kill_seconds, self.after_stop_seconds)


def measure(shape: Shape, folder: str | None = None) -> Result:
    """Fill a node and start it again. Raises `RestartFailed`, and what nodes raise."""
    messages = max(1, int(shape.gib * 1024 * _MEBIBYTE / (_SIZE + _OVERHEAD)))
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name:
        data, scratch = Path(name) / "data", Path(name)
        node = start_node(data, scratch)
        try:
            began = time.perf_counter()
            run(_fill(Own(node), messages))
            written = time.perf_counter() - began
        finally:
            node.kill()
        size = sum(path.stat().st_size for path in data.rglob("segment-*"))
        killed, expected = _start(data, scratch, messages)
        stopped, expected = _start(data, scratch, expected)
        for path in data.rglob("*"):
            if is_index(path.name):
                path.unlink()
        scanned, _ = _start(data, scratch, expected)
    return Result(shape, this_machine(), size, messages, written, killed, stopped, scanned)


def _start(data: Path, scratch: Path, expected: int) -> tuple[float, int]:
    """Start the node, and stop it; return the seconds to a confirm, and how many there are then."""
    began = time.perf_counter()
    with start_node(data, scratch) as node:
        run(_confirm(node))
        seconds = time.perf_counter() - began
        run(_check(node, expected + 1))
    return seconds, expected + 1


async def _confirm(node: Node) -> None:
    async with connect(node.url, name="weir-bench") as client:
        await client.publish(topic_name(1), b"here")


async def _check(node: Node, expected: int) -> None:
    async with connect(node.url, name="weir-bench") as client:
        starts, ends = await client.positions(topic_name(1))
    found = sum(ends) - sum(starts)
    if found != expected:
        raise RestartFailed(f"{expected:,} messages were confirmed and {found:,} are there")


async def _fill(side: Own, messages: int) -> None:
    async with connect(side.node.url, name="weir-bench") as client:
        await client.create_topic(topic_name(1), retention="forever", retention_bytes="forever")
    async with (
        asyncio.timeout(_DEADLINE_S),
        side.crew(topic_name(1), [messages], _SIZE, _DEADLINE_S) as crew,
    ):
        await crew.ready()
        crew.go()
        await crew.done()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with the size that the command line names, in a temporary folder."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.storage.restart", description=__doc__
    )
    parser.add_argument("--gib", type=float, default=Shape().gib)
    parser.add_argument("--folder", help="where the log is to lie for the moment")
    wanted = parser.parse_args(arguments)
    result = measure(Shape(wanted.gib), wanted.folder)
    told = {**msgspec.to_builtins(result), "restart_seconds": result.restart_seconds}
    print(msgspec.json.format(msgspec.json.encode(told)).decode())


if __name__ == "__main__":
    main()
