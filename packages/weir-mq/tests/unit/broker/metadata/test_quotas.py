"""Quotas through the registry's group: what is set, kept, and refused by its counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import give
from rigs.shards import catalog_of
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.quotas import QUOTAS, Quotas, check_entity, entity_of, namespace_of
from weir.broker.records.quotas import QuotaRemoved, QuotaSet
from weir.broker.records.registry import ProducerOpened, TopicCreated
from weir.errors import BadName, BadRequest, LevelTooLow, QuotaExceeded, TooLarge
from weir.model.limits import QUOTAS_MAX
from weir.model.topic import TopicSettings
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import quotas as q

SHOP = "namespace:shop"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig()
    rig.connect()
    return rig


def limit(rig: Any, entity: str = SHOP, **limits: int | None) -> Any:
    return rig.answer(1, q.SetQuota(entity, tuple(limits.items())))


def create(rig: Any, name: str, partitions: int = 1) -> Any:
    return rig.answer(1, a.CreateTopic(name, partitions))


def created(rig: Any, name: str, partitions: int = 1) -> bool:
    return len(create(rig, name, partitions).addresses) == partitions


def restart(rig: Any, checkpoint: bool) -> None:
    if checkpoint:
        rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    rig.disk.crash()
    rig.boot()
    rig.connect()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_quotas_are_kept(rig: Any, checkpoint: bool) -> None:
    assert limit(rig, topics=3, bytes_in=1_000).quota == q.QuotaRow(
        SHOP, (("bytes_in", 1_000), ("topics", 3))
    )
    assert limit(rig, topics=2, partitions=9).quota.limits == (
        ("bytes_in", 1_000), ("partitions", 9), ("topics", 2),
    )  # fmt: skip
    limit(rig, "anonymous", requests=7)
    restart(rig, checkpoint)
    found = rig.answer(1, q.ListQuotas())
    assert [(one.entity, dict(one.limits)) for one in found.quotas] == [
        ("anonymous", {"requests": 7}),
        (SHOP, {"bytes_in": 1_000, "partitions": 9, "topics": 2}),
    ]


def test_a_quota_ends_by_name_or_with_all_others(rig: Any) -> None:
    limit(rig, topics=1, bytes_in=5)
    assert limit(rig, topics=None).quota.limits == (("bytes_in", 5),)
    assert created(rig, "shop/a")
    assert created(rig, "shop/b")
    assert rig.answer(1, q.RemoveQuota(SHOP)).quota.limits == (("bytes_in", 5),)
    assert rig.answer(1, q.RemoveQuota(SHOP)).code == BadRequest.code
    limit(rig, topics=1)
    assert limit(rig, topics=None).quota.limits == ()
    assert rig.answer(1, q.ListQuotas()).quotas == []


def test_topics_and_partitions_are_refused_above_their_quotas(rig: Any) -> None:
    limit(rig, topics=2, partitions=5)
    assert created(rig, "shop/a", 2)
    refused = create(rig, "shop/b", 4)
    assert (refused.code, refused.detail) == (QuotaExceeded.code, 5)
    assert "namespace:shop has its quota of 5 partitions (partitions)" in refused.message
    assert created(rig, "shop/b", 3)
    refused = create(rig, "shop/c")
    assert (refused.code, refused.detail) == (QuotaExceeded.code, 2)
    assert "--topics NUMBER" in refused.message
    grown = rig.answer(1, a.AlterTopic("shop/a", partitions=3))
    assert (grown.code, grown.detail) == (QuotaExceeded.code, 5)
    # Who is there stays, others are not concerned, and what is deleted makes room.
    assert len(rig.answer(1, a.CreateTopic("shop/a", 2, if_absent=True)).addresses) == 2
    assert created(rig, "other/c", 9)
    rig.answer(1, a.DeleteTopic("shop/b"))
    assert created(rig, "shop/c")
    (used,) = rig.answer(1, q.ListQuotas()).quotas
    assert dict(used.used) == {"producers": 0, "topics": 2, "partitions": 3}


def test_what_is_proposed_together_is_refused_where_it_is_applied(rig: Any) -> None:
    """Both were within the quota when they came: replicas decide by the entries before."""
    limit(rig, topics=1)
    rig.ask(1, a.CreateTopic("shop/a", 1), a.CreateTopic("shop/b", 1))
    rig.settle()
    replies = [reply for _, reply in rig.replies[1]][-2:]
    assert [getattr(reply, "code", 0) for reply in replies] in ([0, 70], [70, 0])
    assert len(catalog_of(rig.shard).topics("shop")) == 1


def test_producer_ids_are_counted_by_principal_and_namespace() -> None:
    catalog = Catalog()
    ann, bob = give(catalog.access, "shop/ann"), give(catalog.access, "shop/bob")
    catalog.quotas.apply(QuotaSet("user:shop/ann", (("producers", 2),)))
    catalog.quotas.apply(QuotaSet(SHOP, (("producers", 3),)))
    for number, who in ((1, ann), (2, ann), (3, bob)):
        catalog.open(ProducerOpened(number, 0, who))
    with pytest.raises(QuotaExceeded, match="user:shop/ann has its quota of 2 producer ids"):
        catalog.open(ProducerOpened(4, 0, ann))
    with pytest.raises(QuotaExceeded, match="namespace:shop has its quota of 3"):
        catalog.open(ProducerOpened(4, 0, bob))
    catalog.open(ProducerOpened(1, 1, ann))  # another epoch is no other id
    catalog.open(ProducerOpened(5, 0, "anonymous"))
    catalog.open(ProducerOpened(6, 0, "shard:1.0"))
    again = Catalog.decode(catalog.encode())
    assert again.used(SHOP) == catalog.used(SHOP) == {
        "producers": 3, "topics": 0, "partitions": 0,
    }  # fmt: skip


def test_forgotten_producer_ids_make_room() -> None:
    catalog = Catalog()
    catalog.quotas.apply(QuotaSet("anonymous", (("producers", 1),)))
    catalog.open(ProducerOpened(1, 0, "anonymous"))
    later = 1 << 62
    catalog.create(TopicCreated("n", "t", 1, "partition", later, TopicSettings(5, 6), 1))
    assert catalog.producer(1) is None
    catalog.open(ProducerOpened(later + 1, 0, "anonymous"))
    with pytest.raises(QuotaExceeded):
        catalog.open(ProducerOpened(later + 2, 0, "anonymous"))


def test_a_producer_id_over_the_quota_is_refused_to_its_client(rig: Any) -> None:
    limit(rig, "anonymous", producers=1)
    rig.ask(1, m.OpenProducer(), m.OpenProducer(), m.OpenProducer())
    rig.settle()
    codes = [getattr(reply, "code", 0) for _, reply in rig.replies[1]][-3:]
    assert sorted(codes) == [0, QuotaExceeded.code, QuotaExceeded.code]


@pytest.mark.parametrize(
    ("entity", "limits", "error"),
    [
        ("shop", {"topics": 1}, BadRequest),
        ("namespace:..", {"topics": 1}, BadName),
        ("namespace:", {"topics": 1}, BadName),
        ("user:a/b/c", {"requests": 1}, BadName),
        ("anonymous:", {"requests": 1}, BadRequest),
        (SHOP, {}, BadRequest),
        (SHOP, {"bytes": 1}, BadRequest),
        ("user:ann", {"topics": 1}, BadRequest),
        ("fleet:locks", {"storage_bytes": 1}, BadRequest),
        (SHOP, {"bytes_in": 0}, BadRequest),
    ],
)
def test_what_can_be_no_quota_is_refused(
    rig: Any, entity: str, limits: dict[str, int], error: type[Any]
) -> None:
    assert limit(rig, entity, **limits).code == error.code
    assert rig.answer(1, q.ListQuotas()).quotas == []


def test_entities_have_full_names() -> None:
    assert check_entity("user:ann") == "user:default/ann"
    assert entity_of("user:shop/ann#7") == "user:shop/ann"
    assert entity_of("shard:2.1") == ""
    assert (namespace_of("user:shop/ann#7"), namespace_of("fleet:shop")) == ("shop", "")


def test_a_set_of_a_lower_level_has_no_quotas(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(level=2)
    rig.connect()
    assert limit(rig, topics=1).code == LevelTooLow.code


def test_there_are_only_so_many() -> None:
    quotas = Quotas()
    for number in range(QUOTAS_MAX):
        quotas.apply(QuotaSet(f"namespace:n{number}", (("topics", 1),)))
    with pytest.raises(TooLarge):
        quotas.apply(QuotaSet("namespace:more", (("topics", 1),)))
    quotas.apply(QuotaSet("namespace:n7", (("topics", 2),)))
    quotas.apply(QuotaRemoved("namespace:n8"))
    quotas.apply(QuotaSet("namespace:more", (("topics", 1),)))


def test_a_namespace_may_have_all_quotas() -> None:
    quotas = Quotas()
    quotas.apply(QuotaSet(SHOP, tuple((name, 5) for name in QUOTAS)))
    again = Quotas.decode(quotas.encode())
    assert list(again) == list(quotas) == [(SHOP, dict.fromkeys(QUOTAS, 5))]
    assert again.limit(SHOP, "clusters") == 5


def test_a_page_has_so_many_and_the_next_goes_on_behind_it(rig: Any) -> None:
    quotas = catalog_of(rig.shard).quotas
    for number in range(300):
        quotas.apply(QuotaSet(f"namespace:n{number:03}", (("topics", 1),)))
    first = rig.answer(1, q.ListQuotas())
    rest = rig.answer(1, q.ListQuotas(first.quotas[-1].entity))
    assert (first.more, rest.more) == (True, False)
    names = [one.entity for one in (*first.quotas, *rest.quotas)]
    assert names == [f"namespace:n{number:03}" for number in range(300)]


def test_older_releases_read_what_has_no_quota(rig: Any) -> None:
    catalog = catalog_of(rig.shard)
    before = catalog.encode()
    limit(rig, topics=1)
    after: Any = catalog.encode()
    assert after[0] == 9
    assert Catalog.decode(after).encode() == after
    rig.answer(1, q.RemoveQuota(SHOP))
    assert catalog.encode() == before


def test_quotas_of_level_3_have_these_bytes(rig: Any) -> None:
    limit(rig, topics=1)
    assert catalog_of(rig.shard).quotas.encode() == [(SHOP, [("topics", 1)])]
