"""Producer ids and epochs: only what was granted writes, and what is old is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rigs.shards import producers_of
from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import ProducerOpened, TopicCreated
from weir.errors import Fenced, ProducerExpired, Unavailable, UnknownProducer
from weir.model.ids import granted_at, window_of
from weir.model.limits import DEDUPE_HORIZON_MS
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m

HORIZON = stamp_at(DEDUPE_HORIZON_MS)
HOUR = stamp_at(3600 * 1000)
START = 4 * HORIZON


@pytest.fixture
def ready(rig: Any) -> tuple[Any, m.TopicInfo, m.ProducerGrant]:
    """A node with a session, a topic and a producer."""
    session = rig.connect()
    return rig, rig.topic(session), rig.answer(session, m.OpenProducer())


def test_a_newer_epoch_fences_the_old_with_its_grant(ready: Any) -> None:
    rig, info, grant = ready
    assert rig.answer(1, rig.batch(info, grant, 0, b"a")).offset == 0
    newer = rig.answer(1, m.OpenProducer(grant.producer))
    zombie = rig.answer(1, rig.batch(info, grant, 1, b"zombie"))
    assert (zombie.code, zombie.detail) == (Fenced.code, newer.epoch)
    assert rig.answer(1, rig.batch(info, newer, 0, b"b")).offset == 1


def test_an_epoch_that_nobody_granted_locks_nobody_out(ready: Any) -> None:
    rig, info, grant = ready
    for epoch in (grant.epoch + 1, 0xFFFFFFFF):
        forged = m.ProducerGrant(grant.producer, epoch)
        assert rig.answer(1, rig.batch(info, forged, 0, b"x")).code == UnknownProducer.code
    assert rig.answer(1, rig.batch(info, grant, 0, b"mine")).offset == 0


def test_ids_lie_above_every_stamp_of_the_shard(ready: Any) -> None:
    rig, info, grant = ready
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    right = rig.time.wall
    rig.time.wall += 2 * DEDUPE_HORIZON_MS
    ahead = rig.answer(1, rig.batch(info, grant, 1, b"a"))
    rig.time.wall = right
    for _ in range(2):
        newer = rig.answer(1, m.OpenProducer())
        assert newer.producer > ahead.stamp
        assert rig.answer(1, rig.batch(info, newer, 0, b"b")).offset > 0
        rig.boot()
        rig.connect()


def test_ids_are_forgotten_by_stamp_two_horizons_after_their_last_grant() -> None:
    catalog = Catalog()
    catalog.open(ProducerOpened(START, 0, "a"))
    catalog.open(ProducerOpened(START + 1, 0, "b"))
    catalog.open(ProducerOpened(START + HORIZON, 0, "c"))
    catalog.open(ProducerOpened(START + 1, 1, "b"))
    catalog.open(ProducerOpened(START + 2 * HORIZON, 0, "d"))
    assert len(producers_of(catalog)) == 4
    last = START + 2 * HORIZON + 2 * HOUR
    catalog.create(TopicCreated("ns", "t", 1, "partition", last))
    assert producers_of(catalog) == {START + 1, START + HORIZON, START + 2 * HORIZON}
    assert START < catalog.forgotten_below < START + HORIZON
    assert catalog.last_stamp == last


def test_ids_are_looked_through_once_an_hour_of_stamps() -> None:
    catalog = Catalog()
    catalog.open(ProducerOpened(START, 0, "a"))
    catalog.open(ProducerOpened(START + 2 * HORIZON - HOUR // 2, 0, "b"))
    catalog.open(ProducerOpened(START + 2 * HORIZON + HOUR // 4, 0, "c"))
    assert START in producers_of(catalog), "old enough, but half an hour ago it was not"
    catalog.open(ProducerOpened(START + 2 * HORIZON + HOUR, 0, "d"))
    assert START not in producers_of(catalog)


def test_a_replica_from_a_snapshot_forgets_at_the_same_entry() -> None:
    """Also an epoch whose grant has no stamp yet."""
    first, copy = Catalog(), Catalog()
    records = [ProducerOpened(START + n * HORIZON // 3, 0, "p") for n in range(12)]
    records.insert(3, ProducerOpened(START, 1, "p"))
    for record in records:
        first.open(record)
        copy = Catalog.decode(
            msgspec.msgpack.decode(msgspec.msgpack.encode(copy.encode()), strict=False)
        )
        copy.open(record)
        assert copy.encode() == first.encode()
    assert len(producers_of(first)) < 12


def test_a_producer_that_is_known_to_the_partition_outlives_the_registrys_memory(
    make_rig: Callable[..., Any],
) -> None:
    for checkpoint_bytes in (1, 1 << 30):
        rig = make_rig(checkpoint_bytes=checkpoint_bytes)
        info, other = rig.topic(rig.connect()), rig.topic(1, "u")
        steady, idle = (rig.answer(1, m.OpenProducer()) for _ in range(2))
        for sequence in range(6):
            assert rig.answer(1, rig.batch(info, steady, sequence, b"v")).offset == sequence
            rig.time.pass_ms(DEDUPE_HORIZON_MS // 2)
            rig.answer(1, m.OpenProducer())
        assert rig.shard.registry.catalog.producer(steady.producer) is None
        rig.tick()
        rig.settle()
        rig.disk.crash()
        rig.boot()
        rig.connect()
        assert rig.answer(1, rig.batch(info, steady, 6, b"v")).offset == 6
        forged = m.ProducerGrant(steady.producer, 1)
        assert rig.answer(1, rig.batch(info, forged, 0, b"v")).code == ProducerExpired.code
        for topic in (info, other):
            assert rig.answer(1, rig.batch(topic, idle, 0, b"v")).code == ProducerExpired.code
        assert rig.answer(1, rig.batch(other, steady, 0, b"v")).code == ProducerExpired.code
        assert rig.answer(1, m.OpenProducer(steady.producer)).code == ProducerExpired.code


def test_an_id_has_the_window_that_was_asked_for(ready: Any) -> None:
    rig, info, grant = ready
    assert grant.producer >> 60 == 0
    stamp = grant.producer
    for asked, window in ((1, 1), (3, 4), (64, 64)):
        found = rig.answer(1, m.OpenProducer(window=asked))
        assert window_of(found.producer) == window
        assert granted_at(found.producer) > stamp, "ids lie above every stamp of the shard"
        stamp = granted_at(found.producer)
        newer = rig.answer(1, m.OpenProducer(found.producer))
        assert newer == m.ProducerGrant(found.producer, 1)
        assert rig.answer(1, rig.batch(info, newer, 0, b"a")).offset >= 0
    assert rig.shard.registry.catalog.last_stamp == stamp, "the window is no part of a stamp"
    assert rig.answer(1, m.OpenProducer()).producer < 1 << 60


def test_a_set_below_format_level_3_grants_no_windows(ready: Any) -> None:
    rig, _, _ = ready
    rig.shard.registry.catalog.nodes.level = 2
    assert rig.answer(1, m.OpenProducer(window=1)).producer >> 60 == 0


def test_an_old_id_with_a_window_is_refused_as_others_are(ready: Any) -> None:
    rig, info, _ = ready
    grant = rig.answer(1, m.OpenProducer(window=1))
    rig.time.pass_ms(DEDUPE_HORIZON_MS + 1)
    assert rig.answer(1, rig.batch(info, grant, 0, b"v")).code == ProducerExpired.code


def test_no_id_is_granted_in_centuries_that_ids_cannot_tell(ready: Any) -> None:
    rig, _, _ = ready
    rig.time.wall = (1 << 60) >> 16
    for window in (0, 4):
        refused = rig.answer(1, m.OpenProducer(window=window))
        assert refused.code == Unavailable.code
        assert "the year 2527" in refused.message
