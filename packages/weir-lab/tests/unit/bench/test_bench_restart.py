"""The figures of a restart: of a real node, on which everything is still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs.drawn_mutants import one_in
from weir_lab.bench.storage import restart
from weir_lab.bench.storage.restart import RestartFailed, Shape, measure


@one_in(3)
def test_a_node_is_started_again_three_times(tmp_path: Path) -> None:
    result = measure(Shape(gib=0.01), str(tmp_path))
    assert result.messages > 10_000
    assert result.log_bytes > result.messages * 1_000
    starts = result.after_kill_seconds, result.after_stop_seconds, result.without_index_seconds
    assert min(starts) > 0
    assert result.restart_seconds == max(starts[:2])
    assert [*tmp_path.iterdir()] == []


def test_messages_that_are_gone_give_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = restart._fill
    monkeypatch.setattr(restart, "_fill", lambda side, messages: fill(side, messages - 1))
    with pytest.raises(RestartFailed, match="messages were confirmed and"):
        measure(Shape(gib=0.001), str(tmp_path))
