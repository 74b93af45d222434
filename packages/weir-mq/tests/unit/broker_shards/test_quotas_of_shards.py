"""A rate is the whole set's: shards report what they need, and are dealt what others do not."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from rigs.shards import catalog_of, meter_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.metadata.quotas import RATES
from weir.errors import QuotaExceeded
from weir.model.batch_builder import encode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import quotas as q

SHOP = "namespace:shop"


def pass_ms(node: Any, ms: int) -> None:
    for _ in range(ms // 50):
        node.clock.monotonic += 50
        node.clock.wall += 50
        for one in node.all:
            if one.up:
                one.handle(ev.Ticked())
        node.settle()


def limit(node: Any, **limits: int) -> None:
    assert isinstance(node.answer(0, q.SetQuota(SHOP, tuple(limits.items()))), q.QuotaChanged)


def shares(node: Any, quota: str = "bytes_in") -> list[float]:
    found = [meter_of(one.shard).accounts.get(SHOP) for one in node.all if one.up]
    return [one.shares[RATES.index(quota)] / 1_000 for one in found if one is not None]


def ask(node: Any, shard: int, info: m.TopicInfo, size: int, session: int = 1) -> int:
    """Publish once, as a producer of its own; it may have to wait for the reply."""
    grant = node.answer(shard, m.OpenProducer(), session)
    address = info.addresses[0]
    data = encode([b"x" * size], group=address.group, sequence=0, producer=grant.producer, epoch=0)
    return int(node.ask(shard, m.Produce(address, 0, memoryview(data)), session))


def publish(node: Any, shard: int, info: m.TopicInfo, size: int) -> Any:
    """Publish once, and return the reply, which comes at once."""
    correlation = ask(node, shard, info, size)
    node.settle()
    return node.reply(shard, correlation)


@pytest.fixture
def shop(node: Any) -> m.TopicInfo:
    limit(node, bytes_in=30_000)
    info: m.TopicInfo = node.answer(0, m.CreateTopic("shop/orders", 1))
    pass_ms(node, 100)
    return info


def test_shards_begin_with_even_shares(node: Any, shop: m.TopicInfo) -> None:
    assert shares(node) == pytest.approx([10_000] * 3)


def test_the_shard_that_needs_it_gets_what_others_do_not(node: Any, shop: m.TopicInfo) -> None:
    sessions = count(100)
    for busy in (1, 2):
        for _ in range(6):
            for _ in range(2):
                session = next(sessions)
                node.connect(busy, session)
                ask(node, busy, shop, 14_000, session)
            pass_ms(node, 1000)
        assert shares(node)[busy] > 25_000
        assert sum(shares(node)) <= 30_000 * (1 + 1e-9)
        pass_ms(node, 10_000)  # until nothing is overdrawn


def test_where_a_peer_is_connected_it_is_charged(node: Any, shop: m.TopicInfo) -> None:
    """The leader of the partition is another shard, which passes nothing on that it would count."""
    there = shop.addresses[0].shard
    here = (there + 1) % 3
    publish(node, here, shop, 9_000)
    used = [meter_of(one.shard).accounts[SHOP].used[0] for one in node.all]
    assert used[here] > 9_000
    assert used[there] == 0
    assert [one.shard for one in node.all if meter_of(one.shard).held] == [node.all[here].shard]


def test_a_shard_that_is_cut_off_keeps_its_share(node: Any, shop: m.TopicInfo) -> None:
    pass_ms(node, 3000)
    before = shares(node)
    at = node.layout.registry_shard
    for other in (1, 2):
        if other != at:
            node.cut(at, other)
            break
    pass_ms(node, 5000)
    assert shares(node)[other] == before[other]
    assert sum(shares(node)) <= 30_000 * (1 + 1e-9)


def test_a_shard_that_comes_back_is_dealt_a_share_again(node: Any, shop: m.TopicInfo) -> None:
    at = node.layout.registry_shard
    other = (at + 1) % 3
    node.kill(other)
    pass_ms(node, 1_000)
    node.boot(other)
    node.settle()
    pass_ms(node, 3000)
    assert len(shares(node)) == 3
    assert sum(shares(node)) <= 30_000 * (1 + 1e-9)


def test_counts_are_those_of_all_shards(node: Any) -> None:
    limit(node, storage_bytes=20_000, clusters=9)
    infos = [node.answer(0, m.CreateTopic(f"shop/t{number}", 1)) for number in range(6)]
    for info in infos:
        assert isinstance(publish(node, 0, info, 4_000), m.Confirm)
    assert len({info.addresses[0].shard for info in infos}) > 1
    pass_ms(node, 3000)
    for info in infos:
        assert publish(node, 1, info, 1).code == QuotaExceeded.code
    (found,) = node.answer(0, q.ListQuotas()).quotas
    assert dict(found.used)["storage_bytes"] > 24_000


def test_a_set_without_quotas_reports_nothing(node: Any) -> None:
    node.answer(0, m.CreateTopic("shop/orders", 1))
    passed = []
    for one in node.all:
        do = one.do
        one.do = lambda effects, do=do: (
            passed.extend(e for e in effects if isinstance(e, ef.Pass)), do(effects)
        )  # fmt: skip
    pass_ms(node, 2000)
    assert passed == []
    assert not any(meter_of(one.shard).is_on for one in node.all)


def test_partitions_that_have_not_joined_are_counted(node: Any, shop: m.TopicInfo) -> None:
    node.kill(shop.addresses[0].shard)  # without partition 0 none can join
    others = [number for number, one in enumerate(node.all) if one.up]
    node.ask(others[0], a.AlterTopic("shop/orders", partitions=8))
    pass_ms(node, 2_500)
    topic = catalog_of(node.all[others[0]].shard).find("shop", "orders")
    assert topic is not None
    assert (topic.partitions, topic.joining) == (1, 8)
    assert isinstance(node.answer(others[0], q.ListQuotas()), q.QuotaList)
