"""Leaderships in the status: told once a second, and not at all by a node that is alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.broker.api.counts import Counts
from weir.broker.shard import Shard
from weir.server.observability import monitoring
from weir.server.observability.monitoring import LeaderChanges


def shard(members: tuple[int, ...]) -> Any:
    identity = SimpleNamespace(members=members)
    return SimpleNamespace(counts=Counts(), identity=identity, partitions_led=2)


def test_what_changed_is_told_together_and_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitoring, "_EVERY_SECONDS", 0.0)
    caplog.set_level("INFO")
    of_set, alone = shard((1, 2, 3)), shard(())

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def body() -> None:
        with LeaderChanges(cast(Shard, of_set)), LeaderChanges(cast(Shard, alone)):
            await turns()
            assert not caplog.messages
            for one in (of_set, alone):
                one.counts.leads_begun, one.counts.leads_lost = 3, 1
            await turns()
            assert caplog.messages == ["leads 2 partitions: 3 more, 1 fewer"]
            of_set.counts.leads_lost = 2
            await turns()
        of_set.counts.leads_lost = 3
        await turns()

    asyncio.run(body())
    assert caplog.messages[1:] == ["leads 2 partitions: 0 more, 1 fewer"]
