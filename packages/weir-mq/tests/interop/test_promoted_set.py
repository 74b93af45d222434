"""Real nodes of two core sets, of which home is killed, and the other one promoted by command: in a
closed set by a file in the folder of one of its nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from rigs.shard_processes import pids_of
from weir import connect
from weir.cli.main import main
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import Berth, Node, NodeSet, Patient

PASSWORD = "of the first administrator"
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


async def until_all_are_closed(nodes: NodeSet) -> None:
    """Return once each node has noted that the set is closed."""
    async with asyncio.timeout(SECONDS):
        for one in nodes.members:
            folder = NodeFolder(nodes.node(one.node).folder)
            while folder.access_mode() != "closed":
                await asyncio.sleep(0.1)


async def until_left_behind(node: Node) -> None:
    """Return once both shards of node 1 have heard that another set was promoted."""
    async with asyncio.timeout(SECONDS):
        while True:
            told = [one for one in node.said().splitlines() if "promoted without node 1" in one]
            if all(any(f" shard {shard}: " in one for one in told) for shard in range(2)):
                return
            await asyncio.sleep(0.1)


async def why_not(url: str, password: str = "", seconds: float = 3.0) -> str:
    """Return why somebody is not let in to look at copies; empty if that was answered."""
    try:
        connecting = connect(url, password=password or None, request_timeout=seconds)
        async with asyncio.timeout(SECONDS), connecting as client:
            await client.topology.plan_promotion("2")
    except WeirError as error:
        return str(error)
    return ""


def test_a_closed_set_is_promoted_on_the_machine_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    berths = [Berth(brokerset=1 if node in HOME else 2) for node in (*HOME, *AWAY)]
    nodes = NodeSet(tmp_path, 4, 2, berths=berths)
    nodes.start(Patient())
    first: list[int] = []
    try:
        asyncio.run(until_home_votes(nodes.url))
        monkeypatch.setenv("WEIR_NEW_PASSWORD", PASSWORD)
        monkeypatch.setenv("WEIR_PASSWORD", PASSWORD)
        assert main(["access", "init", "--user", "root", "--url", nodes.url]) == 0
        as_root = nodes.url.replace("//", "//root@")
        assert main(["access", "mode", "closed", "--url", as_root]) == 0
        asyncio.run(until_all_are_closed(nodes))
        places = [f"{one.host}:{one.port}" for one in nodes.members]
        away, (_, _, third, fourth) = f"{places[2]},{places[3]}", places
        folders = [str(nodes.node(one.node).folder) for one in nodes.members]
        first = [nodes.node(1).pid, *pids_of(nodes.node(1))]
        for pid in first:
            os.kill(pid, signal.SIGSTOP)
        nodes.kill((2, 4))

        # Neither a user, for nobody knows who was revoked; nor a stranger, where a node that was
        # started since does not know that the set is closed; nor who guesses.
        capsys.readouterr()
        words, until = ["topology", "promote", "2", "--yes", "--json"], time.monotonic() + SECONDS
        while not main([*words, "--dry-run", "--url", f"weir://root@{away}"]) or (
            "give --data on the machine of a node" not in capsys.readouterr().err
        ):
            assert time.monotonic() < until, (
                "what is known stays new for some seconds, and no longer"
            )
        nodes.start_again([4])
        nodes.node(4).wait_until_up()
        assert "this set is closed" in asyncio.run(why_not(f"weir://{third}"))
        # By its last checkpoint the set may be open, or closed.
        why = asyncio.run(why_not(f"weir://{fourth}"))
        assert "no news of the metadata" in why or "this set is closed" in why
        guess = asyncio.run(why_not(f"weir://%3Arescue@{third}", "a guess"))
        assert "check the user and the password" in guess

        assert main([*words, "--data", folders[2], "--dry-run"]) == 0
        assert json.loads(capsys.readouterr().out)["promoted"] is False
        assert main([*words, "--data", folders[2]]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["lineage"], told["nodes"], told["leaderless"]) == (1, [3, 4], [])
        assert not (Path(folders[2]) / "rescue.json").exists()
        found = asyncio.run(read(f"weir://root@{away}", 30))
        kept = {one["partition"]: one["from_offset"] for one in told["losses"]}
        for number in range(30):
            assert number // 3 >= kept[number % 3] or b"%d" % number in found
        assert "this set is closed" in asyncio.run(why_not(f"weir://{third}"))

        # Home is back: its folder promotes nothing once it has heard of the other set.
        for pid in first:
            os.kill(pid, signal.SIGCONT)
        asyncio.run(until_left_behind(nodes.node(1)))
        assert main(["topology", "promote", "1", "--yes", "--data", folders[0]]) == 1
        assert "does not take the file" in capsys.readouterr().err
    finally:
        for pid in first:
            os.kill(pid, signal.SIGCONT)
        nodes.stop()
