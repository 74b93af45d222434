"""The first program of the documentation prints one order twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rigs.examples import FOLDER, example
from rigs.loopback import loopback


def test_both_processes_print_the_messages_in_one_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loopback(tmp_path) as network:
        asyncio.run(example("hello").main(network.url))
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in rows] == ["a", "a", "b", "b"]
    assert [text for _, text in rows[:2]] == [text for _, text in rows[2:]]
    assert {text[-6:] for _, text in rows} == {"from a", "from b"}


URL = "toc://localhost:7001"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hello", []), ("hello", [URL, "more"]),
        ("lock_service", []), ("lock_service", [URL, "a"]),
        ("lock_service", [URL, "a", "a,b", "1", "0", "more"]),
        ("replicated_bank", []), ("replicated_bank", [URL]),
        ("replicated_bank", [URL, "a1", "20", "again"]),
        ("game", []), ("game", [URL]), ("game", [URL, "p1", "9", "more"]),
    ],
)  # fmt: skip
def test_a_program_with_wrong_arguments_says_how_it_is_used(
    name: str, arguments: list[str]
) -> None:
    program = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: python {name}.py toc://HOST:PORT")
    assert len(done.stderr.splitlines()) == 1
