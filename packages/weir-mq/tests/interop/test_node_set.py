"""A set of three real processes, as an operator sees it: its nodes come, go, and are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.cli.main import main
from weir.cli.process import Signals
from weir.client.client import Client
from weir.client.nodes import SetStatus
from weir.errors import BadRequest
from weir.server.interpreter import environment, python
from weir.testing.nodes import Node
from weir.testing.nodes import NodeSet as DevSet

_WAIT = 30.0


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevSet]:
    with Signals() as signals:
        found = DevSet(tmp_path, 3, 1)
        try:
            found.start(signals)
            yield found
        finally:
            found.stop()


async def until(client: Client, holds: Callable[[SetStatus], bool]) -> SetStatus:
    """Return the status once `holds`, asked again and again for as long as a test may take."""
    async with asyncio.timeout(_WAIT):
        while True:
            status = await client.nodes.status()
            if holds(status):
                return status
            await asyncio.sleep(0.1)


def run(url: str, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        async with weir.connect(url, request_timeout=20.0) as client:
            return await work(client)

    return asyncio.run(connected())


def settled(dev: DevSet, capsys: pytest.CaptureFixture[str], held: int) -> dict[str, Any]:
    """Return what status says once every group has its leader: a new one elects it first."""
    deadline = time.monotonic() + _WAIT
    while True:
        exit_code = main(["node", "status", "--url", dev.url, "--json"])
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        if exit_code == 0 and sum(one["held"] for one in told["nodes"]) == held:
            return told
        assert time.monotonic() < deadline, told


def test_topics_are_spread_and_status_says_so(
    dev: DevSet, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(client: Client) -> None:
        await client.create_topic("flights", 3)
        status = await until(client, lambda status: status.settled)
        assert [(one.leaders, one.replicas) for one in status.nodes] in (
            [(2, 4), (1, 4), (1, 4)],
            [(1, 4), (2, 4), (1, 4)],
            [(1, 4), (1, 4), (2, 4)],
        )
        await client.create_topic("single", 1, replicas=1)
        with pytest.raises(BadRequest, match="4 replicas, and only 3 of the nodes"):
            await client.create_topic("many", 1, replicas=4)

    run(dev.url, work)
    told = settled(dev, capsys, held=13)
    assert told["schema"] == "weir.nodes/1"
    assert [(one["id"], one["up"], one["state"]) for one in told["nodes"]] == [
        (1, True, "active"),
        (2, True, "active"),
        (3, True, "active"),
    ]
    dev.node(3).kill()
    assert main(["node", "status", "--url", dev.url]) == 1
    assert "down: node 3" in capsys.readouterr().out


def test_a_leader_is_moved_by_hand(dev: DevSet, capsys: pytest.CaptureFixture[str]) -> None:
    async def create(client: Client) -> int:
        await client.create_topic("flights")
        await until(client, lambda status: status.settled)
        return (await client.describe("flights")).addresses[0].node

    leader = run(dev.url, create)
    other = leader % 3 + 1
    verb = ["node", "transfer-leader", "flights", "--url", dev.url]
    assert main([*verb, "--to", str(other)]) == 0
    assert f"node {other} leads partition 0 of flights" in capsys.readouterr().out
    assert main([*verb, "--to", "9"]) == 1
    said = capsys.readouterr().err
    assert "node 9 has no vote" in said
    assert "only nodes 1, 2, 3 could lead it" in said
    assert main(["topic", "describe", "flights", "--url", dev.url, "--json"]) == 0
    (partition,) = json.loads(capsys.readouterr().out)["topic"]["partitions"]
    assert (partition["nodes"], partition["behind"]) == ([1, 2, 3], [])

    async def led(client: Client) -> None:
        assert (await client.describe("flights")).addresses[0].node == other
        assert (await client.publish("flights", b"still here")).offset == 0

    run(dev.url, led)


def test_a_leader_is_not_moved_to_a_node_that_is_dead(
    dev: DevSet, capsys: pytest.CaptureFixture[str]
) -> None:
    async def create(client: Client) -> int:
        await client.create_topic("flights")
        await until(client, lambda status: status.settled)
        return (await client.describe("flights")).addresses[0].node

    leader = run(dev.url, create)
    dead = leader % 3 + 1
    dev.kill([dead])
    alive = ",".join(
        dev.url.removeprefix("weir://").split(",")[n - 1] for n in (1, 2, 3) if n != dead
    )
    verb = ["node", "transfer-leader", "flights", "--to", str(dead), "--url", f"weir://{alive}"]
    assert main(verb) == 1
    said = capsys.readouterr()
    assert "leads" not in said.out
    assert f"node {dead} did not take over partition 0 of flights" in said.err
    assert f"node {dead} does not answer: start it, or name another node" in said.err
    assert f"node {leader} still leads it" in said.err


def test_who_has_no_majority_is_told_which_nodes_are_silent(
    dev: DevSet, capsys: pytest.CaptureFixture[str]
) -> None:
    async def create(client: Client) -> int:
        await client.create_topic("flights")
        await until(client, lambda status: status.settled)
        return (await client.describe("flights")).addresses[0].node

    alive = run(dev.url, create)
    first, second = (number for number in (1, 2, 3) if number != alive)
    dev.kill([first, second])

    async def leaderless(client: Client) -> None:
        await until(client, lambda status: any(one.leaderless for one in status.nodes))

    run(dev.url, leaderless)
    verb = ["node", "transfer-leader", "flights", "--to", str(first), "--url", dev.url]
    assert main(verb) == 1
    said = capsys.readouterr()
    assert "leads" not in said.out
    # While the leader that was left has not given up yet, it tries to hand the partition over.
    if "did not take over" in said.err:
        assert f"node {first} does not answer: start it" in said.err
    else:
        assert "no leader of partition 0 of flights was found that could hand it over" in said.err
        assert f"no answer of node {first}, {second}: start them" in said.err


def test_a_list_of_topics_says_which_partition_is_silent(
    dev: DevSet, capsys: pytest.CaptureFixture[str]
) -> None:
    async def create(client: Client) -> int:
        await client.create_topic("everywhere", 3)
        await client.create_topic("single", replicas=1)
        await until(client, lambda status: status.settled)
        await client.publish("everywhere", b"x")
        return (await client.describe("single")).addresses[0].node

    dev.kill([run(dev.url, create)])

    def listed() -> dict[str, Any]:
        assert main(["topic", "list", "--url", dev.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["topics"]
        return {one["name"]: [row["next_offset"] for row in one["partitions"]] for one in found}

    deadline = time.monotonic() + _WAIT
    while None in (found := listed())["everywhere"]:  # others are elected first
        assert time.monotonic() < deadline, found
    assert sum(found["everywhere"]) == 1
    assert found["single"] == [None]
    assert main(["topic", "list", "--url", dev.url]) == 0
    assert "0 (1 of 1 partitions silent)" in capsys.readouterr().out


def test_every_node_is_restarted_under_load_and_nothing_is_lost(dev: DevSet) -> None:
    confirmed: list[int] = []

    async def work(client: Client) -> list[bytes]:
        await client.create_topic("flights", 3)
        await until(client, lambda status: status.settled)
        stop = asyncio.Event()

        async def publish() -> None:
            number = 0
            while not stop.is_set():
                await client.publish("flights", str(number), key=str(number % 16))
                confirmed.append(number)
                number += 1

        publishing = asyncio.create_task(publish())
        for number in (1, 2, 3):
            had = len(confirmed)
            await asyncio.to_thread(stop_node, dev.node(number))
            await asyncio.to_thread(dev.restart, number, Signals())
            await until(client, lambda status: all(one.up for one in status.nodes))
            assert len(confirmed) > had
        await until(client, lambda status: status.settled)
        stop.set()
        await publishing
        async with client.reader("flights", follow=False) as reader:
            return [bytes(message.value) async for message in reader]

    values = run(dev.url, work)
    assert sorted(map(int, values)) == confirmed == [*range(len(confirmed))]


def stop_node(node: Node) -> None:
    node.stop()


def test_a_node_is_replaced_by_another(
    dev: DevSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from weir.testing.nodes import free_ports, start_node

    async def fill(client: Client) -> None:
        await client.create_topic("flights", 3)
        await until(client, lambda status: status.settled)
        await asyncio.gather(*(client.publish("flights", str(n), key=str(n)) for n in range(200)))

    run(dev.url, fill)
    (port,) = free_ports(1)
    assert main(["node", "add", f"127.0.0.1:{port}", "--url", dev.url]) == 0
    told = capsys.readouterr().out
    # Whoever did not see that asks again.
    assert main(["node", "add", f"127.0.0.1:{port}", "--url", dev.url]) == 0
    assert capsys.readouterr().out == told
    words = told.splitlines()[1].split()
    folder = tmp_path / "fourth"
    assert main([str(folder) if word == "FOLDER" else word for word in words[1:]]) == 0
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with start_node(folder, scratch, port=port, shards=1, segment_mib=32, spares=0):

        async def joined(client: Client) -> None:
            status = await until(client, lambda s: s.settled and s.nodes[3].held > 1)
            assert status.nodes[3].replicas > 0

        run(dev.url, joined)
        again = ["node", "add", f"127.0.0.1:{port}", "--node", "4", "--url", dev.url]
        assert main(again) == 0
        assert f"node 4 is reached at 127.0.0.1:{port} from" in capsys.readouterr().out
        assert main(["node", "remove", "1", "--url", dev.url]) == 1
        assert "weir node drain 1" in capsys.readouterr().err
        assert main(["node", "drain", "1", "--url", dev.url]) == 0
        assert main(["node", "remove", "1", "--url", dev.url]) == 0
        dev.node(1).stop()

        async def whole(client: Client) -> set[int]:
            status = await until(client, lambda status: status.settled)
            assert [one.id for one in status.nodes] == [2, 3, 4]
            async with client.reader("flights", follow=False) as reader:
                return {int(bytes(message.value)) async for message in reader}

        assert run(dev.url, whole) == {*range(200)}


def test_the_command_tells_programs_what_happens(tmp_path: Path) -> None:
    command = ["dev", "--nodes", "3", "--json", "--restart", "0s", "--data", str(tmp_path / "set")]
    with subprocess.Popen(
        python("weir.cli", *command), stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        try:
            up = json.loads(process.stdout.readline())
            assert (up["event"], up["schema"], len(up["nodes"])) == ("up", "weir.set/1", 3)
            assert run(up["url"], lambda client: client.nodes.list()).system == int(
                up["system"], 16
            )
            os.kill(up["nodes"][1]["pid"], signal.SIGKILL)
            ended, started = (json.loads(process.stdout.readline()) for _ in range(2))
            assert (ended["event"], ended["node"]) == ("ended", 2)
            assert (started["event"], started["node"]) == ("started", 2)
            assert started["pid"] != ended["pid"] == up["nodes"][1]["pid"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(_WAIT) == 0
