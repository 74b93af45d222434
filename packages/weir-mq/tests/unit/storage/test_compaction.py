"""What outlives its neighbours is copied once, and where it lies is never in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from weir.model.topic import FOREVER
from weir.storage.compaction import LONGEST, class_of
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import load, save
from weir.storage.format.index_file import GONE, index_name, read_index
from weir.storage.format.record import Record
from weir.storage.format.segment import CLASS_SPACE, segment_number, unpack_header
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
FAST, SLOW, OTHER = 1 << 16, 2 << 16, 3 << 16
HOUR = 3_600_000


@pytest.fixture
def node(small: Settings, make_node: Callable[..., Any]) -> Any:
    return make_node(replace(small, cache_bytes_max=0))


def test_classes_follow_from_retention() -> None:
    hours = (1, 2, 24, 25, 7 * 24, 8 * 24, 30 * 24, 31 * 24)
    assert [class_of(h * HOUR) for h in hours] == [1, 2, 2, 3, 3, 4, 4, 5]
    assert class_of(FOREVER) == LONGEST == 5
    assert class_of(1) == 1


def test_survivors_move_and_their_segments_are_used_again(node: Any) -> None:
    node.log.lifecycle.copies.set_class(SLOW, class_of(30 * 24 * HOUR))
    node.round(8, SLOW)
    assert len(node.log.segments) <= 3
    assert node.classes() == [4]
    stored = node.log.reader.stored(SLOW, 1)
    assert stored is not None
    assert stored.position < CLASS_SPACE <= stored.place
    node.whole(SLOW)
    node.restart()
    assert node.log.reader.stored(SLOW, 1) == stored
    node.whole(SLOW)
    node.write(6, SLOW)
    node.restart()
    node.whole(SLOW)


def test_cuts_and_offsets_are_the_same_after_a_start(node: Any) -> None:
    for _ in range(3):
        node.round(8, SLOW, OTHER)
        node.let_go(OTHER, keep=17)

    def cuts() -> list[object]:
        log, last = node.log, node.last[SLOW]
        groups = (SLOW, OTHER)
        return [
            [
                log.reader.cut_by_size(group, size, lambda _: 0)
                for group in groups
                for size in range(0, 4000, 150)
            ],
            [log.reader.cut_by_stamp(group, at) for group in groups for at in range(last + 2)],
            [log.reader.stamp_of(group, at) for group in groups for at in range(last + 2)],
            [(log.reader.group_bytes(group), log.reader.next_offset(group)) for group in groups],
        ]

    node.checkpoint()
    before = cuts()
    node.restart()
    assert cuts() == before


def test_the_file_says_class_and_original_positions(node: Any) -> None:
    node.round(8, SLOW)
    (segment,) = node.log.segments.copies
    found, _, _ = unpack_header(segment.name, node.disk.read(segment.name, 0, 4096))
    assert found == segment
    assert found.class_ == LONGEST, "no class was set"
    assert found.generation > max(one.generation for one in node.log.segments)


def test_each_class_has_segments_of_its_own(node: Any) -> None:
    node.log.lifecycle.copies.set_class(SLOW, 2)
    node.log.lifecycle.copies.set_class(OTHER, 3)
    node.round(8, SLOW, OTHER)
    assert sorted(node.classes()) == [2, 3]
    for group, class_ in ((SLOW, 2), (OTHER, 3)):
        stored = node.log.reader.stored(group, 1)
        assert stored is not None
        assert node.log.segments.find(stored.place).class_ == class_
        node.whole(group)
    assert {piece.target.class_ for piece in node.pieces} == {2, 3}


def test_nothing_moves_before_the_checkpoint_is_durable(node: Any) -> None:
    node.write(8, SLOW)
    node.let_go()
    node.checkpoint()
    names = [one.name for one in node.log.segments]
    assert node.copy()
    data = node.log.checkpoint(node.last, b"")
    stored = node.log.reader.stored(SLOW, 1)
    assert stored is not None
    assert stored.place == stored.position
    assert [one.name for one in node.log.segments] == names
    save(node.disk, data)
    node.log.checkpoint_saved()
    assert len(node.log.segments) < len(names)
    node.whole(SLOW)


def test_a_copy_that_no_checkpoint_names_is_made_again(node: Any) -> None:
    node.write(8, SLOW)
    node.let_go()
    node.checkpoint()
    made = node.copy()
    node.restart()
    assert not node.classes()
    node.whole(SLOW)
    node.log.mark_idle()
    node.write(1, SLOW)
    node.checkpoint()
    assert node.copy() >= made
    node.checkpoint()
    node.restart()
    assert node.classes()
    node.whole(SLOW)


def test_what_is_more_than_a_quarter_alive_or_young_or_to_be_replayed_stays(node: Any) -> None:
    node.write(8, SLOW)
    assert not node.copy(), "no checkpoint says that it is applied"
    node.checkpoint()
    assert not node.copy(), "all is alive"
    node.let_go()
    applied = node.last[SLOW]
    node.last[SLOW] = 2
    node.checkpoint()
    node.copy()
    assert {piece.source.base for piece in node.pieces} <= {0, 8192}
    node.last[SLOW] = applied
    node.checkpoint()
    node.copy()
    young = {one.base for one in list(node.log.segments)[-2:]}
    assert not young & {piece.source.base for piece in node.pieces}


def test_a_reader_of_the_old_place_goes_on(node: Any) -> None:
    node.write(8, SLOW)
    node.let_go()
    reading = node.log.reader.read(SLOW, 0, 1, node.last[SLOW])
    assert reading is not None
    reading.pin()
    node.checkpoint()
    node.copy()
    for _ in range(4):
        node.round(4, SLOW)
        assert reading.run(node.disk), "the old bytes are still there"
    later = node.log.reader.read(SLOW, 0, 1 << 20, node.last[SLOW])
    assert later is not None
    assert {span.segment.class_ for span in later.spans} == {0, LONGEST}
    assert later.run(node.disk)[0] == reading.run(node.disk)[0]
    assert len(later.run(node.disk)) == node.last[SLOW]
    reading.release()
    for _ in range(4):
        node.round(4, SLOW)
    with pytest.raises((LogDamaged, OSError)):
        reading.run(node.disk)


def test_a_class_segment_with_an_index_file_is_not_read_at_start(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        node.round(8, SLOW)
    full, last = node.log.segments.copies[0], node.log.segments.copies[-1]
    assert full is not last
    assert read_index(node.disk, full).end == node.log.segments.ends[full.name]
    node.disk.remove(index_name(last.name))
    places = [node.log.reader.stored(SLOW, index) for index in range(1, node.last[SLOW] + 1)]
    sizes: dict[str, int] = {}
    honest = SimDisk.read

    def count(self: SimDisk, name: str, offset: int, length: int) -> bytes:
        sizes[name] = sizes.get(name, 0) + length
        return honest(self, name, offset, length)

    node.disk.crash()
    monkeypatch.setattr(SimDisk, "read", count)
    node.log = recover(node.disk, node.settings).log
    assert [
        node.log.reader.stored(SLOW, index) for index in range(1, node.last[SLOW] + 1)
    ] == places
    assert sizes[full.name] == 4096
    assert sizes[last.name] > 4096
    node.whole(SLOW)
    node.disk.remove(index_name(full.name))
    node.restart()
    assert [
        node.log.reader.stored(SLOW, index) for index in range(1, node.last[SLOW] + 1)
    ] == places
    node.upkeep()
    assert read_index(node.disk, full).sections, "it is made again"


@pytest.mark.parametrize("cut", [-1, 100], ids=["through-an-entry", "behind-all"])
def test_nothing_is_added_to_a_file_that_was_cut_short(node: Any, cut: int) -> None:
    """An index file tells of all that lay there, and the next copies went behind its end."""
    node.round(8, SLOW)
    node.upkeep()
    (segment,) = node.log.segments.copies
    (held,) = node.log.lifecycle.copies.class_segments.held
    assert held.indexed == held.saved < segment.size - abs(cut)
    node.disk.truncate(segment.name, held.saved + cut)
    node.restart()
    node.round(8, SLOW)
    assert {piece.target.name for piece in node.pieces[-1:]} != {segment.name}
    if cut > 0:
        node.whole(SLOW)


@pytest.mark.parametrize("copies", [True, False])
def test_a_file_that_was_cut_short_is_not_used_again(node: Any, copies: bool) -> None:
    """It was a segment again once all in it was gone, and the log went on behind its end."""
    node.round(8, SLOW)
    node.upkeep()
    segment = node.log.segments.copies[0] if copies else next(iter(node.log.segments))
    end = node.log.lifecycle.copies.class_segments.held[0].saved if copies else segment.size - 500
    node.disk.truncate(segment.name, end + 100)
    node.restart()
    for _ in range(3):
        node.round(6, SLOW)
        node.let_go(SLOW)
        node.checkpoint()
    assert segment.name not in node.disk.names()
    names = [name for name in node.disk.names() if segment_number(name) is not None]
    assert {node.disk.size(name) for name in names} == {segment.size}


def test_class_segments_are_used_again_when_all_in_them_is_gone(node: Any) -> None:
    for _ in range(40):
        node.round(4, SLOW)
        node.let_go(SLOW, keep=60)
    assert len([n for n in node.disk.names() if n.startswith("segment")]) < 20
    node.checkpoint()
    assert 1 < len(node.log.segments.copies) < 8
    node.restart()
    node.whole(SLOW, first=node.last[SLOW] - 59)


def test_what_cannot_be_read_is_not_copied(node: Any) -> None:
    node.write(8, SLOW)
    node.let_go()
    node.checkpoint()
    stored = node.log.reader.stored(SLOW, 3)
    assert stored is not None
    segment = node.log.segments.find(stored.place)
    node.disk.flip(segment.name, stored.position - segment.base + 70)
    node.copy()
    node.checkpoint()
    assert segment in node.log.segments
    tried = [piece.source for piece in node.pieces].count(segment)
    node.round(4, SLOW)
    assert [piece.source for piece in node.pieces].count(segment) == tried == 1
    with pytest.raises(LogDamaged, match=segment.name):
        node.payload(SLOW, 3)
    assert node.payload(SLOW, 2)


def test_without_room_a_copy_is_tried_again_later(node: Any) -> None:
    node.write(8, SLOW)
    node.let_go()
    node.checkpoint()
    piece = None
    while piece is None:
        piece = node.log.lifecycle.copies.next_piece()
    assert node.log.lifecycle.copies.next_piece() is None, "one at a time"
    assert piece.missing is not None, "nothing of the reserve is taken"
    node.disk.fail_next("create", 28)
    with pytest.raises(OSError, match="No space"):
        piece.run(node.disk)
    node.log.lifecycle.copies.copied(piece, None)
    with pytest.raises(ValueError, match="under way"):
        node.log.lifecycle.copies.copied(piece, None)
    node.checkpoint()
    node.copy()
    node.checkpoint()
    assert node.pieces[0].missing == piece.missing
    assert piece.source in [one.source for one in node.pieces]
    node.restart()
    node.whole(SLOW)


def test_an_index_file_may_know_of_a_later_start_than_the_checkpoint(node: Any) -> None:
    """And entries from before those that it left out are still there: their segment stays."""
    node.write(2)
    node.append(SLOW, 60)
    for _ in range(3):
        node.append(OTHER, 900)
    node.write(8, SLOW)
    node.let_go()
    node.checkpoint()
    node.copy()
    save(node.disk, node.log.checkpoint(node.last, b""))
    node.log.checkpoint_saved()
    node.let_go(SLOW, keep=2)
    node.upkeep()
    node.restart()
    node.whole(SLOW, first=node.last[SLOW] - 1)


def test_a_group_that_is_gone_does_not_come_back_from_its_copies(node: Any) -> None:
    node.round(8, SLOW, OTHER)
    node.log.drop_group(OTHER)
    del node.last[OTHER]
    for _ in range(6):
        node.round(8, SLOW)
        found = load(node.disk)
        assert found is not None
        assert found.groups[OTHER].start == GONE, "its copies lie beside others"
        node.restart()
        assert node.log.reader.stored(OTHER, 1) is None
        node.log.mark_idle()
    node.whole(SLOW)


def test_what_is_let_go_of_while_it_is_copied_is_no_harm(node: Any) -> None:
    node.write(8, SLOW, OTHER)
    node.let_go()
    node.checkpoint()
    for step in range(200):
        if (piece := node.log.lifecycle.copies.next_piece()) is not None:
            node.log.lifecycle.copies.copied(piece, piece.run(node.disk))
        if step == 6:
            node.let_go(SLOW, keep=2)
            node.log.drop_group(OTHER)
    del node.last[OTHER]
    node.checkpoint()
    node.restart()
    node.whole(SLOW, first=node.last[SLOW] - 1)


def test_a_log_with_copies_and_without_a_checkpoint_is_refused(node: Any) -> None:
    node.append(OTHER, 60)
    node.write(1, SLOW)
    for _ in range(2):
        node.round(8, SLOW)
    for name in ("checkpoint", "checkpoint-copy"):
        node.disk.flip(name, 30)
    with pytest.raises(LogDamaged):
        recover(node.disk, node.settings)


def test_what_is_kept_a_month_costs_one_copy_beside_what_is_kept_an_hour(
    small: Settings, make_node: Callable[..., Any]
) -> None:
    """Counterexample 12: 99 parts kept for 1, beside 1 part kept for 720."""
    settings = replace(small, segment_bytes=65536, entry_bytes_max=4096, cache_bytes_max=0)
    node = make_node(settings, fast=15, size=3800)
    written = 0
    for _ in range(180):
        before = node.log.reader.group_bytes(SLOW)
        node.round(4, SLOW)
        written += node.log.reader.group_bytes(SLOW) - before
        assert len(node.log.segments) <= 8
    copies = node.log.lifecycle.copies
    assert 0.9 < copies.copied_bytes / written <= 1, "each byte was copied, and none twice"
    kept = len(node.log.segments.copies) * settings.segment_bytes
    assert kept < 2 * written + 2 * settings.segment_bytes
    assert node.log.tail > 60 * written
    node.restart()
    node.whole(SLOW)
