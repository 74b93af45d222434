"""The disk of one node of a real set runs full under load: the others lead, and it comes back.

Each node has a small tmpfs of its own; that takes root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import weir
from weir.client.client import Client
from weir.errors import WeirError
from weir.testing.nodes import READY, NodeSet, Patient
from weir_lab.bench.faults.chaos.ledger import Verdict, judge
from weir_lab.bench.faults.chaos.load import Load, read_whole

MIB = 1 << 20
#: Far more than a node writes here, so that only the ballast fills one.
SIZE = 500 * MIB
LARGE_BYTES = 1_000_000
#: More than a node can take whose disk is full: two segments in reserve, and the rest of one.
LARGE_MANY = 3 * 32 * MIB // LARGE_BYTES
RATE, BYTES = 500, 100
#: Well below the 17 s for which the load stood before others led, on a machine with much to do.
GAP_MS = 10_000
WITHIN_SECONDS = 40


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeSet]:
    """Three nodes, each on a file system of its own."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    with contextlib.ExitStack() as stack:
        for number in (1, 2, 3):
            folder = tmp_path / f"node-{number}"
            folder.mkdir()
            command = [mount, "-t", "tmpfs", "-o", f"size={SIZE}", "weir-test", folder]
            if subprocess.run(command, check=False, timeout=10).returncode:
                pytest.skip("this container may not mount")
            # Lazily: a node that was killed may hold it for a moment.
            stack.callback(subprocess.run, ["umount", "-l", folder], check=True, timeout=10)
        found = NodeSet(tmp_path, 3, 1, settings={**READY, "WEIR__LOG__SPARES": "2"})
        stack.callback(found.stop)
        found.start(Patient())
        yield found


class Ballast:
    """A file that takes all the room which a node's disk has left, until it is removed.

    What a node had not written to the end takes its room back when that fails: so it goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill)

    def __enter__(self) -> Ballast:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._path.unlink()

    def _fill(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._stop.is_set():
                try:
                    file.write(bytes(MIB))
                except OSError:
                    self._stop.wait(0.05)


async def settled(client: Client) -> None:
    while not (await client.nodes.status()).settled:
        await asyncio.sleep(0.05)


async def lags(client: Client, node: int) -> None:
    """Return when one node is behind, and no other."""
    status = await client.nodes.status()
    while [one.id for one in status.nodes if one.lagging] != [node]:
        await asyncio.sleep(0.05)
        status = await client.nodes.status()


async def leader(client: Client, topic: str) -> int:
    return (await client.describe(topic)).addresses[0].node


async def led_by_another(client: Client, node: int) -> None:
    while node in (await leader(client, "chaos"), await leader(client, "large")):
        await asyncio.sleep(0.05)


@pytest.mark.timeout(2 * WITHIN_SECONDS)
def test_the_others_lead_while_a_disk_is_full_and_it_comes_back_by_itself(
    nodes: NodeSet, tmp_path: Path
) -> None:
    async def scenario() -> None:
        places = [(member.host, member.port) for member in nodes.members]
        async with (
            asyncio.timeout(WITHIN_SECONDS),
            weir.connect(nodes.url, request_timeout=WITHIN_SECONDS) as client,
        ):
            await client.create_topic("chaos")
            await client.create_topic("large")
            await settled(client)
            full = await leader(client, "chaos")
            async with Load(nodes.url, places, "chaos", RATE, BYTES) as load:
                await load.moves(RATE)
                since = time.monotonic_ns()
                with Ballast(tmp_path / f"node-{full}"):
                    async with client.producer("large") as producer:
                        # Part of the reserve is used. It refused all that it led from here on.
                        while "no room for a segment in reserve" not in nodes.node(full).said():
                            await producer.publish(bytes(LARGE_BYTES))
                        await led_by_another(client, full)
                        await load.moves(load.produced.confirmed + RATE)
                        # All of it: now the node takes nothing more of what the others lead.
                        for _ in range(LARGE_MANY):
                            await producer.publish(bytes(LARGE_BYTES))
                        await lags(client, full)
                    await load.moves(load.produced.confirmed + RATE)
                await settled(client)
                await load.moves(load.produced.confirmed + RATE)
                gap_ms = load.produced.gap_ms(since, time.monotonic_ns())
                await load.finish()
                _, (end, *_) = await client.positions("chaos")
                await load.caught_up(end)
            read = await read_whole(nodes.url, "chaos", BYTES)
            assert judge(load.ledgers, read) == judge(load.ledgers, load.live) == Verdict()
            assert len(read) >= sum(one.confirmed for one in load.ledgers.values())
            assert gap_ms <= GAP_MS

    asyncio.run(scenario())


def ready(nodes: NodeSet, number: int) -> str:
    """Return what a node says at /readyz."""
    figures = next(row["metrics"] for row in nodes.rows() if row["node"] == number)
    try:
        with urllib.request.urlopen(figures.replace("/metrics", "/readyz"), timeout=5) as page:
            return str(page.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return str(error.read(), "utf-8")


async def fill_all(url: str, topic: str) -> None:
    """Publish more than nodes can take whose disks are being filled. Raises `WeirError`."""
    async with weir.connect(url, request_timeout=5.0) as client:
        for _ in range(3 * LARGE_MANY):
            await client.publish(topic, bytes(LARGE_BYTES))


@pytest.mark.timeout(2 * WITHIN_SECONDS)
def test_a_leader_says_that_its_followers_disks_are_full(nodes: NodeSet, tmp_path: Path) -> None:
    """It looked like a lost majority."""

    async def scenario() -> None:
        async with (
            asyncio.timeout(WITHIN_SECONDS),
            weir.connect(nodes.url, request_timeout=WITHIN_SECONDS) as client,
        ):
            await client.create_topic("large")
            await settled(client)
            leads = await leader(client, "large")
            others = [number for number in (1, 2, 3) if number != leads]
            said = f"nodes {others[0]} and {others[1]} have full disks"
            with contextlib.ExitStack() as stack:
                for number in others:
                    stack.enter_context(Ballast(tmp_path / f"node-{number}"))
                with pytest.raises(WeirError) as caught:
                    await fill_all(nodes.url, "large")
                assert said in str(caught.value)
                page = await asyncio.to_thread(ready, nodes, leads)
                assert page == f"not ready for writes: {said}, free 32 MiB or more there\n"
                assert f"{said}: publishes that need them are refused" in nodes.node(leads).said()
                assert await leader(client, "large") == leads
            while await asyncio.to_thread(ready, nodes, leads) != "ready\n":
                await asyncio.sleep(0.1)
            await client.publish("large", b"last")

    asyncio.run(scenario())
