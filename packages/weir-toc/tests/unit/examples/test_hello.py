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


@pytest.mark.parametrize("arguments", [[], ["toc://localhost:7001", "more"]])
def test_without_the_address_of_a_network_it_says_how_it_is_used(arguments: list[str]) -> None:
    program = [sys.executable, str(FOLDER / "hello.py"), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python hello.py toc://HOST:PORT")
    assert len(done.stderr.splitlines()) == 1
