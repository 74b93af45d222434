"""Leaders of all partitions learn how far a cluster in total order is, whatever node leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.model.ids import group_of
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m

PARTITIONS = 6


def test_a_cursor_lets_messages_go_in_partitions_led_by_other_nodes(
    make_trio: Callable[..., Any], produce: Any
) -> None:
    trio = make_trio(retention_every_ms=500)
    settings = SettingsChange(until_done=("crew",))
    info = trio.topic(partitions=PARTITIONS, order="total", settings=settings)
    grant = trio.producer()
    groups = [group_of(info.id, p) for p in range(PARTITIONS)]
    for partition, group in enumerate(groups):
        for sequence in range(3):
            request = produce(info, grant, sequence, b"v", partition=partition)
            assert isinstance(trio.told(request, group), m.Confirm)
    trio.run(3_000)
    leaders = {trio.leader(group).id for group in groups}
    assert len(leaders) == 3, "all nodes lead some"
    first = info.addresses[0]
    turn = trio.told(m.TakeTurn(first, "crew", (0,) * PARTITIONS), first.group)
    offsets = (2, 0, 3, 1, 2, 3)
    moved = trio.told(m.MoveCursor(first, "crew", turn.fence, offsets, 30_000), first.group)
    assert isinstance(moved, m.Moved)
    trio.run(3_000)
    starts = [trio.leader(g).shard.topics.partition(g)[1].state.log_start for g in groups]
    assert tuple(starts) == offsets
