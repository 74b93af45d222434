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
from collections.abc import Mapping, Sequence
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
_TERM = re.compile(r"^weir_raft_term\{(?P<group>[^}]*)\} (?P<term>\d+)", re.M)
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
    """What it came to. `elections`: by how much the terms of all partitions rose. `slow_flushes`
    took longer than half a second.
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
    terms: dict[str, int] = {}
    async with connect(nodes.url, name="weir-calm") as client:
        while time.monotonic() - began < shape.seconds:
            topic = f"calm-{len(flows)}"
            await own.prepare(topic)
            # Once before the load, so that a new topic's first election does not count.
            for loaded in (False, True):
                if loaded:
                    flows.append(
                        await flow(own, topic, "both", [shape.messages], _SIZE, _DEADLINE_S)
                    )
                before, terms = terms, await asyncio.to_thread(_terms_with, nodes, topic)
                elections += risen(before, terms)
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


def _terms_with(nodes: NodeSet, topic: str) -> dict[str, int]:
    """Return the terms of all partitions when a node shows those of a topic.

    Raises `WeirError` if none shows them within seconds.
    """
    until = time.monotonic() + _SHOWN_S
    while time.monotonic() < until:
        terms = terms_of(_pages(nodes))
        if any(f'topic="{topic}"' in group for group in terms):
            return terms
        time.sleep(0.1)
    raise WeirError(f"no node shows the term of topic {topic}")


def terms_of(pages: Sequence[str]) -> dict[str, int]:
    """Return the latest term of each partition on pages of figures, by its labels."""
    terms: dict[str, int] = {}
    for page in pages:
        for one in _TERM.finditer(page):
            terms[one["group"]] = max(int(one["term"]), terms.get(one["group"], 0))
    return terms


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return by how much the terms of partitions rose that both have."""
    return sum(after[group] - before[group] for group in before.keys() & after.keys())


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
