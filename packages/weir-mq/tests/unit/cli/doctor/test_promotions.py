"""What the doctor says of core sets of which one was promoted, is to be, or went on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rigs.promotions import leave_behind
from weir import testing
from weir.cli import connection
from weir.cli.doctor import checks, promotions
from weir.cli.doctor.finding import Finding, Patient
from weir.cli.doctor.promotions import judge_promotion
from weir.errors import NotAuthenticated, Unavailable, UnknownOpcode, WeirError
from weir.model.ids import REGISTRY_GROUP, group_of
from weir.protocol.client.topology import CopyList, CopyRow, TopologyState
from weir.server.config import Config, NodeConfig
from weir.topology.sets import Topology

HOME, AWAY = 1, 2


def patient(folder: Path) -> Patient:
    return Patient(Config(node=NodeConfig(data=str(folder))))


def copy_of(group: int, leader: int = 3, lineage: int = 0, begun: int = 0) -> CopyRow:
    topic = "" if group == REGISTRY_GROUP else "orders"
    return CopyRow(group, topic, 3 << 16, leader, lineage, begun, 1, 9, 9, 41_300, 7, 8, [1])


def copies(*rows: CopyRow, promoted: int = 0, home: int = HOME, **more: Any) -> CopyList:
    """Return what shard 0 of node 3 has, which is of set 2."""
    members = [(3, 1), (4, 1)]
    all_rows = [*(rows or (copy_of(REGISTRY_GROUP),))]
    told = CopyList(
        all_rows, False, 3, AWAY, 9, "south", members, home, promoted, [], [], False
    )  # fmt: skip
    return replace(told, **more)


def applied(home: int, version: int = 4) -> TopologyState:
    return TopologyState(version, Topology(home))


def sick(finding: Finding, state: str, found: str, advice: str) -> None:
    assert finding.check == "promotion"
    assert finding.state == state, finding
    assert found in finding.found
    assert advice in finding.advice


def test_where_no_set_was_promoted_all_is_well(tmp_path: Path) -> None:
    with testing.node() as node, pytest.MonkeyPatch.context() as patched:
        patched.setattr(promotions, "running", lambda _: (node.url, 1))
        sick(promotions.promotion(patient(tmp_path)), "ok", "no set was promoted", "")
    sick(judge_promotion(copies(home=-1), None), "ok", "no set was promoted", "")
    sick(judge_promotion(copies(home=AWAY), None), "ok", "no set was promoted", "")
    sick(judge_promotion(copies(), None), "ok", "set south has a copy of all", "")


def test_a_node_that_a_promotion_left_behind_is_told(tmp_path: Path) -> None:
    with testing.node() as node, pytest.MonkeyPatch.context() as patched:
        leave_behind(node)
        patched.setattr(connection, "TIMEOUT_SECONDS", 0.5)
        for module in (promotions, checks):
            patched.setattr(module, "running", lambda _: (node.url, 1))
        told = promotions.promotion(patient(tmp_path))
        asked = checks.endpoint(patient(tmp_path))
    sick(told, "fail", "was promoted without this node (lineage 1)", "keep its folder")
    assert (asked.state, asked.advice) == ("fail", told.advice)


@pytest.mark.parametrize(
    ("error", "state"), [(UnknownOpcode("111"), "ok"), (Unavailable("it starts"), None)]
)
def test_a_node_that_answers_otherwise(
    error: WeirError, state: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(promotions, "running", lambda _: ("weir://x", 1))
    monkeypatch.setattr(connection, "connected", refuse)
    if state is None:
        with pytest.raises(Unavailable):
            promotions.promotion(patient(tmp_path))
    else:
        assert promotions.promotion(patient(tmp_path)).state == state


def test_a_closed_node_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotAuthenticated("closed")

    monkeypatch.setattr(promotions, "running", lambda _: ("weir://x", 1))
    monkeypatch.setattr(connection, "connected", refuse)
    (found,) = checks.examine(patient(tmp_path), ["promotion"])
    sick(found, "warn", "closed to strangers", "log in")


def test_a_promotion_that_stopped_in_the_middle_is_told() -> None:
    for row in (copy_of(REGISTRY_GROUP, 3, 1, 0), copy_of(REGISTRY_GROUP, 3, 1, 1)):
        found = judge_promotion(copies(row), None)
        sick(found, "fail", "the promotion of set south was begun", "weir topology promote south")
    again = judge_promotion(copies(copy_of(REGISTRY_GROUP, 3, 2, 1), promoted=1), applied(AWAY))
    sick(again, "fail", "is not finished", "once more")
    done = judge_promotion(promoted(3), applied(AWAY))
    assert done.state == "ok"


def test_a_set_whose_home_is_away_is_told_how_it_could_go_on() -> None:
    found = judge_promotion(copies(copy_of(REGISTRY_GROUP, 0)), None)
    sick(found, "fail", "set 1, the home of all voters, which was last heard of 41 s ago",
         "weir topology promote south --dry-run")  # fmt: skip
    never = judge_promotion(copies(replace(copy_of(REGISTRY_GROUP, 0), heard_ms=-1)), None)
    assert never.found.endswith("the home of all voters")


def test_partitions_that_a_promotion_would_lose_are_named() -> None:
    absent = [(group_of(3, number), "orders") for number in range(7)]
    found = judge_promotion(copies(absent=absent), None)
    sick(found, "warn", "without a copy in set south: orders/0, orders/1", "weir node status")
    assert found.found.endswith("orders/4 and 2 more")
    assert judge_promotion(copies(absent=absent, home=AWAY), None).state == "ok", "it is home"


def promoted(*leaders: int) -> CopyList:
    groups = [REGISTRY_GROUP, *(group_of(3, number) for number in range(len(leaders) - 1))]
    rows = [copy_of(group, leader, 1, 1) for group, leader in zip(groups, leaders, strict=True)]
    return copies(*rows, promoted=1, home=AWAY)


def test_partitions_that_nobody_leads_after_a_promotion_are_named() -> None:
    found = judge_promotion(promoted(3, 0, 4), applied(AWAY))
    sick(found, "fail", "without a leader in lineage 1: orders/0", "--without NODE")
    unled = judge_promotion(promoted(0, 3, 4), None)
    sick(unled, "fail", "in lineage 1: the metadata", "weir topology promote south")


def test_a_topology_that_would_move_home_back_is_told() -> None:
    found = judge_promotion(promoted(3, 3, 4), applied(HOME))
    sick(found, "warn", "set 2 is home since it was promoted, and the topology says set 1",
         "weir topology apply")  # fmt: skip
    well = judge_promotion(promoted(3, 3, 4), applied(AWAY))
    sick(well, "ok", "2 partitions here in a later lineage, each with a leader", "")
    assert judge_promotion(promoted(3, 3), applied(HOME, version=0)).state == "ok", "there is none"
    alone = replace(promoted(3, 3), home=-1)
    assert judge_promotion(alone, applied(HOME)).state == "warn", "one set is left"
    assert judge_promotion(alone, applied(AWAY)).state == "ok"
