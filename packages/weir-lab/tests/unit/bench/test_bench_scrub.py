"""The scrub's figure: of a log that a node has written, and only if it is sound."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from weir.testing.nodes import HOST, free_ports, running_node
from weir_lab.bench.sides.own import Own
from weir_lab.bench.sides.side import topic_name
from weir_lab.bench.storage import scrub
from weir_lab.bench.storage.scrub import ScrubFailed, measure


def test_a_log_that_a_node_wrote_is_verified(tmp_path: Path) -> None:
    result = measure(5_000, str(tmp_path), seconds=0)
    assert result.background is None
    assert result.verified_mib >= 5_000 * 100 / (1 << 20)
    assert result.mb_per_s > 0
    assert [*tmp_path.iterdir()] == []


def test_what_a_node_verified_is_read_from_its_metrics(tmp_path: Path) -> None:
    ports = free_ports(2)
    with running_node(tmp_path / "data", listen=f"{HOST}:{ports[0]}") as node:
        assert scrub._scrubbed(ports) == 0
        asyncio.run(Own(node).prepare(topic_name(1)))
        lone = asyncio.run(scrub._lone(node, ports, 0.2))
    assert lone.messages > 5
    assert lone.confirm_p99_ms >= lone.confirm_p50_ms > 0
    page = 'weir_scrubbed_bytes_total{log="0"} 4.5e+06\nweir_scrubbed_bytes_total{log="1"} 10\n'
    assert sum(map(float, scrub._SCRUBBED.findall(page))) == 4_500_010


def test_a_log_that_is_not_sound_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            words, 1, "DAMAGED: segment-1\n1 MiB verified, 9 MB/s", ""
        )

    monkeypatch.setattr(scrub.subprocess, "run", damaged)
    with pytest.raises(ScrubFailed, match="DAMAGED: segment-1"):
        measure(10)
