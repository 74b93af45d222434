"""A node joins a closed set by the secret that `weir node add` printed, nobody without it."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir.model.limits import FORMAT_LEVEL
from weir.testing.nodes import HOST, Node, free_ports, running_node

PATIENCE = 60.0


def says(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words]) in (0, 1)
    return said.getvalue()


def until(node: Node, words: str) -> None:
    """Wait until a node has said something."""
    deadline = time.monotonic() + PATIENCE
    while words not in node.said():
        assert time.monotonic() < deadline, node.said()
        time.sleep(0.05)


def nodes_there(url: str) -> list[int]:
    """Return the nodes that answer and have said who they are."""
    found: dict[str, Any] = json.loads(says("node", "status", "--json", "--url", url))
    return [one["id"] for one in found["nodes"] if one["up"] and one["level"] == FORMAT_LEVEL]


def test_a_node_comes_into_a_closed_set_by_its_secret_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NEW_PASSWORD", "of the first administrator")
    monkeypatch.setenv("WEIR_PASSWORD", "of the first administrator")
    one, two = free_ports(2)
    says("init", "--set", f"1={HOST}:{one}", "--logs", "2", "--data", str(tmp_path / "one"))
    with running_node(tmp_path / "one", port=one) as first:
        url = f"weir://root@{HOST}:{one}"
        says("access", "init", "--user", "root", "--url", f"weir://{HOST}:{one}")
        says("access", "mode", "closed", "--url", url)
        printed = says("node", "add", f"{HOST}:{two}", "--url", url)
        command = next(line for line in printed.splitlines() if "weir init" in line)
        words = shlex.split(command.replace("FOLDER", str(tmp_path / "two")))[1:]
        at = words.index("--join")
        without = [*words[:at], *words[at + 2 :], "--closed"]
        without[without.index("--data") + 1] = str(tmp_path / "stranger")
        says(*without)
        with running_node(tmp_path / "stranger", port=two):
            until(first, "does not prove that it is the one that was added")
        assert nodes_there(url) == [1]

        says(*words, "--closed")
        with running_node(tmp_path / "two", port=two):
            deadline = time.monotonic() + PATIENCE
            while nodes_there(url) != [1, 2]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        again = [*words, "--closed"]
        again[again.index("--data") + 1] = str(tmp_path / "again")
        says(*again)
        with running_node(tmp_path / "again", port=two):
            until(first, "another data folder")
