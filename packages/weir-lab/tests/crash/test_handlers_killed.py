"""Handlers and the node are killed at any moment: with the inbox, each message has one effect.

`make proof ONLY=handlers-killed,handlers-leader-killed` does it with a hundred consumers.
"""

from __future__ import annotations

import json

import pytest
from sqlalchemy import TextClause, text

from weir_lab.bench.consumers import postgres
from weir_lab.bench.faults.killed.__main__ import main

MESSAGES = 1_500
KILLS = 4
DEADLINE_SECONDS = 150

pytestmark = pytest.mark.timeout(DEADLINE_SECONDS + 60)

WORDS = [
    "--consumers=6", "--processes=3", f"--kills={KILLS}", f"--messages={MESSAGES}",
    "--backlog=300", f"--deadline-s={DEADLINE_SECONDS}", "--json",
]  # fmt: skip


def test_each_message_has_one_effect_whoever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(WORDS)
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert (found["lost"], found["repeated"], found["never_begun"]) == (0, 0, 0)
    assert (found["handlers_killed"], found["leaders_killed"]) == (KILLS, 1)
    assert found["consumers_seen"] >= 6
    assert found["begun"] == MESSAGES + found["begun_again"]
    assert found["begun_again"] > 0  # else nothing was shown
    assert found["inbox_rows_left"] < MESSAGES  # what is not needed any more goes


def test_an_effect_that_is_lost_or_repeated_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger in which one message has no effect, and another two."""
    monkeypatch.setattr(postgres, "installed", lambda: False)
    monkeypatch.setattr("weir_lab.bench.faults.killed.run.text", spoiled)
    calm = ["--kills=0", "--leader-kills=0", "--consumers=1", "--processes=1", "--messages=20"]
    assert main([*calm, "--deadline-s=60"]) == 1
    assert "with the inbox (sqlite): 1 lost, 1 repeated" in capsys.readouterr().out


def spoiled(statement: str) -> TextClause:
    """As if a message's effect had been written for another."""
    return text(statement.replace("select value", "select replace(value, '17', '16')"))


def test_consumers_that_cannot_be_shared_out_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--consumers=5", "--processes=2"]) == 2
    assert "each process has as many consumers" in capsys.readouterr().err
