"""The smart dormitory of examples/, small: a process dies at breakfast, and the ledger is right."""

from __future__ import annotations

import contextlib
import importlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import weir
from weir.server.interpreter import environment

FOLDER = Path(__file__).parents[4] / "examples" / "dormitory"
EXAMPLE = FOLDER / "run.py"
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


@pytest.mark.parametrize("demanded", ["0", "1"])
def test_the_ledger_rejects_what_no_lock_has_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demanded: str
) -> None:
    monkeypatch.setenv("DORMITORY_VERIFIED", demanded)
    monkeypatch.setenv("DORMITORY_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("backend", "building"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    backend = importlib.import_module("backend")
    backend.begin()
    unlock = weir.Message(bytes(24), topic="unlocks", partition=0)
    senders = [None, weir.Origin(7, 1, 1, 0), weir.Origin(7, 1, 1, 1, verified=True)]
    rejected = [0, 1] if demanded == "1" else []
    for offset, origin in enumerate(senders):
        message = unlock._replace(offset=offset, origin=origin)
        refused = pytest.raises(weir.Reject, match="no lock has proved")
        with refused if offset in rejected else contextlib.nullcontext():
            backend.record(message)
    with sqlite3.connect(tmp_path / "ledger.db") as ledger:
        count = ledger.execute("select count(*) from unlocks").fetchone()
    assert count == (len(senders) - len(rejected),)
    for name in ("backend", "building"):
        sys.modules.pop(name, None)
