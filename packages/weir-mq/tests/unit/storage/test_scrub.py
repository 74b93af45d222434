"""The scrub finds what rots, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.storage.errors import LogDamaged
from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK, Segment
from weir.storage.log import Log
from weir.storage.scrub import ScrubPiece
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]


@pytest.fixture
def closed(
    log: Log, disk: SimDisk, batches: Make, control: Make, settle: Settle
) -> tuple[Segment, list[int]]:
    """A closed segment, and the positions of its frames with payload."""
    places = []
    for index in range(1, 6):
        places.append(log.append(batches(index, index, size=400)))
        log.append(control(index, b"small", group=9))
        settle(log)
    log.append(control(6, b"c" * 2000))
    log.append(control(7, b"c" * 2000))
    settle(log)
    first = next(iter(log.segments))
    return first, [place for place in places if place < first.end]


def scrubbed(disk: SimDisk, segment: Segment, piece_bytes: int) -> tuple[list[LogDamaged], int]:
    """What all pieces together find bad, and how many bytes they verified."""
    piece: ScrubPiece | None = ScrubPiece(1, segment, piece_bytes=piece_bytes)
    bad: list[LogDamaged] = []
    size = 0
    while piece is not None:
        found = piece.run(disk)
        bad += found.bad
        size += found.size
        piece = found.next_piece
    return bad, size


@pytest.mark.parametrize("piece_bytes", [64, 100, 500, 3000, 1 << 20])
def test_a_sound_segment_is_read_once_to_its_end(
    disk: SimDisk, closed: tuple[Segment, list[int]], piece_bytes: int
) -> None:
    bad, size = scrubbed(disk, closed[0], piece_bytes)
    assert not bad
    assert closed[0].size - BLOCK - 2200 < size <= closed[0].size - BLOCK


@pytest.mark.parametrize("piece_bytes", [64, 500, 1 << 20])
def test_every_flipped_frame_is_named_and_the_others_are_not(
    disk: SimDisk, closed: tuple[Segment, list[int]], piece_bytes: int
) -> None:
    segment, places = closed
    for at in (0, 5, 21, 33, 56, 150):  # in the header, in the batch
        for place in places:
            disk.flip(segment.name, place - segment.base + at)
            bad, _ = scrubbed(disk, segment, piece_bytes)
            assert [one.position for one in bad] == [place]
            assert bad[0].segment == segment.name
            disk.flip(segment.name, place - segment.base + at)


def test_a_segment_cut_short_is_told(disk: SimDisk, closed: tuple[Segment, list[int]]) -> None:
    segment, places = closed
    disk.replace(segment.name, disk.read(segment.name, 0, places[2] - segment.base))
    bad, _ = scrubbed(disk, segment, 1 << 20)
    assert [one.position for one in bad] == [places[2]]
