"""Scatterings on one shard: all parts at one stamp, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.part_questions import ask_part
from weir.errors import (
    BadRequest,
    SequenceGap,
    SequenceReused,
    StaleGrant,
    StampTooFar,
    UnknownOpcode,
)
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Address, acks_part, batch_part
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part, Standing, Step


class Desk:
    """A client that scatters over a topic of three partitions."""

    def __init__(self, rig: Any, partitions: int = 3) -> None:
        self.rig = rig
        rig.connect()
        self.info = rig.topic(1, "t", partitions)
        self.grant = rig.answer(1, m.OpenProducer())
        self.sequences = [0] * partitions
        self.number = 0

    def group(self, partition: int) -> int:
        return self.info.addresses[partition].group

    def request(
        self, values: dict[int, list[bytes]], acks: dict[int, Any] | None = None, **more: Any
    ) -> m.Scatter:
        acks = acks or {}
        parts = tuple(sorted(
            [batch_part(self.group(p)) for p in values] + [acks_part(self.group(p)) for p in acks]
        ))  # fmt: skip
        grant = more.get("grant", self.grant)
        scattered = Scattered(self.number, parts)
        found = []
        for partition, rows in values.items():
            data = encode(
                rows, group=self.group(partition), producer=grant.producer, epoch=grant.epoch,
                sequence=self.sequences[partition], scattered=scattered,
            )  # fmt: skip
            found.append(Part(self.info.addresses[partition], bytes(data)))
        for partition, ranges in acks.items():
            found.append(Part(self.info.addresses[partition], acks=[("crew", ranges)]))
        return m.Scatter(grant.producer, grant.epoch, self.number, 0, found)

    def scatter(self, values: dict[int, list[bytes]], acks: Any = None) -> Any:
        reply = self.ask(self.request(values, acks))
        if isinstance(reply, m.ScatterConfirm):
            self.number += 1
            for partition, rows in values.items():
                self.sequences[partition] += len(rows)
        return reply

    def ask(self, request: m.Scatter) -> Any:
        """Ask, and let time pass until there is an answer."""
        number = self.rig.ask(1, request)
        for _ in range(300):
            self.rig.settle()
            for found, reply in self.rig.replies[1]:
                if found == number:
                    return reply
            self.rig.tick()
        raise AssertionError("no answer")

    def fetch(self, partition: int, offset: int = 0) -> m.Fetched:
        request = m.Fetch(self.info.addresses[partition], offset, 1 << 20)
        reply = self.rig.answer(1, request)
        assert isinstance(reply, m.Fetched)
        return reply

    def read(self, partition: int) -> list[tuple[bytes, int, int]]:
        """Return value, offset and stamp of all messages."""
        found = []
        for batch in batches(self.fetch(partition)):
            header = batch.header
            for offset, value in enumerate(batch.values(), header.first_offset):
                found.append((value, offset, header.stamp))
        return found

    def pull(self, partition: int, most: int = 10) -> m.Granted:
        address = self.info.addresses[partition]
        reply = self.rig.answer(1, m.Pull(address, "crew", most, 1 << 20, lease_ms=5_000))
        assert isinstance(reply, m.Granted)
        return reply

    def produce(self, partition: int, grant: Any, sequence: int, *values: bytes) -> Any:
        data = encode(
            list(values), group=self.group(partition), producer=grant.producer,
            epoch=grant.epoch, sequence=sequence,
        )  # fmt: skip
        address = self.info.addresses[partition]
        return self.rig.answer(1, m.Produce(address, 0, memoryview(data)))


def batches(fetched: m.Fetched) -> list[Batch]:
    found = []
    for piece in fetched.batches:
        at = 0
        while at < len(piece):
            batch = Batch(piece, at)
            at += batch.header.total_size
            found.append(batch)
    return found


@pytest.fixture
def desk(rig: Any) -> Desk:
    return Desk(rig)


def test_all_parts_have_one_stamp(desk: Desk) -> None:
    reply = desk.scatter({0: [b"a"], 1: [b"b", b"c"], 2: [b"d"]})
    assert isinstance(reply, m.ScatterConfirm)
    assert [offset for _, offset in reply.offsets] == [0, 0, 0]
    assert not reply.duplicate
    desk.rig.settle()
    stamps = {stamp for p in range(3) for _, _, stamp in desk.read(p)}
    assert stamps == {reply.stamp}
    assert [value for value, _, _ in desk.read(1)] == [b"b", b"c"]


def test_many_in_a_row_keep_offsets_and_stamps_rising(desk: Desk) -> None:
    last = 0
    for turn in range(5):
        reply = desk.scatter({0: [b"%d" % turn], 2: [b"x"]})
        assert reply.stamp > last
        last = reply.stamp
    desk.rig.settle()
    assert [offset for _, offset, _ in desk.read(0)] == [0, 1, 2, 3, 4]


def test_who_asks_again_learns_what_became_of_it(desk: Desk) -> None:
    request = desk.request({0: [b"a"], 1: [b"b"]})
    first = desk.ask(request)
    desk.rig.settle()
    again = desk.ask(request)
    assert again == m.ScatterConfirm(first.stamp, first.offsets, duplicate=True)
    assert [value for value, _, _ in desk.read(0)] == [b"a"]
    assert [value for value, _, _ in desk.read(1)] == [b"b"]


def test_a_sequence_counts_once(desk: Desk) -> None:
    desk.scatter({0: [b"a"], 1: [b"b"]})
    desk.sequences[0] = 0
    reply = desk.ask(desk.request({0: [b"other"], 1: [b"c"]}))
    assert reply.code == SequenceReused.code
    desk.rig.settle()
    assert [value for value, _, _ in desk.read(1)] == [b"b"]
    desk.sequences[0] = 5
    assert desk.ask(desk.request({0: [b"z"], 1: [b"c"]})).code == SequenceGap.code
    desk.sequences[0] = 1
    assert isinstance(desk.scatter({0: [b"e"], 1: [b"f"]}), m.ScatterConfirm)


def test_what_is_refused_leaves_nothing_to_be_seen(desk: Desk) -> None:
    desk.sequences[1] = 7  # a gap
    assert desk.ask(desk.request({0: [b"a"], 1: [b"b"]})).code == SequenceGap.code
    desk.rig.settle()
    fetched = desk.fetch(0)
    assert batches(fetched) == []
    assert (fetched.next_offset, fetched.committed) == (1, 1)  # a void range was passed by
    desk.sequences[1] = 0
    desk.scatter({0: [b"c"], 1: [b"d"]})
    desk.rig.settle()
    assert [(value, offset) for value, offset, _ in desk.read(0)] == [(b"c", 1)]


def test_a_restart_knows_voids_and_sequences(desk: Desk) -> None:
    desk.sequences[1] = 7
    desk.ask(desk.request({0: [b"a"], 1: [b"b"]}))
    desk.sequences[1] = 0
    request = desk.request({0: [b"c"], 1: [b"d"]})
    first = desk.ask(request)
    desk.rig.settle()
    desk.rig.boot()
    desk.rig.connect()
    assert desk.ask(request) == m.ScatterConfirm(first.stamp, first.offsets, duplicate=True)
    assert [(value, offset) for value, offset, _ in desk.read(0)] == [(b"c", 1)]


def prepare(desk: Desk, partition: int, request: m.Scatter, stamp: int) -> m.Prepare:
    parts = Batch(request.parts[0].batch).scattered
    assert parts is not None
    part = next(p for p in request.parts if p.address.group == desk.group(partition))
    return m.Prepare(
        part.address, request.producer, request.epoch, request.number, stamp, parts.parts,
        part.batch, part.acks,
    )  # fmt: skip


class Held:
    """A scattering of which the shard's own coordinator knows nothing: asked part by part."""

    def __init__(self, desk: Desk, values: dict[int, list[bytes]], acks: Any = None) -> None:
        self.desk = desk
        self.request = desk.request(values, acks)
        self.stamp = (desk.rig.time.wall + 5) << 16
        self.states: dict[int, Any] = {}

    def prepare(self, partition: int) -> Any:
        rig = self.desk.rig
        answers: list[Any] = []
        ask_part(rig.shard, prepare(self.desk, partition, self.request, self.stamp), answers.append)
        rig.handle(m_tick())
        rig.settle()
        (answer,) = answers
        return answer

    def decide(self, partition: int, step: Step, is_acks: bool = False) -> Any:
        rig, request = self.desk.rig, self.request
        address = self.desk.info.addresses[partition]
        question = m.Decide(
            address, request.producer, request.epoch, request.number, self.stamp, is_acks, step
        )
        answers: list[Any] = []
        ask_part(rig.shard, question, answers.append)
        rig.handle(m_tick())
        rig.settle()
        (answer,) = answers
        return answer


def m_tick() -> Any:
    from weir.broker.api import events as ev

    return ev.Ticked()


def test_readers_of_every_mode_stop_before_what_is_undecided(desk: Desk) -> None:
    other = desk.rig.answer(1, m.OpenProducer())
    desk.produce(0, other, 0, b"before")
    held = Held(desk, {0: [b"a"], 1: [b"b"]})
    assert held.prepare(0).standing == Standing.PREPARED
    desk.produce(0, other, 1, b"behind")
    assert [value for value, _, _ in desk.read(0)] == [b"before"]
    assert desk.fetch(0).committed == 1
    positions = desk.rig.answer(1, m.Positions(desk.info.addresses[0]))
    assert positions.end == 1
    granted = desk.pull(0)
    assert (granted.offset, granted.next_offset) == (0, 1)
    assert held.decide(0, Step.COMMIT).standing == Standing.COMMITTED
    assert [value for value, _, _ in desk.read(0)] == [b"before", b"a", b"behind"]


def test_clusters_pass_by_what_is_void(desk: Desk) -> None:
    other = desk.rig.answer(1, m.OpenProducer())
    held = Held(desk, {0: [b"a", b"b"], 1: [b"b"]})
    held.prepare(0)
    desk.produce(0, other, 0, b"behind")
    assert held.decide(0, Step.ABORT).standing == Standing.NEVER
    granted = desk.pull(0)
    assert (granted.offset, granted.next_offset) == (2, 3)
    ack = m.Ack(desk.info.addresses[0], "crew", [(granted.fence, 2, 3)])
    assert desk.rig.answer(1, ack).done == 3


@pytest.mark.parametrize("numbers", [(1, 0), (1, 1)])
def test_parts_that_do_not_rise_within_a_batch_are_refused(
    desk: Desk, numbers: tuple[int, int]
) -> None:
    """What a batch says of its scattering was read without a check, and that ended the broker."""
    grant = desk.rig.answer(1, m.OpenProducer())
    addresses = desk.info.addresses
    scattered = Scattered(0, tuple(batch_part(addresses[n].group) for n in numbers))
    parts = [
        Part(address, bytes(encode([b"x"], group=address.group, producer=grant.producer,
                                   epoch=grant.epoch, sequence=0, scattered=scattered)))
        for address in addresses[:2]
    ]  # fmt: skip
    reply = desk.rig.answer(1, m.Scatter(grant.producer, grant.epoch, 0, 0, parts))
    assert isinstance(reply, m.Refusal)
    assert (reply.code, "do not rise" in reply.message) == (BadRequest.code, True)
    assert desk.fetch(0).committed == 0


def test_who_lists_clusters_is_told_what_is_void(desk: Desk) -> None:
    other = desk.rig.answer(1, m.OpenProducer())
    home = desk.info.addresses[0]
    assert desk.rig.answer(1, a.ListClusters(home)).voids == ()
    desk.produce(0, other, 0, b"before")
    held = Held(desk, {0: [b"a", b"b"], 1: [b"b"]})
    held.prepare(0)
    assert held.decide(0, Step.ABORT).standing == Standing.NEVER
    listed = desk.rig.answer(1, a.ListClusters(home))
    assert (listed.start, listed.end, listed.voids) == (0, 3, ((1, 3),))
    _, partition = desk.rig.shard.topics.partition(home.group)
    state = partition.state
    assert [state.messages_from(offset) for offset in (0, 1, 2, 3, 7)] == [1, 0, 0, 0, 0]
    partition.state.pauses["never"] = True, 1  # paused before it began here
    (info,) = desk.rig.answer(1, a.ListClusters(home, "never")).clusters
    assert (info.cursor, info.lag) == (0, 1)


def test_what_is_undecided_for_long_is_found_out(desk: Desk) -> None:
    held = Held(desk, {0: [b"a"], 1: [b"b"]})
    held.prepare(0)
    for _ in range(40):  # nobody ever prepares the other part
        desk.rig.tick()
        desk.rig.settle()
    assert desk.fetch(0).committed == 1
    assert desk.read(0) == []
    assert held.prepare(1).standing == Standing.TOO_LOW  # it comes too late
    held = Held(desk, {0: [b"c"], 1: [b"d"]})
    held.prepare(0)
    held.prepare(1)
    for _ in range(40):
        desk.rig.tick()
        desk.rig.settle()
    assert [value for value, _, _ in desk.read(0)] == [b"c"]
    assert [value for value, _, _ in desk.read(1)] == [b"d"]


def test_a_stamp_that_is_too_low_is_refused(desk: Desk) -> None:
    other = desk.rig.answer(1, m.OpenProducer())
    held = Held(desk, {0: [b"a"], 1: [b"b"]})
    held.stamp = (desk.rig.time.wall - 5) << 16
    desk.produce(0, other, 0, b"x")
    answer = held.prepare(0)
    assert answer.standing == Standing.TOO_LOW
    assert answer.stamp >= desk.rig.time.wall << 16


def test_no_client_drags_stamps_ahead(desk: Desk) -> None:
    request = desk.request({0: [b"a"], 1: [b"b"]})
    far = m.Scatter(request.producer, request.epoch, 0, 1 << 62, request.parts)
    assert desk.ask(far).code == StampTooFar.code
    near = (desk.rig.time.wall + 900) << 16
    confirm = desk.ask(m.Scatter(request.producer, request.epoch, 0, near, request.parts))
    assert near < confirm.stamp < near + (100 << 16)


def test_many_scatterings_keep_to_the_clock(desk: Desk) -> None:
    for number in range(300):  # and time stands still
        confirm = desk.scatter({0: [b"%d" % number], 1: [b"x"]})
    assert confirm.stamp < (desk.rig.time.wall + 50) << 16


def test_parts_are_not_sent_by_other_requests(desk: Desk) -> None:
    data = desk.request({0: [b"a"]}).parts[0].batch
    reply = desk.rig.answer(1, m.Produce(desk.info.addresses[0], 0, memoryview(data)))
    assert reply.code == BadRequest.code
    question = prepare(desk, 0, desk.request({0: [b"a"]}), 1 << 50)
    assert desk.rig.answer(1, question).code == UnknownOpcode.code


@pytest.mark.parametrize("change", [
    lambda parts: [*parts, *parts],
    lambda parts: [Part(parts[0].address)],
    lambda parts: [Part(parts[0].address, acks=[("crew", [(1, 0, 1)])])],
    lambda parts: [Part(Address(0, 0, 77), parts[0].batch)],
])  # fmt: skip
def test_requests_that_make_no_sense(desk: Desk, change: Callable[[Any], Any]) -> None:
    request = desk.request({0: [b"a"]})
    wrong = m.Scatter(
        request.producer, request.epoch, request.number, 0, change(list(request.parts))
    )
    assert isinstance(desk.ask(wrong), m.Refusal)
    desk.rig.settle()
    assert desk.read(0) == []


# -- acks ------------------------------------------------------------------------------------


def consumed(desk: Desk, partition: int = 2, count: int = 3) -> m.Granted:
    other = desk.rig.answer(1, m.OpenProducer())
    desk.produce(partition, other, 0, *(b"in%d" % at for at in range(count)))
    return desk.pull(partition)


def test_acks_and_publishes_are_one_step(desk: Desk) -> None:
    granted = consumed(desk)
    reply = desk.scatter({0: [b"out"]}, {2: [(granted.fence, 0, 3)]})
    assert isinstance(reply, m.ScatterConfirm)
    desk.rig.settle()
    assert [value for value, _, _ in desk.read(0)] == [b"out"]
    for _ in range(200):  # leases end
        desk.rig.tick()
    assert desk.pull(2).fence == 0


def test_stale_acks_publish_nothing(desk: Desk) -> None:
    granted = consumed(desk)
    desk.rig.answer(1, m.Ack(desk.info.addresses[2], "crew", [(granted.fence, 0, 3)]))
    reply = desk.scatter({0: [b"out"]}, {2: [(granted.fence, 0, 3)]})
    assert reply.code == StaleGrant.code
    desk.rig.settle()
    assert desk.read(0) == []


def test_a_retry_of_what_was_acked_is_no_stale_grant(desk: Desk) -> None:
    granted = consumed(desk)
    request = desk.request({0: [b"out"]}, {2: [(granted.fence, 0, 3)]})
    first = desk.ask(request)
    desk.rig.settle()
    assert desk.ask(request) == m.ScatterConfirm(first.stamp, first.offsets, duplicate=True)


def test_nobody_gets_what_undecided_acks_hold(desk: Desk) -> None:
    granted = consumed(desk)
    held = Held(desk, {0: [b"out"]}, {2: [(granted.fence, 0, 2)]})
    assert held.prepare(2).standing == Standing.PREPARED
    desk.rig.time.monotonic += 8_000  # its lease is over; stamps do not say so
    desk.rig.handle(m_tick())
    again = desk.pull(2)
    assert (again.offset, again.next_offset) == (2, 3)
    nack = m.Nack(desk.info.addresses[2], "crew", granted.fence, [(0, 2)])
    assert desk.rig.answer(1, nack).code == StaleGrant.code
    assert held.decide(2, Step.ABORT, is_acks=True).standing == Standing.NEVER
    desk.rig.time.monotonic += 8_000
    desk.rig.handle(m_tick())
    assert desk.pull(2, 1).offset == 0
