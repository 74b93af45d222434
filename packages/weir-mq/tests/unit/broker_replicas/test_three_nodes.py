"""A set of three nodes confirms what a majority has, and goes on without its leader."""

from __future__ import annotations

from typing import Any

from weir.errors import NotLeader, UnknownTopic
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.nodes import TransferLeader


def test_what_is_confirmed_lies_on_all_nodes(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    first = trio.told(produce(info, grant, 0, b"a", b"b"), group)
    second = trio.told(produce(info, grant, 2, b"c"), group)
    assert [first.offset, second.offset] == [0, 2]
    assert trio.same_everywhere(group) == [b"a", b"b", b"c"]


def test_the_same_sequence_gets_its_first_answer_from_the_next_leader(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    first = trio.leader(group)
    confirm = trio.told(produce(info, grant, 0, b"a", b"b"), group)
    first.kill()
    second = trio.leader(group)
    assert second is not first
    again = trio.told(produce(info, grant, 0, b"a", b"b"), group)
    assert (again.offset, again.stamp, again.duplicate) == (confirm.offset, confirm.stamp, True)
    assert trio.told(produce(info, grant, 2, b"c"), group).offset == 2
    first.boot()
    assert trio.same_everywhere(group) == [b"a", b"b", b"c"]


def test_a_leader_that_is_cut_off_refuses_who_waits_and_gives_the_budget_back(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    old = trio.leader(group)
    assert trio.told(produce(info, grant, 0, b"a"), group).offset == 0
    used = old.shard.budget.used
    trio.isolate(old.id)
    lost = old.ask(produce(info, grant, 1, b"never"))
    fetch = old.ask(m.Fetch(info.addresses[0], 1, 1 << 20, 60_000))
    pull = old.ask(m.Pull(info.addresses[0], "crew", 9, 1 << 20, 5_000, 60_000))
    assert old.shard.budget.used > used
    trio.leader(group)
    trio.until(lambda: old.reply_to(lost), "the old leader keeps its client waiting")
    for asked in (lost, fetch, pull):
        assert old.reply_to(asked).code == NotLeader.code
    assert old.shard.budget.used == used
    assert [hangup.session for hangup in old.hangups] == [1]
    assert trio.told(produce(info, grant, 1, b"else"), group).offset == 1
    trio.heal()
    assert trio.same_everywhere(group) == [b"a", b"else"]


def test_a_leader_that_was_cut_off_once_hangs_up_on_nobody_when_its_topic_is_deleted(
    trio: Any, produce: Any
) -> None:
    """It is in touch with the others again: who waits is told that the topic is gone."""
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    old = trio.leader(group)
    trio.told(produce(info, grant, 0, b"a"), group)
    trio.isolate(old.id)
    old.ask(produce(info, grant, 1, b"never"))
    trio.leader(group)
    trio.until(lambda: old.hangups)
    trio.heal()
    trio.same_everywhere(group)
    while trio.leader(group) is not old:
        trio.told(TransferLeader(info.addresses[0], old.id), group)
        trio.run(1_000)
    fetch = old.ask(m.Fetch(info.addresses[0], 1, 1 << 20, 60_000), session=2)
    before = len(old.hangups)
    trio.told(a.DeleteTopic("t"), 0)
    reply = trio.until(lambda: old.reply_to(fetch, session=2))
    assert reply.code == UnknownTopic.code
    assert len(old.hangups) == before
