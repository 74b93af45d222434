"""The registry, led by one shard and known to all: what waits for whom."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.broker.forwarding.registry_feed import TOLD_WITHIN_MS
from weir.broker.forwarding.trunks import NEWS_WITHIN_MS
from weir.errors import Fenced, Unavailable, UnknownOpcode, UnknownTopic
from weir.protocol import trunk
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_reply
from weir.protocol.frame import take_client_frame

KIB = 1024


def test_a_reply_of_the_registry_waits_until_all_who_follow_know(node: Any) -> None:
    node.blocked = {(2, 0)}
    created = node.ask(0, m.CreateTopic("t"))
    node.settle()
    assert node.reply(0, created) is None
    node.blocked.clear()
    node.settle()
    assert isinstance(node.reply(0, created), m.TopicInfo)


def test_a_new_producer_waits_for_nobody_and_is_asked_for_where_it_comes(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    address = next(a for a in info.addresses if a.shard == 2)
    node.blocked = {(0, 2), (2, 0)}
    held, node.back[2, 0] = node.back[2, 0], deque()
    grant = node.answer(1, m.OpenProducer())
    news, node.back[2, 0] = node.back[2, 0], held
    produce = node.ask(2, node.batch(address, grant))
    node.settle()
    assert node.reply(2, produce) is None
    node.back[2, 0] += news
    node.blocked.clear()
    node.settle()
    assert node.reply(2, produce).offset == 0


def test_a_fence_waits_for_a_shard_that_is_away_and_other_grants_do_not(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    node.kill(2)
    assert isinstance(node.answer(1, m.CreateTopic("u")), m.TopicInfo)
    assert isinstance(node.answer(1, m.OpenProducer()), m.ProducerGrant)
    fence = node.ask(1, m.OpenProducer(grant.producer))
    node.settle()
    assert node.reply(1, fence) is None
    node.boot(2)
    node.settle()
    fenced = node.reply(1, fence)
    assert (fenced.producer, fenced.epoch) == (grant.producer, 1)
    for address in info.addresses:
        assert node.answer(0, node.batch(address, grant)).code == Fenced.code
        assert node.answer(0, node.batch(address, fenced)).offset == 0


def test_a_topic_is_told_of_when_all_its_partitions_are_led(node: Any) -> None:
    created = node.ask(1, m.CreateTopic("t", 8))
    while node.reply(1, created) is None:
        assert any(node._carry(pair) for pair in node.wires) | any(o.work() for o in node.all)
    assert sum(one.shard.partitions_led for one in node.all) == 8


def test_a_fence_waits_for_what_the_old_epoch_has_under_way(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    for address in info.addresses[:3]:  # one in each shard, none in the registry's own log
        owner = node.all[address.shard]
        accepted = node.ask(address.shard, node.batch(address, grant))
        stuck, owner.jobs = owner.jobs, deque()
        fence = node.ask(1, m.OpenProducer(grant.producer))
        node.settle()
        assert node.reply(1, fence) is None
        assert node.reply(address.shard, accepted) is None
        owner.jobs += stuck
        node.settle()
        assert node.reply(address.shard, accepted).offset == 0
        grant = node.reply(1, fence)
        assert isinstance(grant, m.ProducerGrant)


def test_a_fence_waits_for_what_a_shard_has_under_way_whose_trunk_broke(node: Any) -> None:
    """It comes again with a snapshot, in which no single record tells of the fence."""
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(one for one in info.addresses if one.shard == 2)
    owner = node.all[2]
    accepted = node.ask(2, node.batch(address, grant))
    stuck, owner.jobs = owner.jobs, deque()
    node.cut(0, 2)
    fence = node.ask(1, m.OpenProducer(grant.producer))
    node.settle()
    assert node.reply(1, fence) is None
    node.join(0, 2)
    node.settle()
    assert node.reply(1, fence) is None
    owner.jobs += stuck
    node.settle()
    assert node.reply(2, accepted).offset == 0
    assert node.reply(1, fence).epoch == 1


def test_a_follower_that_comes_again_counts_once(node: Any) -> None:
    """Two sessions of one shard are no proof that all shards follow."""
    grant = node.answer(0, m.OpenProducer())
    node.kill(2)
    one = node.all[1]
    one.handle(ev.TrunkClosed(0))
    one.handle(ev.TrunkOpened(0))  # the leader has not noticed that the old session is gone
    fence = node.ask(0, m.OpenProducer(grant.producer))
    node.settle()
    assert node.reply(0, fence) is None


def test_a_fence_that_waits_too_long_is_refused(node: Any) -> None:
    grant = node.answer(0, m.OpenProducer())
    node.kill(2)
    fence = node.ask(0, m.OpenProducer(grant.producer))
    node.settle()
    node.clock.monotonic += TOLD_WITHIN_MS
    node.all[0].handle(ev.Ticked())
    assert node.reply(0, fence).code == Unavailable.code


def test_what_is_not_known_here_yet_is_asked_for_before_it_is_refused(node: Any) -> None:
    """A client heard of a topic from another client, before this shard did."""
    node.blocked = {(1, 0)}
    node.ask(0, m.CreateTopic("t"))
    while node.all[0].work():
        pass
    described, absent = node.ask(1, m.DescribeTopic("t")), node.ask(1, m.DescribeTopic("u"))
    assert node.reply(1, described) is None
    node.blocked.clear()
    node.settle()
    assert node.reply(1, described).name == "t"
    assert node.reply(1, absent).code == UnknownTopic.code


def test_order_is_kept_while_a_session_waits_for_news(node: Any) -> None:
    node.blocked = {(1, 0)}
    first, second = node.ask(1, m.DescribeTopic("nowhere")), node.ask(1, m.Ping())
    assert node.reply(1, second) is None
    node.blocked.clear()
    node.settle()
    assert [n for n, _ in node.all[1].replies[1]][-2:] == [first, second]


def test_without_the_registrys_shard_nothing_is_said_not_to_exist(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    waiting = node.ask(1, m.DescribeTopic("u"))
    node.kill(0)
    assert node.reply(1, waiting).code == Unavailable.code
    for request in (m.DescribeTopic("u"), m.ListTopics(), m.CreateTopic("u"), m.OpenProducer()):
        assert node.answer(1, request).code == Unavailable.code
    for address in info.addresses:  # those that are there go on
        reply = node.answer(1, node.batch(address, grant))
        expected = m.Refusal if address.shard == 0 else m.Confirm
        assert isinstance(reply, expected)
    node.boot(0)
    node.settle()
    assert node.answer(1, m.DescribeTopic("u")).code == UnknownTopic.code
    assert node.answer(2, m.CreateTopic("u")).name == "u"


def test_a_shard_that_starts_knows_nothing_until_its_registry_is_read(node: Any) -> None:
    """Its trunks may be open before its log is applied: that is no proof of absence."""
    info = node.answer(0, m.CreateTopic("t", 4))
    node.kill(0)
    node.all[0].boot()
    node.all[0].jobs.clear()  # the first flush is still in flight
    node.all[1].handle(ev.TrunkOpened(0))
    address = next(a for a in info.addresses if a.shard == 0)
    assert node.answer(1, m.Fetch(address, 0, 1)).code == Unavailable.code


def test_only_shards_may_follow(node: Any) -> None:
    for shard in range(3):
        assert node.answer(shard, m.Follow(0)).code == UnknownOpcode.code
    node.all[0].handle(ev.Opened(55, "ada"))  # passed on, but not a shard's own
    assert node.answer(0, m.Follow(0), 55).code == UnknownOpcode.code


def test_a_long_list_of_topics_comes_in_pages(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.broker.listing._PAGE_BYTES", 1_000)
    for n in range(40):
        node.answer(0, m.CreateTopic(f"t{n:02}", 3 if n % 2 else 1))
    names: list[str] = []
    after, pages, more = "", 0, True
    while more:
        page = node.answer(1, m.ListTopics("", after))
        names += [topic.name for topic in page.topics]
        after, more, pages = f"default/{names[-1]}", page.more, pages + 1
    assert names == [f"t{n:02}" for n in range(40)]
    assert pages > 3


def test_nobody_waits_for_ever_for_news(node: Any) -> None:
    """The leader stands still: what is not known here is not said not to exist."""
    node.blocked = {(1, 0)}
    waiting = node.ask(1, m.DescribeTopic("t"))
    node.all[1].handle(ev.Ticked())
    assert node.reply(1, waiting) is None
    node.clock.monotonic += NEWS_WITHIN_MS
    node.all[1].handle(ev.Ticked())
    assert node.reply(1, waiting).code == Unavailable.code
    assert node.answer(1, m.DescribeTopic("t")).code == Unavailable.code
    node.blocked.clear()
    node.settle()
    assert node.answer(1, m.DescribeTopic("t")).code == UnknownTopic.code


def test_what_comes_behind_what_waits_for_news_is_charged_and_bounded(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.broker.runtime.session.PARKED_BYTES_MAX", 10 * KIB)
    node.blocked = {(1, 0)}
    one = node.all[1]
    waiting = node.ask(1, m.DescribeTopic("t"))
    last = 0
    while not one.hung_up:
        assert last < 10 * KIB
        node.ask(1, m.DescribeTopic("n" * 100))
        assert one.shard.budget.used > last or one.hung_up
        last = one.shard.budget.used
    assert one.hung_up == [1]
    node.blocked.clear()
    node.settle()
    assert node.reply(1, waiting).code == UnknownTopic.code
    assert one.shard.budget.used == 0
    node.blocked = {(2, 0)}
    node.ask(2, m.DescribeTopic("t"))
    assert node.all[2].shard.budget.used > 0
    node.all[2].handle(ev.Closed(1))
    assert node.all[2].shard.budget.used == 0


def test_a_shard_that_was_refused_its_producer_asks_again(node: Any) -> None:
    """And not only when there is news of the registry."""
    node.kill(2)
    node.boot(2)
    one = node.all[2]
    back = node.back[2, 0]
    while not (granted := [data for data in back if m.opcode_of(m.OpenProducer) in opcodes(data)]):
        assert any(node._carry(p) for p in node.wires) | any(o.work() for o in node.all)
    back.remove(*granted)
    node.settle()
    refusal = m.Refusal(Unavailable.code, "not now")
    own = b"".join(encode_reply(refusal, m.opcode_of(m.OpenProducer), 0))
    back.append(b"".join(trunk.encode(trunk.Kind.REPLIES, trunk.OWN_SESSION, own)))
    node.settle()
    assert not one.shard.ready
    one.handle(ev.Ticked())
    node.settle()
    assert not one.shard.ready
    node.clock.monotonic += 1_000
    one.handle(ev.Ticked())
    node.settle()
    assert one.shard.ready


def opcodes(data: bytes) -> list[int]:
    return [take_client_frame(body).opcode for _, _, body in trunk.TrunkStream().receive(data)]
