"""`weir schema`: what it shows, what it finds, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from weir.cli.main import main


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return avro(tmp_path / "lock-1.avsc", {"name": "hub", "type": "int"})


def avro(file: Path, *fields: dict[str, object]) -> Path:
    file.write_text(json.dumps({"type": "record", "name": "Lock", "fields": fields}))
    return file


def test_it_shows_the_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = {"type": "array", "items": ["null", "string"]}
    file = avro(tmp_path / "lock.avsc", {"name": "codes", "type": items, "default": []})
    code, out, _ = said(capsys, "schema", "show", file)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["FIELD", "TYPE", "NEEDED"],
        ["(the", "value)", "record", "Lock", "yes"],
        ["codes", "array", "no"],
        ["codes[]", "union", "yes"],
        ["codes[](1)", "null", "yes"],
        ["codes[](2)", "string", "yes"],
    ]
    code, out, _ = said(capsys, "schema", "show", file, "--json")
    shown = json.loads(out)
    assert (code, shown["schema"], shown["format"]) == (0, "weir.schema/1", "avro")
    assert shown["fields"][1] == {"field": "codes", "type": "array", "needed": False}


def test_a_version_that_fits_may_follow(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = avro(tmp_path / "lock-2.avsc", {"name": "hub", "type": "long"})
    code, out, _ = said(capsys, "schema", "check", new, "--after", old)
    assert (code, out) == (0, f"{new} may follow {old} (backward)\n")


def test_a_version_that_does_not_fit_is_told_by_its_fields(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = avro(tmp_path / "lock-2.avsc", {"name": "hub", "type": "long"})
    code, out, _ = said(capsys, "schema", "check", new, "--after", old, "--rule", "full")
    assert (code, out) == (1, "hub: long cannot be read as int (forward)\n")
    code, out, _ = said(capsys, "schema", "check", new, "--after", old, "--rule", "full", "--json")
    told = json.loads(out)
    assert (code, told["fits"]) == (1, False)
    assert told["problems"] == [
        {"path": "hub", "text": "long cannot be read as int", "rule": "forward"}
    ]


def test_formats_are_known_by_their_suffixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow, other = tmp_path / "a.arrow", tmp_path / "a.schema"
    arrow.write_bytes(pa.schema([("a", pa.int8())]).serialize().to_pybytes())
    other.write_bytes(arrow.read_bytes())
    assert said(capsys, "schema", "show", arrow)[0] == 0
    code, _, err = said(capsys, "schema", "show", other)
    assert code == 2
    assert "give --format json, avro, protobuf or arrow" in err
    assert said(capsys, "schema", "show", other, "--format", "arrow")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "xml"], "--format xml: give json, avro, protobuf or arrow"),
        (["--message", "M"], "message='M': only a Protobuf schema"),
        (["--format", "arrow"], "lock-1.avsc: this is not an Arrow schema"),
    ],
)
def test_what_is_wrong_is_told(
    old: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "schema", "show", old, *arguments)
    assert code != 0
    assert words in err


def test_an_unknown_rule_is_refused(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "schema", "check", old, "--after", old, "--rule", "both")
    assert code == 2
    assert "--rule both: give backward, forward or full" in err
