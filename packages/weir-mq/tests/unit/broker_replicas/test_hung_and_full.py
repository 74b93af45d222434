"""What must not wait for ever: a disk that hangs, a follower there is no room for, a pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api.settings import Replication
from weir.broker.replica.writer import HUNG_FLUSH_MS
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m


def hang(trio: Any, node: Any, ms: int) -> None:
    """Let time pass in which no flush of a node's ends."""
    for _ in range(ms // 50):
        trio.pass_ms(50)
        trio.connect()
        while trio.deliver() or any(n.jobs for n in trio.live() if n is not node):
            for other in trio.live():
                while other is not node and other.jobs:
                    other.step()
        kept = [job for job in node.jobs if isinstance(job, ef.StartFlush)]
        node.jobs[:] = [job for job in node.jobs if job not in kept]
        while node.jobs:
            node.step()
        node.jobs[:] = kept


def test_who_leads_on_a_disk_that_hangs_hands_over_and_is_not_given_it_back(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    stuck = trio.leader(group)
    question = stuck.ask(produce(info, grant, 1, b"b"))
    hang(trio, stuck, HUNG_FLUSH_MS + 1_000)
    others = [node for node in trio.live() if node is not stuck]
    leads = [node for node in others if node.group(group).machine.leads]
    assert len(leads) == 1
    reply = leads[0].ask(produce(info, grant, 1, b"b"))
    hang(trio, stuck, 8_000)
    assert leads[0].reply_to(reply).offset == 1
    assert leads[0].group(group).machine.leads, "it was given back to a disk that hangs"
    trio.settle()
    assert isinstance(stuck.reply_to(question), m.Refusal)
    assert trio.same_everywhere(group) == [b"a", b"b"]


def test_a_disk_that_stands_still_for_a_second_moves_no_leader(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    slow = trio.leader(group)
    question = slow.ask(produce(info, grant, 1, b"b"))
    hang(trio, slow, 1_200)
    assert slow.reply_to(question) is None, "it was confirmed without its leader's disk"
    trio.settle()
    assert trio.leader(group) is slow
    assert slow.reply_to(question).offset == 1


def test_a_follower_that_lags_is_served_though_publishes_hold_all_the_room(
    make_trio: Callable[..., Any], produce: Any
) -> None:
    trio = make_trio(budget_bytes=200_000, replication=Replication(append_bytes_max=60_000))
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    behind, other = [node for node in trio.live() if node is not trio.leader(group)]
    trio.isolate(behind.id)
    trio.run(1_500)
    leader = trio.leader(group)
    if leader is other:
        other = next(node for node in trio.live() if node not in (leader, behind))
    for number in range(30):  # far more than the cache holds
        trio.told(produce(info, grant, number, b"v%04d" % number * 2_000), group)
    other.kill()
    trio.heal()
    questions = [
        leader.ask(produce(info, grant, number, b"w%04d" % number * 2_000))
        for number in range(30, 60)
    ]
    assert leader.shard.budget.used >= leader.shard.budget.limit // 2
    trio.until(lambda: leader.reply_to(questions[0]) is not None, "nothing is ever confirmed")
    assert leader.reply_to(questions[0]).offset == 30


def test_who_slept_tells_nobody_what_was_so_before(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    address, group = info.addresses[0], info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    asleep = trio.leader(group)
    poll = asleep.ask(m.Fetch(address, 1, 1 << 20, 1_000))
    trio.isolate(asleep.id)
    awake = [node for node in trio.live() if node is not asleep]
    asleep.alive = False
    trio.run(5_000)
    assert any(node.group(group).machine.leads for node in awake)
    asleep.alive = True
    late = asleep.ask(m.Fetch(address, 1, 1 << 20, 0))
    for question in (poll, late):
        assert isinstance(asleep.reply_to(question), m.Refusal)


def test_a_promise_about_stamps_outlives_its_leader(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    address, group = info.addresses[0], info.addresses[0].group
    for number in range(3):
        trio.told(produce(info, grant, number, b"a"), group)
    old = trio.leader(group)
    asked = stamp_at(trio.clock.wall + 900)
    assert trio.answer(old, m.Positions(address, asked)).end == 3
    new = next(node for node in trio.live() if node is not old)
    old.group(group).node.transfer_leadership(new.group(group).voter)
    old.group(group).process_ready()
    trio.until(lambda: new.group(group).machine.leads)
    confirm = trio.answer(new, produce(info, grant, 3, b"late"))
    assert (confirm.offset, confirm.stamp >= asked) == (3, True)


def test_a_reader_may_be_ahead_of_a_leader_whose_own_disk_lags(trio: Any, produce: Any) -> None:
    """What the others have written is committed: a follower hands out what its leader cannot."""
    info, grant = trio.topic(), trio.producer()
    address, group = info.addresses[0], info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    leader = trio.leader(group)
    follower = next(node for node in trio.live() if node is not leader)
    confirm = leader.ask(produce(info, grant, 1, b"b"))
    hang(trio, leader, 200)
    assert follower.reply_to(follower.ask(m.Fetch(address, 1, 1 << 20, 0, True))).next_offset == 2
    node = leader.group(group).node
    assert node.log.applied < node.log.committed
    asked = [leader.ask(m.Fetch(address, 2, 1 << 20, wait_ms)) for wait_ms in (0, 60_000)]
    hang(trio, leader, 200)
    assert [leader.reply_to(number) for number in (confirm, *asked)] == [None] * 3
    trio.until(lambda: leader.reply_to(asked[0]))
    assert leader.reply_to(confirm).offset == 1
    assert leader.reply_to(asked[0]).next_offset == 2
    trio.answer(leader, produce(info, grant, 2, b"c"))
    assert leader.reply_to(asked[1]).next_offset == 3
