"""A pause belongs to the whole cluster: the registry decides it, and partitions follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from weir.broker.metadata.catalog import Catalog
from weir.broker.records.partition import ClusterPaused
from weir.broker.records.registry import TopicClusterPaused, TopicCreated
from weir.broker.records.snapshots import pack
from weir.broker.state.state import PartitionState
from weir.errors import BadName, Unavailable, UnknownTopic
from weir.model.ids import Address, group_of
from weir.model.topic import DEFAULT_NAMESPACE, ClusterPause
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


class Pair:
    """A topic with messages in each partition, and one cluster that has begun in none."""

    def __init__(self, rig: Any, partitions: int = 2) -> None:
        self.rig = rig
        rig.connect()
        self.info = rig.topic(1, "t", partitions)
        self.grant = rig.answer(1, m.OpenProducer())

    def grow(self, partitions: int) -> None:
        """Ask for more partitions, and for nothing else: the client may be gone then."""
        self.info = self.rig.answer(1, a.AlterTopic("t", partitions=partitions))

    def publish(self, partition: int) -> None:
        i = self.info
        here = m.TopicInfo(i.id, i.namespace, i.name, i.order, [i.addresses[partition]])
        assert isinstance(self.rig.answer(1, self.rig.batch(here, self.grant, 0, b"x")), m.Confirm)

    def pull(self, partition: int) -> Any:
        address = self.info.addresses[partition]
        return self.rig.answer(1, m.Pull(address, "crew", 9, 1 << 20, 0, 5_000))

    def pause(self, paused: bool = True, cluster: str = "crew") -> Any:
        return self.rig.answer(1, a.PauseCluster(self.info.addresses[0], cluster, paused))

    def told(self, partition: int) -> list[bool]:
        address = self.info.addresses[partition]
        infos = self.rig.answer(1, a.ListClusters(address, "crew")).clusters
        return [info.paused for info in infos]

    def restart(self) -> None:
        self.rig.disk.crash()
        self.rig.boot()
        self.rig.connect()


@pytest.fixture
def pair(rig: Any) -> Pair:
    return Pair(rig)


def test_one_request_pauses_every_partition(pair: Pair) -> None:
    for partition in range(2):
        pair.publish(partition)
    assert pair.pause() == a.ClusterChanged(0)
    assert [pair.pull(p).fence for p in range(2)] == [0, 0]
    assert [pair.told(p) for p in range(2)] == [[True], [True]]
    assert pair.pause(False) == a.ClusterChanged(0)
    assert [pair.pull(p).next_offset for p in range(2)] == [1, 1]
    assert [pair.told(p) for p in range(2)] == [[False], [False]]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_partition_is_paused_though_the_client_is_gone(pair: Pair, restarts: bool) -> None:
    pair.publish(0)
    assert pair.pull(0).next_offset == 1
    pair.pause()
    pair.grow(4)
    if restarts:
        pair.restart()
        pair.grant = pair.rig.answer(1, m.OpenProducer())
    for partition in (2, 3):
        pair.publish(partition)
        assert pair.pull(partition).fence == 0
    assert [pair.told(p) for p in range(4)] == [[True]] * 4
    pair.pause(False)
    assert [pair.pull(p).next_offset for p in (2, 3)] == [1, 1]


def test_who_waits_gets_messages_once_it_goes_on(pair: Pair) -> None:
    pair.publish(1)
    pair.pause()
    pull = m.Pull(pair.info.addresses[1], "crew", 9, 1 << 20, 5_000, 5_000)
    waiting = pair.rig.ask(1, pull)
    pair.rig.settle()
    assert waiting not in dict(pair.rig.replies[1])
    pair.pause(False)
    assert dict(pair.rig.replies[1])[waiting].next_offset == 1


def test_pauses_that_follow_at_once_end_as_the_last_says(pair: Pair) -> None:
    pair.publish(0)
    address = pair.info.addresses[0]
    for paused in (True, False, True, True, False):
        pair.rig.ask(1, a.PauseCluster(address, "crew", paused))
    pair.rig.settle()
    assert pair.pull(0).next_offset == 1


def test_what_cannot_be_paused_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pair.pause(cluster="no name").code == BadName.code
    nowhere = Address(0, 0, group_of(99, 0))
    assert pair.rig.answer(1, a.PauseCluster(nowhere, "crew")).code == UnknownTopic.code
    monkeypatch.setattr("weir.broker.metadata.administration.CLUSTER_PAUSES_MAX", 1)
    pair.pause()
    assert pair.pause(cluster="more").code == Unavailable.code
    assert pair.pause() == a.ClusterChanged(0)


def test_an_older_change_never_undoes_a_newer_one() -> None:
    state = PartitionState()
    state.cluster("crew")
    state.steer(ClusterPaused("crew", True, 2))
    state.steer(ClusterPaused("crew", False, 1))
    assert state.clusters["crew"].paused
    again = PartitionState.decode(_frozen(state.encode()))
    assert (again.pauses, again.clusters["crew"].paused) == ({"crew": (True, 2)}, True)


def test_a_cluster_that_begins_later_is_paused() -> None:
    state = PartitionState()
    state.steer(ClusterPaused("crew", True, 1))
    assert not state.clusters
    assert state.cluster("crew").paused
    assert not state.cluster("others").paused


def test_what_the_release_before_wrote_is_read_and_superseded() -> None:
    state = PartitionState()
    state.steer(ClusterPaused("crew", True))
    data = _frozen(state.encode())
    assert data[0] == 7, "without pauses of the registry's the form is the one before"
    again = PartitionState.decode(data)
    assert again.clusters["crew"].paused
    again.steer(ClusterPaused("crew", False, 1))
    assert not again.clusters["crew"].paused


def test_the_registry_keeps_pauses() -> None:
    catalog = Catalog()
    catalog.create(TopicCreated(DEFAULT_NAMESPACE, "t", 1, "partition", 1))
    before = catalog.encode()
    assert before[0] == 5  # type: ignore[index]
    assert Catalog.decode(_frozen(before)).by_id(1) == catalog.by_id(1)
    catalog.pause(TopicClusterPaused(1, "crew", True))
    catalog.pause(TopicClusterPaused(1, "crew", True))
    topic = catalog.pause(TopicClusterPaused(1, "b", False))
    assert topic.pauses == (ClusterPause("b", False, 2), ClusterPause("crew", True, 1))
    assert Catalog.decode(_frozen(catalog.encode())).by_id(1) == topic


def test_of_too_many_the_registry_forgets_who_went_on_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.broker.metadata.catalog.CLUSTER_PAUSES_MAX", 2)
    catalog = Catalog()
    catalog.create(TopicCreated(DEFAULT_NAMESPACE, "t", 1, "partition", 1))
    for name, paused in (("a", True), ("b", False), ("c", False)):
        topic = catalog.pause(TopicClusterPaused(1, name, paused))
    assert topic.pauses == (ClusterPause("a", True, 1), ClusterPause("c", False, 3))


def _frozen(state: Any) -> Any:
    """Return a state as it comes back from the disk."""
    return msgspec.msgpack.decode(pack(state))
