"""One order over partitions that different nodes lead: who is asked, what is promised, and that it
holds whoever leads next, after restarts too.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from weir.broker.barriers.barriers import Promises
from weir.model.ids import group_of
from weir.order.clock import milliseconds_of, stamp_at
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

PARTITIONS = 6


@pytest.fixture
def spread(trio: Any) -> tuple[Any, m.TopicInfo]:
    """A topic that all nodes lead some of, and a set that is at rest."""
    info = trio.topic("t", PARTITIONS)
    trio.run(300)
    leaders = {trio.leader(group_of(info.id, p)).id for p in range(PARTITIONS)}
    assert leaders == {1, 2, 3}
    return trio, info


def now(trio: Any) -> int:
    return stamp_at(trio.clock.wall)


def asked(trio: Any, node: int, info: m.TopicInfo, stamp: int, wait_ms: int = 1_000) -> m.Barriers:
    reply = trio.answer(trio[node], m.AskBarriers(info.id, stamp, wait_ms))
    assert isinstance(reply, m.Barriers), reply
    assert [p for p, *_ in reply.registers] == [*range(PARTITIONS)]
    return reply


def lowest(barriers: m.Barriers) -> int:
    return min(stamp for _, stamp, _ in barriers.registers)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_any_node_tells_of_all_partitions(spread: Any, node: int) -> None:
    trio, info = spread
    stamp = now(trio)
    assert lowest(asked(trio, node, info, stamp)) >= stamp


def test_while_nobody_asks_nothing_is_promised_and_no_bound_is_written(spread: Any) -> None:
    trio, _ = spread
    trio.run(1_000)
    before = [node.shard.writers[0].log.tail for node in trio.live()]
    trio.run(3_000)
    assert [node.shard.writers[0].log.bound for node in trio.live()] == [0, 0, 0]
    assert [node.shard.writers[0].log.tail for node in trio.live()] == before


def test_what_was_promised_holds_for_who_leads_next(spread: Any, produce: Any) -> None:
    trio, info = spread
    stamp = now(trio) + (500 << 16)
    barrier = lowest(asked(trio, 1, info, stamp))
    assert barrier >= stamp
    grant = trio.producer()
    old = trio.leader(group_of(info.id, 0))
    trio.isolate(old.id)
    # Clocks that were set back do not lead below it either.
    trio.clock.wall -= 400
    trio.until(lambda: trio.leader(group_of(info.id, 0)) is not old)
    confirm = trio.told(produce(info, grant, 0, b"x"), group_of(info.id, 0))
    assert confirm.stamp > barrier


def test_all_that_restart_stand_by_the_whole_bound(spread: Any, produce: Any) -> None:
    trio, info = spread
    barrier = lowest(asked(trio, 2, info, now(trio)))
    for node in trio.live():
        node.kill()
    trio.clock.wall -= 3_600_000
    for node in trio.nodes.values():
        node.boot()
        assert node.shard.writers[0].log.bound > barrier
    grant = trio.producer()
    for partition in range(PARTITIONS):
        group = group_of(info.id, partition)
        confirm = trio.told(produce(info, grant, 0, b"x", partition=partition), group)
        assert confirm.stamp > barrier


def test_a_partition_without_a_leader_keeps_its_last_value(spread: Any) -> None:
    trio, info = spread
    one = trio.leader(group_of(info.id, 0))
    before = asked(trio, one.id, info, now(trio))
    trio.isolate(one.id)
    trio.run(3_000)
    reply = asked(trio, one.id, info, now(trio), 200)
    assert [stamp for _, stamp, _ in reply.registers] >= [s for _, s, _ in before.registers]
    assert lowest(reply) < now(trio), "a node alone promises nothing"
    trio.heal()
    stamp = now(trio)
    assert lowest(asked(trio, one.id, info, stamp, 5_000)) >= stamp


def test_who_waits_is_told_when_the_topic_goes(spread: Any) -> None:
    trio, info = spread
    number = trio[1].ask(m.AskBarriers(info.id, now(trio) + (3_600_000 << 16), 60_000))
    trio.told(a.DeleteTopic("t"), 0)
    reply = trio.until(lambda: trio[1].reply_to(number))
    assert isinstance(reply, m.Refusal)


def test_nobody_is_dragged_further_ahead_than_a_client_may_see(spread: Any, produce: Any) -> None:
    trio, info = spread
    asked(trio, 1, info, now(trio) + (3_600_000 << 16), 200)
    confirm = trio.told(produce(info, trio.producer(), 0, b"x"), group_of(info.id, 0))
    assert milliseconds_of(confirm.stamp) <= trio.clock.wall + 1_000


def test_a_change_of_members_follows_an_entry_above_all_promises(spread: Any) -> None:
    trio, info = spread
    group = group_of(info.id, 0)
    barrier = lowest(asked(trio, 1, info, now(trio)))
    leader = trio.leader(group)
    machine = leader.group(group).machine
    assert machine.state.last_stamp < barrier
    machine.changing()
    trio.run(100)
    assert machine.state.last_stamp > barrier
    index = leader.group(group).node.log.last_index
    machine.changing()
    assert leader.group(group).node.log.last_index == index, "one is enough"


def test_visible_is_confirmed_once_all_partitions_have_got_so_far(
    spread: Any, produce: Any
) -> None:
    trio, info = spread
    grant = trio.producer()
    trio.run(300)
    batch = structs.replace(produce(info, grant, 0, b"x"), level=m.Level.VISIBLE)
    leader = trio.leader(group_of(info.id, 0))
    other = next(node for node in trio.live() if node is not leader)
    trio.isolate(other.id)
    number = leader.ask(batch)
    trio.settle()
    assert leader.group(group_of(info.id, 0)).machine.state.next_offset == 1
    assert leader.reply_to(number) is None, "what the other node led may still come before it"
    confirm = trio.until(lambda: leader.reply_to(number))
    assert isinstance(confirm, m.Confirm)
    barriers = asked(trio, leader.id, info, 1)
    assert lowest(barriers) >= confirm.stamp
    again = trio.answer(leader, batch)
    assert (again.offset, again.stamp, again.duplicate) == (0, confirm.stamp, True)


def test_what_does_not_become_visible_is_refused_in_time(
    spread: Any, produce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio, info = spread
    grant = trio.producer()
    trio.run(300)
    leader = trio.leader(group_of(info.id, 0))
    monkeypatch.setattr(Promises, "ask", lambda self, stamp: None)
    monkeypatch.setattr(Promises, "ask_again", lambda self: None)
    number = leader.ask(structs.replace(produce(info, grant, 0, b"x"), level=m.Level.VISIBLE))
    trio.run(9_000)
    assert leader.reply_to(number) is None
    trio.run(1_500)
    reply = leader.reply_to(number)
    assert isinstance(reply, m.Refusal)
    assert "it is committed" in reply.message
