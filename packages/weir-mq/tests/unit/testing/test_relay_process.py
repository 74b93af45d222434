"""Relays as processes: what is told of one that does not start, or has ended by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.testing import nodes
from weir.testing.nodes import RelayFailed, RelayProcess


def test_a_relay_that_does_not_start_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "START_SECONDS", 0.1)
    monkeypatch.setattr(nodes, "python", lambda *_: ["sleep", "60"])
    one = RelayProcess("weir://127.0.0.1:1", tmp_path / "relay", 2, number=3)
    with pytest.raises(RelayFailed, match="relay 3 did not start"):
        one.start()
    assert one.has_ended


def test_a_relay_that_ended_by_itself_is_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "python", lambda *_: ["sh", "-c", "echo weir relays; exit 3"])
    one = RelayProcess("weir://127.0.0.1:1", tmp_path / "relay", 2, number=3)
    one.start()
    while not one.has_ended:
        pass
    with pytest.raises(RelayFailed, match="ended by itself, with 3"):
        one.strike()
    one.kill()


def test_its_command_has_its_place_its_number_and_its_options(tmp_path: Path) -> None:
    at = nodes.Berth("10.0.0.7", ("nsenter", "--net"))
    told: list[list[str]] = []

    class Told(RelayProcess):
        def start(self) -> None:
            told.append(self._command)

    one = Told("weir://a", tmp_path / "r", 5, "--tags", "x", number=4, at=at)
    one.start()
    assert told[0][:2] == ["nsenter", "--net"]
    words = " ".join(told[0])
    assert "relay weir://a" in words
    assert "--host 10.0.0.7 --port 5" in words
    assert "--set 4 --node 4 --tags x" in words
    assert one.url == "weir://10.0.0.7:5"
