"""The chaos verbs on real processes: every round ends well, and the ledgers say so.

`make proof` runs many rounds; these show that all of it works.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rigs.drawn_mutants import one_in, some_of
from weir.cli.main import main
from weir.server.interpreter import environment, python
from weir.testing.nodes import running_set
from weir_lab.bench.faults.chaos.tiers import FAULTS

WRONG = "lost", "repeated", "reordered", "misplaced", "strange", "stale"


def check(told: dict[str, Any], rounds: int) -> None:
    """Check what a run says of itself in JSON."""
    assert told["schema"] == "weir.chaos/1"
    assert [told[name] for name in WRONG] == [0] * len(WRONG)
    assert told["rounds"] == len(told["each"]) == rounds
    assert told["rto_max_ms"] == max(one["gap_ms"] for one in told["each"]) > 0
    # The producer, two devices, and what a witness may have got in.
    assert told["read"] == told["read_live"] >= told["confirmed"] > 0


@pytest.mark.parametrize(
    "words",
    # Other tests kill, stop and restart nodes of a set under load as well.
    some_of(
        1,
        (("kill-leader", "--times", "2", "--down", "0.5"),),
        (("restart-all", "--times", "1"),),
        (("pause-leader", "--times", "1", "--seconds", "3"),),
    ),
    ids=lambda words: words[0],
)
def test_nothing_is_lost_repeated_or_stale(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *words, "--calm", "0.2", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    check(told, int(words[2]))
    assert said.err.count("✗") == told["rounds"]
    if words[0] == "pause-leader":
        assert all(one["asked"] == one["answered"] + one["refused"] for one in told["each"])
        assert told["reader_lag_max_ms"] == max(one["reader_lag_ms"] for one in told["each"]) > 0


@pytest.mark.timeout(240)
def test_a_leader_that_is_cut_off_tells_nothing_stale() -> None:
    words = ("chaos", "partition", "--times", "1", "--seconds", "3", "--calm", "0.2", "--json")
    # It goes on in a network of its own, which this process must not.
    done = subprocess.run(
        python("weir.cli", *words), capture_output=True, env=environment(), text=True,
        timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    check(told, 1)
    (one,) = told["each"]
    assert one["leads"] != one["led"] or one["gap_ms"] > 100, "nobody was cut off"
    assert one["asked"] > 0


@pytest.mark.parametrize(
    ("rounds", "done"),
    [
        pytest.param(1, [1, 0, 0, 0], id="a-certificate"),
        pytest.param(9, [9, 1, 1, 1], marks=pytest.mark.slow, id="all"),
    ],
)
def test_secrets_rotate_under_load_while_nodes_are_killed(
    rounds: int, done: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("rotate", "--times", str(rounds), "--calm", "0", "--down", "0.2", "--json")
    assert main(["chaos", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    check(told, rounds)
    names = "certificates", "authorities", "wrapping_keys", "closed"
    assert [told["done"][name] for name in names] == done
    assert told["longest_gap_ms"] > 0
    assert told["kill_gap_ms"] > 0


def test_a_set_elsewhere_is_watched_while_a_command_does_the_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_set(tmp_path, 3) as nodes:
        pid = nodes.pids[1]
        words = ("watch", "--url", nodes.url, "--times", "1", "--calm", "0.2", "--seconds", "2")
        harm = ("--command", f"kill -STOP {pid}", "--undo", f"kill -CONT {pid}")
        assert main(["chaos", *words, *harm, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        check(told, 1)
        assert told["each"][0]["struck"] == 0
        assert main(["chaos", *words, "--command", "false"]) == 1
        assert "'false' ended with 1" in capsys.readouterr().err
        assert main(["topic", "list", "--url", nodes.url, "--json"]) == 0
        left = [one for one in capsys.readouterr().out.split('"') if one.startswith("chaos-")]
        assert len(left) == 1, "only what ended badly leaves its topic to be looked at"


@one_in(3)
@pytest.mark.timeout(240)
def test_once_a_majority_is_back_each_partition_changes_its_leader_and_confirms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Whether it went well within its 2 s is a figure: the machine does something else meanwhile.
    assert main(["chaos", "regain", "--times", "2", "--partitions", "6", "--json"]) in (0, 1)
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "weir.chaos-regain/1"
    assert told["rounds"] == len(told["each"]) == 2
    assert all(one["changes"] >= 6 for one in told["each"]), "who led without a majority?"
    assert told["confirmed_max_ms"] == max(one["confirmed_ms"] for one in told["each"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_readers_at_relays_get_what_the_core_holds_whichever_tier_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--times", "7", "--down", "1", "--calm", "0.2", "--rate", "100", "--json")
    assert main(["chaos", "tiers", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["faults"], told["failed"]) == ("weir.chaos.tiers/1", 7, [])
    assert [told[name] for name in ("lost", "repeated", "out_of_order", "differing")] == [0] * 4
    readers = {one["reader"]: one["messages"] for one in told["readings"]}
    whole = told["messages"]
    all_of_them = dict.fromkeys(("core", "moving", "20", "21", "cluster"), whole)
    assert readers == {**all_of_them, "22": whole // 2}
    assert {(one["kind"], one["tier"]) for one in told["strikes"]} == {*FAULTS}
    assert min(told["moves"], told["cluster_moves"]) > 0
