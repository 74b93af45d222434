"""Verbs that run until Ctrl-C outlive their broker."""

from __future__ import annotations

import select
import signal
import subprocess
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.server.interpreter import environment, python
from weir.testing.nodes import running_node

#: What a verb gives a request, and a little more: so long its broker is away.
_TIMEOUT = ("--timeout", "2s")
_AWAY_SECONDS = 2.5
_SECONDS = 30.0


def until_line(process: subprocess.Popen[bytes], words: bytes, seconds: float = _SECONDS) -> None:
    """Wait for a line on stderr with some words."""
    assert process.stderr is not None
    while True:
        ready, _, _ = select.select([process.stderr], [], [], seconds)
        assert ready, f"{words!r} never came"
        line = process.stderr.readline()
        assert line, "it ended"
        if words in line:
            return


@pytest.mark.parametrize(
    "verb", [["tail", "t", "--from", "earliest"], ["sub", "t", "--cluster", "c"]]
)
def test_a_broker_that_goes_is_waited_for(verb: list[str], tmp_path: Path) -> None:
    with running_node(tmp_path, spares=0) as node:
        port, url = node.port, node.url
        assert main(["topic", "create", "t", "--url", url]) == 0
        assert main(["pub", "t", "before", "--url", url]) == 0
        process = subprocess.Popen(
            [*python("weir.cli", *verb, *_TIMEOUT, "--url", url)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert b"before" in process.stdout.readline()
    try:
        until_line(process, b"is away: waiting for it (Ctrl-C ends)")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(_AWAY_SECONDS)
        with running_node(tmp_path, spares=0, port=port):
            until_line(process, b"is back")
            assert main(["pub", "t", "after", "--url", url]) == 0
            assert b"after" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(_SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_first_connection_has_its_own_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    verb = ["tail", "t", "--url", "weir://127.0.0.1:1", "--timeout"]
    assert main([*verb, "300ms"]) == 1
    assert "within 0.3 s" in capsys.readouterr().err
    assert main([*verb, "0s"]) == 2
    assert main([*verb, "3"]) == 2
    assert "write 3s" in capsys.readouterr().err


APP = """
import os
import weir

app = weir.App()

@app.subscribe("t", cluster="c")
def record(message):
    os.write(1, message.value + b"\\n")
"""


def test_handlers_at_work_wait_for_a_broker_that_goes(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text(APP)
    data = tmp_path / "data"
    data.mkdir()
    with running_node(data, spares=0) as node:
        port, url = node.port, node.url
        assert main(["topic", "create", "t", "--url", url]) == 0
        assert main(["pub", "t", "before", "--url", url]) == 0
        process = subprocess.Popen(
            [*python("weir.cli", "work", "ledger:app", "--max", "1", *_TIMEOUT, "--url", url)],
            cwd=tmp_path,
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert b"before" in process.stdout.readline()
    try:
        until_line(process, b"is away: waiting for it (Ctrl-C ends)")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(_AWAY_SECONDS)
        with running_node(data, spares=0, port=port):
            until_line(process, b"is back")
            assert main(["pub", "t", "after", "--url", url]) == 0
            assert b"after" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(_SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_handlers_have_a_timeout_for_the_first_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger_of_timeouts.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    verb = ["work", "ledger_of_timeouts:app", "--url", "weir://127.0.0.1:1", "--timeout"]
    assert main([*verb, "300ms"]) == 1
    said = capsys.readouterr().err
    assert "within 0.3 s" in said
    assert "processes" not in said
    assert main([*verb, "0s"]) == 2
    assert main([*verb, "3"]) == 2
    assert "write 3s" in capsys.readouterr().err
