"""Acks as parts of scatterings: what is said of them where several attempts meet."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.part_questions import ask_part
from weir.broker.api import events as ev
from weir.errors import StaleGrant
from weir.model.ids import acks_part, batch_part
from weir.model.topic import Progress
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Standing, Step


class Acker:
    """Asks for acks of a granted message as shards ask that coordinate."""

    def __init__(self, rig: Any) -> None:
        rig.connect()
        self.rig, info = rig, rig.topic(1)
        self.address = info.addresses[0]
        rig.answer(1, rig.batch(info, rig.answer(1, m.OpenProducer()), 0, b"in"))
        pull = m.Pull(self.address, "crew", 1, 1 << 20, lease_ms=5_000)
        self.fence = rig.answer(1, pull).fence
        self.now = rig.time.wall << 16
        _, self.partition = rig.shard.topics.partition(self.address.group)

    def prepare(self, stamp: int, number: int = 0) -> list[Any]:
        group = self.address.group
        parts = batch_part(group), acks_part(group)
        acks = [("crew", [(self.fence, 0, 1)])]
        return self.ask(m.Prepare(self.address, 5, 0, number, stamp, parts, b"", acks))

    def decide(self, stamp: int, step: Step, number: int = 0) -> list[Any]:
        return self.ask(m.Decide(self.address, 5, 0, number, stamp, True, step))

    def ask(self, request: m.Prepare | m.Decide) -> list[Any]:
        """Return what the answer will be in."""
        answers: list[Any] = []
        ask_part(self.rig.shard, request, answers.append)
        return answers

    def settle(self) -> None:
        self.rig.handle(ev.Ticked())
        self.rig.settle()


@pytest.fixture
def acker(rig: Any) -> Acker:
    return Acker(rig)


def test_acks_that_were_only_barred_are_tried_again(acker: Acker) -> None:
    """They are no other consumer's: nothing is to be given up for that."""
    barred = acker.now + 9
    acker.decide(barred, Step.ASK, number=7)
    answers = acker.prepare(acker.now + 5)
    acker.settle()
    (answer,) = answers
    assert (answer.standing, answer.stamp) == (Standing.TOO_LOW, barred)
    answers = acker.prepare(barred + 1)
    acker.settle()
    assert [answer.standing for answer in answers] == [Standing.PREPARED]


def test_acks_of_an_earlier_attempt_of_the_same_are_no_stale_grant(acker: Acker) -> None:
    """The earlier one may be committed yet, whatever its client was told."""
    first = acker.now + 5
    acker.prepare(first)
    acker.settle()
    (answer,) = acker.prepare(first + 1)
    assert (answer.standing, answer.stamp) == (Standing.OTHER, first)
    with pytest.raises(StaleGrant):
        acker.prepare(first + 2, number=1)
    acker.decide(first, Step.ABORT)
    acker.settle()
    answers = acker.prepare(first + 3, number=1)
    acker.settle()
    assert [answer.standing for answer in answers] == [Standing.PREPARED]


@pytest.mark.parametrize("step", [Step.COMMIT, Step.ABORT])
def test_a_cluster_that_was_sought_elsewhere_begins_there(acker: Acker, step: Step) -> None:
    """Whatever becomes of acks that were put aside before."""
    rig, now = acker.rig, acker.now + 5
    acker.prepare(now)
    acker.settle()
    assert isinstance(rig.answer(1, a.SeekCluster(acker.address, "crew", 0)), a.ClusterChanged)
    acker.decide(now, step)
    acker.settle()
    granted = rig.answer(1, m.Pull(acker.address, "crew", 1, 1 << 20, lease_ms=5_000))
    assert (granted.offset, granted.next_offset) == (0, 1)
    done = m.Ack(acker.address, "crew", [(granted.fence, 0, 1)])
    assert isinstance(rig.answer(1, done), m.Acked)
    assert rig.answer(1, m.Pull(acker.address, "crew", 1, 1 << 20)).fence == 0


@pytest.mark.parametrize("step", [Step.COMMIT, Step.ABORT])
def test_a_cluster_that_was_deleted_stays_so(acker: Acker, step: Step) -> None:
    rig, now = acker.rig, acker.now + 5
    acker.prepare(now)
    acker.settle()
    rig.handle(ev.Closed(1))
    rig.connect()
    assert isinstance(rig.answer(1, a.DeleteCluster(acker.address, "crew")), a.ClusterChanged)
    acker.decide(now, step)
    acker.settle()
    assert "crew" not in acker.partition.state.clusters
    assert acker.partition.state.scatterings.kept == (step == Step.COMMIT)


@pytest.mark.parametrize(
    ("step", "after"), [(Step.COMMIT, Progress.DONE), (Step.ABORT, Progress.GRANTED)]
)
def test_a_trace_tells_a_message_held_back_until_its_ack_is_decided(
    acker: Acker, step: Step, after: Progress
) -> None:
    def progress() -> Progress:
        told = acker.rig.answer(1, a.TraceMessage(acker.address, 0))
        (crew,) = told.clusters
        return Progress(crew.progress)

    assert progress() is Progress.GRANTED
    acker.prepare(acker.now + 5)
    acker.settle()
    assert progress() is Progress.HELD_BACK
    acker.decide(acker.now + 5, step)
    acker.settle()
    assert progress() is after
