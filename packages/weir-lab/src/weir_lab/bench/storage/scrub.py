"""How logs are verified: `python -m weir_lab.bench.storage.scrub --messages 8000000` prints JSON.

A node takes messages of 100 bytes in batches of 1,000 and is stopped. `weir inspect --verify` then
reads every byte of its log, which is in the page cache: what is timed is the checking.

Then the node is started again and verifies its log in the background, as every node does from a
minute after its start on. Lone messages are published one after the other before it begins and
while it goes on: their 99th percentiles show what it costs others. Its own rate is read from the
node's metrics, while nothing is published and while those messages are. It is throttled: it reads
4 MiB at a time, at most four times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import msgspec

from weir.broker.replica.writer import FIRST_MS
from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import HOST, Node, free_ports, running_node, start_node
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import Machine, this_machine
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sides.own import Own
from weir_lab.bench.sides.side import topic_name

_SIZE = 100
_DEADLINE_S = 300.0
_ANSWER_S = 5.0
_VERIFIED = re.compile(r"([\d,.]+) MiB verified, ([\d,]+) MB/s")
_SCRUBBED = re.compile(r"^weir_scrubbed_bytes_total(?:\{.*\})? ([\d.e+]+)$", re.M)
#: A node listens for metrics at a port for each of its shards.
_SHARDS_MAX = 8
_LOOK_S = 0.2


class ScrubFailed(WeirError):
    """The log was not found sound, or not verified at all; the message holds what was said."""


class Lone(msgspec.Struct, frozen=True):
    """Lone publishes one after the other, in milliseconds, and what was verified beside them."""

    messages: int
    confirm_p50_ms: float
    confirm_p99_ms: float
    scrubbed_mb_per_s: float


class Background(msgspec.Struct, frozen=True):
    """A running node's own checks; the ratio is of the 99th percentiles."""

    idle_mb_per_s: float
    before: Lone
    beside: Lone
    p99_ratio: float


class Result(msgspec.Struct, frozen=True):
    """MB (10^6 bytes) a second over all files of the log."""

    machine: Machine
    messages: int
    verified_mib: float
    mb_per_s: float
    background: Background | None


def measure(messages: int, folder: str | None = None, seconds: float = 20.0) -> Result:
    """Fill a log, stop its node, verify it; then watch it verify itself for 3 x `seconds`.

    With `seconds` 0 that is left out. Raises `ScrubFailed`.
    """
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name:
        data = Path(name) / "data"
        with running_node(data) as node:
            run(_fill(Own(node), messages))
        done = subprocess.run(
            python("weir.cli", "inspect", str(data), "--verify"),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        found = _VERIFIED.search(done.stdout)
        if done.returncode or found is None:
            raise ScrubFailed(f"the log was not found sound: {(done.stderr or done.stdout)[-500:]}")
        mib, rate = (float(number.replace(",", "")) for number in found.groups())
        background = run(_watch(data, Path(name), seconds)) if seconds else None
    return Result(this_machine(), messages, mib, rate, background)


async def _fill(side: Own, messages: int) -> None:
    topic = topic_name(1)
    await side.prepare(topic)
    async with side.crew(topic, [messages], _SIZE, _DEADLINE_S) as crew:
        await crew.ready()
        crew.go()
        await crew.done()


async def _watch(data: Path, scratch: Path, seconds: float) -> Background:
    ports = free_ports(_SHARDS_MAX)
    started = time.monotonic()
    with start_node(data, scratch, listen=f"{HOST}:{ports[0]}") as node:
        before = await _lone(node, ports, seconds)
        if before.scrubbed_mb_per_s:
            raise ScrubFailed("the node verified its log before anything was published beside that")
        while not _scrubbed(ports):
            if time.monotonic() - started > FIRST_MS / 1e3 + _DEADLINE_S:
                raise ScrubFailed(f"the node verifies nothing: {node.last_words()}")
            await asyncio.sleep(_LOOK_S)
        began, first = time.monotonic(), _scrubbed(ports)
        await asyncio.sleep(seconds)
        idle = (_scrubbed(ports) - first) / (time.monotonic() - began) / 1e6
        beside = await _lone(node, ports, seconds)
    if not idle or not beside.scrubbed_mb_per_s:
        raise ScrubFailed("the log is too small: it was verified before it could be watched")
    return Background(idle, before, beside, beside.confirm_p99_ms / before.confirm_p99_ms)


async def _lone(node: Node, ports: Sequence[int], seconds: float) -> Lone:
    """Publish one message after the other for so long."""
    took: list[float] = []
    first = _scrubbed(ports)
    async with Own(node).lone(topic_name(1), _SIZE) as lone:
        await lone.confirmed()
        began = time.perf_counter()
        while (sent := time.perf_counter()) - began < seconds:
            await lone.confirmed()
            took.append((time.perf_counter() - sent) * 1e3)
        rate = (_scrubbed(ports) - first) / (time.perf_counter() - began) / 1e6
    p50, p99 = percentiles(took, 0.5, 0.99)
    return Lone(len(took), p50 or 0.0, p99 or 0.0, rate)


def _scrubbed(ports: Sequence[int]) -> float:
    """Return how many bytes the node's shards have verified since it started."""
    total = 0.0
    for port in ports:
        try:
            with urlopen(f"http://{HOST}:{port}/metrics", timeout=_ANSWER_S) as answer:
                total += sum(map(float, _SCRUBBED.findall(answer.read().decode())))
        except OSError:
            break  # it has no more shards
    return total


def main() -> None:
    """Measure as much as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.storage.scrub", description=__doc__
    )
    parser.add_argument("--messages", type=int, default=8_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each look; 0: none")
    parser.add_argument("--folder", help="where the log is to lie for the moment")
    wanted = parser.parse_args()
    result = measure(wanted.messages, wanted.folder, wanted.seconds)
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    main()
