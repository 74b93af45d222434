"""Files follow what is retained: segments are freed when nothing in them is needed any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from weir.broker.api import effects as ef
from weir.broker.replica.checkpoints import FREE_TRIES
from weir.broker.replica.group import Group
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m
from weir.storage.format.checkpoint import CHECKPOINT, COPY

SEGMENT = 64 * 1024
MINUTE_MS = 60_000


@pytest.fixture
def founded(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig()
    rig.log_settings = replace(rig.log_settings, spares=2)
    rig.boot()
    rig.connect()
    rig.grant, rig.sequence = rig.answer(1, m.OpenProducer()), 0
    return rig


def limited(rig: Any, retention_bytes: int) -> m.TopicInfo:
    change = SettingsChange(retention_bytes=retention_bytes)
    info = rig.answer(1, m.CreateTopic("t", 1, settings=change))
    assert isinstance(info, m.TopicInfo)
    return info


def publish(rig: Any, info: m.TopicInfo, size: int) -> int:
    """Publish at least `size` bytes within a second; return the bytes that checkpoints wrote."""
    written, start = 0, rig.sequence
    while (rig.sequence - start) * 10_000 < size:
        reply = rig.answer(1, rig.batch(info, rig.grant, rig.sequence, b"v" * 10_000))
        assert isinstance(reply, m.Confirm)
        rig.sequence += 1
        if rig.sequence % 50 == 0:
            written += wait(rig, 50)
    return written


def wait(rig: Any, ms: int) -> int:
    """Let time pass; return the bytes that checkpoints wrote."""
    written = 0
    for _ in range(ms // 50):
        rig.tick(50)
        saves = sum(isinstance(job, ef.SaveCheckpoint) for job in rig.jobs)
        rig.settle()
        written += saves * state_bytes(rig)
    return written


def state_bytes(rig: Any) -> int:
    names = rig.disk.names()
    return sum(rig.disk.size(name) for name in (CHECKPOINT, COPY) if name in names)


def file_bytes(rig: Any) -> int:
    return sum(rig.disk.size(name) for name in rig.disk.names())


@pytest.mark.parametrize(
    "retained",
    [
        SEGMENT // 2,
        5 * SEGMENT,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (1_000, SEGMENT)),
    ],
)
def test_files_follow_what_is_retained_within_a_minute(founded: Any, retained: int) -> None:
    rig, info = founded, limited(founded, retained)
    for round in range(12):  # the last segment is filled to another part each time
        publish(rig, info, max(10 * retained, 10 * SEGMENT) + round * 6_000)
        wait(rig, MINUTE_MS)
        kept = retained + 10_000 + state_bytes(rig)  # at least so much stays: up to one entry more
        assert file_bytes(rig) <= 1.25 * kept + 3 * SEGMENT
        head = rig.answer(1, m.Positions(info.addresses[0]))
        assert head.end - head.start >= retained // 10_100


def test_checkpoints_write_a_twentieth_of_what_is_logged(founded: Any) -> None:
    rig, info = founded, limited(founded, SEGMENT)
    for number in range(400):
        rig.answer(1, m.CreateTopic(f"another-{number}", 1))
    publish(rig, info, 10 * SEGMENT)
    wait(rig, MINUTE_MS)
    assert state_bytes(rig) > SEGMENT / 20, "each segment alone does not pay for a checkpoint"
    before = rig.shard.writers[0].log.tail
    written = 0
    for _ in range(8):
        written += publish(rig, info, 20 * SEGMENT) + wait(rig, MINUTE_MS // 2)
    logged = rig.shard.writers[0].log.tail - before
    by_time = state_bytes(rig)  # at most one is due by time in four minutes
    assert 0 < written <= logged / 20 + by_time


def test_an_idle_log_keeps_one_spare_and_a_busy_one_two(founded: Any) -> None:
    rig, info = founded, limited(founded, SEGMENT)
    log = rig.shard.writers[0].log
    publish(rig, info, 6 * SEGMENT)
    assert log.spares.ready_bytes == 2 * SEGMENT
    wait(rig, MINUTE_MS)
    assert log.spares.ready_bytes == SEGMENT
    publish(rig, info, 3 * SEGMENT)
    assert log.spares.ready_bytes >= 2 * SEGMENT


def test_a_checkpoint_that_frees_nothing_is_not_repeated(
    founded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that is being filled in keeps its entries whatever checkpoints cover."""
    monkeypatch.setattr(Group, "drop_below", lambda self, index: self.log.drop_below(self.id, 0))
    monkeypatch.setattr(Group, "saved", lambda self, snapshot: self.log.drop_below(self.id, 0))
    rig, info = founded, limited(founded, SEGMENT)
    publish(rig, info, 10 * SEGMENT)
    saves = 0
    for _ in range(20 * 240):  # the checkpoint that is due by time comes after five minutes
        rig.tick(50)
        saves += sum(isinstance(job, ef.SaveCheckpoint) for job in rig.jobs)
        rig.settle()
    assert saves <= FREE_TRIES
