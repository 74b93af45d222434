"""Devices that receive, where something ends: a range, a topic, a lease, the patience of others."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.broker.consumers import leases
from weir.broker.consumers.operations import ClusterOperations
from weir.broker.devices import subscriptions
from weir.broker.partition.partition import Partition
from weir.broker.partition.topics import BY_PARTITION
from weir.errors import (
    BadBatch,
    DamagedRange,
    MissingLibrary,
    NotSubscribed,
    Overloaded,
    UnknownTopic,
)
from weir.model.batch import Batch
from weir.model.limits import DEVICE_BODY_BYTES_MAX, KIB, RETRY_AFTER_MS_MAX
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.device import ALL_PARTITIONS, PULL_BYTES_MIN, Delivery, DeviceReply
from weir.protocol.device import DeviceOpcode as Op

LEASE_MS = 5_000
ONE = PULL_BYTES_MIN + 100
NOTIFY = DeviceReply(Op.NOTIFY, 1, 0)


def partition(doors: Any, number: int = 0) -> Partition:
    found: Partition = doors.rig.shard.topics.partition(doors.info.addresses[number].group)[1]
    return found


def let_pass(doors: Any, ms: int, session: int = 50) -> list[DeviceReply]:
    """Tick for so long; return what came."""
    found = []
    for _ in range(ms // 50):
        doors.rig.tick()
        found += doors.replies(session)
    return found


def with_rest(doors: Any, partition: int = ALL_PARTITIONS) -> None:
    """Pull one of five messages of partition 0 that were granted together."""
    doors.subscribed(partition=partition)
    doors.publish(*[bytes([n]) * 100 for n in range(5)])
    assert doors.pull(9, ONE).offsets == [0]


# -- what is left of a grant ---------------------------------------------------------------------


def test_what_went_past_retention_is_passed_by(doors: Any) -> None:
    with_rest(doors)
    partition(doors).state.log_start = 3
    assert doors.pull().offsets == [3, 4]


def test_a_rest_that_is_gone_is_dropped_and_nobody_is_told_of_it(make_doors: Any) -> None:
    doors = make_doors(2)
    with_rest(doors)
    partition(doors).state.log_start = 5
    doors.publish(b"new", partition=1)
    assert doors.pull().values == [b"new"]
    assert doors.pull() == Delivery()
    assert let_pass(doors, 2_000) == []


@pytest.mark.parametrize("error", [DamagedRange("lost"), UnknownTopic("gone")], ids=str)
def test_a_rest_that_cannot_be_read_holds_up_no_other_partition(
    make_doors: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    doors = make_doors(2)
    with_rest(doors)
    doors.publish(b"other", partition=1)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setitem(BY_PARTITION, m.Fetch, fail)
    assert doors.pull().values == [b"other"]


def test_a_batch_that_cannot_be_opened_is_passed_by(
    doors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors.subscribed()
    for value in (b"a", b"b", b"c"):
        doors.publish(value)
    opens: Any = Batch.value_column

    def open_but_one(batch: Batch) -> Any:
        if batch.header.first_offset == 1:
            raise MissingLibrary("install weir[zstd]")
        return opens.__get__(batch)

    monkeypatch.setattr(Batch, "value_column", property(open_but_one))
    pulled = [doors.pull(), doors.pull()]
    assert [p.values for p in pulled] == [[b"a"], [b"c"]]
    assert [doors.ack(p) for p in pulled] == [0, 0]
    assert doors.pull() == Delivery()
    doors.replies()
    doors.rig.tick(LEASE_MS + 1)
    monkeypatch.undo()
    assert doors.pull().values == [b"b"], "somebody else may be able to"


def test_bytes_that_are_no_batch_end_the_rest(doors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rest(doors)

    def fail(*_: Any) -> None:
        raise BadBatch("no batch")

    monkeypatch.setattr("weir.broker.devices.receivers.take", fail)
    assert doors.pull() == Delivery()
    assert let_pass(doors, 2_000) == []


def test_a_rest_is_handed_out_while_half_of_the_lease_is_left(doors: Any) -> None:
    """The lease began with the first reply: what is pulled too late is yours for nothing."""
    with_rest(doors)
    doors.rig.tick(LEASE_MS // 2 - 1)
    assert doors.pull(1, ONE).offsets == [1]
    doors.rig.tick(1)
    assert doors.pull() == Delivery()
    doors.rig.tick(LEASE_MS // 2 + 1)
    again = doors.pull()
    assert (again.offsets[0], again.attempts) == (0, 2)


# -- topics and partitions that end --------------------------------------------------------------


def test_a_subscriber_is_told_once_that_its_topic_is_gone(doors: Any) -> None:
    doors.subscribed()
    used = doors.rig.shard.budget.used
    assert doors.rig.answer(1, a.DeleteTopic("t")) is not None
    assert doors.replies() == [DeviceReply(Op.NOTIFY, 1, UnknownTopic.code)]
    assert let_pass(doors, 20_000) == []
    assert doors.rig.shard.budget.used < used
    assert [r.code for r in doors.ask(d.pull(1, 1))] == [NotSubscribed.code]
    assert [r.code for r in doors.ask(d.subscribe(1, "crew", "t"))] == [UnknownTopic.code]
    doors.info = doors.rig.topic(1, "t")
    assert [r.code for r in doors.ask(d.subscribe(1, "crew", "t"))] == [0]
    doors.sequences = [0]
    doors.publish(b"new")
    assert doors.replies() == [NOTIFY]


def test_a_pull_is_told_that_the_topic_is_gone(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    assert doors.replies() == [NOTIFY]
    doors.rig.answer(1, a.DeleteTopic("t"))
    assert doors.ask(d.pull(1, 1)) == [DeviceReply(Op.PULL, 1, UnknownTopic.code)]
    assert let_pass(doors, 5_000) == []
    assert [r.code for r in doors.ask(d.pull(1, 1))] == [NotSubscribed.code]


def test_a_partition_that_never_serves_again_ends_what_watches_it_alone(
    make_doors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = make_doors(2)
    damaged, pull = partition(doors, 1), BY_PARTITION[m.Pull]

    def fail(one: Partition, caller: Any, request: Any) -> None:
        if one is damaged:
            raise DamagedRange("can only be read")
        pull(one, caller, request)

    monkeypatch.setitem(BY_PARTITION, m.Pull, fail)
    doors.subscribed(sn=1, partition=ALL_PARTITIONS)
    assert doors.ask(d.subscribe(2, "crew", "t", 1)) == [
        DeviceReply(Op.SUBSCRIBE, 2, 0), DeviceReply(Op.NOTIFY, 2, DamagedRange.code),
    ]  # fmt: skip
    doors.publish(b"here")
    assert doors.replies() == [NOTIFY]
    assert doors.pull().values == [b"here"]


# -- refused again and again ---------------------------------------------------------------------


def test_refused_watches_wait_longer_each_time(doors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    opens = ClusterOperations.open

    def count(one: ClusterOperations, caller: Any, request: Any) -> None:
        tries.append(doors.rig.time.monotonic)
        opens(one, caller, request)

    monkeypatch.setattr(leases, "CLUSTERS_PER_TOPIC_MAX", 1)
    doors.rig.ask(1, m.Pull(doors.info.addresses[0], "other", 1, 1, 60_000))
    monkeypatch.setattr(ClusterOperations, "open", count)
    doors.subscribed()
    let_pass(doors, 30_000)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [200, 400, 800, 1_600, 3_200, *[RETRY_AFTER_MS_MAX] * 4]


def test_a_cluster_at_its_limit_is_told_of_nothing(
    doors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors.subscribed(50)
    doors.subscribed(51)
    doors.publish(b"a", b"b", b"c")
    hoarded = [doors.pull(1, session=50) for _ in range(2)]
    monkeypatch.setattr(leases, "GRANTS_PER_CLUSTER_MAX", 2)
    doors.replies(51)
    (reply,) = doors.ask(d.pull(1, 1), session=51)
    assert reply.code == Overloaded.code
    assert let_pass(doors, LEASE_MS - 1_000, session=51) == []
    assert doors.ack(hoarded[0]) == 0
    assert let_pass(doors, 500, session=51) == [NOTIFY]
    assert doors.pull(session=51).values == [b"c"]


def test_who_is_refused_is_told_again_at_a_pace(
    doors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "GRANTS_PER_CONSUMER_MAX", 1)
    doors.subscribed()
    doors.publish(b"a", b"b")
    doors.replies()
    doors.pull(1)
    codes = Counter(r.code for r in doors.ask(d.pull(1, 1)))
    for _ in range(4_000 // 50):
        doors.rig.tick()
        if NOTIFY in doors.replies():
            (reply,) = doors.ask(d.pull(1, 1))
            codes[reply.code] += 1
    assert codes.keys() == {Overloaded.code}
    assert codes.total() <= 6


# -- what it costs -------------------------------------------------------------------------------


def test_subscriptions_have_a_share_of_the_budget(make_doors: Any) -> None:
    doors = make_doors(budget_bytes=8 * KIB * subscriptions._SHARE)
    before = doors.rig.shard.budget.used
    doors.hub()
    frames = [d.subscribe(sn, "crew", "t") for sn in range(5)]
    assert [r.code for r in doors.ask(*frames)] == [0] * 4 + [Overloaded.code]
    assert doors.rig.shard.budget.used == before + 8 * KIB
    doors.rig.handle(ev.Closed(50))
    assert doors.rig.shard.budget.used == before
    doors.hub(51)
    assert doors.ask(frames[4], session=51)[0].code == 0


def test_no_pull_reads_more_than_a_reply_holds(doors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    pull, fetch = BY_PARTITION[m.Pull], BY_PARTITION[m.Fetch]

    def see_pull(one: Partition, caller: Any, request: Any) -> None:
        asked.append(request.max_bytes)
        pull(one, caller, request)

    def see_fetch(one: Partition, caller: Any, request: Any) -> None:
        asked.append(request.max_bytes)
        fetch(one, caller, request)

    with_rest(doors)
    monkeypatch.setitem(BY_PARTITION, m.Pull, see_pull)
    monkeypatch.setitem(BY_PARTITION, m.Fetch, see_fetch)
    doors.pull(1, 0xFFFFFFFF)
    doors.pull(9, 0)
    doors.publish(b"more")
    doors.pull(9, 0xFFFFFFFF)
    assert max(asked) == DEVICE_BODY_BYTES_MAX


def test_a_peer_that_goes_costs_the_partitions_that_it_used(
    make_doors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = make_doors(8)
    told: list[int] = []
    monkeypatch.setattr(Partition, "closed", lambda one, _: told.append(one.group.id))
    doors.hub(50)
    doors.ask(d.publish(1, b"a"))
    doors.rig.handle(ev.Closed(50))
    assert told == []
    doors.subscribed(51, partition=3)
    doors.rig.handle(ev.Closed(51))
    assert told == [doors.info.addresses[3].group]
