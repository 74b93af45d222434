"""Two shards that chose the same stamp for the same scattering, since its client asked both: they
make one attempt, and what one of them is told is not all that happens to it (simulated ordered sets
8699 and 9179).
"""

from __future__ import annotations

from typing import Any

import pytest

from rigs.part_questions import ask_part, asker_of, listen
from rigs.shards import answer_part
from weir.broker.runtime.outbox import Caller
from weir.broker.scattering.participant import Participant
from weir.errors import Refused, SequenceGap, StampTooFar
from weir.model.batch import split
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Decide, Part, PartState, Standing, Step

TOO_FAR = StampTooFar("its clock is behind", 0)
GAP = SequenceGap("an earlier one is missing", 0)


class Alike:
    """A scattering over some partitions: `here`, `there`, and maybe another. Some of its attempts
    are refused there; another shard makes the same ones.
    """

    def __init__(self, rig: Any, monkeypatch: pytest.MonkeyPatch, partitions: int = 2) -> None:
        rig.connect()
        self.rig, self.info = rig, rig.topic(1, "t", partitions)
        self.groups = [one.group for one in self.info.addresses]
        self.here, self.there = self.groups[:2]
        self.grant = rig.answer(1, m.OpenProducer())
        #: By group, what this shard's next attempts are refused with.
        self.refusals: dict[int, list[Refused | PartState]] = {group: [] for group in self.groups}
        #: Whether the other shard's prepare comes just behind one that is refused.
        self.is_overtaken = False
        self.asked: list[m.Prepare] = []
        self.steps: list[tuple[int, Step]] = []
        #: What the other shard was told.
        self.told: list[Any] = []
        listen(rig.shard)
        self.honest, decide = Participant.prepare, Participant.decide

        def step(participant: Participant, request: Decide, caller: Caller) -> bool:
            self.steps.append((request.address.group, request.step))
            return decide(participant, request, caller)

        monkeypatch.setattr(Participant, "prepare", lambda *of: self.prepare(*of))
        monkeypatch.setattr(Participant, "decide", step)

    def prepare(self, participant: Participant, request: m.Prepare, caller: Caller) -> bool:
        """Refuse the first attempts, or do as one does."""
        self.asked.append(request)
        refusals = self.refusals[request.address.group]
        if not refusals:
            return self.honest(participant, request, caller)
        answer_part(self.rig.shard, caller, refusals.pop())
        other = asker_of(self.rig.shard, self.told.append)
        return self.is_overtaken and self.honest(participant, request, other)

    def begin(self) -> int:
        """Ask this shard for the scattering; return the number of the question."""
        scattered = Scattered(0, tuple(map(batch_part, self.groups)))
        parts = [
            Part(
                address,
                bytes(encode(
                    [b"%d" % group], group=group, producer=self.grant.producer,
                    epoch=self.grant.epoch, sequence=0, scattered=scattered,
                )),
            )
            for address, group in zip(self.info.addresses, self.groups, strict=True)
        ]  # fmt: skip
        return int(self.rig.ask(1, m.Scatter(self.grant.producer, self.grant.epoch, 0, 0, parts)))

    def ask(self, group: int) -> Any:
        """Return what the other shard is told of a part of the first attempt that it prepares."""
        request = next(one for one in self.asked if one.address.group == group)
        ask_part(self.rig.shard, request, self.told.append)
        self.settle(1)
        return self.told.pop()

    def times(self, group: int) -> int:
        """Return how often a part was to be prepared."""
        return sum(one.address.group == group for one in self.asked)

    def settle(self, ticks: int) -> None:
        for _ in range(ticks):
            self.rig.tick()
            self.rig.settle()

    def reply(self, number: int) -> Any:
        self.settle(60)
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
        return [b"%d" % group for group in self.groups]


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


def test_who_was_not_too_far_ahead_waits_for_who_was(alike: Alike) -> None:
    """Each attempt held readers of the one back for a while, and had to be barred by the other."""
    alike.refusals[alike.there] = [TOO_FAR] * 9
    number = alike.begin()
    while alike.refusals[alike.there]:
        alike.settle(1)
    assert alike.times(alike.here) == 1
    assert isinstance(alike.reply(number), m.ScatterConfirm)
    assert (alike.times(alike.here), alike.times(alike.there)) == (2, 10)
    assert alike.values() == alike.all


def test_where_stamps_are_far_ahead_a_part_waits_for_those_that_are_not(alike: Alike) -> None:
    far = (alike.rig.time.wall + 5_000) << 16
    alike.refusals[alike.here] = [PartState(Standing.TOO_LOW, far)]
    number = alike.begin()
    alike.settle(60)
    assert alike.times(alike.there) > 5
    assert alike.times(alike.here) == 1
    alike.settle(60)
    confirm = alike.reply(number)
    assert isinstance(confirm, m.ScatterConfirm), confirm
    assert confirm.stamp > far
    assert alike.values() == alike.all
    partition = alike.rig.shard.topics.partition(alike.there)[1]
    assert not partition.state.scatterings.alone


def test_a_part_that_waited_is_barred_before_another_is_aborted(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shard may have had it prepared, and all the rest as well."""
    alike = Alike(rig, monkeypatch, partitions=3)
    last = alike.groups[-1]
    alike.refusals[alike.there], alike.refusals[last] = [TOO_FAR], [TOO_FAR, TOO_FAR]
    number = alike.begin()
    alike.rig.settle()
    alike.steps.clear()
    alike.is_overtaken = True  # the last part, when it is refused for the second time
    while alike.refusals[last]:
        alike.settle(1)
    assert [one.standing for one in alike.told] == [Standing.PREPARED]
    second = [one.stamp for one in alike.asked if one.address.group == last][1]
    assert alike.here not in {one.address.group for one in alike.asked if one.stamp == second}
    asks = [(alike.here, Step.ASK), (last, Step.ASK)]
    assert alike.steps[:3] == [*asks, (alike.there, Step.ABORT)]
    assert isinstance(alike.reply(number), m.ScatterConfirm)
    assert alike.values() == alike.all
