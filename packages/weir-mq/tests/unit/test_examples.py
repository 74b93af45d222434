"""Every program of examples/guide and of README.md runs, and prints what the pages show."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir import sync, testing

ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "examples" / "guide"
SOURCE = Path(weir.__file__).parents[1]
URL = "weir://localhost:6800"
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

PROGRAMS = [path for path in sorted(GUIDE.glob("*.py")) if not path.name.startswith("test_")]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def run(code: str, name: str, url: str) -> str:
    """Run a program against a node; return what it printed."""
    out = io.StringIO()
    host, port = url.removeprefix("weir://").rsplit(":", 1)
    code = code.replace("@localhost:6800", f"@{host}:{port}")
    code = code.replace(URL, url).replace('"localhost", 6800', f'"{host}", {port}')
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), {"__name__": "example"})
    return out.getvalue()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_it_prints_what_the_page_shows(node: testing.Node, program: Path) -> None:
    shown = program.with_suffix(".txt").read_text(encoding="utf-8")
    assert run(program.read_text(encoding="utf-8"), str(program), node.url) == shown


def test_programs_and_outputs_come_in_pairs() -> None:
    assert len(PROGRAMS) > 10
    outputs = {path.stem for path in GUIDE.glob("*.txt")}
    assert outputs == {path.stem for path in PROGRAMS}


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    file = tmp_path / "test_billing.py"
    file.write_text((GUIDE / file.name).read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_tutorial_leads_to_what_it_says(node: testing.Node) -> None:
    programs = {path.name: path.read_text() for path in (ROOT / "examples/tutorial").glob("*.py")}
    assert sorted(programs) == ["billing.py", "read.py", "send.py"]
    with sync.connect(node.url) as w:
        w.create_topic("flights", partitions=3)
        assert run(programs["send.py"], "send.py", node.url) == "confirmed at offset 0\n"
        lines = run(programs["read.py"], "read.py", node.url).splitlines()
        assert sorted(lines) == ["EWR UA1545 EWR IAH", "JFK B6725 JFK BQN", "LGA DL461 LGA ATL"]
        w.publish("flights", "no key")
        billed = asyncio.run(handled(programs["billing.py"], node.url))
        assert sorted(billed) == sorted("billed " + line[4:] for line in lines)
        (letter,) = w.reader("flights.dead", follow=False)
        assert letter.headers["weir-reason"] == b"no airport is named"


async def handled(program: str, url: str) -> list[str]:
    """Run an app until its cluster has done all; return the lines that it printed."""
    out = io.StringIO()
    names: dict[str, Any] = {"__name__": "example"}
    with contextlib.redirect_stdout(out):
        exec(compile(program.replace(URL, url), "billing.py", "exec"), names)
        async with weir.connect(url) as w, asyncio.timeout(60), names["app"].running():
            await w.publish("flights", b"last", key=b"end")
            while "billed last" not in out.getvalue() or any(
                share.lag for found in await w.clusters("flights", "billing")
                for share in found.shares
            ):  # fmt: skip
                await asyncio.sleep(0.02)
    return [line for line in out.getvalue().splitlines() if line != "billed last"]


def test_the_client_of_the_readme_runs(node: testing.Node) -> None:
    code = _FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    printed = run(code, "README.md", node.url).splitlines()
    assert len([line for line in printed if line.startswith("billed")]) == 1


def test_the_device_of_the_readme_publishes(node: testing.Node) -> None:
    (code,) = (
        one
        for one in _FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
        if "device.Client" in one
    )
    with sync.connect(node.url) as w:
        w.create_topic("flights")
        run(code, "README.md", node.url)
        (message,) = w.reader("flights", follow=False)
    assert message.value == b"door 3 opened"


def test_a_program_that_prints_something_else_is_caught(node: testing.Node) -> None:
    code = f"from weir import sync\nwith sync.connect('{URL}') as w:\n    print(len(w.topics()))\n"
    assert run(code, "page", node.url) == "0\n"
