"""Three nodes whose cables carry 100 Mbit/s, and entries of a MiB: heartbeats are not held up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weir.server.interpreter import environment

ROOT = Path(__file__).parents[4]
SECONDS = 120
TRIES = 4


@pytest.fixture(scope="module", autouse=True)
def cables() -> None:
    """Install what is needed; that takes root, or sudo, the first time."""
    packages = (ROOT / "scripts" / "powercut-packages").read_text(encoding="utf-8").split()
    subprocess.run([ROOT / "scripts" / "apt-install", *packages], check=True, timeout=200)


def slow_link(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "weir_lab.bench.faults.slow_link", *arguments],
        capture_output=True,
        env=environment(),
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    well = found["elections"] == 0 and found["confirmed"] == found["sent"]
    assert done.returncode == (0 if well else 1)
    return found


@pytest.mark.timeout(2 * SECONDS)
def test_large_entries_over_a_slow_link_cause_no_election() -> None:
    # What a link does to heartbeats it does in every run; a busy machine, which lets a node stand
    # still for longer than its election timeout, does not.
    for _ in range(TRIES):
        found = slow_link("--entries", "16")
        assert found["confirmed"] == 16
        if found["elections"] == 0:
            return
    pytest.fail(f"{found['elections']} elections in the last of {TRIES} runs")


@pytest.mark.timeout(2 * SECONDS)
def test_a_leader_that_stands_still_causes_one() -> None:
    found = slow_link("--entries", "16", "--pause-s", "3")
    assert found["elections"] > 0
    assert found["confirmed"] == 16


@pytest.mark.timeout(2 * SECONDS)
def test_entries_follow_until_the_time_is_over() -> None:
    found = slow_link("--entries", "1", "--seconds", "3", "--mbit", "1000")
    assert found["seconds"] >= 3
    assert found["confirmed"] == found["sent"] > 1


@pytest.mark.slow  # `make proof` measures it; the cables and the judge are those of the others
@pytest.mark.timeout(2 * SECONDS)
def test_long_round_trips_cause_no_election() -> None:
    for _ in range(TRIES):
        found = slow_link("--entries", "24", "--partitions", "3", "--round-trip-ms", "250")
        assert found["confirmed"] == 24
        assert found["lone_ms"] >= 500, "to a follower and back, and to the client and back"
        if found["elections"] == 0:
            return
    pytest.fail(f"{found['elections']} elections in the last of {TRIES} runs")
