"""`python -m weir_lab.bench.faults.calm`: three nodes at full load, on which nothing fails, elect
nobody.

Publishing and reading go on at once, as fast as they can. With `--stall-s` each node's disk stands
still now and then for so long. A link that is given up too soon, or a disk that is taken to hang,
shows as a term that rises.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weir.client.client import connect
from weir.errors import WeirError
from weir.testing.nodes import Berth, NodeSet, Patient
from weir_lab.bench.faults.stalling import STALLS
from weir_lab.bench.flow import Flow, flow
from weir_lab.bench.harness.machine import Machine, this_machine
from weir_lab.bench.sides.own import Own

_NODES = 3
_SIZE = 1_024
_MESSAGES = 200_000
_DEADLINE_S = 120.0
#: How long a node takes at most to show the term of a new partition.
_SHOWN_S = 10.0
#: Flushes that took longer than this are told apart: it is an upper end of a class of the figure.
_SLOW_S = "0.5"
_FLUSHES = re.compile(r"^weir_flush_seconds_count\{[^}]*\} (?P<count>\d+)", re.M)
_QUICK = re.compile(
    rf'^weir_flush_seconds_bucket\{{[^}}]*le="{_SLOW_S}"[^}}]*\}} (?P<count>\d+)', re.M
)


class Shape(msgspec.Struct, frozen=True):
    """How long the load lasts; for how long a disk stands still, and how often, 0 for never."""

    seconds: float = 600.0
    stall_s: float = 0.0
    every_s: float = 5.0
    messages: int = _MESSAGES


class Result(msgspec.Struct, frozen=True):
    """What it came to. `elections`: terms of the loaded partition that rose. `slow_flushes` took
    longer than half a second.
    """

    shape: Shape
    machine: Machine
    elections: int
    slow_flushes: int
    rounds: int
    messages: int
    messages_per_s: float
    lost: int
    repeated: int
    seconds: float


async def measure(nodes: NodeSet, shape: Shape) -> Result:
    """Load a set that runs: one topic after the other, each with all its messages checked."""
    began, own, elections = time.monotonic(), Own(nodes, _NODES), 0
    flows: list[Flow] = []
    async with connect(nodes.url, name="weir-calm") as client:
        while time.monotonic() - began < shape.seconds:
            topic = f"calm-{len(flows)}"
            await own.prepare(topic)
            before = await asyncio.to_thread(_term, nodes, topic)
            flows.append(await flow(own, topic, "both", [shape.messages], _SIZE, _DEADLINE_S))
            elections += await asyncio.to_thread(_term, nodes, topic) - before
            await client.delete_topic(topic)
    slow = await asyncio.to_thread(_slow_flushes, nodes)
    sent = sum(one.messages for one in flows)
    return Result(
        shape,
        this_machine(),
        elections,
        slow,
        len(flows),
        sent,
        round(sent / sum(one.seconds for one in flows), 1),
        sum(one.lost for one in flows),
        sum(one.repeated for one in flows),
        round(time.monotonic() - began, 1),
    )


def _pages(nodes: NodeSet) -> list[str]:
    pages = []
    for row in nodes.rows():
        with urllib.request.urlopen(row["metrics"], timeout=10) as page:
            pages.append(page.read().decode())
    return pages


def _term(nodes: NodeSet, topic: str) -> int:
    """Return the latest term that a node knows of a topic's partition.

    Raises `WeirError` if none shows it within seconds.
    """
    of_topic = re.compile(rf'^weir_raft_term\{{[^}}]*topic="{topic}"[^}}]*\}} (\d+)', re.M)
    until = time.monotonic() + _SHOWN_S
    while time.monotonic() < until:
        terms = [int(term) for page in _pages(nodes) for term in of_topic.findall(page)]
        if terms:
            return max(terms)
        time.sleep(0.1)
    raise WeirError(f"no node shows the term of topic {topic}")


def _slow_flushes(nodes: NodeSet) -> int:
    pages = "\n".join(_pages(nodes))
    flushes, quick = (
        sum(int(one["count"]) for one in line.finditer(pages)) for line in (_FLUSHES, _QUICK)
    )
    return flushes - quick


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nobody was elected and everything arrived once, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.calm", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=Shape().seconds)
    parser.add_argument("--stall-s", type=float, default=Shape().stall_s)
    parser.add_argument("--every-s", type=float, default=Shape().every_s)
    parser.add_argument("--messages", type=int, default=Shape().messages)
    shape = Shape(**vars(parser.parse_args(arguments)))
    settings = {"WEIR__STATUS__LEVEL": "warning"}
    berth = Berth()
    if shape.stall_s:
        settings[STALLS] = f"{shape.stall_s},{shape.every_s}"
        berth = Berth(module="weir_lab.bench.faults.stalling")
    with tempfile.TemporaryDirectory(prefix="weir-calm-") as folder:
        nodes = NodeSet(Path(folder), _NODES, 1, berths=[berth] * _NODES, settings=settings)
        try:
            nodes.start(Patient())
            result = asyncio.run(measure(nodes, shape))
        finally:
            nodes.stop()
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    return 0 if result.elections == result.lost == result.repeated == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
