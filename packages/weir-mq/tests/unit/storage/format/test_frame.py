"""The frame and the segment header, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weir.codec import crc32c
from weir.model.batch_builder import encode
from weir.storage.errors import UnknownKind
from weir.storage.format.frame import (
    HEADER_SIZE,
    BadFrame,
    BadPayload,
    Kind,
    frame_size,
    mark_frame,
    pack,
    verify,
)
from weir.storage.format.segment import BLOCK, Segment, pack_header, unpack_header

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "frames.json").read_text())
CONTROL = b"a control record"


def framed(payload: bytes, kind: int, **place: int) -> bytearray:
    header = pack(7, 4096, kind, (payload,), len(payload), **place)
    return bytearray(header + payload + bytes(-len(payload) % 8))


def check(data: bytes | bytearray, generation: int = 7, position: int = 4096) -> object:
    return verify(memoryview(data), 0, generation=generation, position=position)


def test_the_bytes_of_a_control_frame_never_change() -> None:
    frame = framed(CONTROL[:13], Kind.CONTROL, group=65537, term=3, index=9)
    assert frame.hex() == GOLDEN["control"]


def test_the_bytes_of_a_mark_and_an_end_never_change() -> None:
    assert b"".join(mark_frame(7, 4096, 4000, 0)).hex() == GOLDEN["mark"]
    assert b"".join(mark_frame(7, 4096, 4000, 111411200000000002)).hex() == GOLDEN["bound"]
    segment = Segment("segment-00000003", 7, 1 << 20, 1 << 16)
    assert b"".join(segment.end_frame(1_100_000)).hex() == GOLDEN["end"]


def test_the_bytes_of_a_segment_header_never_change() -> None:
    segment = Segment("segment-00000003", 7, 1 << 20, 1 << 16)
    block = pack_header(segment, 5, 0x1122334455667788)
    assert len(block) == BLOCK
    assert block.rstrip(b"\0").hex() == GOLDEN["segment"]
    assert unpack_header(segment.name, block) == (segment, 5, 0x1122334455667788)


def test_a_frame_is_read_back() -> None:
    frame = verify(
        memoryview(framed(CONTROL, Kind.NOOP, group=65537, term=3, index=9)),
        0,
        generation=7,
        position=4096,
    )
    assert (frame.group, frame.term, frame.index, frame.kind) == (65537, 3, 9, Kind.NOOP)
    assert (frame.length, frame.first_offset, frame.next_offset) == (16, -1, -1)


def test_a_frame_knows_the_offsets_of_its_batches() -> None:
    payload = bytes(encode([b"a", b"b"], group=65537))
    header = pack(7, 4096, Kind.BATCHES, (payload,), len(payload), group=65537)
    frame = verify(memoryview(header + payload), 0, generation=7, position=4096)
    assert (frame.first_offset, frame.next_offset) == (0, 2)


@pytest.mark.parametrize("kind", [Kind.CONTROL, Kind.HARD_STATE, Kind.MARK, Kind.CONFIGURATION])
def test_a_flipped_bit_anywhere_in_a_control_frame_is_found(kind: Kind) -> None:
    """Counterexample 10: every field, and the payload."""
    frame = framed(CONTROL, kind, group=65537, term=3, index=9)
    for bit in range(len(frame) * 8):
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            check(frame)
        frame[bit // 8] ^= 1 << bit % 8
    check(frame)


def test_a_flipped_bit_anywhere_in_batches_is_found() -> None:
    payload = bytes(encode([b"value"], group=65537))
    frame = framed(payload, Kind.BATCHES, group=65537, term=3, index=9)
    for bit in range((HEADER_SIZE + len(payload)) * 8):
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            check(frame)
        frame[bit // 8] ^= 1 << bit % 8
    check(frame)


def test_batches_of_another_group_are_found() -> None:
    payload = bytes(encode([b"value"], group=65538))
    with pytest.raises(BadFrame, match="batch of group 65537"):
        check(framed(payload, Kind.BATCHES, group=65537))


@pytest.mark.parametrize(("generation", "position"), [(6, 4096), (8, 4096), (7, 4104), (7, 0)])
def test_a_frame_exists_only_in_its_generation_at_its_position(
    generation: int, position: int
) -> None:
    with pytest.raises(BadFrame, match="generation"):
        check(framed(CONTROL, Kind.CONTROL), generation, position)


def test_zeros_a_cut_frame_and_a_length_of_zero_are_no_frames() -> None:
    frame = framed(CONTROL, Kind.CONTROL)
    for bad in (bytes(80), b"", frame[:HEADER_SIZE], frame[: HEADER_SIZE + 8]):
        with pytest.raises(BadFrame):
            check(bad)
    with pytest.raises(BadFrame, match="0 bytes"):
        check(pack(7, 4096, Kind.NOOP, (), 0))


def test_an_unknown_kind_or_version_is_named_and_not_skipped() -> None:
    with pytest.raises(UnknownKind, match="kind 99"):
        check(framed(CONTROL, 99))
    frame = framed(CONTROL, Kind.NOOP)
    frame[49] = 2
    frame[20:24] = bytes(4)
    frame[20:24] = crc32c(bytes(frame[:HEADER_SIZE])).to_bytes(4, "little")
    with pytest.raises(UnknownKind, match="version 2"):
        check(frame)


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 24, 32, 40])
def test_a_flipped_bit_in_a_segment_header_is_found(at: int) -> None:
    block = bytearray(pack_header(Segment("segment-1", 7, 4096, 8192), 5, 6))
    block[at] ^= 1
    with pytest.raises(BadFrame):
        unpack_header("segment-1", block)


def test_frame_sizes_are_multiples_of_eight() -> None:
    assert [frame_size(n) for n in (1, 8, 9)] == [64, 64, 72]


def test_a_bad_payload_does_not_hide_whose_it_was() -> None:
    batch = bytes(encode([b"value"], group=65537))
    for kind, payload in ((Kind.CONTROL, CONTROL), (Kind.BATCHES, batch)):
        frame = framed(payload, kind, group=65537, term=3, index=9)
        for at in range(HEADER_SIZE, HEADER_SIZE + len(payload)):
            frame[at] ^= 1
            with pytest.raises(BadPayload) as bad:
                check(frame)
            frame[at] ^= 1
            found = bad.value.frame
            assert (found.group, found.index, found.length) == (65537, 9, len(payload))
