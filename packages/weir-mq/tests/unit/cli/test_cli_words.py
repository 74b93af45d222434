"""What the command says, without a broker: lines, tables, JSON, and errors."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import weir
from weir.cli import output
from weir.cli.main import _command, main, whole_command
from weir.cli.messages import _summary
from weir.cli.output import json_line, printable, text_line
from weir.client.producer.receipts import BatchReceipt
from weir.model.message import LargeMessage, Message, Origin

MESSAGE = Message(b"late", b"UA", "EWR", 5, {"h": b"\xff"}, "flights", 2, 7, 99)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_without_a_verb_it_says_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys)
    assert (code, err) == (0, "")
    assert "Next: weir dev" in out
    assert len(out.splitlines()) <= 12


def test_the_version_is_said_without_loading_what_verbs_need() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "weir.cli", "--version"],
        env={**os.environ, "PYTHONPATH": str(Path(weir.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{weir.__version__}\n"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    ours = {name for name in loaded if name.startswith(("weir.", "weir_"))}
    assert "weir.cli.main" in ours
    assert not {one for one in ours if one.startswith(("weir.cli.admin.", "weir.cli.spark"))}
    assert {one for one in ours if not one.startswith("weir.cli")} == {
        "weir.errors",
        "weir.version",
    }
    assert not loaded & {
        "asyncio", "importlib.metadata", "msgspec", "numpy", "rich", "sqlalchemy", "ssl", "uvloop",
    }  # fmt: skip


def test_each_verb_is_found_alone_and_says_what_it_says_among_all() -> None:
    whole = whole_command()
    assert isinstance(whole, typer.core.TyperGroup)
    # Whatever is no verb is answered by the whole, which knows what is meant.
    assert list(_command("fly").commands) == list(whole.commands)
    assert {"bench", "chaos", "demo", "sim", "serve"} <= set(whole.commands)
    for verb, among_all in whole.commands.items():
        alone = _command(verb).commands
        assert list(alone) == [verb]
        told = [one.get_help(typer.Context(one)) for one in (alone[verb], among_all)]
        assert told[0] == told[1]


def added_elsewhere(text: str) -> Iterator[str]:
    """Yield the families of verbs that a module imports and adds a command to."""
    nodes = [*ast.walk(ast.parse(text))]
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in nodes:
        for decorator in getattr(node, "decorator_list", ()):
            words = ast.unparse(decorator).split(".")
            if words[0] in imported and words[1:] and words[1].startswith(("command", "callback")):
                yield words[0]


def test_commands_lie_where_their_family_is_made() -> None:
    """A process loads the module of one family: it would not know a command of another module."""
    for path in sorted((Path(weir.__file__).parent / "cli").rglob("*.py")):
        assert not [*added_elsewhere(path.read_text(encoding="utf-8"))], path


@pytest.mark.parametrize("how", ['command("key")', "callback()", "command()"])
def test_a_command_that_lies_elsewhere_is_seen(how: str) -> None:
    text = f"from weir.cli.access.modes import access_app\n@access_app.{how}\ndef f(): ...\n"
    assert [*added_elsewhere(text)] == ["access_app"]


@pytest.mark.parametrize("verb", ["topic", "bench"])
def test_a_family_of_verbs_lists_them(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, verb)
    assert (code, err) == (0, "")
    assert "Commands:" in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["fly"], "No such command 'fly'. See `weir --help`"),
        (["pub"], "Missing argument 'topic'. See `weir pub --help`"),
        (["topic", "create", "t", "--partitions", "0"], "0 is not in the range x>=1"),
        (["tail", "t", "--from", "now"], "'now': give earliest, latest, last, an offset"),
        (["tail", "t", "--url", "http://x"], "'http://x' is no address"),
        (["bench", "timeliness", "--size", "3"], "size=3: it must be 16"),
        (["bench", "timeliness", "--deadline", "soon"], "'soon' is no duration"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        (["serve", "--config", "absent.toml"], "absent.toml: No such file"),
        (["serve", "--port", "70000"], "--port: node.port is 70000: it must be 0 to 65535"),
        (["serve", "--metrics", "here"], "--metrics: metrics.listen is 'here': write HOST:PORT"),
        (["inspect", "absent"], "absent is no folder: give a node's data folder"),
    ],
)
def test_an_error_is_one_line_and_code_1(
    arguments: list[str], begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(begins)
    assert err.count("\n") == 1


def test_each_problem_of_the_settings_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weir.toml"
    file.write_text("[node]\nport = -1\nhost = 1\n")
    code, _, err = said(capsys, "serve", "--config", str(file))
    assert (code, [line.split(": ")[0] for line in err.splitlines()]) == (
        1,
        [f"{file}:2", f"{file}:3"],
    )


def test_a_table_in_a_pipe_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME", "COUNT"), [("a", 1_234), ("long name", 5)])
    assert capsys.readouterr().out == "NAME       COUNT\na          1,234\nlong name      5\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_234_567, "1,234,567"), (0.5, "0.50"), (98_765.4, "98,765"), (None, "-"), (True, "yes")],
)
def test_values_are_shown_as_people_read_them(value: object, text: str) -> None:
    assert output.shown(value) == text


def test_json_is_one_object_that_says_where_it_is_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/weir", "topic", "a b"])
    output.print_json("weir.x/1", {"url": "u"}, {"answer": 42})
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema", "command", "settings", "answer"]
    assert found["schema"] == "weir.x/1"
    assert found["command"] == "weir topic 'a b'"
    assert found["settings"] == {"url": "u"}
    assert found["answer"] == 42


def test_progress_in_a_pipe_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    with output.progress("received", 1_000) as show:
        show(1)
        now += 3
        show(500)
        show(501)
        show(1_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "received: 500 of 1,000\nreceived: 1,000 of 1,000\n"


def test_a_message_is_one_line_of_text() -> None:
    assert text_line(MESSAGE) == b"2/7  key=UA  tag=EWR  late\n"
    assert text_line(Message(b"x", partition=0, offset=1)) == b"0/1  x\n"


def test_a_message_of_a_device_says_which() -> None:
    sent = Message(b"x", partition=0, offset=1, origin=Origin(0xA17, 3, 9, None))
    assert text_line(sent) == b"0/1  hub=0xa17/3  x\n"
    proved = sent._replace(origin=Origin(0xA17, 3, 9, 4, 2, True))
    assert text_line(proved) == b"0/1  hub=0xa17/3 verified  x\n"
    assert json.loads(json_line(proved))["origin"] == {
        "hub": 0xA17, "sn": 3, "boot": 9, "sequence": 4, "generation": 2, "verified": True,
    }  # fmt: skip


def test_a_message_cannot_steer_the_terminal() -> None:
    assert printable(b"\x1b[2J a\nb\tc \xff") == r"\x1b[2J a\nb\tc \xff"
    assert printable("Zürich ✈".encode()) == "Zürich ✈"


def test_a_message_is_one_json_object() -> None:
    assert json.loads(json_line(MESSAGE)) == {
        "topic": "flights",
        "partition": 2,
        "offset": 7,
        "stamp": 99,
        "time_us": 5,
        "key": "UA",
        "tag": "EWR",
        "value": "late",
        "headers": [{"name": "h", "value_base64": "/w=="}],
    }
    assert json.loads(json_line(Message(b"\xff")))["value_base64"] == "/w=="
    assert json_line(MESSAGE).count(b"\n") == 1


def test_a_value_that_was_not_loaded_is_told_by_its_size() -> None:
    large = LargeMessage(MESSAGE, 7 << 30)
    assert text_line(large) == b"2/7  key=UA  tag=EWR  (7,516,192,768 bytes, too large to show)\n"
    fields = json.loads(json_line(large))
    assert (fields["value"], fields["value_bytes"]) == (None, 7 << 30)


def test_where_messages_went_is_told_by_runs() -> None:
    def confirmed(partition: int, offset: int, count: int) -> BatchReceipt:
        return BatchReceipt(partition, 0, count, offset, 1, False)

    batches = [confirmed(1, 5, 1), confirmed(0, 3, 3), confirmed(0, 0, 3), confirmed(0, 9, 1)]
    assert _summary("t", batches) == ["t/0: offsets 0 to 5", "t/0: offset 9", "t/1: offset 5"]
    assert _summary("t", []) == ["nothing to publish"]
