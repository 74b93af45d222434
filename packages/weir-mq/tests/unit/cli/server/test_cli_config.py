"""`weir config`: every problem at once, every value with where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.config.sources import sample


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weir.toml"


def test_a_file_that_is_fine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[node]\nport = 7000\n")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: fine\n"


def test_every_problem_is_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("[node]\nprot = 1\n[log]\nspares = 65\n")
    assert main(["config", "check", str(file)]) == 1
    out, err = capsys.readouterr()
    lines = [
        f"{file}:2: no setting 'node.prot': did you mean node.port?",
        f"{file}:4: log.spares is 65: it must be 0 to 64",
    ]
    assert (out, err.splitlines()) == ("", lines)
    assert main(["config", "check", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == lines


def test_every_value_says_where_it_comes_from(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[node]\nport = 7000\n")
    monkeypatch.setenv("WEIR__STOP__DRAIN_SECONDS", "1m")
    assert main(["config", "show", "--config", str(file), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["node.port"] == {"value": 7000, "unit": None, "from": f"{file}:2"}
    drain = {"value": 60.0, "unit": "s", "from": "WEIR__STOP__DRAIN_SECONDS"}
    assert values["stop.drain_seconds"] == drain
    assert values["node.host"]["from"] == "default"
    assert main(["config", "show", "--config", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["stop.drain_seconds", "60.0", "WEIR__STOP__DRAIN_SECONDS"] in rows


def test_flags_are_shown_as_serve_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--port", "7001", "--data", "d", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["node.port"] == {"value": 7001, "unit": None, "from": "--port"}
    assert values["node.data"]["from"] == "--data"


def test_the_sample_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample"]) == 0
    assert capsys.readouterr().out == sample()
