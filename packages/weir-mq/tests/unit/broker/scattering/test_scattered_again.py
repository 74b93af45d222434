"""A scattering that is asked for again while it is under way: one coordinator goes on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rigs.part_questions import ask_part
from weir.broker.api import events as ev
from weir.broker.runtime.outbox import Caller
from weir.broker.scattering.participant import Participant
from weir.errors import Unavailable
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part, Standing, Step


def blocked(rig: Any) -> m.Scatter:
    """Return a scattering that finds no end: another of its producer is undecided."""
    rig.connect()
    info, grant = rig.topic(1), rig.answer(1, m.OpenProducer())
    address = info.addresses[0]
    requests = []
    for number, parts in enumerate(((batch_part(address.group),), (2, batch_part(address.group)))):
        data = encode(
            [b"%d" % number], group=address.group, producer=grant.producer, epoch=grant.epoch,
            sequence=0, scattered=Scattered(number, tuple(sorted(parts))),
        )  # fmt: skip
        requests.append(bytes(data))
    stamp = (rig.time.wall + 900) << 16  # for long nobody looks what became of it
    ask_part(
        rig.shard,
        m.Prepare(
            address, grant.producer, grant.epoch, 1, stamp, (2, batch_part(address.group)),
            requests[1],
        ),
        lambda answer: None,
    )  # fmt: skip
    settle(rig)
    return m.Scatter(grant.producer, grant.epoch, 0, 0, [Part(address, requests[0])])


def settle(rig: Any, ticks: int = 1) -> None:
    for _ in range(ticks):
        rig.tick()
        rig.settle()


def replies(rig: Any, number: int) -> list[Any]:
    return [reply for asked, reply in rig.replies[1] if asked == number]


def test_who_asks_again_is_answered_by_one_coordinator(rig: Any) -> None:
    request = blocked(rig)
    first = rig.ask(1, request)
    settle(rig, 4)
    assert replies(rig, first) == []
    again = rig.ask(1, request)
    settle(rig, 4)
    (reply,) = replies(rig, first)
    assert reply.code == Unavailable.code
    assert replies(rig, again) == []


def test_nothing_is_attempted_again_for_who_hung_up(rig: Any) -> None:
    """Its client asks elsewhere: the attempts of both would end each other for 10 s (simulated
    ordered set 197).
    """
    request = blocked(rig)
    rig.ask(1, request)
    settle(rig, 4)
    assert rig.shard.budget.used
    rig.handle(ev.Closed(1))
    settle(rig, 4)
    assert not rig.shard.budget.used


def test_no_attempt_is_made_twice(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above what its client had seen, each of the later ones had the stamp of the one before when a
    clock was set back.
    """
    request = replace(blocked(rig), seen=(rig.time.wall + 990) << 16)
    stamps, honest = list[int](), Participant.prepare

    def prepare(self: Participant, prepare: m.Prepare, caller: Caller) -> bool:
        stamps.append(prepare.stamp)
        return honest(self, prepare, caller)

    monkeypatch.setattr(Participant, "prepare", prepare)
    rig.ask(1, request)
    rig.time.wall -= 5_000
    settle(rig, 60)
    assert len(stamps) > 9
    assert stamps == sorted(set(stamps))


def test_a_void_part_leaves_the_next_attempt_alone(rig: Any) -> None:
    """Two were told that it is void, and one tried again at once (simulated ordered set 446)."""
    rig.connect()
    info, grant = rig.topic(1), rig.answer(1, m.OpenProducer())
    address = info.addresses[0]
    parts = (2, batch_part(address.group))
    data = encode(
        [b"a"], group=address.group, producer=grant.producer, epoch=grant.epoch, sequence=0,
        scattered=Scattered(0, parts),
    )  # fmt: skip
    now, told = rig.time.wall << 16, list[Standing]()

    def prepare(stamp: int, then: int = 0) -> None:
        def tell(answer: Any) -> None:
            told.append(answer.standing)
            if then:
                prepare(then)

        ids = grant.producer, grant.epoch, 0
        ask_part(rig.shard, m.Prepare(address, *ids, stamp, parts, bytes(data)), tell)

    prepare(now + 5, then=now + 99)
    prepare(now + 5)
    bar = m.Decide(address, 7, 0, 0, now + 9, False, Step.ASK)
    ask_part(rig.shard, bar, lambda answer: None)
    settle(rig, 2)
    assert told == [Standing.NEVER, Standing.NEVER, Standing.PREPARED]
