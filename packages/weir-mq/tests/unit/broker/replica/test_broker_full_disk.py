"""A full disk refuses publishes first; acks, votes and configuration go on (DESIGN §4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.events import Findings
from weir.broker.replica import checkpoints
from weir.broker.replica.checkpoints import CHECKPOINT_RETRY_MS, Opened
from weir.broker.replica.disk_room import SPARE_RETRY_MS
from weir.broker.replica.writer import Writer
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.errors import Overloaded
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.format.segment import segment_number
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

VALUE = b"v" * 10_000


class FullDisk:
    """Does a rig's jobs, but makes no file while it is full; counts how often it was asked."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.full = True
        self.asked = 0

    def settle(self) -> None:
        rig = self.rig
        while rig.jobs:
            if self.full and isinstance(rig.jobs[0], ef.MakeSpare):
                job = rig.jobs.pop(0)
                self.asked += 1
                rig.handle(ev.SpareMade(job.log, job.spare, made=False))
            else:
                rig.step()

    def publish(self, info: m.TopicInfo, grant: m.ProducerGrant, sequence: int) -> Any:
        number = self.rig.ask(1, self.rig.batch(info, grant, sequence, VALUE))
        self.settle()
        return dict(self.rig.replies[1])[number]


@pytest.fixture
def founded(rig: Any) -> tuple[Any, m.TopicInfo, m.ProducerGrant]:
    session = rig.connect()
    return rig, rig.topic(session), rig.answer(session, m.OpenProducer())


def segments_of(names: Iterable[str]) -> set[str]:
    return {name for name in names if segment_number(name) is not None}


def fill(disk: FullDisk, info: m.TopicInfo, grant: m.ProducerGrant) -> int:
    """Publish until that is refused; return how many were confirmed."""
    for sequence in range(50):
        reply = disk.publish(info, grant, sequence)
        if isinstance(reply, m.Refusal):
            assert reply.code == Overloaded.code
            assert reply.detail == SPARE_RETRY_MS
            assert "free space" in reply.message
            return sequence
    pytest.fail("never refused")


def test_publishes_are_refused_before_the_reserve_is_touched(founded: Any) -> None:
    rig, info, grant = founded
    rig.device(50, d.hello(7, 1, "t"))
    disk = FullDisk(rig)
    files = set(rig.disk.names())
    assert rig.shard.needed_bytes == 0
    confirmed = fill(disk, info, grant)
    assert rig.shard.needed_bytes == rig.log_settings.segment_bytes
    assert confirmed >= 6, "all of the spare but the reserve is used"
    log = rig.shard.writers[0].log
    assert log.room_bytes > rig.log_settings.segment_bytes // 2
    rig.device(50, d.publish(1, b"value", 0))
    disk.settle()
    assert rig.device_replies[50][-1].code == Overloaded.code
    # Configuration, grants and acks go on, into the reserve.
    pull = rig.ask(1, m.Pull(info.addresses[0], "c", 3, 1 << 20, 0))
    disk.settle()
    granted = dict(rig.replies[1])[pull]
    assert granted.next_offset == 3
    ack = rig.ask(1, m.Ack(info.addresses[0], "c", [(granted.fence, 0, 3)]))
    topic = rig.ask(1, m.CreateTopic("other", 1))
    disk.settle()
    replies = dict(rig.replies[1])
    assert isinstance(replies[ack], m.Acked)
    assert isinstance(replies[topic], m.TopicInfo)
    assert segments_of(rig.disk.names()) == segments_of(files)
    # Freed: the next try is the tick's, after a pause, and then publishes go on.
    before = disk.asked
    disk.full = False
    rig.tick(10)
    disk.settle()
    assert disk.asked == before
    rig.tick(SPARE_RETRY_MS)
    disk.settle()
    assert disk.publish(info, grant, confirmed).offset == confirmed
    assert rig.shard.needed_bytes == 0


def test_nothing_is_refused_while_files_can_be_made(founded: Any) -> None:
    rig, info, grant = founded
    disk = FullDisk(rig)
    disk.full = False
    for sequence in range(40):
        assert disk.publish(info, grant, sequence).offset == sequence


def test_what_was_admitted_already_counts(make_rig: Callable[..., Any]) -> None:
    """Publishes that wait in memory will want room too."""
    rig = make_rig()
    session = rig.connect()
    info, grant = rig.topic(session), rig.answer(session, m.OpenProducer())
    disk = FullDisk(rig)
    fill(disk, info, grant)
    disk.full = False
    rig.tick(SPARE_RETRY_MS)
    disk.settle()
    disk.full = True
    writer = rig.shard.writers[0]
    writer.room.cannot_grow = True
    admitted = writer.log.room_bytes - rig.log_settings.segment_bytes
    writer.room.check(admitted)
    with pytest.raises(Overloaded):
        writer.room.check(admitted + 1)


def test_a_full_disk_is_asked_again_by_tick_only(founded: Any) -> None:
    rig, info, grant = founded
    disk = FullDisk(rig)
    fill(disk, info, grant)
    asked = disk.asked
    for _ in range(10):
        rig.tick(SPARE_RETRY_MS // 10)
        disk.settle()
    assert disk.asked == asked + 1


def test_a_stop_waits_for_what_waits_for_a_spare(time: Any) -> None:
    """A restart near a segment's end: the first flush rolls onto a spare that is not zeroed yet."""
    disk = SimDisk(random.Random(1))
    settings = Settings(1, 1, segment_bytes=8192, entry_bytes_max=1000, spares=1)
    log = recover(disk, settings).log
    flush = log.next_flush()
    assert flush is not None
    flush.run(disk)
    log.flushed(flush)
    spare = log.spares.wants()
    assert spare is not None
    spare.run(disk)
    found = recover(disk, settings)
    outbox = Outbox(Budget())
    writer = Writer(Opened(found.log, found.groups), outbox, time, Findings())
    for index in range(1, 6):
        found.log.append(Record(9, 1, index, Kind.NOOP, (b"x" * 900,), 900))
    writer.start_work()
    assert outbox.take() == [ef.MakeSpare(1, spare)]
    assert not writer.idle
    assert found.log.filled == 1.0, "who zeroes it must not take its time"
    writer.handle(ev.SpareMade(1, spare))
    writer.start_work()
    assert [type(effect) for effect in outbox.take()] == [ef.StartFlush, ef.MakeSpare]


@pytest.fixture
def writer(time: Any) -> tuple[Writer, Outbox]:
    settings = Settings(1, 1, segment_bytes=65536, entry_bytes_max=1000, spares=0)
    found = recover(SimDisk(random.Random(1)), settings)
    outbox = Outbox(Budget())
    return Writer(
        Opened(found.log, found.groups), outbox, time, Findings(), checkpoint_bytes=100
    ), outbox


def saves(outbox: Outbox) -> int:
    return sum(isinstance(effect, ef.SaveCheckpoint) for effect in outbox.take())


def test_a_failed_checkpoint_is_tried_again_after_a_pause(writer: Any, time: Any) -> None:
    writer, outbox = writer
    writer.log.append(Record(9, 1, 1, Kind.NOOP, (b"x" * 900,), 900))
    writer.work_by_time()
    assert saves(outbox) == 1
    writer.checkpoints.saved(False)
    writer.work_by_time()
    assert saves(outbox) == 0, "not at once"
    time.pass_ms(CHECKPOINT_RETRY_MS)
    writer.work_by_time()
    assert saves(outbox) == 1, "nothing was saved, so all of the log is still to be covered"
    writer.checkpoints.saved(True)
    time.pass_ms(CHECKPOINT_RETRY_MS)
    writer.work_by_time()
    assert saves(outbox) == 0


def test_many_small_frames_are_worth_a_checkpoint(
    time: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads them one by one, however few bytes they are."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", 20)
    found = recover(SimDisk(random.Random(1)), Settings(1, 1))
    outbox = Outbox(Budget())
    writer = Writer(Opened(found.log, found.groups), outbox, time, Findings())
    for index in range(1, 22):
        writer.work_by_time()
        assert saves(outbox) == 0
        writer.log.append(Record(9, 1, index, Kind.NOOP, (b"x",), 1))
    writer.work_by_time()
    assert saves(outbox) == 1
    writer.checkpoints.saved(True)
    writer.work_by_time()
    assert saves(outbox) == 0


def test_a_stop_does_not_insist_on_a_checkpoint(writer: Any) -> None:
    writer, outbox = writer
    writer.log.append(Record(9, 1, 1, Kind.NOOP, (b"x" * 900,), 900))
    writer.start_work()
    (started,) = outbox.take()
    writer.flushed(started.flush)
    assert not writer.checkpoints.is_current
    writer.checkpoints.save()
    assert not writer.idle
    writer.checkpoints.saved(False)
    assert writer.idle
    assert writer.checkpoints.is_current


def test_what_is_deleted_gives_a_full_disk_room_soon(founded: Any) -> None:
    """Only a checkpoint frees segments. While all publishes were refused hardly anything grew, so
    the next one came after minutes; in a log in which nothing is written at all, never.
    """
    rig, info, grant = founded
    other = rig.topic(1, "other")
    disk = FullDisk(rig)
    fill(disk, info, grant)
    for _ in range(CHECKPOINT_RETRY_MS // SPARE_RETRY_MS):
        rig.tick(SPARE_RETRY_MS)
        disk.settle()
    assert isinstance(disk.publish(other, grant, 0), m.Refusal)
    rig.ask(1, a.DeleteTopic("t"))
    for _ in range(2 * CHECKPOINT_RETRY_MS // SPARE_RETRY_MS):
        rig.tick(SPARE_RETRY_MS)
        disk.settle()
    assert disk.publish(other, grant, 0).offset == 0
