"""`weir pub`, `tail` and `sub` against a node in memory: what is chosen, and what is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weir import connect, testing
from weir.cli import pub
from weir.cli.main import main
from weir.errors import TooLarge

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


@pytest.fixture
def weir(node: testing.Node, capfdbinary: pytest.CaptureFixture[bytes]) -> Weir:
    """Return a function that runs a command: its exit code, what it printed, what it complained."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = main([*arguments, "--url", node.url])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_tail_picks_by_key_tag_and_time(weir: Weir) -> None:
    weir("topic", "create", "t")
    for value, key, tag in (("a", "1", "x"), ("b", "2", "x"), ("c", "1", "y")):
        weir("pub", "t", value, "--key", key, "--tag", tag)

    def shown(*arguments: str) -> list[str]:
        code, out, err = weir("tail", "t", "--no-follow", "-o", "json", *arguments)
        assert code == 0, err
        return [one["value"] for one in objects(out)]

    assert shown("--key", "1") == ["a", "c"]
    assert shown("--key", "1", "--tag", "x") == ["a"]
    assert shown("--from", "-1h") == ["a", "b", "c"]
    assert shown("--from", "2000-01-01") == ["a", "b", "c"]
    assert shown("--from", "1") == ["b", "c"]
    code, _, err = weir("tail", "t", "--from", "noon")
    assert (code, "an offset from 0 on, or a time as in -1h" in err) == (2, True)


def test_a_cluster_is_consumed_and_acked(weir: Weir) -> None:
    weir("topic", "create", "t")
    weir("pub", "t", "a", "b", "c")
    taken = weir("sub", "t", "--cluster", "crew", "-n", "2", "-o", "json")
    assert [one["value"] for one in objects(taken[1])] == ["a", "b"]
    assert json.loads(weir("cluster", "lag", "t", "crew", "--json")[1])["lag"] == 1
    assert weir("sub", "t", "--cluster", "crew", "-n", "1")[1] == "0/2  c\n"
    code, out, _ = weir("cluster", "seek", "t", "crew", "--to", "earliest", "--json")
    assert (code, json.loads(out)["lag"]) == (0, 3)


def test_headers_and_whole_files_are_published(weir: Weir, tmp_path: Path) -> None:
    weir("topic", "create", "t")
    file = tmp_path / "large"
    file.write_bytes(bytes(9_000_000))
    code, out, err = weir("pub", "t", "--file", str(file), "--header", "kind=zeros")
    assert (code, out) == (0, "t/0: offset 0\n"), err
    (row,) = objects(weir("tail", "t", "--no-follow", "-o", "json", "-n", "1")[1])
    assert row["headers"] == [{"name": "kind", "value": "zeros"}]
    assert row.get("value_bytes", len(row["value"] or "")) == 9_000_000
    assert "write NAME=VALUE" in weir("pub", "t", "x", "--header", "kind")[2]
    assert "not both" in weir("pub", "t", "x", "--file", str(file))[2]


def test_an_error_in_the_middle_says_how_many_are_published(
    weir: Weir, node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir("topic", "create", "t")

    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        async with asyncio.timeout(30), connect(node.url) as other:
            while (await other.positions("t"))[1] != [2]:
                await asyncio.sleep(0)
        raise TooLarge("a line is too long")

    monkeypatch.setattr(pub, "_lines", lines)
    code, out, err = weir("pub", "t")
    assert (code, out) == (1, "")
    said, why = err.splitlines()
    assert said.endswith("published before it failed:")
    assert said == "2 messages were published before it failed:"
    assert why == "a line is too long"
