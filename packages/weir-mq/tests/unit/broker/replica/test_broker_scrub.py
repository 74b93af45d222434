"""The background scrub: what it reads, when, and what becomes of what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.replica.writer import FIRST_MS, PIECE_EVERY_MS, ROUND_EVERY_MS
from weir.protocol.client import messages as m
from weir.storage.scrub import ScrubPiece


def scrubs(rig: Any) -> list[ScrubPiece]:
    """The pieces that are asked for."""
    chores = [job.chore for job in rig.jobs if isinstance(job, ef.StartChore)]
    return [chore for chore in chores if isinstance(chore, ScrubPiece)]


@pytest.fixture
def full(make_rig: Callable[..., Any]) -> Any:
    """A node whose log has some closed segments of 64 KiB."""
    rig = make_rig()
    info = rig.topic(rig.connect(1))
    grant = rig.answer(1, m.OpenProducer())
    for sequence in range(20):
        assert rig.answer(1, rig.batch(info, grant, sequence, b"v" * 9_000)).offset == sequence
    return rig


def test_the_first_round_begins_after_a_while_and_ends_with_the_last_closed_segment(
    full: Any,
) -> None:
    full.tick(FIRST_MS - 1_000)
    assert not scrubs(full)
    full.settle()
    row = list(full.shard.writers[0].log.segments)
    seen: list[str] = []
    full.tick(1_000)
    for _ in range(20):
        (piece, *_) = scrubs(full) or [None]
        seen += [piece.segment.name] if piece else []
        full.settle()
        full.tick(PIECE_EVERY_MS)
    closed = [segment.name for segment in row[:-1]]
    assert len(closed) >= 2
    assert list(dict.fromkeys(seen)) == closed
    scrubber = full.shard.writers[0].chores.scrubber
    assert scrubber.rounds == 1
    assert scrubber.size > 100_000
    assert not scrubber.damage
    assert not full.shard.writers[0].log.segments.pins.total(), "nothing is held any more"
    full.tick(ROUND_EVERY_MS)
    full.settle()
    full.tick(PIECE_EVERY_MS)
    assert scrubs(full), "and again a day later"


def test_what_rots_is_found_and_does_not_stop_the_round(full: Any) -> None:
    log = full.shard.writers[0].log
    first = next(iter(log.segments))
    place = next(
        stored
        for group in log.groups.index
        for index in range(1, 30)
        if (stored := log.reader.stored(group, index)) and stored.length > 9_000
    )
    full.disk.flip(first.name, place.position - first.base + 56 + 500)
    full.tick(FIRST_MS)
    for _ in range(20):
        full.settle()
        full.tick(PIECE_EVERY_MS)
    scrubber = full.shard.writers[0].chores.scrubber
    assert list(scrubber.damage) == [place.position]
    assert scrubber.rounds == 1


def test_one_piece_is_under_way_at_a_time_and_fewer_while_the_log_is_busy(full: Any) -> None:
    full.tick(FIRST_MS)
    assert len(scrubs(full)) == 1
    full.tick(PIECE_EVERY_MS)
    assert len(scrubs(full)) == 1
    full.settle()
    info = full.answer(1, m.DescribeTopic("t"))
    full.ask(1, full.batch(info, full.answer(1, m.OpenProducer()), 0, b"under way"))
    full.tick(PIECE_EVERY_MS)
    assert not scrubs(full)
    full.tick(10 * PIECE_EVERY_MS * 10)
    assert len(scrubs(full)) == 1
