"""Partition 0 of a topic keeps the mode of a cluster for all of its partitions."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import BadName, BadRequest, ClusterInUse, Overloaded
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

LEASE_MS = 5_000


class Topic:
    """A topic of two partitions, of which only the second has messages; peers 1 and 2."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        rig.connect(2)
        rig.connect()
        self.info = rig.topic(1, "t", 2)
        self.home, self.other = self.info.addresses

    def publish(self) -> None:
        i, grant = self.info, self.rig.answer(1, m.OpenProducer())
        for address in i.addresses:
            here = m.TopicInfo(i.id, i.namespace, i.name, i.order, [address])
            assert isinstance(self.rig.answer(1, self.rig.batch(here, grant, 0, b"x")), m.Confirm)

    def open(self, mode: Mode, cluster: str = "crew", session: int = 1) -> Any:
        return self.rig.answer(session, m.OpenCluster(self.home, cluster, mode))

    def pull(self, mode: Mode, most: int = 1, session: int = 1) -> Any:
        pull = m.Pull(self.home, "crew", most, 1 << 20, 0, LEASE_MS, mode)
        return self.rig.answer(session, pull)

    def take(self) -> m.TakeTurn:
        return m.TakeTurn(self.home, "crew", (0, 0), LEASE_MS, 0)


@pytest.fixture
def topic(rig: Any) -> Topic:
    return Topic(rig)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("mode", Mode)
def test_the_first_mode_stays_before_anything_is_granted(
    topic: Topic, mode: Mode, restarts: bool
) -> None:
    others = {*Mode} - {mode}
    assert topic.open(mode) == m.ClusterIsOpen()
    if restarts:
        topic.rig.disk.crash()
        topic.rig.boot()
        topic.rig.connect()
    assert topic.open(mode) == m.ClusterIsOpen()
    for other in others:
        assert topic.open(other).code == BadRequest.code
        assert topic.pull(other).code == BadRequest.code
    (crew,) = topic.rig.answer(1, a.ListClusters(topic.home)).clusters
    assert crew.mode == mode
    topic.publish()
    assert topic.pull(mode).next_offset == 1


def test_of_two_modes_at_once_one_is_refused(topic: Topic) -> None:
    numbers = [
        topic.rig.ask(session, m.OpenCluster(topic.home, "crew", mode))
        for session, mode in ((1, Mode.KEYED), (2, Mode.SHARED), (2, Mode.KEYED))
    ]
    topic.rig.settle()
    told = {**dict(topic.rig.replies[1]), **dict(topic.rig.replies[2])}
    assert told[numbers[1]].code == BadRequest.code
    assert [told[numbers[0]], told[numbers[2]]] == [m.ClusterIsOpen()] * 2


def test_who_pulls_while_a_mode_is_proposed_is_held_to_it(topic: Topic) -> None:
    """It is granted nothing before it is known which mode a majority knows of."""
    topic.publish()
    opens = topic.rig.ask(1, m.OpenCluster(topic.home, "crew", Mode.ORDERED))
    wrong, right = (
        topic.rig.ask(2, m.Pull(topic.home, "crew", 1, 1 << 20, LEASE_MS, LEASE_MS, mode))
        for mode in (Mode.SHARED, Mode.ORDERED)
    )
    topic.rig.settle()
    told = {**dict(topic.rig.replies[1]), **dict(topic.rig.replies[2])}
    assert told[opens] == m.ClusterIsOpen()
    assert told[wrong].code == BadRequest.code
    assert told[right].next_offset == 1


def test_who_pulled_in_vain_while_a_mode_is_proposed_leaves_it_proposed(topic: Topic) -> None:
    topic.rig.ask(1, m.OpenCluster(topic.home, "crew", Mode.KEYED))
    in_vain, wrong = (
        topic.rig.ask(2, m.Pull(topic.home, "crew", 1, 1 << 20, 0, LEASE_MS, mode))
        for mode in (Mode.KEYED, Mode.SHARED)
    )
    told = dict(topic.rig.replies[2])
    assert told[in_vain].fence == 0
    assert told[wrong].code == BadRequest.code


def test_what_waits_in_one_mode_is_not_opened_in_another(topic: Topic) -> None:
    """As consumers of earlier releases wait: they pull at once."""
    topic.rig.ask(2, m.Pull(topic.home, "crew", 1, 1 << 20, LEASE_MS, LEASE_MS, Mode.SHARED))
    topic.rig.settle()
    assert topic.open(Mode.KEYED).code == BadRequest.code
    assert topic.open(Mode.SHARED) == m.ClusterIsOpen()


def test_a_cluster_reads_by_partition_or_in_total_order(topic: Topic) -> None:
    opens = topic.rig.ask(1, m.OpenCluster(topic.home, "crew", Mode.SHARED))
    takes = topic.rig.ask(1, topic.take())
    topic.rig.settle()
    told = dict(topic.rig.replies[1])
    assert told[opens] == m.ClusterIsOpen()
    assert told[takes].code == BadRequest.code
    assert topic.rig.answer(1, topic.take()).code == BadRequest.code


def test_a_turn_that_is_being_given_keeps_others_out(topic: Topic) -> None:
    takes = topic.rig.ask(1, topic.take())
    opens = topic.rig.ask(1, m.OpenCluster(topic.home, "crew", Mode.SHARED))
    topic.rig.settle()
    told = dict(topic.rig.replies[1])
    assert told[takes].fence
    assert told[opens].code == BadRequest.code
    assert topic.open(Mode.ORDERED).code == BadRequest.code
    assert topic.rig.answer(2, topic.take()) == m.Turn(0), "it waits for its turn, as it did"


def test_a_cluster_that_was_deleted_may_have_another_mode(topic: Topic) -> None:
    topic.open(Mode.KEYED)
    waiting = topic.rig.ask(
        2, m.Pull(topic.home, "crew", 1, 1 << 20, LEASE_MS, LEASE_MS, Mode.KEYED)
    )
    topic.rig.settle()
    delete = a.DeleteCluster(topic.home, "crew")
    assert topic.rig.answer(1, delete).code == ClusterInUse.code
    topic.rig.answer(2, m.Withdraw(topic.home, "crew"))
    assert waiting in dict(topic.rig.replies[2])
    assert isinstance(topic.rig.answer(1, delete), a.ClusterChanged)
    assert topic.open(Mode.SHARED) == m.ClusterIsOpen()


def test_a_mode_asked_for_while_the_cluster_goes_is_that_of_the_next(topic: Topic) -> None:
    topic.open(Mode.KEYED)
    topic.rig.ask(1, a.DeleteCluster(topic.home, "crew"))
    again = topic.rig.ask(1, m.OpenCluster(topic.home, "crew", Mode.KEYED))
    topic.rig.step()
    assert again not in dict(topic.rig.replies[1]), (
        "its entry is behind the other, in the next flush"
    )
    wrong = topic.rig.ask(2, m.Pull(topic.home, "crew", 1, 1 << 20, 0, LEASE_MS, Mode.SHARED))
    topic.rig.settle()
    assert dict(topic.rig.replies[2])[wrong].code == BadRequest.code
    assert dict(topic.rig.replies[1])[again] == m.ClusterIsOpen()
    assert topic.open(Mode.SHARED).code == BadRequest.code


def test_what_cannot_be_opened_is_refused(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = m.OpenCluster(topic.other, "crew", Mode.SHARED)
    assert topic.rig.answer(1, elsewhere).code == BadRequest.code
    assert topic.open(Mode.SHARED, "no name").code == BadName.code
    monkeypatch.setattr("weir.broker.consumers.leases.CLUSTERS_PER_TOPIC_MAX", 1)
    assert topic.open(Mode.SHARED) == m.ClusterIsOpen()
    assert topic.open(Mode.SHARED, "more").code == Overloaded.code
