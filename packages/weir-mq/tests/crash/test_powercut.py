"""Real power cuts: nodes on Linux kernels of their own, which are killed under load.

`make powercut` makes more of them. What a run shows stands in the ledgers of its clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weir.server.interpreter import environment

ROOT = Path(__file__).parents[4]
SECONDS = 300


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Install what is needed; that takes root, or sudo, the first time."""
    packages = (ROOT / "scripts" / "powercut-packages").read_text(encoding="utf-8").split()
    subprocess.run([ROOT / "scripts" / "apt-install", *packages], check=True, timeout=200)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "weir_lab.bench.faults.powercut", *arguments, "--json"],
        capture_output=True,
        env=environment(),
        text=True,
        timeout=SECONDS,
        check=False,
    )


def powercut(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run it; return the exit code, what it found, and what it said."""
    done = run(*arguments)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.timeout(SECONDS)
# With three kernels `make proof` does it; the clients, the ledger and the judge are those of one.
@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_what_was_confirmed_and_acked_stays_so(nodes: int) -> None:
    code, found, said = powercut("--nodes", str(nodes), "--times", "2", "--lease-s", "15")
    verdict = found["verdict"]
    wrong = ("lost", "undelivered", "repeated", "reordered", "strange")
    bad = {name: verdict[name] for name in wrong}
    assert bad == dict.fromkeys(bad, 0), said
    assert (code, found["lag"], found["refused"]) == (0, 0, None)
    assert [len(one["victims"]) for one in found["rounds"]] == [1, 1 if nodes == 1 else 2]
    assert verdict["sent"] == verdict["confirmed"] == verdict["delivered"] == verdict["acked"] > 100


@pytest.mark.timeout(SECONDS)
@pytest.mark.slow  # `make proof` does it; the clients, the ledger and the judge are those of one
def test_what_was_confirmed_and_acked_below_relays_stays_so() -> None:
    code, found, said = powercut("--tiers", "--times", "1", "--lease-s", "15")
    verdict = found["verdict"]
    wrong = ("lost", "undelivered", "repeated", "reordered", "strange", "differing")
    bad = {name: verdict[name] for name in wrong}
    assert bad == dict.fromkeys(bad, 0), said
    assert (code, found["lag"], found["refused"]) == (0, 0, None)
    assert [one["victims"] for one in found["rounds"]] == [["core"], ["tandem"], ["access"]]
    # Two readers that stay, and one that reads everything at the end.
    assert verdict["read"] == 3 * verdict["sent"]
    assert found["pulled"]["tandem"] > 10_000
    assert found["cuts_of"] == {"core": 2, "tandem": 2, "access": 2}
    assert verdict["sent"] == verdict["confirmed"] == verdict["delivered"] == verdict["acked"] > 100


@pytest.mark.timeout(SECONDS)
def test_a_node_that_only_says_it_syncs_is_caught() -> None:
    """By the node, whose position file reached the disk before its log, or by the clients."""
    done = run("--nodes", "1", "--times", "1", "--never-sync", "--lease-s", "15")
    if done.returncode == 2:
        assert "These bytes had been durable" in done.stderr, done.stderr
    else:
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["verdict"]["lost"] > 0
