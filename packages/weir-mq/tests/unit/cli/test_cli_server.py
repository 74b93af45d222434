"""`weir init` founds a node once, for good; `weir config` tells every problem at once, and whence
each value comes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.config_sources import sample
from weir.server.disk.node_folder import NodeFolder


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


SET = "1=127.0.0.1:7001,2=127.0.0.1:7002,3=[::1]:7003"


def test_a_set_is_founded_node_by_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tmp_path / "one"
    assert main(["init", "--data", str(first), "--set", SET, "--logs", "2"]) == 0
    *_, second, third, last = capsys.readouterr().out.splitlines()
    assert last == f"Next: weir serve --data {first} --host 127.0.0.1 --port 7001"
    founded = NodeFolder(first).founded()
    assert founded is not None
    assert founded.members[2] == (3, "::1", 7003)
    for number, line in ((2, second), (3, third)):
        folder = tmp_path / str(number)
        words = line.split()
        assert words[:2] == ["node", str(number)]
        assert main([*words[3:], "--data", str(folder)]) == 0
        other = NodeFolder(folder).founded()
        assert other is not None
        assert (other.node, other.logs) == (number, 2)
        assert (other.system, other.members) == (founded.system, founded.members)
    identity = founded.identity(0)
    assert identity.founding_voters == (1 << 16, 2 << 16, 3 << 16)


def test_nodes_of_several_sets_are_founded_with_the_same_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "one"
    arguments = ["--set", SET, "--logs", "2", "--brokerset", "4"]
    assert main(["init", "--data", str(first), *arguments]) == 0
    *_, second, _, _ = capsys.readouterr().out.splitlines()
    assert second.endswith(" --logs 2 --brokerset SET")
    words = second.removesuffix("SET").split()
    assert main([*words[3:], "5", "--data", str(tmp_path / "two")]) == 0
    founded = [NodeFolder(tmp_path / name).founded() for name in ("one", "two")]
    assert [(one.system, one.brokerset) for one in founded if one] == [
        (founded[0].system, 4),  # type: ignore[union-attr]
        (founded[0].system, 5),  # type: ignore[union-attr]
    ]
    assert main(["init", "--data", str(tmp_path / "n"), "--brokerset", "65536"]) == 1
    assert "have ids from 0 to 65,535" in capsys.readouterr().err


def test_a_node_that_joins_is_no_founder(tmp_path: Path) -> None:
    data = tmp_path / "four"
    arguments = ["init", "--data", str(data), "--node", "4", "--set", SET, "--system", "2a"]
    assert main(arguments) == 0
    founded = NodeFolder(data).founded()
    assert founded is not None
    assert founded.system == 0x2A
    identity = founded.identity(0)
    assert identity.voter not in identity.founding_voters


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--set", "1=a:1,1=b:1"], 1, "stands twice"),
        (["--set", "1=a:1,2=a:1"], 1, "same address"),
        (["--set", "1=a"], 2, "HOST:PORT"),
        (["--set", "a:1"], 2, "write N=HOST:PORT"),
        (["--node", "4", "--set", "1=a:1,2=b:1"], 1, "not among the founding nodes"),
        (["--node", "2"], 1, "not among the founding nodes"),
        (["--system", "xyz"], 2, "the id that the first node printed"),
    ],
)
def test_a_set_that_cannot_be_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    what: str,
) -> None:
    assert main(["init", "--data", str(tmp_path / "n"), *arguments]) == code
    assert what in capsys.readouterr().err
    assert not (tmp_path / "n" / "node.json").exists()


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


@pytest.mark.parametrize("url", ["http://10.0.0.1", "weir://host:port", "weir://"])
def test_an_upper_relay_has_an_address_of_weir(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "relay")]
    assert main(["relay", "weir://127.0.0.1:1", *data, "--upper", url]) == 2
    assert "--upper" in capsys.readouterr().err
    assert not (tmp_path / "relay").exists()
