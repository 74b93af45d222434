"""`weir topology`: what it finds in a file, draws, and applies."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rigs.relay_nodes import fill, relay, until_known
from rigs.topologies import COMPANY
from weir import connect, sync, testing
from weir.cli import output
from weir.cli.admin import hops
from weir.cli.admin.hops import Hop
from weir.cli.doctor import relay as doctor
from weir.cli.doctor.finding import Finding, Patient
from weir.cli.main import main
from weir.client.nodes import SystemTopology
from weir.client.promotion import ALONE_WITHIN, GroupLoss, PromotionPlan
from weir.errors import BadRequest, Disconnected, TopologyChanged
from weir.protocol.client.topology import TopologyState
from weir.server.config import Config, NodeConfig
from weir.testing import Node
from weir.topology.file import read
from weir.topology.sets import Topology

#: A node in memory is node 1, and is in set 0.
HOME = COMPANY.replace("id = 1\n", "id = 0\n")
TREE = """\
beijing [{}] core, home north/telecom node 1
mobile [2] core node 2
  shanghai [4] tandem 1 node 4 or below beijing holds default/orders:hangzhou,- shop/prices:*
    hangzhou [5] access 2 nodes 5, 6 holds default/orders:hangzhou
unicom [3] core node 3
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one


def write(folder: Path, text: str) -> str:
    path = folder / "company.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["topology", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, COMPANY)
    code, out, _ = said(capsys, "check", file)
    assert code == 0
    warning, fine = out.splitlines()
    assert warning.startswith(f"{file}:28: warning: set shanghai: its loss is not survived")
    assert fine == f"{file}: fine"
    code, out, _ = said(capsys, "check", file, "--json")
    found = json.loads(out)
    assert (code, found["fine"], found["problems"][0]["set"]) == (0, True, "shanghai")


@pytest.mark.parametrize("verb", ["check", "show", "apply"])
def test_what_is_wrong_with_a_file_is_told_by_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, COMPANY.replace("2=10.0.0.2", "1=10.0.0.2"))
    code, out, err = said(capsys, verb, file)
    assert (code, out) == (1, "")
    assert err.startswith(f"{file}:15: set mobile: node 1 stands in set beijing already")


def test_problems_come_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, COMPANY.replace("id = 2", "id = -2"))
    code, out, _ = said(capsys, "check", file, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["line"], problem["set"], problem["warning"]) == (1, 12, None, False)


def test_a_tree_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, COMPANY)
    assert said(capsys, "show", file) == (0, TREE.format(1), "")
    code, out, _ = said(capsys, "show", file, "--json")
    found = json.loads(out)
    assert (code, found["home"], found["version"], len(found["sets"])) == (0, "beijing", None, 5)
    assert found["sets"][4]["upper"] == ["shanghai"]
    assert found["sets"][3]["tags"] == {"default/orders": ["hangzhou", ""], "shop/prices": None}


def test_a_topology_is_applied(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ("--url", node.url)
    assert said(capsys, "show", *url)[1].startswith("no topology is applied")
    file = write(tmp_path, HOME)
    code, out, _ = said(capsys, "apply", file, "--dry-run", *url)
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (
        0, "home: - → beijing", "nothing was changed: version 0 is applied still",
    )  # fmt: skip
    assert said(capsys, "apply", file, *url)[1].endswith("\nversion 1 is applied\n")
    assert said(capsys, "show", "--no-lag", *url)[1] == TREE.format(0)
    assert said(capsys, "apply", file, *url)[1].endswith("nothing changes, version 1 is applied\n")
    file = write(tmp_path, HOME.replace('region = "north"', 'region = "n"'))
    code, out, _ = said(capsys, "apply", file, "--json", *url)
    found = json.loads(out)
    assert (code, found["version"], found["applied"]) == (0, 2, True)
    assert found["changes"] == [
        {"set": "beijing", "key": "region", "before": "north", "after": "n"}
    ]
    file = write(tmp_path, HOME.replace("1=10.0.0.1", "9=10.0.0.1"))
    code, _, err = said(capsys, "apply", file, *url)
    assert code == 1
    assert "node 1 is in no core set of the file" in err


def test_what_was_read_of_another_version_is_not_applied(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.cli.admin import topology as room

    with sync.connect(node.url) as w:
        topology = read(HOME).topology
        assert topology is not None
        assert w.topology.apply(topology, 0).version == 1
        with pytest.raises(TopologyChanged, match="version 1"):
            w.topology.apply(Topology(0, topology.sets[:3]), 0)

        async def stale(_: object) -> TopologyState:
            return TopologyState(0, Topology())

        monkeypatch.setattr(room, "_describe", stale)
        file = write(tmp_path, HOME.replace('region = "north"', 'region = "n"'))
        code, _, err = said(capsys, "apply", file, "--url", node.url)
        assert (code, "look at the difference again" in err) == (1, True)
        assert w.topology.describe() == TopologyState(1, topology)


RELAYS = """\
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
nodes = ["7={relay}", "8={relay8}", "9=127.0.0.1:1"]
"""


def test_the_tree_that_is_applied_has_the_lag_of_each_relay(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops, "RELAY_SECONDS", 0.3)
    monkeypatch.setattr(doctor, "running", lambda _: (node.url, 1))

    async def work() -> tuple[tuple[int, str, str], tuple[int, str, str], Finding]:
        await fill(node, 6)
        async with relay(node, tmp_path, brokerset=5, node=8) as url:
            await until_known(url, 6)
            # Nodes 7 and 8 at two names of one address: the relay is node 8.
            text = RELAYS.format(
                core=node.url[7:], relay=url[7:].replace("127.0.0.1", "localhost"), relay8=url[7:]
            )
            topology = read(text).topology
            assert topology is not None
            async with connect(node.url) as client:
                await client.topology.apply(topology, 0)
                with pytest.raises(BadRequest, match="core set"):
                    await client.topology.describe_relay()
            shown = await asyncio.to_thread(said, capsys, "show", "--url", node.url)
            listed = await asyncio.to_thread(said, capsys, "show", "--json", "--url", node.url)
            patient = Patient(Config(node=NodeConfig(data=str(tmp_path))))
            return shown, listed, await asyncio.to_thread(doctor.relays, patient)

    (code, out, _), (_, listed, _), finding = asyncio.run(work())
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 5)
    assert lines[1].startswith("  hangzhou [5] access 1")
    assert lines[2] == "    - node 7: unknown: node 8 of the set with id 5 answers at its address"
    assert lines[3].startswith("    - node 8: 0 messages behind, complete ")
    assert lines[4].startswith("    - node 9: unknown: ")
    found = {row["node"]: row for row in json.loads(listed)["relays"]}
    assert (found[8]["set"], found[8]["error"], found[8]["reached"]) == ("hangzhou", None, True)
    assert found[8]["pulled_bytes"]["core"] > 0
    (topic,) = found[8]["topics"]
    assert (topic["topic"], topic["partitions"], topic["lag_messages"]) == ("t", 2, 0)
    assert topic["lag_seconds"] < 60
    assert topic["held_bytes"] > 0
    assert topic["filter_tags"] is None
    assert found[9]["error"]
    assert finding.state == "warn"
    assert "hangzhou/9" in finding.found
    assert "hangzhou/8" not in finding.found


def test_relays_beyond_the_time_for_all_are_told_not_to_have_been_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hops, "ALL_SECONDS", 0.05)
    monkeypatch.setattr(hops, "ASKED_AT_ONCE", 1)

    async def work() -> list[Hop[None]]:
        async def silent(_: object) -> None:
            await asyncio.Event().wait()

        with socket.create_server(("127.0.0.1", 0)) as server:  # it never answers
            port = server.getsockname()[1]
            places = [(f"a/{n}", f"weir://127.0.0.1:{port}") for n in range(3)]
            return await hops.ask_relays(places, silent)

    told = asyncio.run(work())
    assert [one.name for one in told] == ["a/0", "a/1", "a/2"]
    assert all("for all relays were over" in one.error for one in told), told


def planned(**more: object) -> PromotionPlan:
    losses = (
        GroupLoss("", -1, (4, 5), 0, 0, 0, 900),
        GroupLoss("shop/orders", 0, (4, 5), 81, 1_700_000_000_500, 3, 41_250),
        GroupLoss("shop/orders", 1, (4,), 7, 0, 0, -1),
        GroupLoss("shop/orders", 2, (4, 5), 9, 1, 0, 20, True),
    )
    plan = PromotionPlan(
        2, "south", 1, (4, 5), losses, (("shop/prices", 1),), (), (5,), False, {}, ()
    )
    return msgspec.structs.replace(plan, **more)


def test_what_a_promotion_may_lose_is_printed_first(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, done = planned(), list[object]()

    async def plan_promotion(*asked: object) -> PromotionPlan:
        done.append(asked[1:])
        return plan

    async def promote(*asked: object, forced: bool = False) -> list[tuple[str, int]]:
        done.append(forced)
        return [("shop/orders", 1)]

    monkeypatch.setattr(SystemTopology, "plan_promotion", plan_promotion)
    monkeypatch.setattr(SystemTopology, "promote", promote)
    monkeypatch.setattr("sys.stdin", io.StringIO("north\n"))
    code, out, err = said(capsys, "promote", "south", "--without", "6", "--url", node.url)
    assert (code, done) == (1, [("south", [6])])
    assert out.splitlines() == [
        "set south would go on alone with nodes 4, 5",
        "  registry: topics, users and settings that were changed last, home was last heard of "
        "0.9 s ago",
        "  shop/orders/0: messages at offset 81 or above, published after "
        "2023-11-14 22:13:20.500+00:00, 3 entries of it are known to be lost, home was last heard "
        "of 41.2 s ago",
        "  shop/orders/1: messages at offset 7 or above, when home was last heard of is not known",
        "  shop/orders/2: nothing, a node of the set leads it",
        "  node 5 was started since: its copies of topics are not known yet",
        "  shop/prices/1: all of it, for no node of the set has a copy",
    ]
    assert "nothing was changed" in err
    code, out, _ = said(capsys, "promote", "south", "--dry-run", "--url", node.url)
    assert (code, done[1:]) == (0, [("south", ())])
    assert out.endswith("nothing was changed\n")
    code, out, err = said(capsys, "promote", "south", "--yes", "--json", "--url", node.url)
    assert (code, done[2:]) == (1, [("south", ()), False])
    found = json.loads(out)
    assert found["losses"][1] == {
        "topic": "shop/orders", "partition": 0, "nodes": [4, 5], "possible": True,
        "from_offset": 81, "after_ms": 1_700_000_000_500, "missing_entries": 3,
        "silent_seconds": 41.25,
    }  # fmt: skip
    assert found["leaderless"] == [{"topic": "shop/orders", "partition": 1}]
    assert err == "partition 1 of shop/orders has no leader yet\n"


def test_a_promotion_is_refused_while_the_other_set_answers(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plan_promotion(*asked: object, wait: float = 0.0) -> PromotionPlan:
        waits.append(wait)
        return planned(others=(1, 2))

    waits = list[float]()
    monkeypatch.setattr(SystemTopology, "plan_promotion", plan_promotion)
    code, _, err = said(capsys, "promote", "south", "--yes", "--url", node.url)
    assert code == 1
    assert err.startswith("node 1, 2 of the other set answers: stop it first, or give --force")
    assert waits == [0.0, ALONE_WITHIN]
    code, _, err = said(capsys, "promote", "south", "--dry-run", "--url", node.url)
    assert (code, waits[2:]) == (1, [0.0])


def test_a_promotion_waits_for_nodes_that_were_just_stopped(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plan_promotion(*asked: object, wait: float = 0.0) -> PromotionPlan:
        if not wait:
            return planned(others=(1, 2))
        await asyncio.sleep(0.1)
        return planned()

    async def promote(*asked: object, forced: bool = False) -> list[tuple[str, int]]:
        assert not forced
        return []

    monkeypatch.setattr(output, "LINE_SECONDS", 0.02)
    monkeypatch.setattr(SystemTopology, "plan_promotion", plan_promotion)
    monkeypatch.setattr(SystemTopology, "promote", promote)
    code, out, err = said(capsys, "promote", "south", "--yes", "--url", node.url)
    assert (code, out.splitlines()[-1]) == (0, "set south is home, in lineage 1")
    assert err.startswith("waiting for node 1, 2 to be gone: 0 s so far\n")


def test_who_has_the_folder_of_a_node_promotes_without_a_login(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[tuple[Path, str]]()

    def rescued(folder: Path, work: Callable[[Any], Any], url: str = "") -> Any:
        asked.append((folder, url))
        return asyncio.run(work(SimpleNamespace(topology=SystemTopology(Any))))

    async def plan_promotion(*asked: object) -> PromotionPlan:
        return planned()

    async def promote(*asked: object, forced: bool = False) -> list[tuple[str, int]]:
        return []

    monkeypatch.setattr("weir.cli.access.rescue.rescued", rescued)
    monkeypatch.setattr(SystemTopology, "plan_promotion", plan_promotion)
    monkeypatch.setattr(SystemTopology, "promote", promote)
    # What a user logs in to is home perhaps: the node of the folder is asked.
    monkeypatch.setenv("WEIR_URL", "weir://root@10.0.0.1:6800")
    words = ("promote", "south", "--yes", "--data", str(tmp_path))
    code, out, _ = said(capsys, *words, "--json")
    assert (code, json.loads(out)["settings"]) == (0, {"data": str(tmp_path)})
    # Each of both steps is let in by a file of its own: between them a person may think.
    assert asked == [(tmp_path, "")] * 2
    assert said(capsys, *words, "--dry-run", "--url", "weirs://10.1.0.1:6800")[0] == 0
    assert asked[2:] == [(tmp_path, "weirs://10.1.0.1:6800")]


def test_who_cannot_log_in_without_home_is_told_how(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected(*_: object) -> object:
        raise Disconnected("10.1.0.1:6800 did not let this client in")

    monkeypatch.setattr("weir.cli.admin.promotion.connected", connected)
    code, _, err = said(capsys, "promote", "south", "--url", "weir://root@10.1.0.1:6800")
    assert (code, "in. If the set is not open, give --data on the machine" in err) == (1, True)


def test_a_lone_set_is_not_promoted(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "promote", "0", "--yes", "--url", node.url)
    assert code == 1
    assert "a set can be promoted only if there are exactly two core sets" in err
    code, _, err = said(capsys, "promote", "south", "--yes", "--url", node.url)
    assert code == 1
    assert "node 1 is of set 0, not south" in err
