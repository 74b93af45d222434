"""What is asked of a node that does not lead: passed on, or refused with who does."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.shards import forwarder_of
from weir.broker.api import events as ev
from weir.errors import NotLeader, Unavailable, UnknownTopic
from weir.model.ids import place_of
from weir.protocol import device as device
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request
from weir.protocol.device import DeviceReplies, DeviceStream


def followers(trio: Any, group: int = 0) -> list[Any]:
    leader = trio.leader(group)
    return [node for node in trio.live() if node is not leader]


def settled(trio: Any) -> Any:
    """Let every node know the registry; return its leader."""
    trio.until(lambda: all(node.shard.ready for node in trio.live()), "not all became ready")
    return trio.leader()


def test_any_node_takes_what_another_leads(trio: Any, produce: Any) -> None:
    settled(trio)
    one, other = followers(trio)
    info = trio.answer(one, m.CreateTopic("t", 3))
    assert isinstance(info, m.TopicInfo)
    grant = trio.answer(other, m.OpenProducer())
    asked = 0
    for address in info.addresses:
        trio.leader(address.group)
        for node in trio.live():
            request = produce(info, grant, asked % 3, b"%d" % asked, partition=asked // 3)
            confirm = trio.answer(node, request)
            assert (confirm.offset, confirm.duplicate) == (asked % 3, False)
            asked += 1
        for node in trio.live():
            assert trio.answer(node, m.Fetch(address, 0, 1 << 20)).next_offset == 3
            assert trio.answer(node, m.Positions(address)).end == 3
    assert all(node.shard.budget.used == 0 for node in trio.live())


def test_a_node_says_where_its_set_is_and_who_leads(trio: Any) -> None:
    settled(trio)
    info = trio.topic("t", 3)
    led = {address.group: trio.leader(address.group).id for address in info.addresses}
    for node in trio.live():
        told = trio.answer(node, m.DescribeTopic("t"))
        assert {address.group: address.node for address in told.addresses} == led
        welcome = trio.answer(node, m.Hello("test"))
        assert welcome.nodes == tuple((n, f"host{n}", 6800) for n in (1, 2, 3))


def test_the_next_leader_is_told_of_once_it_leads(trio: Any, produce: Any) -> None:
    settled(trio)
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    old = trio.leader(group)
    confirm = trio.answer(old, produce(info, grant, 0, b"a"))
    old.kill()
    new = trio.leader(group)
    assert new is not old
    for node in trio.live():
        told = trio.answer(node, m.DescribeTopic("t"))
        assert told.addresses[0].node == new.id
        again = trio.answer(node, produce(info, grant, 0, b"a"))
        assert (again.offset, again.stamp, again.duplicate) == (confirm.offset, confirm.stamp, True)


def test_requests_under_way_to_a_node_that_dies_are_answered(trio: Any) -> None:
    settled(trio)
    info = trio.topic()
    group = info.addresses[0].group
    leader, (one, _) = trio.leader(group), followers(trio, group)
    poll = one.ask(m.Fetch(info.addresses[0], 0, 1, 60_000))
    trio.settle()
    assert one.reply_to(poll) is None
    leader.kill()
    assert one.reply_to(poll).code == Unavailable.code
    assert forwarder_of(one.shard).waiting is False


def test_what_a_node_passed_on_goes_no_further(trio: Any) -> None:
    """While nodes disagree about who leads, a request must not go round in circles."""
    settled(trio)
    info = trio.topic()
    group = info.addresses[0].group
    leader, (one, other) = trio.leader(group), followers(trio, group)
    one.replies[77] = []
    one.handle(ev.Opened(77, "somebody", place_of(other.id, 0)))
    data = b"".join(encode_request(m.Positions(info.addresses[0]), 5))
    one.handle(ev.Received(77, ClientStream().receive(data)))
    ((_, refusal),) = one.replies[77]
    assert (refusal.code, refusal.detail) == (NotLeader.code, leader.id)


def test_a_topic_that_a_node_has_not_heard_of_yet_is_never_unknown_there(trio: Any) -> None:
    leader = settled(trio)
    late = followers(trio)[0]
    trio.isolate(late.id)
    info = trio.topic("new")
    for request in (m.DescribeTopic("new"), m.Positions(info.addresses[0]), m.ListTopics()):
        assert trio.answer(late, request).code in (Unavailable.code, NotLeader.code)
    trio.heal()
    trio.until(lambda: late.shard.topics.catalog.find("default", "new"), "it never learnt")
    assert trio.answer(late, m.DescribeTopic("new")).id == info.id
    assert [one.name for one in trio.answer(late, m.ListTopics()).topics] == ["new"]
    assert leader.alive


def test_a_registry_leader_that_is_cut_off_calls_nothing_unknown(trio: Any) -> None:
    """Another may lead, and know topics that came since: it cannot tell before it steps down."""
    old = settled(trio)
    trio.isolate(old.id)
    asked = [old.ask(m.DescribeTopic("new")), old.ask(m.ListTopics(), session=2)]
    trio.settle()
    assert old.reply_to(asked[0]) is None
    trio.topic("new")
    told = trio.until(lambda: old.reply_to(asked[0]), "it was never answered")
    assert told.code in (Unavailable.code, NotLeader.code)
    assert old.reply_to(asked[1], 2).code in (Unavailable.code, NotLeader.code)


def test_what_nobody_has_heard_of_is_unknown_at_every_node(trio: Any) -> None:
    settled(trio)
    for node in trio.live():
        assert trio.answer(node, m.DescribeTopic("nothing")).code == UnknownTopic.code


@pytest.mark.parametrize("ask", ["positions", "describe"])
def test_a_leader_that_is_cut_off_tells_nothing_old(trio: Any, produce: Any, ask: str) -> None:
    """It does not know yet that another leads: what it holds may not be all there is."""
    settled(trio)
    info, grant = trio.topic(), trio.producer()
    address = info.addresses[0]
    old = trio.leader(address.group)
    request = m.Positions(address) if ask == "positions" else a.DescribePartition(address)
    assert trio.answer(old, request).end == 0
    trio.isolate(old.id)
    asked = old.ask(request)
    trio.settle()
    assert old.reply_to(asked) is None
    assert trio.told(produce(info, grant, 0, b"x"), address.group).offset == 0
    trio.until(lambda: old.reply_to(asked), "it was never answered")
    assert old.reply_to(asked).code == NotLeader.code


def test_locks_publish_by_any_node_and_come_again_when_the_leader_moves(trio: Any) -> None:
    settled(trio)
    info = trio.topic("locks")
    group = info.addresses[0].group
    leader, (one, other) = trio.leader(group), followers(trio, group)

    def publish(node: Any, session: int, *sequences: int) -> list[Any]:
        node.raw[session] = b""
        node.handle(ev.Opened(session))
        frames = [device.hello(4, 1, "locks", 0)]
        frames += [device.publish(1, b"v%d" % n, n) for n in sequences]
        node.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))
        want = 1 + len(sequences)
        replies = DeviceReplies()
        found: list[Any] = []

        def all_there() -> bool:
            data, node.raw[session] = node.raw[session], b""
            found.extend(replies.receive(data))
            return len(found) >= want

        trio.until(all_there, "a lock waits for its replies")
        return found

    assert all(not reply.code for reply in publish(one, 50, 0, 1, 2))
    leader.kill()
    assert [hangup.session for hangup in one.hangups] == [50]
    trio.leader(group)
    # Sent again after a confirm that might have been lost: each is there once.
    assert all(not reply.code for reply in publish(other, 51, 1, 2, 3))
    assert trio.same_everywhere(group) == [b"v0", b"v1", b"v2", b"v3"]


def test_no_node_says_who_leads_a_partition_that_is_not_there(trio: Any) -> None:
    settled(trio)
    address = trio.topic().addresses[0]
    for node in trio.live():
        reply = trio.answer(node, a.AskLeader(address._replace(group=address.group + 99)))
        assert reply.code == UnknownTopic.code, reply


def test_every_node_says_at_once_who_leads_in_which_term(trio: Any) -> None:
    settled(trio)
    address = trio.topic().addresses[0]
    old = trio.leader(address.group)
    trio.until(
        lambda: all(trio.answer(node, a.AskLeader(address)).node == old.id for node in trio.live()),
        "not all know who leads",
    )
    before = {trio.answer(node, a.AskLeader(address)) for node in trio.live()}
    (told,) = before
    assert told.nodes == (1, 2, 3)
    assert told.term > 0
    trio.isolate(old.id)
    others = [node for node in trio.live() if node is not old]

    def newer() -> bool:
        found = [trio.answer(node, a.AskLeader(address)) for node in others]
        return all(one.node not in (0, old.id) and one.term > told.term for one in found)

    trio.until(newer, "the others name no newer leader")
    # What the old leader says is older by its term, or that it knows of none.
    last = trio.answer(old, a.AskLeader(address))
    assert last.node in (0, old.id)
    assert last.term <= told.term + 1


def test_of_an_unknown_partition_nobody_says_who_leads(trio: Any) -> None:
    settled(trio)
    address = trio.topic().addresses[0]
    asked = a.AskLeader(address._replace(group=address.group + 1))
    assert trio.answer(trio.live()[0], asked).code == UnknownTopic.code
