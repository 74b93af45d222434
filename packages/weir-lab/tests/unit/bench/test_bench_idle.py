"""What a node costs that nobody uses is read from a real one."""

from __future__ import annotations

import asyncio
from typing import Any

from weir_lab.bench.storage import idle


def test_a_real_node_is_read_while_it_rests(monkeypatch: Any) -> None:
    monkeypatch.setattr(idle, "_REST_SECONDS", 0.0)
    found = asyncio.run(idle.measure(idle.Shape((2,), 0.1)))
    (use,) = found.uses
    assert (use.shards, found.disk_mb, found.cpu_percent) == (2, use.disk_mb, use.cpu_percent)
    assert 30 < use.disk_mb < 64, "a small segment for each of two logs, and nothing else"
    assert use.memory_mb > 60, "three processes"
