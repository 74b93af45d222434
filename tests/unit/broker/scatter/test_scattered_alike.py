"""Two shards that chose the same stamp for the same scattering, since its client asked both: they
make one attempt, and what one of them is told is not all that happens to it (simulated ordered sets
8699 and 9179).
"""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.scatter.participant import Participant
from weir.errors import Refused, SequenceGap, StampTooFar
from weir.model.batch import encode, split
from weir.model.scattered import Scattered, batch_part
from weir.wire import messages as m
from weir.wire.scattering import Decide, Part, Standing, Step

TOO_FAR = StampTooFar("its clock is behind", 0)
GAP = SequenceGap("an earlier one is missing", 0)


class Alike:
    """A scattering over two partitions, `here` and `there`. Some of its attempts are refused
    `there`; another shard makes the same ones.
    """

    def __init__(self, rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        rig.connect()
        self.rig, self.info = rig, rig.topic(1, "t", 2)
        self.here, self.there = (one.group for one in self.info.addresses)
        self.grant = rig.answer(1, m.OpenProducer())
        #: By group, what this shard's next attempts are refused with.
        self.refusals: dict[int, list[Refused]] = {self.here: [], self.there: []}
        #: Whether the other shard's prepare comes just behind one that is refused.
        self.is_overtaken = False
        self.asked: list[m.Prepare] = []
        self.steps: list[tuple[int, Step]] = []
        #: What the other shard was told.
        self.told: list[Any] = []
        self.honest, decide = Participant.prepare, Participant.decide

        def step(participant: Participant, request: Decide, tell: Any) -> bool:
            self.steps.append((request.address.group, request.step))
            return decide(participant, request, tell)

        monkeypatch.setattr(Participant, "prepare", lambda *of: self.prepare(*of))
        monkeypatch.setattr(Participant, "decide", step)

    def prepare(self, participant: Participant, request: m.Prepare, tell: Any) -> bool:
        """Refuse the first attempts, or do as one does."""
        self.asked.append(request)
        refusals = self.refusals[request.address.group]
        if not refusals:
            return self.honest(participant, request, tell)
        tell(refusals.pop())
        return self.is_overtaken and self.honest(participant, request, self.told.append)

    def begin(self) -> int:
        """Ask this shard for the scattering; return the number of the question."""
        groups = self.here, self.there
        scattered = Scattered(0, tuple(map(batch_part, groups)))
        parts = [
            Part(
                address,
                bytes(encode(
                    [b"%d" % group], group=group, producer=self.grant.producer,
                    epoch=self.grant.epoch, sequence=0, scattered=scattered,
                )),
            )
            for address, group in zip(self.info.addresses, groups, strict=True)
        ]  # fmt: skip
        return int(self.rig.ask(1, m.Scatter(self.grant.producer, self.grant.epoch, 0, 0, parts)))

    def ask(self, group: int) -> Any:
        """Return what the other shard is told of a part of the first attempt that it prepares."""
        request = next(one for one in self.asked if one.address.group == group)
        self.rig.shard.topics.partition(group)[1].part(request, self.told.append)
        self.settle(1)
        return self.told.pop()

    def settle(self, ticks: int) -> None:
        for _ in range(ticks):
            self.rig.tick()
            self.rig.settle()

    def reply(self, number: int) -> Any:
        self.settle(9)
        (reply,) = [reply for asked, reply in self.rig.replies[1] if asked == number]
        return reply

    def values(self) -> list[bytes]:
        found = []
        for one in self.info.addresses:
            reply = self.rig.answer(1, m.Fetch(one, 0, 1 << 20))
            batches = [batch for data in reply.batches for batch in split(data, one.group)]
            found += [value for batch in batches for value in batch.values()]
        return found

    @property
    def all(self) -> list[bytes]:
        return [b"%d" % group for group in (self.here, self.there)]


@pytest.fixture
def alike(rig: Any, monkeypatch: pytest.MonkeyPatch) -> Alike:
    return Alike(rig, monkeypatch)


def test_an_attempt_that_is_prepared_everywhere_is_not_aborted_for_a_refusal(alike: Alike) -> None:
    """The other shard had told its client that it was committed, and then it was not there."""
    alike.refusals[alike.there], alike.is_overtaken = [TOO_FAR], True
    number = alike.begin()
    alike.rig.settle()
    assert alike.ask(alike.here).standing in (Standing.PREPARED, Standing.COMMITTED)
    assert [one.standing for one in alike.told] == [Standing.PREPARED]
    confirm = alike.reply(number)
    assert isinstance(confirm, m.ScatterConfirm), confirm
    assert confirm.stamp == alike.asked[0].stamp
    assert alike.values() == alike.all


def test_nothing_is_aborted_before_another_part_is_barred(alike: Alike) -> None:
    alike.refusals[alike.there] = [TOO_FAR]
    number = alike.begin()
    alike.rig.settle()
    assert alike.steps == [(alike.there, Step.ASK), (alike.here, Step.ABORT)]
    assert alike.ask(alike.there).standing == Standing.TOO_LOW, "the other shard may prepare it"
    confirm = alike.reply(number)
    assert isinstance(confirm, m.ScatterConfirm), confirm
    assert confirm.stamp > alike.asked[0].stamp
    assert alike.values() == alike.all


def test_what_is_refused_for_good_is_so_told(alike: Alike) -> None:
    """That the part is barred too does not hide why it was refused."""
    alike.refusals[alike.there] = [GAP]
    reply = alike.reply(alike.begin())
    assert reply.code == SequenceGap.code
    assert alike.values() == []


def test_nobody_is_asked_where_nothing_was_prepared(alike: Alike) -> None:
    alike.refusals[alike.here] = [GAP]
    alike.refusals[alike.there] = [GAP]
    assert alike.reply(alike.begin()).code == SequenceGap.code
    assert alike.steps == []
