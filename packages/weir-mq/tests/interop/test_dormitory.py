"""The smart dormitory of examples/, small: a process dies at breakfast, and the ledger is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.server.interpreter import environment

EXAMPLE = Path(__file__).parents[4] / "examples" / "dormitory" / "run.py"
RESIDENTS = 60
WITHIN_SECONDS = 180


@pytest.mark.timeout(WITHIN_SECONDS + 20)
def test_every_unlock_at_breakfast_is_recorded_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--residents", str(RESIDENTS)],
        capture_output=True,
        env={
            **os.environ,
            "PYTHONPATH": environment()["PYTHONPATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(tmp_path),
        },
        text=True,
        timeout=WITHIN_SECONDS,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "60 rooms on 1 floors, and a canteen" in said
    assert "was killed with -9: another takes its place" in said
    assert "117 unlocks, of 117 that were asked for" in said
    assert "3 wishes refused, of 3 for another's door" in said
    assert "117 unlocks: 0 missing, 0 twice, 0 invented" in said
    assert said.endswith("Every unlock is recorded, once.\n")
    assert not [*tmp_path.iterdir()]  # it takes its node and its ledger away again
