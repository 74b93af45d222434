"""`weir trace`: where a message is in the core and at relays, and who has done it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.relay_nodes import fill, relay, until_known
from weir import connect, testing
from weir.cli.admin import hops as asking
from weir.cli.main import main
from weir.client.arguments import parse_url
from weir.testing import Node
from weir.tls.dialling import files_of
from weir.tls.files import ClientFiles
from weir.topology.file import read

TOPOLOGY = """\
[[set]]
name = "core"
id = 0
tier = "core"
nodes = ["1={core}"]

[[set]]
name = "hangzhou"
id = 5
tier = "access"
upper = ["core"]
nodes = ["8={relay}"]

[[set]]
name = "shenzhen"
id = 6
tier = "access"
upper = ["core"]
nodes = ["9=127.0.0.1:1"]
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["trace", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_message_is_followed_through_the_relays_of_the_topology(
    node: Node,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "RELAY_SECONDS", 0.3)

    async def play() -> tuple[tuple[int, str, str], ...]:
        await fill(node, 6)
        async with relay(node, tmp_path, tags=frozenset({"a"}), brokerset=5, node=8) as url:
            await until_known(url, 6)
            async with connect(node.url) as client:
                text = TOPOLOGY.format(core=node.url[7:], relay=url[7:])
                found = read(text)
                assert found.topology is not None, found.problems
                await client.topology.apply(found.topology, 0)
                parts = await client.parts("t")
                last = [part.end for part in parts]
                await client.seek_cluster("t", "crew", "earliest", create=True)
                stored = await client.trace("t", 0, 0)
                assert (stored.presence, stored.received) == ("stored", None)
                assert abs(stored.clock_ahead) < 5
                (crew,) = stored.clusters
                assert (crew.cluster, crew.progress) == ("crew", "waiting")
            runs = (
                ("t/0/0", "--url", node.url),
                ("default/t/0/0", "--url", node.url, "--json", "--relay", "weir://127.0.0.1:2"),
                (f"t/0/{last[0]}", "--url", node.url),
            )
            told = []
            for arguments in runs:
                told.append(await asyncio.to_thread(said, capsys, *arguments))
            return tuple(told)

    shown, listed, beyond = asyncio.run(play())
    code, out, _ = shown
    lines = out.splitlines()
    assert (code, lines[0].startswith("t/0/0 is stored; the partition holds")) == (0, True)
    assert lines[1].split() == ["HOP", "MESSAGE", "CAME", "CLOCK", "HOLDS"]
    assert [line.split()[0] for line in lines[2:5]] == ["core", "hangzhou/8", "shenzhen/9"]
    assert "unknown:" in lines[4]
    assert lines[-1].split()[:2] == ["crew", "waiting"]
    code, out, _ = listed
    told = json.loads(out)
    assert (code, told["schema"], told["presence"]) == (0, "weir.trace/1", "stored")
    hops = {row["hop"]: row for row in told["hops"]}
    assert [*hops] == ["core", "hangzhou/8", "shenzhen/9", "weir://127.0.0.1:2"]
    assert hops["hangzhou/8"]["presence"] in ("stored", "skipped")
    assert hops["hangzhou/8"]["received"] > 1e9
    assert hops["shenzhen/9"]["error"]
    assert told["clusters"][0]["cluster"] == "crew"
    code, out, _ = beyond
    assert (code, "is not there yet" in out) == (1, True)


@pytest.mark.parametrize("wrong", [
    "t", "t/0", "t/0/x", "t/-1/0", "/0/1", "t/0/", f"t/0/{1 << 63}", f"t/{1 << 63}/0",
    f"t/0/{'1' * 5_000}",
])  # fmt: skip
def test_what_names_no_message_is_refused_with_the_way_to_name_one(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, wrong, "--url", "weir://127.0.0.1:1")
    assert (code, "give TOPIC/PARTITION/OFFSET" in err) == (2, True)


def test_a_partition_that_is_not_there_is_named(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(node, 1))
    code, _, err = said(capsys, "t/7/0", "--url", node.url)
    assert (code, "2 partitions" in err) == (1, True)


def test_a_cluster_in_total_order_is_told_of_in_each_partition(node: Node) -> None:
    async def play() -> None:
        await fill(node, 6)
        async with connect(node.url) as client:
            done = set[tuple[int, int]]()
            async with client.consumer("t", cluster="book", mode="ordered") as consumer:
                async for message in consumer:
                    await message.ack(confirmed=True)
                    done.add((message.partition, message.offset))
                    if len(done) == 4:
                        break
            for partition, part in enumerate(await client.parts("t")):
                for offset in range(part.end):
                    (book,) = (await client.trace("t", partition, offset)).clusters
                    is_done = (partition, offset) in done
                    assert (book.cluster, book.progress) == (
                        "book", "done" if is_done else "waiting",
                    )  # fmt: skip

    asyncio.run(asyncio.wait_for(play(), 30))


def test_a_relay_is_reached_as_the_core_is_and_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WEIR_SERVER_NAME", raising=False)
    assert asking.at("weir://core", "10.1.0.1", 6800) == "weir://10.1.0.1:6800"
    assert asking.at("weirs://ann@a:1,b?ca=/x.pem", "::1", 7) == "weirs://ann@[::1]:7?ca=/x.pem"
    url = "weirs://ann@a?server_name=core&ca=/x.pem"
    assert asking.at(url, "b", 7) == "weirs://ann@b:7?ca=/x.pem"
    assert asking.at("weirs://a?server_name=core", "b", 7) == "weirs://b:7"
    monkeypatch.setenv("WEIR_SERVER_NAME", "core")
    assert files_of(parse_url(asking.at(url.replace("ann@", ""), "b", 7))) == ClientFiles(
        "/x.pem", server_name="b"
    )
    assert asking.at("weir://core", "b", 7) == "weir://b:7"
