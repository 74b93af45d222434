"""Lines of programs whose standard output nobody reads, or that is closed."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rigs.programs import PATIENCE_SECONDS, Programs, programs
from weir_toc.cli import main
from weir_toc.errors import TocError
from weir_toc.hosts.announcer import LINES_MAX, Announcer
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import framed_json
from weir_toc.topology import switch_id


@pytest.fixture
def pipe() -> tuple[int, int]:
    """A pipe, whose ends the tests close: one to read, one to write."""
    return os.pipe()


def read_lines(fd: int, count: int) -> list[str]:
    with os.fdopen(fd) as file:
        return [file.readline() for _ in range(count)]


def test_lines_are_words_or_json(pipe: tuple[int, int]) -> None:
    for as_json in (False, True):
        with Announcer(pipe[1], as_json) as announcer:
            announcer.say("lagging", {"cause": "clock", "link": ["b", "\udcff"]})
    os.close(pipe[1])
    words, text = read_lines(pipe[0], 2)
    assert words == "lagging cause=clock link=['b', '\\udcff']\n"
    assert json.loads(text) == {"event": "lagging", "cause": "clock", "link": ["b", "\udcff"]}


def test_lines_that_nobody_reads_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    while True:  # fill the pipe
        try:
            os.write(writer, bytes(4_096))
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    with Announcer(writer, as_json=False) as announcer:
        for number in range(LINES_MAX + 7):
            announcer.say("line", {"number": number})
        assert not announcer.flush(0)
        with os.fdopen(reader, "rb") as file:
            lines = iter(file.readline, b"")
            first = next(lines)
            assert first.lstrip(b"\0") == b"line number=0\n"
            for number in range(1, LINES_MAX):
                assert next(lines) == b"line number=%d\n" % number
            assert announcer.flush(PATIENCE_SECONDS)
            announcer.say("line", {"number": -1})
            assert next(lines) == b"dropped lines=7\n"
            assert next(lines) == b"line number=-1\n"
    os.close(writer)


def test_nothing_is_said_once_nobody_can_read_it(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    with Announcer(writer, as_json=False) as announcer:
        for number in range(3 * LINES_MAX):
            announcer.say("line", {"number": number})
        assert announcer.flush(PATIENCE_SECONDS)
        announcer.say("line", {})
        assert announcer.flush(0)
    os.close(writer)


@pytest.mark.parametrize(
    ("encoding", "due"), [("ascii", r"line name=\xe9"), ("utf-8", "line name=é")]
)
def test_an_output_without_a_file_gets_the_same_lines(encoding: str, due: str) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    with Announcer(output, as_json=False) as announcer:
        announcer.say("line", {"name": "é"})
        announcer.say("line", {"name": "f"})
    output.seek(0)
    assert output.read() == f"{due}\nline name=f\n"


def test_an_output_without_a_file_may_be_closed_and_have_no_encoding() -> None:
    output = io.StringIO()
    with Announcer(output, as_json=True) as announcer:
        announcer.say("line", {})
        assert announcer.flush(PATIENCE_SECONDS)
        assert output.getvalue() == '{"event": "line"}\n'
        output.close()
        announcer.say("line", {})
        assert announcer.flush(PATIENCE_SECONDS)


def test_the_standard_output_of_a_program_may_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise TocError("planted")

    monkeypatch.setattr(Controller, "run", failing)
    members = "toc://127.0.0.1:1"
    folder = str(tmp_path)
    assert main(["controller", "--id", "1", "--members", members, "--folder", folder]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("controller member=1 host=127.0.0.1 port=1 ")
    assert printed.err == "weir-toc: planted\n"


def lagging(crew: Programs) -> None:
    """Let a switch say that one of its links lags, until the member has found that."""
    hello = {"op": "hello", "kind": "node", "node": switch_id("spine-0"), "incarnation": 1}
    rows = [[switch_id("rack-0"), 0, 0, 0], [switch_id("rack-1"), 10**12, 0, 0]]
    with socket.create_connection(("127.0.0.1", crew.ports[0])) as node:
        node.sendall(framed_json(hello))
        while not crew.leader()["lagged"]:
            for _ in range(30):
                node.sendall(framed_json({"op": "links", "clock": 1, "late": 0, "links": rows}))
                time.sleep(0.01)


def test_a_member_whose_output_is_closed_leads_and_ends_as_others_do(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    with programs(tmp_path) as crew:
        crew.url = f"toc://127.0.0.1:{crew.ports[0]}"
        words = "-m weir_toc controller --id 1 --racks 2 --spines 1 --interval-ms 10"
        one = crew.running["controller-1"] = subprocess.Popen(
            [sys.executable, *words.split(), "--members", crew.url, "--folder", str(tmp_path)],
            stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.PIPE,
        )  # fmt: skip
        os.close(writer)
        assert read_lines(reader, 1)[0].startswith("controller member=1")
        crew.leader()
        lagging(crew)
        assert crew.leader()["member"] == 1
        one.send_signal(signal.SIGTERM)
        assert one.stderr is not None
        with one.stderr:
            assert one.stderr.read() == b""
        assert one.wait(PATIENCE_SECONDS) == 0
