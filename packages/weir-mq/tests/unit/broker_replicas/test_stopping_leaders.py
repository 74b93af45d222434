"""A leader that stops hands over, at once or as soon as somebody could lead."""

from __future__ import annotations

from typing import Any

from weir.broker.api import events as ev
from weir.broker.brokerset import HAND_OVER_MS


def test_who_could_not_hand_over_when_it_was_told_to_stop_does_so_later(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    leader = trio.leader(group)
    followers = [node for node in trio.live() if node is not leader]
    for node in followers:
        trio.isolate(node.id)
    leader.handle(ev.Stopping(1_000))
    trio.settle()
    assert leader.group(group).leader == leader.group(group).voter, "nobody could take it over"
    trio.heal()
    began = trio.clock.monotonic
    trio.until(lambda: leader.shard.brokerset.handed_over, "it kept the lead")
    assert trio.clock.monotonic - began < HAND_OVER_MS / 2
    trio.until(lambda: followers[0].group(group).leader not in (0, leader.group(group).voter))
