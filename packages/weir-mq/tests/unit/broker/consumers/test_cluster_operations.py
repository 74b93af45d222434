"""Clusters listed, sought, paused and deleted while consumers are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.errors import (
    BadName,
    BadRequest,
    ClusterInUse,
    OffsetOutOfRange,
    Overloaded,
    StaleGrant,
    Unavailable,
    UnknownCluster,
)
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


@pytest.fixture
def ready(rig: Any) -> tuple[Any, Any]:
    """A node with one partition of ten messages, and its address; peers 1 and 2 are connected."""
    rig.connect(2)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    for sequence in range(10):
        rig.answer(1, rig.batch(info, grant, sequence, b"%d" % sequence))
    return rig, info.addresses[0]


def pull(rig: Any, address: Any, most: int = 3, session: int = 1, name: str = "c") -> Any:
    return rig.answer(session, m.Pull(address, name, most, 1 << 20))


def cluster(rig: Any, address: Any, name: str = "c") -> a.ClusterInfo:
    (info,) = rig.answer(1, a.ListClusters(address, name)).clusters
    assert isinstance(info, a.ClusterInfo)
    return info


def test_a_list_says_how_far_each_cluster_is(ready: Any) -> None:
    rig, address = ready
    assert rig.answer(1, a.ListClusters(address)) == a.ClusterList(0, 10, [])
    first = pull(rig, address)
    rig.answer(1, m.Ack(address, "c", [(first.fence, 1, 3)]))
    pull(rig, address, 4, session=2)
    pull(rig, address, 10, name="b")
    rig.time.wall += 1_500
    listed = rig.answer(1, a.ListClusters(address))
    assert [info.name for info in listed.clusters] == ["b", "c"]
    info = listed.clusters[1]
    assert (info.cursor, info.lag, info.granted, info.attempts) == (0, 8, 5, 1)
    assert (info.consumers, info.paused, info.skipped) == (2, False, 0)
    assert info.oldest_ms >= 1_500
    assert rig.answer(1, a.ListClusters(address, "d")).clusters == []


def test_the_lag_is_what_a_full_count_gives_after_a_restart(
    make_rig: Callable[..., Any],
) -> None:
    for checkpoint_bytes in (1, 1 << 30):
        rig = make_rig(checkpoint_bytes=checkpoint_bytes)
        info = rig.topic(rig.connect())
        (address,) = info.addresses
        grant = rig.answer(1, m.OpenProducer())
        rig.answer(1, rig.batch(info, grant, 0, *[b"x"] * 50))
        done: set[int] = set()
        for round_ in range(6):
            held = pull(rig, address, 7)
            acked = (held.offset + round_ % 3, held.next_offset - round_ % 2)
            rig.answer(1, m.Ack(address, "c", [(held.fence, *acked)]))
            done.update(range(*acked))
            rig.tick()
            rig.settle()
            rig.disk.crash()
            rig.boot()
            rig.connect()
            now = cluster(rig, address)
            assert now.lag == 50 - len(done)
            assert now.cursor == next(o for o in range(51) if o not in done)


def test_a_cluster_without_a_position_begins_where_it_is_told_to(ready: Any) -> None:
    rig, address = ready
    assert rig.answer(1, a.BeginCluster(address, "c", 4)) == a.ClusterChanged(4)
    assert pull(rig, address).offset == 4
    for offset in (4, 7):
        assert rig.answer(1, a.BeginCluster(address, "c", offset)) == a.ClusterChanged(4)
    assert cluster(rig, address).granted == 3, "a cluster that has begun keeps what it holds"
    assert rig.answer(1, a.BeginCluster(address, "d", 11)).code == OffsetOutOfRange.code
    assert [info.name for info in rig.answer(1, a.ListClusters(address)).clusters] == ["c"]


def test_of_two_beginnings_at_once_one_counts(ready: Any) -> None:
    """Also beside a grant, an opening or a seek that is not committed yet."""
    rig, address = ready
    others = [
        a.BeginCluster(address, "c", 2),
        m.OpenCluster(address, "c", Mode.SHARED),
        a.SeekCluster(address, "c", 2),
        m.Pull(address, "c", 3, 1 << 20),
    ]
    for at, other in enumerate(others):
        name = f"c{at}"
        first = rig.ask(1, msgspec.structs.replace(other, cluster=name))
        second = rig.ask(2, a.BeginCluster(address, name, 6))
        rig.settle()
        assert first in dict(rig.replies[1])
        assert dict(rig.replies[2])[second].code == Unavailable.code
        where = rig.answer(2, a.BeginCluster(address, name, 6)).cursor
        assert where == cluster(rig, address, name).cursor == (0 if at in (1, 3) else 2)


def test_a_cluster_begins_once_whoever_leads(ready: Any) -> None:
    rig, address = ready
    rig.answer(1, a.BeginCluster(address, "c", 4))
    rig.disk.crash()
    rig.boot()
    rig.connect()
    assert rig.answer(1, a.BeginCluster(address, "c", 8)) == a.ClusterChanged(4)


def test_a_cluster_with_a_cursor_of_all_partitions_begins_by_its_turn(ready: Any) -> None:
    rig, address = ready
    assert rig.answer(1, m.TakeTurn(address, "c", (3,), 5_000)).offsets == (3,)
    assert rig.answer(1, a.BeginCluster(address, "c", 4)).code == BadRequest.code


def test_a_seek_begins_anew_and_ends_all_grants(ready: Any) -> None:
    rig, address = ready
    held = pull(rig, address, 5)
    assert rig.answer(1, a.SeekCluster(address, "c", 2)) == a.ClusterChanged(2)
    assert rig.answer(1, m.Ack(address, "c", [(held.fence, 3, 5)])).code == StaleGrant.code
    info = cluster(rig, address)
    assert (info.cursor, info.lag, info.granted) == (2, 8, 0)
    again = pull(rig, address, 100, session=2)
    assert (again.offset, again.next_offset, again.attempts) == (2, 10, 1)
    rig.answer(1, a.SeekCluster(address, "c", 10))
    assert cluster(rig, address).lag == 0
    assert pull(rig, address).fence == 0


def test_a_pull_on_its_way_does_not_let_a_seek_leave_a_gap(ready: Any) -> None:
    rig, address = ready
    numbers = [
        rig.ask(1, m.Pull(address, "c", 3, 1 << 20)),  # granted before the seek
        rig.ask(1, a.SeekCluster(address, "c", 0)),
        rig.ask(2, m.Pull(address, "c", 4, 1 << 20, 1_000)),  # must wait for it
        rig.ask(2, m.Pull(address, "c", 4, 1 << 20, 1_000)),
    ]
    rig.settle()
    replies = {**dict(rig.replies[1]), **dict(rig.replies[2])}
    grants = [replies[numbers[at]] for at in (0, 2, 3)]
    ranges = [(grant.offset, grant.next_offset) for grant in grants]
    assert ranges == [(0, 3), (0, 4), (4, 8)]


def test_a_seek_is_bounded_and_may_begin_a_cluster(ready: Any) -> None:
    rig, address = ready
    refused = rig.answer(1, a.SeekCluster(address, "c", 11))
    assert (refused.code, refused.detail) == (OffsetOutOfRange.code, 10)
    assert rig.answer(1, a.SeekCluster(address, "no name", 1)).code == BadName.code
    assert rig.answer(1, a.ListClusters(address)).clusters == []
    rig.answer(1, a.SeekCluster(address, "new", 10))
    assert pull(rig, address, name="new").fence == 0


def test_a_paused_cluster_waits_until_it_goes_on(ready: Any) -> None:
    rig, address = ready
    held = pull(rig, address)
    rig.answer(1, a.PauseCluster(address, "c"))
    waiting = rig.ask(2, m.Pull(address, "c", 3, 1 << 20, 5_000))
    told = rig.ask(2, m.Pull(address, "c", 0, 1 << 20, 5_000))
    assert rig.answer(1, m.Ack(address, "c", [(held.fence, 0, 3)])) == m.Acked(3)
    rig.tick()
    rig.settle()
    assert {waiting, told}.isdisjoint(dict(rig.replies[2]))
    rig.disk.crash()
    rig.boot()
    rig.connect()
    rig.connect(2)
    assert cluster(rig, address).paused
    waiting = rig.ask(2, m.Pull(address, "c", 3, 1 << 20, 5_000))
    rig.settle()
    assert waiting not in dict(rig.replies[2])
    rig.answer(1, a.PauseCluster(address, "c", False))
    assert dict(rig.replies[2])[waiting].offset == 3
    assert not cluster(rig, address).paused


def test_a_paused_pull_ends_with_nothing_when_its_time_is_up(ready: Any) -> None:
    rig, address = ready
    rig.answer(1, a.PauseCluster(address, "c"))
    waiting = rig.ask(2, m.Pull(address, "c", 3, 1 << 20, 100))
    rig.tick(200)
    assert dict(rig.replies[2])[waiting].fence == 0


def test_a_cluster_at_work_is_not_deleted(ready: Any) -> None:
    rig, address = ready
    assert rig.answer(1, a.DeleteCluster(address, "c")).code == UnknownCluster.code
    held = pull(rig, address, session=2)
    refused = rig.answer(1, a.DeleteCluster(address, "c"))
    assert (refused.code, refused.detail) == (ClusterInUse.code, 1)
    number = rig.ask(1, m.Ack(address, "c", [(held.fence, 0, 3)]))
    deleting = rig.ask(1, a.DeleteCluster(address, "c"))
    rig.settle()
    assert dict(rig.replies[1])[number] == m.Acked(3)
    assert dict(rig.replies[1])[deleting].code == ClusterInUse.code
    assert rig.answer(1, a.DeleteCluster(address, "c")) == a.ClusterChanged(0)
    assert rig.answer(1, a.ListClusters(address)).clusters == []
    assert pull(rig, address).offset == 0, "one of its name begins anew"


def test_an_ack_that_comes_to_a_deleted_cluster_is_refused(ready: Any) -> None:
    rig, address = ready
    held = pull(rig, address, session=2)
    rig.answer(1, m.Ack(address, "c", [(held.fence, 0, 3)]))
    numbers = [
        rig.ask(1, a.DeleteCluster(address, "c")),
        rig.ask(2, m.Ack(address, "c", [(held.fence, 0, 3)])),
    ]
    rig.settle()
    assert dict(rig.replies[1])[numbers[0]] == a.ClusterChanged(0)
    assert dict(rig.replies[2])[numbers[1]].code == UnknownCluster.code


def test_a_failed_read_of_a_deleted_clusters_messages_hurts_nobody(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(cache=0)
    rig.connect(2)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"x"))
    (address,) = info.addresses
    rig.ask(2, m.Pull(address, "c", 1, 1 << 20))
    rig.step()
    (read,) = (job for job in rig.jobs if isinstance(job, ef.StartRead))
    rig.jobs.remove(read)
    rig.handle(ev.Closed(2))
    rig.answer(1, a.DeleteCluster(address, "c"))
    rig.handle(ev.ReadDone(read.ticket, (), "the disk is wet"))
    assert rig.answer(1, a.ListClusters(address)).clusters == []
    assert pull(rig, address).offset == 0


def test_operators_cannot_make_clusters_without_bound(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, address = ready
    monkeypatch.setattr("weir.broker.consumers.leases.CLUSTERS_PER_TOPIC_MAX", 2)
    numbers = [rig.ask(1, a.SeekCluster(address, name, 0)) for name in ("a", "b", "z")]
    rig.settle()
    replies = dict(rig.replies[1])
    assert [type(replies[number]) for number in numbers[:2]] == [a.ClusterChanged] * 2
    assert replies[numbers[2]].code == Overloaded.code, "two are under way"
    assert rig.answer(1, a.SeekCluster(address, "c", 0)).code == Overloaded.code
    assert rig.answer(1, a.SeekCluster(address, "a", 4)) == a.ClusterChanged(4)


def test_leases_of_a_deleted_cluster_are_forgotten(ready: Any) -> None:
    rig, address = ready
    for _ in range(3):
        for _ in range(10):
            held = pull(rig, address, 1, session=2)
            rig.answer(2, m.Ack(address, "c", [(held.fence, held.offset, held.next_offset)]))
        rig.answer(1, a.DeleteCluster(address, "c"))
    rig.tick(60_000)
    assert pull(rig, address, 10).next_offset == 10
