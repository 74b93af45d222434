"""Partitions that end: sealed behind all that was confirmed, and waited for by nobody any more,
whoever is away or comes back in between.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from rigs.part_questions import ask_part
from rigs.shards import note_leaders
from weir.broker.barriers.topic_order import Ends
from weir.broker.partition.partition import MembershipProposals
from weir.broker.scattering.participant import RecoverySchedule
from weir.errors import BadRequest, PartitionEnded, UnknownTopic
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part, group_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part, Step


def ended(trio: Any, partition: int, name: str = "t") -> m.TopicInfo:
    info = trio.told(a.EndPartition(name, partition), 0)
    assert isinstance(info, m.TopicInfo), info
    assert dict(info.ends)[partition] > 0
    return info


def state_of(trio: Any, group: int) -> Any:
    return trio.leader(group).group(group).machine.state


def scatter(info: m.TopicInfo, grant: m.ProducerGrant, *partitions: int) -> m.Scatter:
    groups = [info.addresses[p].group for p in partitions]
    scattered = Scattered(0, tuple(sorted(map(batch_part, groups))))
    parts = [
        Part(info.addresses[p], bytes(encode(
            [b"part"], group=group, producer=grant.producer, epoch=grant.epoch, sequence=0,
            scattered=scattered,
        )))
        for p, group in zip(partitions, groups, strict=True)
    ]  # fmt: skip
    return m.Scatter(grant.producer, grant.epoch, 0, 0, parts)


def test_what_was_confirmed_stays_and_nothing_new_is_taken(trio: Any, produce: Any) -> None:
    info, grant = trio.topic("t", 3), trio.producer()
    group = group_of(info.id, 2)
    before = trio.told(produce(info, grant, 0, b"x", partition=2), group)
    told = ended(trio, 2)
    (end,) = told.ends
    assert end[1] > before.stamp
    again = trio.told(produce(info, grant, 0, b"x", partition=2), group)
    assert again.duplicate
    assert (again.offset, again.stamp) == (before.offset, before.stamp)
    for sequence in (1, 7):  # one with a gap before it is not there either
        refused = trio.told(produce(info, grant, sequence, b"y", partition=2), group)
        assert (refused.code, refused.detail) == (PartitionEnded.code, 2)
    other = trio.told(produce(info, grant, 0, b"z", partition=1), group_of(info.id, 1))
    assert isinstance(other, m.Confirm)
    assert trio.same_everywhere(group) == [b"x"]
    assert state_of(trio, group_of(info.id, 0)).membership.ends == {2: (end[1], 1)}


def test_to_end_it_again_is_answered_the_same(trio: Any) -> None:
    trio.topic("t", 3)
    assert ended(trio, 1) == ended(trio, 1)
    assert [partition for partition, _ in ended(trio, 2).ends] == [1, 2]


@pytest.mark.parametrize(("partition", "error"), [(0, BadRequest), (2, UnknownTopic)])
def test_what_cannot_end(trio: Any, partition: int, error: type[BadRequest]) -> None:
    trio.topic("t", 2)
    reply = trio.told(a.EndPartition("t", partition), 0)
    assert isinstance(reply, m.Refusal)
    assert reply.code == error.code


def test_the_order_waits_for_an_ended_partition_no_more(trio: Any, produce: Any) -> None:
    info, grant = trio.topic("t", 2), trio.producer()
    group = group_of(info.id, 1)
    assert isinstance(trio.told(produce(info, grant, 0, b"x", partition=1), group), m.Confirm)
    ended(trio, 1)
    # Nobody leads it any more, and partition 0 has a majority.
    for node in trio.nodes.values():
        node.group(group).machine.leading = None
        note_leaders(node.shard)
    reply = trio.answer(trio[1], m.AskBarriers(info.id, 0, 2_000))
    assert reply.reached
    ((_, lowest, _), (_, stamp, through)) = reply.registers
    assert stamp == reply.registers[1][1] > 0
    assert through == 1
    assert lowest > reply.ends[0][1]
    assert [(p, offset) for p, _, offset in reply.ends] == [(1, 1)]


def test_a_scattering_is_refused_whole_where_a_part_has_ended(trio: Any) -> None:
    info = trio.topic("t", 3)
    ended(trio, 2)
    reply = trio.told(scatter(info, trio.producer(), 1, 2), group_of(info.id, 0))
    assert isinstance(reply, m.Refusal)
    assert reply.code == PartitionEnded.code
    trio.run(2_000)
    assert trio.same_everywhere(group_of(info.id, 2)) == []
    assert state_of(trio, group_of(info.id, 1)).voids.within(0, 9) in ([], [(0, 1)])
    assert isinstance(
        trio.told(scatter(info, trio.producer(), 0, 1), group_of(info.id, 0)), m.ScatterConfirm
    )


def test_a_scattering_that_was_confirmed_before_is_found_again(trio: Any) -> None:
    info, grant = trio.topic("t", 3), trio.producer()
    request = scatter(info, grant, 1, 2)
    first = trio.told(request, group_of(info.id, 0))
    assert isinstance(first, m.ScatterConfirm)
    ended(trio, 2)
    again = trio.told(request, group_of(info.id, 0))
    assert (again.stamp, again.duplicate) == (first.stamp, True)


def test_what_is_undecided_lies_before_the_end_and_is_decided_first(
    trio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, grant = trio.topic("t", 2), trio.producer()
    group = group_of(info.id, 1)
    node = trio.leader(group)
    leading = node.group(group).machine.leading
    told: list[Any] = []
    part = scatter(info, grant, 0, 1)
    batch = next(one.batch for one in part.parts if one.address.group == group)
    parts = tuple(sorted(map(batch_part, (group_of(info.id, 0), group))))
    stamp = leading.appender.clock.floor + 1_000
    # Nobody finds out what became of it.
    monkeypatch.setattr(RecoverySchedule, "overdue", lambda self: [])
    request = m.Prepare(info.addresses[1], grant.producer, grant.epoch, 0, stamp, parts, batch)
    ask_part(node.shard, request, told.append)
    number = trio.leader(0).ask(a.EndPartition("t", 1))
    trio.run(1_000)
    assert state_of(trio, group).membership.sealed > stamp
    assert state_of(trio, group_of(info.id, 0)).membership.ends == {}
    abort = m.Decide(info.addresses[1], grant.producer, grant.epoch, 0, stamp, False, Step.ABORT)
    ask_part(node.shard, abort, told.append)
    trio.run(1_000)
    assert trio.leader(0).reply_to(number).ends
    assert state_of(trio, group_of(info.id, 0)).membership.ends == {
        1: (state_of(trio, group).membership.sealed, 1)
    }


@pytest.mark.parametrize("seed", range(12))
def test_whoever_leads_goes_on_with_it(trio: Any, produce: Any, seed: int) -> None:
    """Nodes die at any step: it ends all the same, and nothing confirmed is lost, nor taken behind
    the seal.
    """
    dice = random.Random(seed)
    info, grant = trio.topic("t", 2), trio.producer()
    group, sequence, confirmed = group_of(info.id, 1), 0, []
    trio.leader(0).ask(a.EndPartition("t", 1))
    while True:
        for _ in range(dice.randrange(40)):
            trio.one(dice)
        victim = dice.choice(trio.live())
        victim.kill()
        trio.settle()
        trio.run(dice.choice((0, 500, 3_000)))
        victim.boot()
        reply = trio.told(produce(info, grant, sequence, b"%d" % sequence, partition=1), group)
        if isinstance(reply, m.Refusal):
            assert reply.code == PartitionEnded.code
            break
        confirmed.append(b"%d" % sequence)
        sequence += 1
        trio.leader(0).ask(a.EndPartition("t", 1))
    told = ended(trio, 1)
    assert trio.same_everywhere(group) == confirmed
    assert state_of(trio, group).membership.sealed == dict(told.ends)[1]
    assert state_of(trio, group_of(info.id, 0)).membership.ends == {
        1: (dict(told.ends)[1], len(confirmed))
    }


def test_it_is_known_after_all_nodes_began_again(trio: Any, produce: Any) -> None:
    info, grant = trio.topic("t", 2), trio.producer()
    told = ended(trio, 1)
    for node in trio.nodes.values():
        node.kill()
    for node in trio.nodes.values():
        node.boot()
    trio.until(lambda: all(node.shard.ready for node in trio.live()))
    assert trio.told(m.DescribeTopic("t"), 0).ends == told.ends
    refused = trio.told(produce(info, grant, 0, b"y", partition=1), group_of(info.id, 1))
    assert refused.code == PartitionEnded.code


def test_who_ends_a_partition_is_told_when_that_takes_long(
    trio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.topic("t", 2)
    monkeypatch.setattr(MembershipProposals, "end", lambda self, *end: None)
    registry = trio.leader(0)
    number = registry.ask(a.EndPartition("t", 1))
    trio.run(9_000)
    assert registry.reply_to(number) is None
    assert trio.told(m.DescribeTopic("t"), 0).ends == ((1, 0),)
    trio.run(1_500)
    reply = registry.reply_to(number)
    assert isinstance(reply, m.Refusal)
    assert "ends by itself" in reply.message


def test_a_topic_that_is_deleted_meanwhile(trio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trio.topic("t", 2)
    monkeypatch.setattr(Ends, "end_partitions", lambda self: None)
    registry = trio.leader(0)
    number = registry.ask(a.EndPartition("t", 1))
    trio.run(500)
    trio.told(a.DeleteTopic("t"), 0)
    trio.run(1_000)
    assert registry.reply_to(number).code == UnknownTopic.code
    assert not registry.shard.registry.catalog.ending
