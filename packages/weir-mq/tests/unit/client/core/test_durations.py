"""Durations as text need a unit, wherever they are given."""

from __future__ import annotations

import re

import pytest

from weir.cli.main import main
from weir.client.arguments import timing
from weir.client.core.retries import seconds
from weir.client.reader.options import at
from weir.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "number"),
    [("5ms", 0.005), ("2s", 2), ("1.5h", 5_400), ("1_000us", 0.001), ("2w", 1_209_600), ("0s", 0)],
)
def test_text_with_a_unit_is_a_duration(text: str, number: float) -> None:
    assert seconds(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["5", " 5 ", "0.5", "0"])
def test_text_without_a_unit_is_refused_with_what_works(text: str) -> None:
    bare = text.strip()
    said = re.escape(f"{text!r} has no unit: write {bare}s, {bare}m, {bare}h or {bare}d")
    with pytest.raises(ValueError, match=said):
        seconds(text)


def test_a_number_is_seconds() -> None:
    assert (seconds(5), seconds(0.5)) == (5.0, 0.5)


def test_delays_and_starts_need_a_unit() -> None:
    with pytest.raises(ValueError, match="write 5s, 5m"):
        timing(None, None, "5")
    with pytest.raises(ValueError, match="write 5s, 5m"):
        timing("5", None, None)
    with pytest.raises(BadRequest, match="'5' has no unit: write 5s, 5m"):
        at("-5")


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "t", "--retention", "5"],
        ["topic", "alter", "t", "--retention", "5"],
        ["pub", "t", "x", "--ttl", "5"],
        ["pub", "t", "x", "--delay", "5"],
        ["node", "drain", "2", "--wait", "5"],
        ["dev", "--nodes", "3", "--restart", "5"],
        ["bench", "throughput", "--seconds", "5"],
        ["bench", "latency", "--deadline", "5"],
    ],
    ids=" ".join,
)
def test_the_command_line_refuses_a_duration_without_a_unit(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "5s" in said, said
    assert "5m" in said, said
