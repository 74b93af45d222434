"""One of a scattering's topics is deleted while it is undecided: the rest comes to its end."""

from __future__ import annotations

from typing import Any, NamedTuple

from rigs.part_questions import ask_part
from rigs.shards import rounds_of
from weir.broker.scattering.rounds import Answers
from weir.model import ids
from weir.model.batch import split
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Address, batch_part
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Decide, PartState, Standing, Step


class Part(NamedTuple):
    """A part of the attempt, and the topic that it lies in."""

    topic: str
    address: Address

    @property
    def number(self) -> int:
        return batch_part(self.address.group)


class Attempt:
    """One attempt over several topics, whose coordinator is gone."""

    def __init__(self, rig: Any, *topics: str) -> None:
        self.rig = rig
        rig.connect()
        self.grant = rig.answer(1, m.OpenProducer())
        infos = [rig.topic(1, name) for name in topics]
        self.parts = [
            Part(name, info.addresses[0]) for name, info in zip(topics, infos, strict=True)
        ]
        self.numbers = tuple(sorted(part.number for part in self.parts))
        self.stamp = (rig.time.wall + 5) << 16

    def prepare(self, part: Part) -> PartState:
        data = encode(
            [part.topic.encode()], group=part.address.group, producer=self.grant.producer,
            epoch=self.grant.epoch, sequence=0, scattered=Scattered(0, self.numbers),
        )  # fmt: skip
        ids = self.grant.producer, self.grant.epoch, 0, self.stamp
        return self.ask(part, m.Prepare(part.address, *ids, self.numbers, bytes(data)))

    def decide(self, part: Part, step: Step) -> PartState:
        ids = self.grant.producer, self.grant.epoch, 0, self.stamp
        return self.ask(part, Decide(part.address, *ids, False, step))

    def ask(self, part: Part, request: m.Prepare | Decide) -> PartState:
        told: list[Any] = []
        ask_part(self.rig.shard, request, told.append)
        self.settle(2)
        (answer,) = told
        return answer

    def of(self, part: Part) -> Any:
        return self.rig.shard.topics.partition(part.address.group)[1]

    def settle(self, ticks: int) -> None:
        for _ in range(ticks):
            self.rig.tick()
            self.rig.settle()

    def delete(self, part: Part) -> None:
        reply = self.rig.answer(1, a.DeleteTopic(part.topic))
        assert isinstance(reply, a.Deleted), reply

    def kept(self, part: Part) -> int:
        return self.of(part).state.scatterings.kept

    def values(self, part: Part) -> list[bytes]:
        reply = self.rig.answer(1, m.Fetch(part.address, 0, 1 << 20))
        return [
            value
            for data in reply.batches
            for batch in split(data, part.address.group)
            for value in batch.values()
        ]


class Told:
    """What is to be told in one order; what came of it."""

    is_over = False

    def __init__(self) -> None:
        self.answers: Answers = {}

    def take(self, answers: Answers) -> None:
        self.is_over, self.answers = True, answers


def test_what_is_prepared_wherever_a_topic_is_left_is_committed(rig: Any) -> None:
    """Its client may have been told so. Readers of what was left stood still for ever."""
    one = Attempt(rig, "gone", "left")
    gone, left = one.parts
    for part in one.parts:
        assert one.prepare(part).standing == Standing.PREPARED
    one.delete(gone)
    one.settle(30)
    assert one.values(left) == [b"left"]
    one.settle(300)  # 15 s
    assert one.kept(left) == 0, "it is never forgotten"


def test_what_is_not_prepared_in_a_topic_that_is_left_never_is(rig: Any) -> None:
    one = Attempt(rig, "gone", "left", "never")
    gone, left, never = one.parts
    for part in (gone, left):
        assert one.prepare(part).standing == Standing.PREPARED
    one.delete(gone)
    one.settle(30)
    assert one.values(left) == []
    assert one.prepare(never).standing == Standing.TOO_LOW
    assert one.kept(left) == one.kept(never) == 0


def test_a_commit_that_is_known_is_finished_without_the_topic_that_is_gone(rig: Any) -> None:
    one = Attempt(rig, "first", "gone", "last")
    first, gone, last = one.parts
    for part in one.parts:
        one.prepare(part)
    assert one.decide(first, Step.COMMIT).standing == Standing.COMMITTED
    one.delete(gone)
    one.settle(330)
    assert [one.values(first), one.values(last)] == [[b"first"], [b"last"]]
    assert one.kept(first) == one.kept(last) == 0


def test_who_aborts_goes_with_who_committed_before(rig: Any) -> None:
    """One knows that a part was refused, and aborts; another that its topic is gone, and commits.

    Told at once, the first part was committed by one and the second aborted by the other.
    """
    one = Attempt(rig, "gone", "first", "second")
    gone, first, second = one.parts
    for part in (first, second):
        one.prepare(part)
    one.delete(gone)
    assert one.decide(first, Step.COMMIT).standing == Standing.COMMITTED
    told = Told()
    attempt = ids.Attempt(one.grant.producer, one.grant.epoch, 0, one.stamp)
    both = [first.number, second.number]
    rounds = rounds_of(rig.shard)
    rounds.decide(told, attempt, one.numbers, both, Step.ABORT, rig.time.monotonic + 999)
    one.settle(5)
    assert {answer.standing for answer in told.answers.values()} == {Standing.COMMITTED}
    assert [one.values(first), one.values(second)] == [[b"first"], [b"second"]]
