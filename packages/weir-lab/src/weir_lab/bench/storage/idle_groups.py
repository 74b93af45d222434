"""`python -m weir_lab.bench.storage.idle_groups`: what a thousand idle partitions of three replicas
cost.

Three nodes, each a process of this machine. Every partition is a Raft group with a replica on each,
so a node leads a third of them and follows in the others. A node's CPU time and memory are read
before there are partitions, and again once they have come to rest.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.testing.nodes import running_set
from weir_lab.bench.harness.machine import Machine, family_cpu_seconds, this_machine

_TOPIC = "idle"
_NODES = 3
_REST_SECONDS = 5.0
_PATIENCE_SECONDS = 120.0
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.M)


class Shape(msgspec.Struct, frozen=True):
    """So many groups, watched for so long."""

    groups: int = 1_000
    seconds: float = 20.0


class Use(msgspec.Struct, frozen=True):
    """What the node that uses most uses."""

    #: Of a core, in percent.
    cpu_percent: float
    memory_mb: float


class Result(msgspec.Struct, frozen=True):
    """What it came to; `more` is what the groups added, on the node where they added most."""

    shape: Shape
    machine: Machine
    #: With the registry's group alone.
    without: Use
    with_groups: Use
    more: Use


async def measure(shape: Shape) -> Result:
    """Run the nodes, give them the groups, and let them rest."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-idle-groups-") as folder,
        running_set(Path(folder), _NODES) as nodes,
    ):
        before = await _uses(nodes.pids, shape.seconds)
        async with connect(nodes.url, request_timeout=_PATIENCE_SECONDS) as client:
            await client.create_topic(_TOPIC, partitions=shape.groups)
            await _all_led(client, shape.groups)
        after = await _uses(nodes.pids, shape.seconds)
    more = [
        Use(now.cpu_percent - then.cpu_percent, now.memory_mb - then.memory_mb)
        for then, now in zip(before, after, strict=True)
    ]
    return Result(shape, this_machine(), _most(before), _most(after), _most(more))


async def _all_led(client: Client, groups: int) -> None:
    """Wait until every group answers for itself, which only its leader can."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                _, ends = await client.positions(_TOPIC)
            except WeirError:
                await asyncio.sleep(0.2)
                continue
            if len(ends) != groups:
                raise WeirError(f"{len(ends)} partitions answer of {groups}")
            return


async def _uses(pids: list[int], seconds: float) -> list[Use]:
    """Let the nodes come to rest, and then see what each uses."""
    await asyncio.sleep(_REST_SECONDS)
    began, then = time.monotonic(), [_cpu(pid) for pid in pids]
    await asyncio.sleep(seconds)
    passed, now = time.monotonic() - began, [_cpu(pid) for pid in pids]
    return [
        Use(100 * (later - sooner) / passed, _memory_mb(pid))
        for pid, sooner, later in zip(pids, then, now, strict=True)
    ]


def _cpu(pid: int) -> float:
    seconds = family_cpu_seconds(pid)
    if seconds is None:
        raise WeirError("this system does not tell the CPU time of a process: run it on Linux")
    return seconds


def _memory_mb(pid: int) -> float:
    """Return what a process has of its own, and its part of what it shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    found = _PSS.search(text)
    if found is None:
        raise WeirError("this system does not tell the memory of a process: run it on Linux")
    return int(found[1]) * 1024 / 1e6


def _most(uses: list[Use]) -> Use:
    return Use(
        round(max(use.cpu_percent for use in uses), 2), round(max(use.memory_mb for use in uses), 1)
    )


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=Shape().groups)
    parser.add_argument("--seconds", type=float, default=Shape().seconds)
    given = parser.parse_args()
    result = asyncio.run(measure(Shape(given.groups, given.seconds)))
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    main()
