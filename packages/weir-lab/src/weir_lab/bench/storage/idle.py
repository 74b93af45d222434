"""`python -m weir_lab.bench.storage.idle`: what a node costs that nobody uses.

A node is founded as `weir serve` does it, with all settings as they ship, but for a free port and
the number of its shards. Once it has come to rest, the processor time of its processes is read from
`/proc`, and their memory, and how much of the disk its folder takes. Nobody connects to it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import msgspec

from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir_lab.bench.harness.machine import Machine, family, family_cpu_seconds, this_machine

_REST_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
_BLOCK_BYTES = 512
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.M)


class Shape(msgspec.Struct, frozen=True):
    """Nodes of so many shards, watched for so long."""

    shards: tuple[int, ...] = (1, 2)
    seconds: float = 30.0


class Use(msgspec.Struct, frozen=True):
    """What all processes of a node use together."""

    shards: int
    #: Of a core, in percent.
    cpu_percent: float
    memory_mb: float
    disk_mb: float


class Result(msgspec.Struct, frozen=True):
    """What it came to, in the order of the shape, and the most that any of them took."""

    shape: Shape
    machine: Machine
    uses: list[Use]
    cpu_percent: float
    disk_mb: float


async def measure(shape: Shape) -> Result:
    """Let one node after the other rest. Raises `WeirError` where it does not start."""
    uses = []
    for shards in shape.shards:
        with tempfile.TemporaryDirectory(prefix="weir-idle-") as folder:
            data = Path(folder, "data")
            with _serving(data, shards) as pid:
                await _announced(data)
                await asyncio.sleep(_REST_SECONDS)
                uses.append(await _use(shards, pid, data, shape.seconds))
    most_cpu = max(use.cpu_percent for use in uses)
    most_disk = max(use.disk_mb for use in uses)
    return Result(shape, this_machine(), uses, most_cpu, most_disk)


@contextmanager
def _serving(data: Path, shards: int) -> Iterator[int]:
    command = python("weir.cli", "serve", "--data", str(data), "--port", "0")
    with Popen(
        [*command, "--shards", str(shards)], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL,
        env=environment(),
    ) as process:  # fmt: skip
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(_PATIENCE_SECONDS)


async def _announced(data: Path) -> None:
    """Wait until clients may connect."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while not (data / "endpoint.json").exists():
        if time.monotonic() > until:
            raise WeirError(f"no node serves from {data}")
        await asyncio.sleep(0.1)


async def _use(shards: int, pid: int, data: Path, seconds: float) -> Use:
    began, then = time.monotonic(), _cpu(pid)
    await asyncio.sleep(seconds)
    percent = 100 * (_cpu(pid) - then) / (time.monotonic() - began)
    memory = sum(_memory_mb(one) for one in family(pid))
    disk = sum(path.stat().st_blocks for path in data.rglob("*")) * _BLOCK_BYTES / 1e6
    return Use(shards, round(percent, 2), round(memory, 1), round(disk, 1))


def _cpu(pid: int) -> float:
    seconds = family_cpu_seconds(pid)
    if seconds is None:
        raise WeirError("this system does not tell the CPU time of a process: run it on Linux")
    return seconds


def _memory_mb(pid: int) -> float:
    found = _RSS.search(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    if found is None:
        raise WeirError("this system does not tell the memory of a process: run it on Linux")
    return int(found[1]) * 1024 / 1e6


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=list(Shape().shards))
    parser.add_argument("--seconds", type=float, default=Shape().seconds)
    given = parser.parse_args()
    result = asyncio.run(measure(Shape(tuple(given.shards), given.seconds)))
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    main()
