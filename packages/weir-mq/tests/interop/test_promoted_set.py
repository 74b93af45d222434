"""Real nodes of two core sets, of which home is killed, and the other one promoted by command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from weir import connect
from weir.cli.main import main
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.testing.nodes import Berth, NodeSet, Patient

HOME, AWAY = (1, 2), (3, 4)
SECONDS = 60.0


async def until_home_votes(url: str) -> None:
    async with asyncio.timeout(SECONDS), connect(url) as client:
        while (await client.nodes.raise_level()).level < FORMAT_LEVEL_TOPOLOGY:
            await asyncio.sleep(0.2)
        await client.create_topic("orders", partitions=3)
        for number in range(30):
            await client.publish("orders", b"%d" % number, partition=number % 3)
        while True:
            sets, status = await client.nodes.sets(), await client.nodes.status()
            held = all(one.held >= 4 for one in status.nodes if one.id in AWAY)
            if sets.rule == "home" and status.settled and held:
                return
            await asyncio.sleep(0.2)


async def read(url: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(SECONDS), connect(url) as client:
        for partition in range(3):
            await client.publish("orders", b"more", partition=partition)
        async with client.reader("orders", follow=False) as reader:
            async for message in reader:
                found.append(bytes(message.value))
    return found


async def why_refused(url: str) -> str:
    """Return why a node lets nobody in, once it does."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with connect(url, request_timeout=1.0) as client:
                    await client.topics()
            except WeirError as error:
                if "was promoted without this node" in str(error):
                    return str(error)
            await asyncio.sleep(0.2)


def test_home_is_lost_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    berths = [Berth(brokerset=1 if node in HOME else 2) for node in (*HOME, *AWAY)]
    nodes = NodeSet(tmp_path, 4, 2, berths=berths)
    nodes.start(Patient())
    try:
        asyncio.run(until_home_votes(nodes.url))
        places = [f"{one.host}:{one.port}" for one in nodes.members]
        home, away = (f"weir://{','.join(some)}" for some in (places[:2], places[2:]))
        nodes.kill(HOME)
        assert main(["topology", "promote", "2", "--yes", "--json", "--url", away]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["lineage"], told["nodes"], told["leaderless"]) == (1, [3, 4], [])
        kept = {one["partition"]: one["from_offset"] for one in told["losses"]}
        assert set(kept) == {None, 0, 1, 2}
        found = asyncio.run(read(away, 30))
        for number in range(30):
            assert number // 3 >= kept[number % 3] or b"%d" % number in found
        assert found.count(b"more") == 3
        nodes.start_again(HOME)
        assert "serves nothing any more" in asyncio.run(why_refused(home.split(",")[0]))
    finally:
        nodes.stop()
