"""`weir init` founds a node once, for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.folder import NodeFolder


def test_a_node_is_founded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, disk = tmp_path / "node", tmp_path / "disk"
    arguments = ["init", "--data", str(data), "--logs", "3", "--log-dir", f"1={disk}"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"log 0  {data / 'log-0'}",
        f"log 1  {disk}",
        f"log 2  {data / 'log-2'}",
        f"Next: weir serve --data {data}",
    ]
    founded = NodeFolder(data).founded()
    assert founded is not None
    assert (founded.logs, founded.folders) == (3, {"1": str(disk)})
    assert main(arguments) == 1
    assert "holds a node already" in capsys.readouterr().err
    assert NodeFolder(data).founded() == founded


@pytest.mark.parametrize(
    ("option", "value", "code", "what"),
    [
        ("--log-dir", "disk", 2, "write N=FOLDER"),
        ("--log-dir", "x=disk", 2, "write N=FOLDER"),
        ("--log-dir", "9=disk", 1, "no log 9"),
        ("--logs", "1000", 1, "1 to 256"),
    ],
)
def test_what_cannot_be_founded_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    code: int,
    what: str,
) -> None:
    arguments = ["--logs", "2"] if option == "--log-dir" else []
    assert main(["init", "--data", str(tmp_path / "n"), *arguments, option, value]) == code
    assert what in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


def test_a_node_that_never_ran_is_told_from_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--data", str(tmp_path / "n")]) == 0
    assert main(["inspect", str(tmp_path / "n")]) == 1
    assert "nothing is written yet: weir serve --data" in capsys.readouterr().err
