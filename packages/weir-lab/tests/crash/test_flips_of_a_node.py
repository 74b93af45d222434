"""One place of a node's files is changed: what it serves is right, and what is gone is told.

`python -m weir_lab.bench.faults.flips` changes more places, on larger logs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_lab.bench.faults import flips
from weir_lab.bench.faults.flips import Settings, measure


def test_a_changed_place_is_harmless_or_told(tmp_path: Path) -> None:
    result = measure(Settings(times=3, mib=1, seed=4), str(tmp_path))
    assert result.flips + result.cuts == 3
    assert result.whole + result.told + result.refused == 3, result.places
    assert result.served > 0
    assert [*tmp_path.iterdir()] == []


def test_wrong_bytes_and_silent_losses_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(times=1, mib=1)
    nothing = lambda path, dice, result: "nothing"  # noqa: E731
    monkeypatch.setattr(flips, "_spoil", nothing)
    fill = flips._fill

    async def fill_less(node: flips.Node, messages: int) -> None:
        await fill(node, messages - flips._EACH)

    monkeypatch.setattr(flips, "_fill", fill_less)
    assert measure(settings, str(tmp_path)).silent == 1

    async def fill_others(node: flips.Node, messages: int) -> None:
        value = flips._value
        monkeypatch.setattr(flips, "_value", lambda number: value(number + (number == 7)))
        await fill(node, messages)
        monkeypatch.setattr(flips, "_value", value)

    monkeypatch.setattr(flips, "_fill", fill_others)
    result = measure(settings, str(tmp_path))
    assert (result.wrong, result.places) == (1, ["wrong: nothing"])


def test_an_announced_pid_or_endpoint_may_rot(tmp_path: Path) -> None:
    """Each file of a sound folder is drawn: none of them keeps a node from ending its start."""
    result = measure(Settings(times=6, mib=1, seed=9), str(tmp_path))
    assert (result.wrong, result.silent, result.stuck) == (0, 0, 0), result.places
