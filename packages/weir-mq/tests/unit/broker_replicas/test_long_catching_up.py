"""Who has much to apply does it a piece at a time: its beats and all else must not wait for it."""

from __future__ import annotations

from typing import Any

from weir.broker.api import effects as ef
from weir.broker.partition.partition import Partition
from weir.broker.runtime.reads import Pause


def test_much_is_applied_a_piece_at_a_time(trio: Any, produce: Any, monkeypatch: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    for sequence in range(60):
        values = bytes([65 + sequence % 26]) * 12_000
        confirm = trio.told(produce(info, grant, sequence, values), group)
        assert confirm.offset == sequence
    values = trio.same_everywhere(group)
    away = next(node for node in trio.live() if node is not trio.leader(group))
    away.kill()
    monkeypatch.setattr("weir.broker.replica.group._AT_ONCE_BYTES", 50_000)
    monkeypatch.setattr("weir.broker.replica.raft_storage._APPLY_BYTES_MAX", 20_000)
    away.boot()
    applied, most = [], 0
    really = Partition.apply

    def apply(self: Partition, index: int, payload: Any) -> None:
        if self.group is away.group(group):
            applied.append(index)
        really(self, index, payload)

    monkeypatch.setattr(Partition, "apply", apply)
    pauses = 0
    while len(applied) < 61:
        trio.connect()
        trio.deliver()
        for node in trio.live():
            while node.jobs:
                job, before = node.jobs[0], len(applied)
                paused = isinstance(job, ef.StartRead) and isinstance(job.reading, Pause)
                pauses += paused and node is away
                node.step()
                if node is away:
                    most = max(most, len(applied) - before)
        trio.pass_ms(10)
        assert trio.clock.monotonic < 60_000, "it never came"
    assert pauses >= 5
    assert most < 50, "much at once"
    assert applied == sorted(set(applied))
    assert trio.same_everywhere(group) == values
