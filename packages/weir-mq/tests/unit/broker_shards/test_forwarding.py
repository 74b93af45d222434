"""What one shard passes on to another: it lets in, the owner confirms, and each is answered."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.shards import auditor_of, forwarder_of
from weir.broker.api import events as ev
from weir.broker.audit.buffer import Seen
from weir.broker.forwarding.forwarder import SMALL
from weir.errors import Overloaded, Unavailable
from weir.model.batch_builder import encode
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.device import DeviceReplies, DeviceStream

KIB = 1024


def test_all_shards_come_up_and_know_the_same_topics(node: Any) -> None:
    assert all(one.shard.ready for one in node.all)
    info = node.answer(2, m.CreateTopic("t", 4))
    assert [address.log for address in info.addresses] == [1, 2, 3, 0]
    for shard in range(3):
        assert node.answer(shard, m.DescribeTopic("t")) == info
        assert node.answer(shard, m.ListTopics()).topics == [info]
    assert sum(one.shard.partitions_led for one in node.all) == 4


def test_what_is_elsewhere_is_passed_on_and_confirmed_by_its_owner(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(1, m.OpenProducer())
    for address in info.addresses:
        for shard in range(3):
            confirm = node.answer(shard, node.batch(address, grant, shard))
            assert (confirm.offset, confirm.duplicate) == (shard, False)
        fetched = node.answer((address.shard + 1) % 3, m.Fetch(address, 0, 1 << 20))
        assert (fetched.offset, fetched.next_offset) == (0, 3)
    assert all(one.shard.budget.used == 0 for one in node.all)


def test_requests_of_a_trunk_that_breaks_are_refused_and_may_be_sent_again(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(1, 2)}
    produce = node.ask(1, node.batch(address, grant))
    poll = node.ask(1, m.Fetch(address, 0, 1, 1_000))
    node.kill(2)
    node.blocked.clear()
    assert {node.reply(1, n).code for n in (produce, poll)} == {Unavailable.code}
    assert node.answer(1, node.batch(address, grant)).code == Unavailable.code
    node.boot(2)
    node.settle()
    assert node.answer(1, node.batch(address, grant)).offset == 0


def test_a_peer_that_goes_is_gone_everywhere(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.answer(1, node.batch(address, grant))
    lease = m.Pull(address, "crew", 10, 1 << 20)
    assert node.answer(1, lease).fence
    assert node.answer(0, lease).fence == 0  # it is with the other consumer
    node.all[1].handle(ev.Closed(1))
    node.settle()
    assert node.answer(0, lease).fence


def test_a_shard_short_of_memory_passes_nothing_large_on(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.all[1].shard.budget.take(node.budget)
    data = encode([bytes(8 * KIB)], group=address.group, producer=grant.producer, epoch=0,
                  sequence=0)  # fmt: skip
    assert node.answer(1, m.Produce(address, 0, memoryview(data))).code == Overloaded.code
    assert node.answer(1, m.Positions(address)).end == 0
    node.all[1].shard.budget.release(node.budget)
    assert node.answer(1, m.Produce(address, 0, memoryview(data))).offset == 0


def test_locks_publish_by_any_shard_and_come_again_when_theirs_is_gone(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 4))
    one, replies = node.all[1], DeviceReplies()
    for session, address in enumerate(info.addresses, 100):
        one.raw[session] = b""
        one.handle(ev.Opened(session))
        partition = address.group & 0xFFFF
        frames = [device.hello(session, 1, "locks", partition)]
        frames += [device.publish(1, b"v%d" % n, n) for n in range(3)]
        one.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))
        node.settle()
        found = replies.receive(one.raw[session])
        assert [(reply.code, reply.offset) for reply in found[1:]] == [(0, 0), (0, 1), (0, 2)]
    node.kill(2)
    theirs = [s for s, a in enumerate(info.addresses, 100) if a.shard == 2]
    assert one.hung_up == theirs


def test_a_lock_moves_only_when_its_publishes_are_confirmed(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 4))
    here, there = (
        next(a.group & 0xFFFF for a in info.addresses if a.shard == shard) for shard in (1, 2)
    )
    one, replies = node.all[1], DeviceReplies()
    one.raw[7] = b""
    one.handle(ev.Opened(7))

    def say(*frames: bytes) -> None:
        one.handle(ev.Received(7, DeviceStream().receive(b"".join(frames))))

    node.blocked = {(1, 2)}
    say(device.hello(5, 1, "locks", there), device.publish(1, b"x", 0))
    say(device.hello(5, 1, "locks", here))
    refused = replies.receive(one.raw[7])
    assert [reply.code for reply in refused] == [2]
    node.blocked.clear()
    node.settle()
    one.raw[7] = b""
    say(device.hello(5, 1, "locks", here), device.publish(1, b"y", 0))
    node.settle()
    assert [reply.code for reply in replies.receive(one.raw[7])] == [0, 0]


def test_a_stop_waits_for_what_was_passed_on(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(1, 2)}
    produce = node.ask(1, node.batch(address, grant))
    node.all[1].handle(ev.Stopping())
    node.settle()
    assert not node.all[1].jobs
    assert not node.all[1].stopped
    node.blocked.clear()
    node.settle()
    assert node.reply(1, produce).offset == 0
    assert node.all[1].stopped


def test_the_shard_that_leads_the_audit_topic_takes_what_others_have_seen_last(node: Any) -> None:
    """All shards of a node stop at once, and one of them a little sooner."""
    (address,) = node.answer(0, m.CreateTopic("_weir/audit", 1)).addresses
    for _ in range(20):
        node.clock.monotonic += 100
        for one in node.all:
            one.handle(ev.Ticked())
        node.settle()
    owner = node.all[address.shard]
    other = next(one for one in node.all if one is not owner)
    end = node.answer(owner.number, m.Positions(address)).end
    auditor_of(other.shard).events.buffer.add(
        Seen("user:a#1", "", "login", "user", "a", "allowed", 1)
    )
    owner.handle(ev.Stopping())
    node.settle()
    assert not owner.stopped
    other.handle(ev.Stopping())
    node.settle()
    assert other.stopped
    assert node.answer(owner.number, m.Positions(address)).end == end + 1
    node.clock.monotonic += 300
    owner.handle(ev.Ticked())
    node.settle()
    assert owner.stopped


def produce_kib(node: Any, address: Any, grant: Any, kib: int) -> m.Produce:
    data = encode([bytes(kib * KIB)], group=address.group, producer=grant.producer, epoch=0,
                  sequence=0)  # fmt: skip
    return m.Produce(address, 0, memoryview(data))


@pytest.mark.parametrize("ring", [[(1, 2), (2, 1)], [(0, 1), (1, 2), (2, 0)]])
def test_shards_that_all_pass_on_keep_room_to_serve_each_other(
    node: Any, ring: list[tuple[int, int]]
) -> None:
    """What none of them reads must not be what any of them waits for."""
    node = type(node)(3, budget=1 << 19)
    node.connect(0)
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    own = {address.shard: address for address in info.addresses}
    node.blocked = set(ring)
    asked = []
    for here, there in ring:
        for session in range(10, 30):
            node.connect(here, session)
            number = node.ask(here, produce_kib(node, own[there], grant, 12), session)
            asked.append((here, number, session))
    for here, _ in ring:
        budget = node.all[here].shard.budget
        assert 0 < budget.used <= budget.limit // 4
    refused = [reply for one in asked if (reply := node.reply(*one)) is not None]
    assert {reply.code for reply in refused} == {Overloaded.code}
    assert all(reply.detail for reply in refused)
    node.blocked.clear()
    node.settle()
    assert all(node.reply(*one) is not None for one in asked)
    assert all(one.shard.budget.used == 0 for one in node.all)


def test_small_requests_still_pass_where_large_ones_do_not_but_not_for_ever(node: Any) -> None:
    node = type(node)(3, budget=1 << 19)
    node.connect(0)
    node.connect(1)
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(1, 2)}
    refused = None
    while refused is None:
        refused = node.reply(1, node.ask(1, produce_kib(node, address, grant, 12)))
    assert refused.code == Overloaded.code
    assert node.reply(1, node.ask(1, m.Positions(address))) is None
    lanes, budget = forwarder_of(node.all[1].shard).lanes, node.all[1].shard.budget

    def take_all() -> None:
        for _ in range(budget.limit // 2 // SMALL):
            lanes.take(2, SMALL)

    with pytest.raises(Overloaded, match="shard 2"):
        take_all()
    assert budget.used < budget.limit // 2


def test_a_peer_that_does_not_read_what_another_shard_sends_fills_no_more_than_the_budget(
    node: Any,
) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(a for a in info.addresses if a.shard == 2)
    node.answer(1, produce_kib(node, address, grant, 12))
    budget = node.all[1].shard.budget
    for session in (8, 9):
        node.connect(1, session)
    pull = m.Pull(address, "crew", 10, 1 << 20)
    budget.take(budget.limit)  # as unread replies do
    assert node.answer(1, m.Fetch(address, 0, 1 << 20), 8).code == Overloaded.code
    assert node.answer(1, m.Positions(address), 8).end == 1
    pulled = node.ask(1, pull, 9)
    node.settle()
    assert node.reply(1, pulled, 9) is None
    assert node.all[1].hung_up == [9]
    node.all[1].handle(ev.Closed(9))
    node.settle()
    budget.release(budget.limit)
    assert node.answer(1, m.Fetch(address, 0, 1 << 20), 8).next_offset == 1
    assert node.answer(1, pull, 8).fence  # it was given back


def test_many_peers_that_leave_at_once_are_each_forgotten_by_themselves(node: Any) -> None:
    """What one costs does not depend on how many others wait."""
    info = node.answer(0, m.CreateTopic("t", 4))
    address = next(a for a in info.addresses if a.shard == 2)
    looked_at = 0

    class Counting(int):
        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return int(self) == other

        __hash__ = int.__hash__

    sessions = range(100, 400)
    for session in sessions:
        node.connect(1, Counting(session))
        node.ask(1, m.Fetch(address, 0, 1, 60_000), Counting(session))
    node.settle()
    looked_at = 0
    for session in sessions:
        node.all[1].handle(ev.Closed(session))
    node.settle()
    assert not forwarder_of(node.all[1].shard).waiting
    assert looked_at < 100 * len(sessions)
