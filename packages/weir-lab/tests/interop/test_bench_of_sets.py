"""The measurements on a set of three nodes, and which peers they are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rigs.drawn_mutants import one_in
from weir.cli.main import main
from weir_lab.bench.comparison.compare import Settings
from weir_lab.bench.faults import catch_up
from weir_lab.bench.flow import flow
from weir_lab.bench.harness.loop import run
from weir_lab.bench.sides.own import running_own
from weir_lab.bench.sides.peers.peers import peer, set_of
from weir_lab.bench.sides.side import topic_name


def test_messages_flow_through_three_nodes_and_all_are_measured(tmp_path: Path) -> None:
    with running_own(str(tmp_path), replicas=3) as side:
        assert "a majority of 3 nodes" in side.settings
        assert len(side.node.pids) == 3
        done = run(flow(side, topic_name(1), "both", [2_000], 1_024, 30.0))
        assert done.clean
        assert side.cpu_s()
        side.running()
    assert not [*tmp_path.iterdir()]


def test_a_verb_measures_three_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "timeliness", "--messages", "3000", "--size", "64", "--replicas", "3"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["replicas"] == 3
    assert (told["lost"], told["repeated"], told["confirmed"]) == (0, 0, 3_000)
    assert main([*words[:-1], "0"]) == 2
    assert "replicas=0" in capsys.readouterr().err


@one_in(3)
def test_a_follower_that_was_away_is_measured_beside_live_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--mib", "48", "--rate", "100", "--seconds", "1", "--folder", str(tmp_path)]
    assert catch_up.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for name in ("alone", "catching_up", "cold_alone", "cold_reads"):
        assert 0 < told[name]["p50_ms"] <= told[name]["p99_ms"]
    assert told["alone"]["messages"] == pytest.approx(200, abs=10)
    assert min(told[f"{name}_mb_s"] for name in ("catch_up", "catch_up_alone", "cold")) > 0
    assert not [*tmp_path.iterdir()]


def test_peers_of_a_set_run_as_sets_themselves() -> None:
    assert Settings(["rabbitmq", "nats"], replicas=3).labels == ["rabbitmq-set", "nats-set"]
    assert Settings(["rabbitmq", "nats"]).labels == ["rabbitmq", "nats"]
    (quorum,) = peer(set_of("rabbitmq:quorum"))
    assert quorum.label == "rabbitmq-set:quorum"
    assert quorum.synced
    (always,) = peer(set_of("nats"))
    assert "3 replicas on 3 servers" in always.settings
    with pytest.raises(ValueError, match="redis does not run as a set"):
        Settings(["redis"], replicas=3).check()
    with pytest.raises(ValueError, match="on 1 node, or on 3"):
        Settings(["nats"], replicas=2).check()
