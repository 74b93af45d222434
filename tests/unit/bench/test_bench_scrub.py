"""The scrub's figure: of a log that a node has written, and only if it is sound."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from weir.bench import scrub
from weir.bench.scrub import ScrubFailed, measure


def test_a_log_that_a_node_wrote_is_verified(tmp_path: Path) -> None:
    result = measure(5_000, str(tmp_path))
    assert result.verified_mib >= 5_000 * 100 / (1 << 20)
    assert result.mb_per_s > 0
    assert [*tmp_path.iterdir()] == []


def test_a_log_that_is_not_sound_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            words, 1, "DAMAGED: segment-1\n1 MiB verified, 9 MB/s", ""
        )

    monkeypatch.setattr(scrub.subprocess, "run", damaged)
    with pytest.raises(ScrubFailed, match="DAMAGED: segment-1"):
        measure(10)
