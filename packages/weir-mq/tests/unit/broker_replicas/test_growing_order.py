"""Partitions that are new in a topic join its order: above all that anybody was told before, and
nobody is told more without being told of them (counterexample 6).
"""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.partition.partition import MembershipProposals
from weir.errors import Unavailable, UnknownTopic
from weir.model.ids import Address, group_of
from weir.order.clock import stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


def asked(trio: Any, node: Any, info: m.TopicInfo, stamp: int = 0) -> m.Barriers:
    reply = trio.answer(node, m.AskBarriers(info.id, stamp, 2_000))
    assert isinstance(reply, m.Barriers), reply
    return reply


def lowest(barriers: m.Barriers) -> int:
    return min(stamp for _, stamp, _ in barriers.registers)


def grown(trio: Any, partitions: int) -> m.TopicInfo:
    info = trio.told(a.AlterTopic("t", partitions=partitions), 0)
    assert isinstance(info, m.TopicInfo), info
    assert len(info.addresses) == partitions
    return info


def test_a_new_partition_stamps_above_all_that_was_told(trio: Any, produce: Any) -> None:
    info = trio.topic("t", 2)
    ahead = stamp_at(trio.clock.wall + 600)
    before = asked(trio, trio[1], info, ahead)
    assert lowest(before) >= ahead
    info = grown(trio, 4)
    grant = trio.producer()
    for partition in (2, 3):
        group = group_of(info.id, partition)
        confirm = trio.told(produce(info, grant, 0, b"x", partition=partition), group)
        assert confirm.stamp > lowest(before)
    after = asked(trio, trio[2], info)
    assert [p for p, _, _ in after.registers] == [0, 1, 2, 3]
    assert [p for p, _ in after.roster] == [2, 3]
    assert all(floor > before.registers[0][1] for _, floor in after.roster)


def test_who_leads_a_new_partition_next_stamps_above_its_floor(trio: Any, produce: Any) -> None:
    trio.topic("t", 1)
    info = grown(trio, 2)
    floor = dict(asked(trio, trio[1], info).roster)[1]
    group = group_of(info.id, 1)
    trio.run(500)
    for node in trio.live():
        node.kill()
    trio.clock.wall -= 3_600_000
    for node in trio.nodes.values():
        node.boot()
    confirm = trio.told(produce(info, trio.producer(), 0, b"x", partition=1), group)
    assert confirm.stamp > floor


def test_nobody_writes_to_a_partition_that_has_not_joined(trio: Any, produce: Any) -> None:
    info = trio.topic("t", 1)
    grant = trio.producer()
    trio.run(500)
    first = trio.leader(group_of(info.id, 0))
    registry = trio.leader(0)
    if first is registry:  # the partition's leader is to be away, and not the registry's
        info = trio.topic("u", 1)
        first = trio.leader(group_of(info.id, 0))
        assert first is not registry
    trio.isolate(first.id)
    number = registry.ask(a.AlterTopic(info.name, partitions=2))
    trio.settle()
    group = group_of(info.id, 1)
    there = Address(0, 0, group)
    batch = produce(m.TopicInfo(info.id, "", "", "", [there]), grant, 0, b"x")
    reply = trio.answer(registry, batch)
    assert isinstance(reply, m.Refusal)
    assert reply.code in (UnknownTopic.code, Unavailable.code)
    trio.heal()
    info = trio.until(lambda: registry.reply_to(number))
    assert len(info.addresses) == 2
    assert isinstance(trio.told(batch, group), m.Confirm)


def test_who_has_not_heard_of_a_partition_says_nothing_final_of_it(trio: Any) -> None:
    info = trio.topic("t", 1)
    behind = next(node for node in trio.live() if node is not trio.leader(0))
    trio.isolate(behind.id)
    assert len(grown(trio, 2).addresses) == 2
    there = a.AskLeader(Address(0, 0, group_of(info.id, 1)))
    nowhere = a.AskLeader(Address(0, 0, group_of(info.id, 2)))
    trio.heal()
    assert len(trio.answer(behind, m.DescribeTopic("t")).addresses) == 1
    while isinstance(reply := trio.answer(behind, there), m.Refusal):
        assert reply.code == Unavailable.code  # a client asks again
        trio.run(50)
    assert isinstance(reply, a.LeaderInfo)
    assert len(trio.answer(behind, m.DescribeTopic("t")).addresses) == 2
    assert trio.answer(behind, nowhere).code == UnknownTopic.code


def test_a_barrier_never_passes_a_floor_before_the_entry_is_committed(trio: Any) -> None:
    info = trio.topic("t", 1)
    group = group_of(info.id, 0)
    leader = trio.leader(group)
    leading = leader.group(group).machine.leading
    wall = trio.clock.wall
    leading.membership.join(1, wall)
    (floor,) = leading.membership.joining.values()
    assert leading.barrier(floor + 100).stamp == floor - 1
    trio.run(100)
    assert leading.barrier(floor + 100).stamp == floor + 100
    assert leader.group(group).machine.state.membership.joined == [(1, floor)]
    fetched = leader.reply_to(leader.ask(m.Fetch(info.addresses[0], 0, 100)))
    assert fetched.partitions == 2


def test_who_asked_for_more_partitions_is_told_when_that_takes_long(
    trio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.topic("t", 1)
    monkeypatch.setattr(MembershipProposals, "join", lambda self, partition, wall_ms: None)
    registry = trio.leader(0)
    number = registry.ask(a.AlterTopic("t", partitions=2))
    trio.run(9_000)
    assert registry.reply_to(number) is None
    trio.run(1_500)
    reply = registry.reply_to(number)
    assert isinstance(reply, m.Refusal)
    assert "join by themselves" in reply.message
