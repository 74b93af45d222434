"""What is told of one message: whether it is there, and how far each cluster is with it."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api.events import Closed
from weir.model.topic import Mode, Presence, Progress
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

LEASE_MS = 1_000


class Scene:
    """A topic of five messages in partition 0, and consumers in sessions 1 and 2."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        for session in (1, 2):
            rig.connect(session)
        self.info = rig.topic(1, partitions=2)
        self.address = self.info.addresses[0]
        self.grant = rig.answer(1, m.OpenProducer())
        self.stamps = [
            rig.answer(1, rig.batch(self.info, self.grant, n, b"m%d" % n)).stamp for n in range(5)
        ]

    def trace(self, offset: int) -> a.TracedMessage:
        told = self.rig.answer(1, a.TraceMessage(self.address, offset))
        assert isinstance(told, a.TracedMessage), told
        return told

    def progress(self, offset: int, name: str = "crew") -> a.ClusterTrace:
        (found,) = (one for one in self.trace(offset).clusters if one.name == name)
        return found

    def pull(self, session: int, most: int, mode: Mode = Mode.SHARED) -> m.Granted:
        asked = m.Pull(self.address, "crew", most, 1 << 20, 0, LEASE_MS, mode)
        granted = self.rig.answer(session, asked)
        assert isinstance(granted, m.Granted)
        return granted


@pytest.fixture
def scene(rig: Any) -> Scene:
    return Scene(rig)


def test_a_message_is_there_with_its_stamp(scene: Scene) -> None:
    told = scene.trace(3)
    assert (told.presence, told.start, told.end) == (Presence.STORED, 0, 5)
    assert (told.stamp, told.received_ms, told.clusters) == (scene.stamps[3], 0, [])
    assert told.now_ms == scene.rig.time.wall_ms()
    told = scene.trace(5)
    assert (told.presence, told.stamp) == (Presence.AWAITED, 0)


def test_a_granted_message_is_with_its_consumer_until_it_is_done(scene: Scene) -> None:
    granted = scene.pull(2, 2)
    scene.rig.time.pass_ms(400)
    one = scene.progress(1)
    assert (one.progress, one.attempts) == (Progress.GRANTED, 1)
    assert (one.consumer, one.principal, one.left_ms) == (2, "anonymous", LEASE_MS - 400)
    assert scene.progress(2) == a.ClusterTrace("crew", Progress.WAITING)
    scene.rig.answer(2, m.Ack(scene.address, "crew", [(granted.fence, 1, 2)]))
    assert scene.progress(1) == a.ClusterTrace("crew", Progress.DONE)
    assert scene.progress(0).progress == Progress.GRANTED
    scene.rig.answer(2, m.Ack(scene.address, "crew", [(granted.fence, 0, 1)]))
    assert [scene.progress(at).progress for at in range(3)] == [
        Progress.DONE, Progress.DONE, Progress.WAITING,
    ]  # fmt: skip


def test_a_message_that_was_given_back_is_held_back_for_its_delay(scene: Scene) -> None:
    granted = scene.pull(2, 1)
    scene.rig.answer(2, m.Nack(scene.address, "crew", granted.fence, [(0, 1)], 5_000))
    one = scene.progress(0)
    assert (one.progress, one.attempts, one.consumer) == (Progress.HELD_BACK, 1, 0)
    assert one.left_ms == 5_000
    scene.rig.time.pass_ms(5_000)
    scene.rig.tick()
    one = scene.progress(0)
    assert (one.progress, one.attempts, one.left_ms) == (Progress.WAITING, 1, 0)


def test_a_message_of_a_consumer_that_is_gone_waits_with_its_attempts(scene: Scene) -> None:
    scene.pull(2, 1)
    scene.rig.handle(Closed(2))
    scene.rig.settle()
    one = scene.progress(0)
    assert (one.progress, one.attempts, one.consumer) == (Progress.WAITING, 1, 0)


def test_a_cluster_in_total_order_says_who_has_its_turn(scene: Scene) -> None:
    took = scene.rig.answer(2, m.TakeTurn(scene.address, "book", (0, 0), LEASE_MS, 0))
    one = scene.progress(2, "book")
    assert (one.progress, one.consumer, one.left_ms) == (Progress.WAITING, 2, LEASE_MS)
    moved = m.MoveCursor(scene.address, "book", took.fence, (3, 0), LEASE_MS)
    assert isinstance(scene.rig.answer(2, moved), m.Moved)
    assert [scene.progress(at, "book").progress for at in (2, 3)] == [
        Progress.DONE, Progress.WAITING,
    ]  # fmt: skip


def test_what_is_no_message_any_more_is_told_so(scene: Scene) -> None:
    _, partition = scene.rig.shard.topics.partition(scene.address.group)
    partition.state.voids.add(3, 4)
    partition.state.log_start = 2
    assert [scene.trace(at).presence for at in range(1, 6)] == [
        Presence.DELETED, Presence.STORED, Presence.ABORTED, Presence.STORED, Presence.AWAITED,
    ]  # fmt: skip
    told = scene.trace(3)
    assert (told.start, told.end, told.stamp, told.clusters) == (2, 5, 0, [])
