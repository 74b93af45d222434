"""Topics of different retention in one log: what is kept for long is copied by its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.replica.checkpoints import CHECKPOINT_MS
from weir.broker.replica.writer import COPY_EVERY_MS
from weir.model.batch import split
from weir.model.topic import SettingsChange
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.storage.compaction import CopyPiece

HOUR_MS = 3_600_000


def look(rig: Any, times: int = 30) -> None:
    for _ in range(times):
        rig.tick(COPY_EVERY_MS)
        rig.settle()


class Topics:
    """A node with a topic that keeps an hour and one that keeps a month."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        rig.connect()
        short, long = (
            SettingsChange(retention_ms=HOUR_MS),
            SettingsChange(retention_ms=720 * HOUR_MS),
        )
        self.short = rig.answer(1, m.CreateTopic("short", settings=short))
        self.long = rig.answer(1, m.CreateTopic("long", settings=long))
        self.grant = rig.answer(1, m.OpenProducer())
        self.sent = 0

    def publish(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            for part in range(6):
                self.put(self.short, 6 * self.sent + part, bytes(9_000))
            self.put(self.long, self.sent, b"%06d" % self.sent)
            self.sent += 1

    def put(self, info: m.TopicInfo, sequence: int, value: bytes) -> None:
        reply = self.rig.answer(1, self.rig.batch(info, self.grant, sequence, value))
        assert isinstance(reply, m.Confirm), reply

    def pass_an_hour(self) -> None:
        """Let what is old go, and what is not be copied, and a checkpoint say so."""
        self.rig.time.pass_ms(2 * HOUR_MS)
        look(self.rig)
        self.rig.time.pass_ms(CHECKPOINT_MS)
        look(self.rig)

    def check(self) -> None:
        """All that is to be kept for a month is there to be read."""
        values: list[bytes] = []
        while len(values) < self.sent:
            reply = self.rig.answer(1, m.Fetch(self.long.addresses[0], len(values), 1 << 20))
            for batch in split(b"".join(reply.batches), self.long.addresses[0].group):
                values += [bytes(value) for value in batch.values()]
        assert values == [b"%06d" % n for n in range(self.sent)]

    def classes(self) -> list[int]:
        return [one.class_ for one in self.rig.shard.writers[0].log.segments.copies]


@pytest.fixture
def topics(make_rig: Callable[..., Any]) -> Topics:
    return Topics(make_rig(cache=0, retention_every_ms=1, checkpoint_bytes=1))


def test_what_is_kept_for_long_gives_its_segments_back(topics: Topics) -> None:
    topics.publish(12)
    row = topics.rig.shard.writers[0].log.segments
    before = len(row)
    topics.pass_an_hour()
    assert topics.classes() == [4]
    assert len(row) < before // 2
    topics.check()
    topics.rig.disk.crash()
    topics.rig.boot()
    topics.rig.connect()
    topics.check()
    topics.publish(6)
    topics.check()


def test_a_changed_retention_changes_the_class_of_what_is_copied_later(topics: Topics) -> None:
    topics.publish()
    topics.pass_an_hour()
    topics.rig.answer(1, a.AlterTopic("long", SettingsChange(retention_ms=100 * HOUR_MS)))
    topics.publish()
    topics.pass_an_hour()
    assert topics.classes() == [4, 3]
    topics.check()


def test_pieces_come_one_at_a_time_and_not_too_often(topics: Topics) -> None:
    topics.publish(12)
    topics.rig.time.pass_ms(2 * HOUR_MS)
    look(topics.rig, 2)
    rig, seen = topics.rig, []
    for _ in range(400):
        rig.tick(COPY_EVERY_MS // 2)
        pieces = [job for job in rig.jobs if is_copy(job)]
        assert len(pieces) <= 1
        if pieces:
            seen.append(rig.time.monotonic)
            rig.tick(10 * COPY_EVERY_MS)
            assert [job for job in rig.jobs if is_copy(job)] == pieces
        rig.settle()
    assert len(seen) > 1
    topics.check()


def is_copy(job: Any) -> bool:
    return isinstance(job, ef.StartChore) and isinstance(job.chore, CopyPiece)
