"""The first program of the documentation prints one order twice."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from rigs.loopback import loopback

EXAMPLE = Path(__file__).parents[3] / "examples" / "hello.py"


def test_both_processes_print_the_messages_in_one_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("hello", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    hello = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hello)
    with loopback(tmp_path) as network:
        asyncio.run(hello.main(network.url))
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in rows] == ["a", "a", "b", "b"]
    assert [text for _, text in rows[:2]] == [text for _, text in rows[2:]]
    assert {text[-6:] for _, text in rows} == {"from a", "from b"}
