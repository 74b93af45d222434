"""Verbs whose output goes nowhere: stdout is closed, its reader has gone, or its disk is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from weir import sync
from weir.server.interpreter import environment, python
from weir.testing.nodes import running_node

MESSAGES = 20_000  # far more than a pipe holds
SECONDS = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(tmp_path_factory.mktemp("node"), spares=0) as node:
        with sync.connect(node.url) as client:
            client.create_topic("t")
            with client.producer("t") as producer:
                producer.send_many([b"value %d" % n for n in range(MESSAGES)])
        yield node.url


def _environment(url: str, unbuffered: bool = False) -> dict[str, str]:
    found = {**environment(), "WEIR_URL": url}
    found.pop("PYTHONUNBUFFERED", None)
    return {**found, "PYTHONUNBUFFERED": "1"} if unbuffered else found


def _redirected(
    words: Sequence[str], redirections: str, url: str, folder: Path | None = None
) -> tuple[int, str]:
    """Run a verb as a shell does with some redirections; return its exit code and its stderr."""
    shell = ["/bin/sh", "-c", f'"$@" {redirections}', "sh", *python("weir.cli", *words)]
    done = subprocess.run(
        shell, env=_environment(url), cwd=folder, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, timeout=SECONDS,
    )  # fmt: skip
    return done.returncode, done.stderr


def _unread(
    words: Sequence[str], url: str, *, read: bool, unbuffered: bool = False, errors: bool = False
) -> tuple[int, str]:
    """Run a verb whose output is read to the first line, or not at all; return as above."""
    ours, theirs = os.pipe()
    if not read:
        os.close(ours)
    with subprocess.Popen(
        python("weir.cli", *words), env=_environment(url, unbuffered), stdin=subprocess.DEVNULL,
        stdout=theirs, stderr=theirs if errors else subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        if read:
            assert os.read(ours, 10)
            os.close(ours)
        try:
            _, said = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    return process.returncode, said


TAIL = ["tail", "t", "--from", "earliest"]


@pytest.mark.parametrize(
    "words",
    [
        TAIL,
        ["sub", "t", "--cluster", "closed"],
        ["topic", "list"],
        ["config", "sample"],
        ["--help"],
    ],
)
def test_a_closed_stdout_is_refused_in_a_line(words: list[str], url: str) -> None:
    code, said = _redirected(words, ">&-", url)
    assert (code, said) == (
        1,
        "stdout is closed: give it a place, as in `> FILE`, or `> /dev/null` to see nothing\n",
    )


def test_nothing_is_done_where_stdout_is_closed(url: str) -> None:
    assert _redirected(["topic", "create", "unseen"], ">&-", url)[0] == 1
    with sync.connect(url) as client:
        assert "unseen" not in [topic.name for topic in client.topics()]


@pytest.mark.parametrize(
    "words", [TAIL, [*TAIL, "-o", "json"], [*TAIL, "--no-follow"], ["sub", "t", "--cluster", "one"]]
)
def test_messages_end_with_their_reader(words: list[str], url: str) -> None:
    assert _unread(words, url, read=True) == (0, "")


@pytest.mark.parametrize(
    "words", [["topic", "list"], ["topic", "list", "--json"], ["pub", "t", "x"], ["config", "show"]]
)
def test_who_reads_nothing_changes_nothing_that_is_done(words: list[str], url: str) -> None:
    assert _unread(words, url, read=False) == (0, "")


def test_a_verb_that_fails_says_so_though_nobody_reads(url: str) -> None:
    words = ["topic", "describe", "absent"]
    assert _unread(words, url, read=False)[0] == 1
    assert _unread(words, url, read=False, errors=True)[0] == 1


def test_a_verb_that_is_not_over_ends_as_by_sigpipe(url: str) -> None:
    assert _unread(["config", "sample"], url, read=False, unbuffered=True) == (141, "")
    assert _unread(["--help"], url, read=False, unbuffered=True) == (141, "")


@pytest.mark.parametrize("words", [TAIL, ["topic", "list"]])
def test_a_full_disk_is_told_once(words: list[str], url: str) -> None:
    code, said = _redirected(words, ">/dev/full", url)
    assert (code, said.count("\n")) == (1, 1)
    assert "No space left on device" in said


def test_closed_streams_beside_stdout_are_nothing(url: str) -> None:
    count = [*TAIL, "-n", "1"]
    assert _redirected(count, ">/dev/null 2>&-", url)[0] == 0
    assert _redirected(["pub", "t"], ">/dev/null <&-", url) == (0, "")


def test_a_service_needs_no_stdout(url: str, tmp_path: Path) -> None:
    # It begins, and says what is wrong with its settings.
    code, said = _redirected(["serve", "--data", str(tmp_path), "--host", "no.invalid"], ">&-", url)
    assert code == 1
    assert "no.invalid" in said
    (tmp_path / "led.py").write_text("raise ValueError('mine')\n", encoding="utf-8")
    code, said = _redirected(["work", "led:app"], ">&-", url, tmp_path)
    assert (code, "mine" in said) == (1, True)
    code, said = _redirected(["work", "led:app", "--json"], ">&-", url, tmp_path)
    assert (code, "stdout is closed" in said) == (1, True)
