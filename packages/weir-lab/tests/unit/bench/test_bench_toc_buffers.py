"""What a receiver holds while a link is late."""

from __future__ import annotations

import json

import pytest

from weir.cli.main import main
from weir_lab.bench.toc.limits.buffers import BufferSettings, Held, bend, measure_buffers


def test_what_is_held_grows_with_the_delay_and_never_above_the_budget() -> None:
    found = measure_buffers(BufferSettings(delays_ms=(0, 4, 8, 20), per_ms=20, flood_per_ms=400))
    assert found.clean
    assert found.bend < 0.02
    held = [one.held for one in found.runs]
    # A message of 64 bytes counts for 464, and 20 are sent in a ms.
    assert held[-1] - held[0] == pytest.approx(20 * 20 * 464, rel=0.01)
    assert 3_400_000 < found.flood.held == found.held_max <= found.budget


def test_a_line_that_bends_is_seen() -> None:
    runs = [Held(delay, held, 1, 0) for delay, held in ((0, 0), (1, 80), (2, 100))]
    assert bend(runs) == pytest.approx(0.3)


def test_the_command_says_what_was_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "toc", "buffers", "--per-ms", "0"]) == 2
    capsys.readouterr()
    assert main(["bench", "toc", "buffers", "--per-ms", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["delay_ms"] for one in found["runs"]] == [0, 25, 50, 75, 100, 125]
    assert found["over_budget"] == 0
