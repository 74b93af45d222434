"""What an operator must mend is told at once, and again every minute while it lasts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.broker.replica.disk_room import Full
from weir.broker.shard import Shard
from weir.server import status
from weir.server.observability import monitoring
from weir.server.observability.monitoring import OperatorWarnings


def told_by(shard: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Return what lets so many seconds pass, and returns the warnings that came meanwhile."""
    now = 1_000.0
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(monitoring, "_LOOK_SECONDS", 3_600.0)
    told = OperatorWarnings(cast(Shard, shard))

    def after(seconds: int) -> list[str]:
        nonlocal now
        caplog.clear()

        async def looks() -> None:
            nonlocal now
            for _ in range(seconds):
                now += 1.0
                with told:
                    pass

        asyncio.run(looks())
        assert {record.levelname for record in caplog.records} <= {"WARNING"}
        return list(caplog.messages)

    return after


def test_a_wrong_clock_is_told_at_once_and_each_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shard = SimpleNamespace(clock_astray_ms=0, needed_bytes=0, short=None, unaudited="")
    after = told_by(shard, monkeypatch, caplog)
    assert after(5) == []
    shard.clock_astray_ms = 3_600_000
    (said,) = after(1)
    assert said.startswith(
        "the clock of this node is 3600.0 s ahead of those of the others: correct"
    )
    assert after(58) == []
    assert len(after(120)) == 2
    shard.clock_astray_ms = 0
    assert after(1) == []
    shard.clock_astray_ms = -2_500
    (said,) = after(1)
    assert "2.5 s behind those of the others" in said


def test_a_full_disk_is_told_with_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shard = SimpleNamespace(clock_astray_ms=0, needed_bytes=64 << 20, short=None, unaudited="")
    after = told_by(shard, monkeypatch, caplog)
    (said,) = after(30)
    assert said.startswith(
        "the disk is full: publishes are refused, acks and reads continue. Free 64"
    )
    assert len(after(60)) == 1
    shard.needed_bytes = 0
    assert after(200) == []


def test_full_disks_of_others_are_told_with_what_they_need(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shard = SimpleNamespace(clock_astray_ms=0, needed_bytes=0, short=None, unaudited="")
    shard.short = Full((2, 3), 64 << 20)
    after = told_by(shard, monkeypatch, caplog)
    (said,) = after(30)
    assert said.startswith("nodes 2 and 3 have full disks: publishes that need them are refused")
    assert "Free 64 MiB or more there" in said
    assert len(after(60)) == 1
    shard.short = None
    assert after(200) == []
