"""Attempts that a clock stamped which was hours ahead, and was set back before their end."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.part_questions import ask_part
from weir.broker.scattering import participant
from weir.errors import Overloaded
from weir.model.batch import split
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part, Standing, Step

HOURS_MS = 3 * 3600 * 1000


class Late:
    """A scattering over two partitions: its first part was prepared by a clock ahead, and its
    coordinator is gone.
    """

    def __init__(self, rig: Any) -> None:
        rig.connect()
        self.rig, self.info = rig, rig.topic(1, "t", 2)
        self.grant = rig.answer(1, m.OpenProducer())
        rig.time.wall += HOURS_MS
        self.stamp = (rig.time.wall + 5) << 16
        assert self.prepare(0).standing == Standing.PREPARED
        rig.time.wall -= HOURS_MS

    def request(self, grant: Any, number: int, sequence: int) -> m.Scatter:
        parts = tuple(batch_part(one.group) for one in self.info.addresses)
        batches = [
            Part(
                one,
                bytes(encode(
                    [b"x"], group=one.group, producer=grant.producer, epoch=grant.epoch,
                    sequence=sequence, scattered=Scattered(number, parts),
                )),
            )
            for one in self.info.addresses
        ]  # fmt: skip
        return m.Scatter(grant.producer, grant.epoch, number, 0, batches)

    def prepare(self, partition: int) -> Any:
        request = self.request(self.grant, 0, 0)
        part = request.parts[partition]
        parts = tuple(batch_part(one.group) for one in self.info.addresses)
        ids = request.producer, request.epoch, 0, self.stamp
        return self.ask(partition, m.Prepare(part.address, *ids, parts, part.batch))

    def decide(self, partition: int, step: Step, stamp: int, number: int = 0) -> Any:
        ids = self.grant.producer, self.grant.epoch, number, stamp
        address = self.info.addresses[partition]
        return self.ask(partition, m.Decide(address, *ids, False, step))

    def ask(self, partition: int, request: m.Prepare | m.Decide) -> Any:
        told: list[Any] = []
        ask_part(self.rig.shard, request, told.append)
        self.settle()
        (answer,) = told
        return answer

    def partition(self, partition: int) -> Any:
        address = self.info.addresses[partition]
        return self.rig.shard.topics.partition(address.group)[1]

    def settle(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.rig.tick()
            self.rig.settle()

    def read(self, partition: int) -> list[bytes]:
        reply = self.rig.answer(1, m.Fetch(self.info.addresses[partition], 0, 1 << 20))
        group = self.info.addresses[partition].group
        found = [one for data in reply.batches for one in split(data, group)]
        return [value for one in found for value in one.values()]


@pytest.fixture
def late(rig: Any) -> Late:
    return Late(rig)


def test_it_is_found_out_before_the_time_has_come(late: Late) -> None:
    """For hours nobody did: it was counted by its stamp, and who was asked refused that (simulated
    node that scatters, 143).
    """
    first, second = late.partition(0).state, late.partition(1).state
    assert first.undecided
    late.settle(40)
    assert not first.undecided
    assert list(first.voids) == [(0, 1)]
    assert late.prepare(1).standing == Standing.NEVER  # it comes too late
    assert second.next_offset == 0
    near = (late.rig.time.wall + 1_000) << 16
    assert second.last_stamp < near, "nothing is dragged along"


def test_what_was_prepared_everywhere_is_committed(late: Late) -> None:
    late.rig.time.wall += HOURS_MS
    assert late.prepare(1).standing == Standing.PREPARED
    late.rig.time.wall -= HOURS_MS
    late.settle(40)
    assert late.read(0) == late.read(1) == [b"x"]


def test_others_are_not_barred_with_it(late: Late) -> None:
    late.settle(40)
    grant = late.rig.answer(1, m.OpenProducer())
    number = late.rig.ask(1, late.request(grant, 0, 0))
    late.settle(40)
    replies = dict(late.rig.replies[1])
    # The first partition has been where that clock was: its stamps never fall.
    assert replies[number].stamp > late.stamp


def test_scatterings_elsewhere_keep_to_the_clock(late: Late) -> None:
    """They went on above the highest stamp of the shard, and drew their partitions along."""
    late.settle(40)
    info = late.info = late.rig.topic(1, "other", 2)
    grant = late.rig.answer(1, m.OpenProducer())
    number = late.rig.ask(1, late.request(grant, 0, 0))
    late.settle(4)
    confirm = dict(late.rig.replies[1])[number]
    assert [group for group, _ in confirm.offsets] == [one.group for one in info.addresses]
    assert confirm.stamp < (late.rig.time.wall + 100) << 16


def published(late: Late, partition: int) -> int:
    """Return the stamp of a message that was confirmed behind what is undecided."""
    grant, address = late.rig.answer(1, m.OpenProducer()), late.info.addresses[partition]
    ids = {"producer": grant.producer, "epoch": grant.epoch, "sequence": 0}
    batch = encode([b"y"], group=address.group, **ids)
    stamp: int = late.rig.answer(1, m.Produce(address, 0, memoryview(batch))).stamp
    assert stamp > late.stamp
    return stamp


def test_who_asks_what_was_confirmed_waits_for_what_lies_in_front(late: Late) -> None:
    """Its partition was asked for as much as the clock may promise alone. What is undecided held it
    below what was confirmed, and readers that end now missed that (drawn worlds, 821015).
    """
    stamp = published(late, 0)
    asked = late.rig.ask(1, m.AskBarriers(late.info.id, wait_ms=10_000))
    late.settle()
    assert asked not in dict(late.rig.replies[1])
    late.settle(40)
    barriers = dict(late.rig.replies[1])[asked]
    assert barriers.reached
    assert barriers.registers[0] == (0, stamp, 2)
    assert barriers.registers[1][1] < stamp, "nothing was confirmed there, so it is not waited for"


def test_the_latest_cut_waits_for_what_lies_in_front_of_what_was_confirmed(late: Late) -> None:
    late.rig.time.wall += HOURS_MS
    assert late.prepare(1).standing == Standing.PREPARED
    late.rig.time.wall -= HOURS_MS
    assert published(late, 0) == published(late, 1)
    asked = late.rig.ask(1, m.ResolveCut(["t"], latest=True))
    late.settle(40)
    cut = dict(late.rig.replies[1])[asked]
    assert cut.topics[0].ends == [2, 2]


def test_a_restart_knows_what_is_barred_alone(late: Late) -> None:
    late.settle(40)
    assert late.partition(1).state.scatterings.alone
    late.rig.boot()
    late.rig.connect()
    late.rig.time.wall += HOURS_MS
    assert late.prepare(1).standing == Standing.NEVER


def test_so_many_are_barred_alone(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participant, "SCATTERINGS_KEPT_MAX", 2)
    for number in (7, 8):
        assert late.decide(1, Step.ASK, late.stamp, number).standing == Standing.NEVER
    with pytest.raises(Overloaded):
        late.decide(1, Step.ASK, late.stamp, 9)
    late.rig.time.wall += HOURS_MS
    assert late.decide(1, Step.ASK, late.stamp, 9).standing == Standing.NEVER
    assert not late.partition(1).state.scatterings.alone, "the time has come: one number says it"
