"""What one shard passes on to another: it lets in, the owner confirms, and each is answered."""

from __future__ import annotations

from typing import Any

from weir.broker import events as ev
from weir.errors import Overloaded, Unavailable
from weir.model.batch import encode
from weir.wire import device
from weir.wire import messages as m
from weir.wire.device import DeviceReplies, DeviceStream

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
