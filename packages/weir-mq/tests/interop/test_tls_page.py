"""Every command of the page on TLS, in its order, with its settings, against a node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir import sync
from weir.cli.main import main
from weir.testing.nodes import Node, start_node

PAGE = (Path(__file__).parents[4] / "docs/how-to/tls.md").read_text(encoding="utf-8")


def parts(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r'^(\w+) = "(.*)"$', text, re.MULTILINE))


def commands(port: int) -> Iterator[list[str]]:
    for part in parts("console"):
        for line in re.findall(r"^\$ weir (.*)$", part, re.MULTILINE):
            yield shlex.split(line.replace(":6800", f":{port}"))


def started(folder: Path) -> Node:
    """Start the node of the page."""
    given = settings(parts("toml")[0])
    data = folder / given.pop("data")
    files = {name: value for name, value in given.items() if name != "plaintext"}
    absolute = {name: str(folder / value) for name, value in files.items()}
    scratch = folder / "scratch"
    scratch.mkdir()
    return start_node(data, scratch, shards=2, plaintext=given["plaintext"], **absolute)


def test_the_page_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    running: Node | None = None
    done = []
    try:
        for words in commands(0):
            if "--url" in words and running is None:
                running = started(tmp_path)
            port = 0 if running is None else running.port
            words = [word.replace(":0?", f":{port}?") for word in words]
            assert main(words) == 0, (words, capsys.readouterr().err)
            done.append(" ".join(words[:2]))
        assert running is not None
        url = f"weirs://localhost:{running.port}?ca={tmp_path}/weir-ca/ca.pem"
        (code,) = parts("python")
        exec(code.replace("6800", str(running.port)), {})
        with sync.connect(url) as client, client.reader("flights", follow=False) as reader:
            assert [message.value for message in reader] == [b"hello", b"open"]
    finally:
        if running is not None:
            running.stop()
    assert len(done) == 16
    assert done.count("cert renew") == 3


def test_the_page_says_how_nodes_are_linked() -> None:
    assert settings(parts("toml")[1]) == {"tls": "prefer"}
