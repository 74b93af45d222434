"""`weir schema`: what it shows, what it finds, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from weir import sync, testing
from weir.cli.main import main
from weir.client.client import Client
from weir.errors import Unauthorized


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
        (["--format", "xml"], "format xml: give --format json, avro, protobuf or arrow"),
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
    assert "rule both: give none, backward, forward or full" in err


@pytest.fixture
def url() -> Iterator[str]:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("locks")
        yield node.url


def test_versions_of_a_topic_are_added_listed_and_shown(
    url: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, "schema", "list", "locks", "--url", url)
    assert (code, out) == (
        0,
        "locks: new versions keep to the rule backward; values are not checked by producers\n",
    )
    code, out, _ = said(capsys, "schema", "add", "locks", old, "--url", url)
    assert (code, out) == (0, f"version 1 of the schema of locks: avro, from {old}\n")
    new = avro(tmp_path / "lock-2.avsc", {"name": "hub", "type": "long"})
    code, out, _ = said(capsys, "schema", "add", "locks", new, "--json", "--url", url)
    added = json.loads(out)
    assert (code, added["version"], added["format"]) == (0, 2, "avro")
    assert added["bad_topic"] == "locks.bad"
    code, out, _ = said(capsys, "schema", "list", "locks", "--json", "--url", url)
    listed = json.loads(out)
    assert [one["version"] for one in listed["versions"]] == [1, 2]
    assert (listed["rule"], listed["checked"]) == ("backward", False)
    _, out, _ = said(capsys, "schema", "list", "locks", "--url", url)
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["VERSION", "FORMAT", "BYTES"],
        ["1", "avro", str(old.stat().st_size)],
        ["2", "avro", str(new.stat().st_size)],
    ]
    _, out, _ = said(capsys, "schema", "show", "locks", "--url", url)
    assert ["hub", "long", "yes"] in [line.split() for line in out.splitlines()]
    _, out, _ = said(capsys, "schema", "show", "locks", "--version", 1, "--text", "--url", url)
    assert out == old.read_text()


def test_a_topic_for_bad_values_is_created_like_its_source(
    url: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sync.connect(url) as client:
        client.create_topic("keys", 3, retention="2h", retention_bytes=1 << 30)
        client.create_topic("doors", retention="forever")
        client.create_topic("doors.bad", 2)
    for topic in ("keys", "doors", "keys.bad"):
        assert said(capsys, "schema", "add", topic, old, "--url", url)[0] == 0
    with sync.connect(url) as client:
        keys, bad = client.describe("keys"), client.describe("keys.bad")
        assert bad.settings == keys.settings
        # One that is there stays as it is, and has none of its own.
        assert [len(client.positions(f"{one}.bad")[1]) for one in ("keys", "doors")] == [1, 2]
        names = {info.full_name for info in client.topics()}
    assert names == {"locks", "keys", "keys.bad", "doors", "doors.bad"}


def test_who_may_create_no_topics_adds_a_schema_still(
    url: str, old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise Unauthorized("this user may create no topics", 0)

    monkeypatch.setattr(Client, "create_topic", refused)
    code, out, err = said(capsys, "schema", "add", "locks", old, "--url", url)
    assert (code, err) == (0, "locks.bad was not created: this user may create no topics\n")
    assert out.startswith("version 1 ")


def test_what_may_not_follow_is_refused_with_its_field(
    url: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "schema", "add", "locks", old, "--url", url)
    new = avro(tmp_path / "lock-2.avsc", {"name": "hub", "type": "string"})
    code, out, err = said(capsys, "schema", "add", "locks", new, "--url", url)
    assert (code, out) == (1, "")
    assert "hub: int cannot be read as string (backward)" in err
    code, out, _ = said(capsys, "schema", "check", new, "--topic", "locks", "--url", url)
    assert (code, out) == (1, "hub: int cannot be read as string (backward)\n")
    code, out, _ = said(capsys, "schema", "rule", "locks", "none", "--checked", "--url", url)
    assert (code, out) == (
        0,
        "locks: new versions keep to the rule none; values are checked by producers\n",
    )
    assert said(capsys, "schema", "check", new, "--topic", "locks", "--url", url)[0] == 0
    assert said(capsys, "schema", "add", "locks", new, "--url", url)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rule", "locks", "sideways"), "none, backward, forward or full"),
        (("rule", "locks"), "give a rule"),
        (("show", "nowhere"), "no topic 'nowhere'"),
        (("show", "locks"), "weir schema add locks FILE"),
        (("list", "nowhere"), "no topic 'nowhere'"),
    ],
)
def test_mistakes_about_topics_are_told(
    url: str, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "schema", *arguments, "--url", url)
    assert code != 0
    assert words in " ".join(err.split())


def test_a_check_needs_one_version_before(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "schema", "check", old)
    assert code != 0
    assert "--after FILE" in err
