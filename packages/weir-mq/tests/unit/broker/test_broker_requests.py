"""The client dialect at the door: hello first, refusals by number, replies counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import handled_by, requests_of, unanswered
from weir.broker import router
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.partition.topics import BY_PARTITION
from weir.errors import (
    NoHello,
    OffsetOutOfRange,
    UnknownOpcode,
    UnknownTopic,
    WrongSystem,
)
from weir.model.batch import split
from weir.model.ids import Address
from weir.model.limits import HELLO_WITHIN_MS
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.protocol.frame import ClientFrame


def test_hello_comes_first(rig: Any) -> None:
    rig.connect(hello=False)
    assert rig.answer(1, m.Ping()).code == NoHello.code
    assert rig.answer(1, m.Hello("x", system=5)).code == WrongSystem.code
    assert rig.answer(1, m.Ping()).code == NoHello.code
    assert rig.answer(1, m.Hello("x", system=99)).system == 99
    assert rig.answer(1, m.Ping()) == m.Pong(rig.time.wall_ms())


def test_a_peer_without_a_hello_is_dropped(rig: Any) -> None:
    rig.connect(1)
    rig.connect(2, hello=False)
    rig.tick(HELLO_WITHIN_MS)
    assert not any(isinstance(effect, ef.Hangup) for effect in rig.others)
    rig.tick(1)
    assert [effect.session for effect in rig.others if isinstance(effect, ef.Hangup)] == [2]


def test_what_is_not_known_is_refused(rig: Any) -> None:
    rig.connect()
    rig.handle(ev.Received(1, [ClientFrame(0, 99, 7, memoryview(b""))]))
    assert rig.replies[1][-1][1].code == UnknownOpcode.code
    assert rig.answer(1, m.DescribeTopic("t")).code == UnknownTopic.code
    nowhere = Address(0, 0, (1 << 63) - 1)
    for request in (m.Fetch(nowhere, 0, 1), m.Positions(nowhere), m.Pull(nowhere, "c", 1, 1)):
        assert rig.answer(1, request).code == UnknownTopic.code


def test_every_request_that_is_declared_is_answered(rig: Any) -> None:
    requests = requests_of(rig.shard)
    answered = {m.Produce, *handled_by(requests), *BY_PARTITION}
    assert answered == set(m.REQUESTS)
    for kind in BY_PARTITION:
        assert kind not in handled_by(requests)
        assert kind.declaration.rights


def test_what_partition_0_decides_is_refused_elsewhere(rig: Any) -> None:
    info = rig.answer(rig.connect(), m.CreateTopic("two", 2))
    for request in (
        m.OpenCluster(info.addresses[1], "c", Mode.SHARED),
        m.TakeTurn(info.addresses[1], "c", (0, 0)),
    ):
        assert "partition 0" in rig.answer(1, request).message


def test_too_many_open_requests_cost_the_connection(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "REQUESTS_PENDING_MAX", 3)
    info = rig.topic(rig.connect())
    for _ in range(10):  # answered ones do not count
        assert rig.answer(1, m.Ping()) == m.Pong(rig.time.wall_ms())
    rig.connect(2)
    wait = m.Fetch(info.addresses[0], 0, 1, wait_ms=1_000)
    rig.ask(2, wait, wait, wait)
    assert rig.others == []
    rig.ask(2, wait, m.Ping())
    assert [effect.session for effect in rig.others] == [2]
    rig.handle(ev.Closed(2))
    rig.tick(2_000)
    rig.settle()
    assert rig.replies[2] == [], "nobody speaks to a peer that is gone"
    assert rig.answer(1, m.Ping()) == m.Pong(rig.time.wall_ms())


def test_every_kind_of_request_is_answered_once(rig: Any) -> None:
    """So the count of open requests comes back to 0."""
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    address = info.addresses[0]
    first = rig.batch(info, grant, 0, b"a")
    rig.ask(1, first, first, rig.batch(info, grant, 5, b"z"), m.OpenProducer(grant.producer))
    rig.ask(1, m.Fetch(address, 0, 1, 50), m.Pull(address, "c", 1, 1, 50), m.Positions(address))
    rig.ask(1, m.CreateTopic("t"), m.CreateTopic("u"), m.ListTopics(), m.DescribeTopic("t"))
    rig.ask(1, m.Ack(address, "c", [(1, 0, 1)]), m.Ping(), m.Hello("again"))
    rig.settle()
    rig.tick(100)
    rig.settle()
    assert unanswered(rig.shard)[1] == 0


def test_fetches_wait_for_messages_or_time(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    address = info.addresses[0]
    assert rig.answer(1, m.Positions(address)) == m.PositionsReply(0, 0, 0)
    assert rig.answer(1, m.Fetch(address, 0, 100)).batches == ()
    early = rig.ask(1, m.Fetch(address, 0, 100, wait_ms=50))
    rig.tick(50)
    assert dict(rig.replies[1])[early].batches == ()
    number = rig.ask(1, m.Fetch(address, 0, 100, wait_ms=1_000))
    rig.answer(1, rig.batch(info, grant, 0, b"a", b"b"))
    fetched = dict(rig.replies[1])[number]
    assert (fetched.offset, fetched.next_offset, fetched.committed) == (0, 2, 2)
    assert split(fetched.batches[0], address.group)[0].values() == [b"a", b"b"]
    assert rig.answer(1, m.Positions(address)).end == 2
    refused = rig.answer(1, m.Fetch(address, 3, 100))
    assert (refused.code, refused.detail) == (OffsetOutOfRange.code, 2)


def test_reads_go_to_the_disk_when_the_cache_has_not_got_them(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(cache=0)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    number = rig.ask(1, m.Fetch(info.addresses[0], 0, 100))
    (job,) = rig.jobs
    assert isinstance(job, ef.StartRead)
    assert rig.shard.budget.used == job.reading.size
    rig.settle()
    assert dict(rig.replies[1])[number].next_offset == 1
    assert rig.shard.budget.used == 0
    number = rig.ask(1, m.Fetch(info.addresses[0], 0, 100))
    rig.handle(ev.ReadDone(rig.jobs.pop().ticket, (), "the disk is tired"))
    assert "tired" in dict(rig.replies[1])[number].message
    assert rig.shard.budget.used == 0
