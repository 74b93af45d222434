"""A Spark query that goes on under one checkpoint, while its set and then it gets this release."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

import weir
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL
from weir.server.interpreter import environment
from weir.testing.nodes import NodeSet, Patient
from weir_lab.bench.faults.upgrade.releases import BEFORE, BEFORE_LEVEL, Release
from weir_lab.bench.faults.upgrade.run import NODES, PREPARE, set_before, status_when, values

_JOB = Path(__file__).with_name("job.py")
_JOB_S = 400.0
_TOPIC = "flights"
_MESSAGES = 200


class SparkResult(msgspec.Struct, frozen=True):
    """What the runs of the query read: `lost` and `repeated` rows of all messages, batches that
    were `replayed` because their end was not noted, and rows of those that were `differing` then.
    """

    before: str
    level: int
    runs: int
    messages: int
    lost: int
    repeated: int
    replayed: int
    differing: int
    seconds: float


def spark_upgrade(folder: Path, release: Release) -> SparkResult:
    """Run a query of the release before at a set of that release, then at one of this release and
    the new level, and then the query of this release. Before the second and the third run, the end
    of the last batch is taken out of the checkpoint.
    """
    began = time.monotonic()
    checkpoint = folder / "checkpoint"
    rows: dict[str, list[str]] = {}
    replayed = differing = 0
    with set_before(folder, release) as nodes:
        release.run(PREPARE, nodes.url, str(BEFORE_LEVEL))
        for number, words in enumerate((release.words, release.words, ())):
            asyncio.run(_publish(nodes.url, number))
            if number:
                _cut_short(checkpoint)
            found = _run(words, nodes.url, checkpoint)
            again = rows.keys() & found.keys()
            replayed += len(again)
            differing += sum(rows[batch] != found[batch] for batch in again)
            rows |= found
            if not number:
                _upgrade(nodes)
        order, level = asyncio.run(_at_end(nodes.url))
    came = Counter(row for batch in rows.values() for row in batch)
    expected = Counter(order)
    return SparkResult(
        BEFORE[:12], level, 3, len(order), (expected - came).total(), (came - expected).total(),
        replayed, differing, round(time.monotonic() - began, 1),
    )  # fmt: skip


async def _publish(url: str, number: int) -> None:
    async with weir.connect(url) as client, client.producer(_TOPIC) as producer:
        for place in range(_MESSAGES):
            await producer.send(f"run {number} {place}", key=str(place % 16))


def _upgrade(nodes: NodeSet) -> None:
    """Let all nodes run this release, one by one, and write its level."""

    async def raised() -> None:
        async with weir.connect(nodes.url, request_timeout=30.0) as client:
            await status_when(client, lambda status: {one.level for one in status.nodes} == {level})
            await client.nodes.raise_level()
            await status_when(client, lambda status: status.level == level)

    level = FORMAT_LEVEL
    for number in range(1, NODES + 1):
        nodes.node(number).stop()
        nodes.begin(number, ())
        nodes.restart(number, Patient())
    asyncio.run(raised())


async def _at_end(url: str) -> tuple[list[str], int]:
    async with weir.connect(url) as client:
        return await values(client, _TOPIC), (await client.nodes.status()).level


def _run(words: Sequence[str], url: str, checkpoint: Path) -> dict[str, list[str]]:
    """Return the rows of the micro-batches of one run. Raises `WeirError` if it fails."""
    done = subprocess.run(
        [*words, sys.executable, "-P", str(_JOB), url, _TOPIC, str(checkpoint)],
        env=environment(), capture_output=True, text=True, timeout=_JOB_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise WeirError(f"the job ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])["batches"]
    return {batch: rows for batch, rows in found.items() if rows}


def _cut_short(checkpoint: Path) -> None:
    """Leave the last micro-batch as if Spark had been killed before it noted its end."""
    for path in checkpoint.rglob(".*.crc"):
        path.unlink()
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
