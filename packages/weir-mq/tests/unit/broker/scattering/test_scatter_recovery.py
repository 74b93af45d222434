"""Recovery of a scattering, step by step: what it asks, and what it makes of the answers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, cast

import pytest

from rigs.part_questions import ask_part
from weir.broker.metadata.catalog import Catalog
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.participant import (
    Participant,
    ParticipantReports,
    RecoverySchedule,
    Unfinished,
)
from weir.errors import Refused, Unavailable
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Attempt, batch_part, group_of
from weir.order.clock import HighestStamp, stamp_at
from weir.protocol.client import messages as m
from weir.protocol.client.order import Decide, PartState, Prepare, Standing, Step

GROUPS = group_of(1, 0), group_of(1, 1), group_of(1, 2)
PARTS = tuple(batch_part(group) for group in GROUPS)
ATTEMPT = Attempt(7, 1, 0, 1 << 16)
#: Longer than any round lasts.
LONG_MS = 5_000


class Time:
    def __init__(self) -> None:
        self.now = 1_000

    def monotonic_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now


class Way:
    """What leads to no other shard: all parts are led here."""

    shard = 0

    def __init__(self) -> None:
        self.routes = self

    def toward(self, group: int) -> int:
        return self.shard

    def listen(self, *of: Any) -> None:
        """Nothing comes from elsewhere."""


class Parts:
    """The leaders of all parts, each of which has a standing, or is not reached."""

    def __init__(self, *standings: Standing | Refused) -> None:
        self.standings = dict(zip(GROUPS, standings, strict=True))
        self.asked: list[tuple[int, Step]] = []
        self.time = Time()
        self.catalog = Catalog()
        self.reports = ParticipantReports(cast(Any, None))
        self.coordinator = Coordinator(
            self,
            cast(Any, Way()),
            self.reports,
            HighestStamp(),
            self.time,
            cast(Any, None),
            Budget(0),
        )

    def recover(self, is_committed: bool) -> None:
        self.reports.unfinished.append(Unfinished(ATTEMPT, PARTS, is_committed))
        self.run()

    def ask_part(self, question: Prepare | Decide, caller: Caller) -> None:
        assert isinstance(question, Decide)
        group, step = question.address.group, Step(question.step)
        self.asked.append((group, step))
        standing = self.standings[group]
        if isinstance(standing, Refused):
            raise standing
        if standing is Standing.PREPARED and step in (Step.COMMIT, Step.ABORT):
            standing = Standing.COMMITTED if step is Step.COMMIT else Standing.NEVER
            self.standings[group] = standing
        self.reports.answer(caller, PartState(standing, ATTEMPT.stamp, 0))

    def run(self) -> None:
        for _ in range(LONG_MS // 50):
            self.time.now += 50
            self.coordinator.check_deadlines()

    def steps(self) -> set[Step]:
        return {step for _, step in self.asked}


PREPARED, COMMITTED, NEVER = Standing.PREPARED, Standing.COMMITTED, Standing.NEVER
AWAY = Unavailable("cut off")


@pytest.mark.parametrize("place", range(3))
def test_who_is_not_reached_may_be_prepared_so_nothing_is_decided(place: int) -> None:
    """One is cut off between its prepare and the decision: the coordinator may have told its client
    that all of it is committed.
    """
    parts = Parts(*[AWAY if at == place else PREPARED for at in range(3)])
    parts.recover(is_committed=False)
    assert parts.steps() == {Step.ASK}
    parts.standings[GROUPS[place]] = PREPARED
    parts.recover(is_committed=False)
    assert [*parts.standings.values()] == [COMMITTED] * 3


def test_what_one_has_committed_is_committed_though_another_is_not_reached() -> None:
    parts = Parts(COMMITTED, PREPARED, AWAY)
    parts.recover(is_committed=False)
    assert [*parts.standings.values()] == [COMMITTED, COMMITTED, AWAY]
    assert Step.CLOSE not in parts.steps(), "who has not heard of it must be able to ask"


def test_what_one_never_prepares_is_aborted_though_another_is_not_reached() -> None:
    parts = Parts(NEVER, PREPARED, AWAY)
    parts.recover(is_committed=False)
    assert [*parts.standings.values()] == [NEVER, NEVER, AWAY]


def test_what_is_committed_is_asked_about_by_nobody_and_closed_once_all_know() -> None:
    """Those who have forgotten it would say that they never prepare it."""
    parts = Parts(COMMITTED, NEVER, COMMITTED)
    parts.recover(is_committed=True)
    expected = [(group, step) for step in (Step.COMMIT, Step.CLOSE) for group in GROUPS]
    assert parts.asked == expected
    assert [*parts.standings.values()] == [COMMITTED, NEVER, COMMITTED]


def test_a_shard_asks_no_more_about_what_is_committed_and_closed(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator is gone behind the commit of one part."""
    rig.connect()
    info, grant = rig.topic(1, "t", 3), rig.answer(1, m.OpenProducer())
    groups = [address.group for address in info.addresses]
    numbers = tuple(sorted(map(batch_part, groups)))
    stamp = (rig.time.wall + 5) << 16
    ids = grant.producer, grant.epoch, 0, stamp
    machines = [rig.shard.topics.partition(group)[1] for group in groups]

    def settle(ticks: int) -> None:
        for _ in range(ticks):
            rig.tick()
            rig.settle()

    def part(request: Prepare | Decide) -> None:
        ask_part(rig.shard, request, lambda answer: None)
        settle(2)

    for address in info.addresses:
        data = encode(
            [b"x"], group=address.group, producer=grant.producer, epoch=grant.epoch, sequence=0,
            scattered=Scattered(0, numbers),
        )  # fmt: skip
        part(m.Prepare(address, *ids, numbers, bytes(data)))
    for address in info.addresses:
        part(Decide(address, *ids, False, Step.COMMIT))
    asked: Counter[Step] = Counter()
    decide = Participant.decide

    def counted(self: Participant, request: Decide, caller: Caller) -> bool:
        asked[Step(request.step)] += 1
        return decide(self, request, caller)

    monkeypatch.setattr(Participant, "decide", counted)
    settle(300)  # 15 s
    assert [machine.state.scatterings.kept for machine in machines] == [0, 0, 0]
    told = asked.copy()
    assert told[Step.ASK] == 0
    settle(600)
    assert asked == told, "it asks for ever"


def test_what_is_not_finished_is_tried_again_later_each_time() -> None:
    """A participant that is cut off for long is not asked ten times a second."""
    time, begun = Time(), list[int]()

    class Known:
        def unfinished(self) -> list[Any]:
            return [(ATTEMPT._replace(stamp=stamp_at(1_000)), False, PARTS, True)]

    known: Any = Known()
    schedule = RecoverySchedule(known, time)
    for _ in range(400):
        time.now += 50
        begun += [time.now for _ in schedule.overdue()]
    waits = [after - before for before, after in pairwise(begun)]
    assert waits == [500, 1_000, 2_000, 4_000, 8_000]
