"""The batch header: bounds first, then CRC and hash."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from weir.codec import crc32c
from weir.errors import BadBatch
from weir.model.batch import (
    HEADER_SIZE,
    Batch,
    Columns,
    Compression,
    check_batches,
    check_whole,
    headers,
    parse,
    renumbered,
    seal,
    stamped,
)
from weir.model.batch_builder import encode
from weir.model.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX

BATCH = bytes(encode([b"one", b"two"], group=5, producer=1, epoch=2, sequence=3, base_time=4))


def with_field(at: int, code: str, *numbers: Any) -> bytes:
    batch = bytearray(BATCH)
    struct.pack_into("<" + code, batch, at, *numbers)
    return bytes(batch)


def test_a_header_says_what_was_encoded() -> None:
    header = parse(BATCH)
    assert header.total_size == len(BATCH)
    assert header.columns == Columns.VALUE
    assert header[6:11] == (1, 2, 2, 3, 4)  # producer, epoch, count, sequence, base time
    assert header.raw_size == len(BATCH) - HEADER_SIZE


@pytest.mark.parametrize(
    ("at", "code", "number", "why"),
    [
        (0, "4s", b"Weir", "not a batch"),
        (4, "B", 0, "not a batch"),
        (4, "B", 2, "not a batch"),
        (5, "B", 1, "0 bytes of 24 cannot be 24 compressed"),
        (5, "B", 2, "0 bytes of 24 cannot be 24 compressed"),
        (5, "B", 3, "compression 3"),
        (6, "H", 96, "not a batch"),
        (8, "I", HEADER_SIZE, "says 88 bytes"),
        (8, "I", len(BATCH) + 8, "are there"),
        (8, "I", 2**32 - 1, "allowed"),
        (8, "I", len(BATCH) - 8, "bytes of columns"),
        (8, "I", len(BATCH) - 1, "bytes of columns"),
        (12, "I", 0, "has columns"),
        (12, "I", int(Columns.KEY), "has columns"),
        (12, "I", 1 | 256, "has columns"),
        (12, "I", 1 | int(Columns.CHUNK), "no chunk"),  # of two messages
        (12, "I", 1 | int(Columns.REFERENCES), "no chunk and no reference"),
        (12, "I", 1 | int(Columns.CHUNK | Columns.REFERENCES), "no chunk"),
        (12, "I", 1 | int(Columns.FOREIGN), "has columns"),
        (28, "I", 0, "says 0 messages"),
        (28, "I", BATCH_MESSAGES_MAX + 1, "messages"),
        (28, "I", BATCH_MESSAGES_MAX, "cannot lie in"),
        (28, "I", 6, "cannot lie in"),
        (48, "I", 0, "bytes of columns"),
        (48, "I", 2**32 - 1, "bytes of columns"),
        (52, "I", 1, "bytes of columns"),
        (64, "q", -1, "no leader"),
        (72, "q", -1, "no leader"),
        (72, "q", 2**63 - 1, "no leader"),
    ],
)
def test_fields_out_of_bounds_are_refused(at: int, code: str, number: Any, why: str) -> None:
    with pytest.raises(BadBatch, match=why):
        parse(with_field(at, code, number))


def test_a_size_off_the_eights_is_refused_for_the_batch_behind_it() -> None:
    odd = bytearray(BATCH + bytes(4))
    struct.pack_into("<I", odd, 8, len(odd))
    struct.pack_into("<I", odd, 48, len(odd) - HEADER_SIZE)
    with pytest.raises(BadBatch, match="no multiple of 8"):
        parse(odd)


OF_SCHEMA = bytes(encode([b"one", b"two"], group=5, producer=7, schema=3))


def test_the_schema_stays_when_a_batch_is_stamped_or_renumbered() -> None:
    head = stamped(OF_SCHEMA, 77, 1_000)
    assert parse(head + OF_SCHEMA[HEADER_SIZE:]).schema == 3
    again = check_whole(bytes(renumbered(OF_SCHEMA, 5, 8, 1, 40)), 5)
    assert (again.schema, again.producer, again.sequence) == (3, 8, 40)
    assert {one.schema for one in Batch(OF_SCHEMA).messages()} == {3}
    assert {one.schema for one in Batch(BATCH).messages()} == {0}


@pytest.mark.parametrize("number", [0, 2, 2**32 - 1])
def test_the_hash_covers_the_schema(number: int) -> None:
    other = bytearray(OF_SCHEMA)
    struct.pack_into("<I", other, 80, number)
    sealed = stamped(other, 0, 0) + OF_SCHEMA[HEADER_SIZE:]  # with a CRC that holds
    with pytest.raises(BadBatch, match="fails its hash"):
        check_whole(sealed, 5)


def test_a_batch_without_a_schema_is_what_it_was_before_there_were_schemas() -> None:
    assert encode([b"one", b"two"], group=5, schema=0) == encode([b"one", b"two"], group=5)
    with pytest.raises(BadBatch, match="fails its hash"):
        check_whole(stamped(with_field(80, "I", 1), 0, 0) + BATCH[HEADER_SIZE:], 5)


PACKED = bytes(encode([b"a" * 99] * 9, group=5, compression=Compression.LZ4))


@pytest.mark.parametrize(
    ("at", "number", "why"),
    [
        (12, int(Columns.VALUE | Columns.ORIGIN), "never compressed"),
        (48, BATCH_BYTES_MAX - HEADER_SIZE + 8, "are allowed"),
        (48, len(PACKED) - HEADER_SIZE, "cannot be"),
        (52, 0, "cannot be"),
        (52, len(PACKED) - HEADER_SIZE + 1, "cannot be"),
    ],
)
def test_a_compressed_batch_that_announces_nonsense_is_refused_before_memory_is_spent(
    at: int, number: int, why: str
) -> None:
    assert parse(PACKED).compression == Compression.LZ4
    bad = bytearray(PACKED)
    struct.pack_into("<I", bad, at, number)
    with pytest.raises(BadBatch, match=why):
        parse(bad)


@pytest.mark.parametrize("flag", [Columns.CHUNK, Columns.REFERENCES])
def test_a_batch_of_one_large_value_has_no_other_shape(flag: Columns) -> None:
    one = bytearray(encode([b"one"], group=5))
    struct.pack_into("<I", one, 12, int(Columns.VALUE | flag))
    assert parse(one).columns == Columns.VALUE | flag
    struct.pack_into("<I", one, 12, int(Columns.VALUE | flag | Columns.ORIGIN))
    with pytest.raises(BadBatch, match="no chunk"):
        parse(one)


def test_a_chunk_takes_no_offset() -> None:
    chunk = bytes(encode([b"piece"], group=5, chunk_at=0))
    assert parse(stamped(chunk, 77, 1000) + chunk[HEADER_SIZE:]).next_offset == 1000


def test_a_batch_over_the_cap_is_refused_even_where_it_is_all_there() -> None:
    size = BATCH_BYTES_MAX + 8
    whole = with_field(8, "I", size)[:HEADER_SIZE] + bytes(size - HEADER_SIZE)
    with pytest.raises(BadBatch, match="allowed"):
        parse(whole)


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_too_few_bytes_are_refused(size: int) -> None:
    with pytest.raises(BadBatch, match="too few"):
        parse(BATCH[:size])
    with pytest.raises(BadBatch, match="too few"):
        parse(BATCH, len(BATCH) - size)


def test_the_leader_stamps_without_touching_the_hash() -> None:
    whole = stamped(BATCH, 77, 1000) + BATCH[HEADER_SIZE:]
    header = check_whole(whole, 5)
    assert (header.stamp, header.first_offset, header.next_offset) == (77, 1000, 1002)
    assert header.hash == parse(BATCH).hash


def test_a_stamp_changed_behind_the_leaders_back_fails_the_crc() -> None:
    # Counterexample 10: the hash leaves the stamped fields out, so the CRC must not.
    whole = bytearray(stamped(BATCH, 77, 1000) + BATCH[HEADER_SIZE:])
    whole[64] ^= 1
    with pytest.raises(BadBatch, match="CRC-32C"):
        check_whole(whole, 5)


def test_a_new_crc_does_not_make_up_for_wrong_bytes() -> None:
    whole = bytearray(stamped(with_field(16, "Q", 9), 77, 1000) + BATCH[HEADER_SIZE:])
    with pytest.raises(BadBatch, match="hash for group 5"):
        check_whole(whole, 5)


def test_headers_walk_an_entry() -> None:
    entry = BATCH + stamped(BATCH, 77, 1000) + BATCH[HEADER_SIZE:]
    assert [header.first_offset for header in headers(entry)] == [0, 1000]
    assert check_batches(entry, 5) == headers(entry)
    assert check_batches([BATCH, memoryview(BATCH)], 5) == [parse(BATCH)] * 2
    assert check_whole(entry, 5, len(BATCH)).first_offset == 1000


@pytest.mark.parametrize("left_over", [b"\0", BATCH[:-1], BATCH[:HEADER_SIZE]])
def test_bytes_left_over_in_an_entry_are_bad(left_over: bytes) -> None:
    with pytest.raises(BadBatch):
        headers(BATCH + left_over)
    with pytest.raises(BadBatch):
        check_batches(BATCH + left_over, 5)


def test_an_entry_without_a_batch_is_bad() -> None:
    assert headers(b"") == []
    with pytest.raises(BadBatch, match="without a batch"):
        check_batches(b"", 5)
    with pytest.raises(BadBatch, match="without a batch"):
        check_batches([], 5)


def test_one_batch_of_another_place_spoils_the_entry() -> None:
    with pytest.raises(BadBatch, match="group 5"):
        check_batches(BATCH + bytes(encode([b"x"], group=6)), 5)


def test_a_batch_under_another_number_is_the_batch_that_was_packed_under_it() -> None:
    values, keys = [b"a", b"bc", b""], [b"k", None, b"l"]
    packed = encode(values, group=7, producer=1, epoch=2, sequence=3, base_time=4, keys=keys)
    other = encode(values, group=7, producer=9, epoch=0, sequence=55, base_time=4, keys=keys)
    assert renumbered(packed, 7, 9, 0, 55) == other
    assert Batch(packed).check(7).header.producer == 1


@pytest.mark.parametrize("first", [0, 1, -1])
@pytest.mark.parametrize("end", [-(1 << 31), -8, -1, 0, 1, 7, 8, 9, 16, 17, 24, 1 << 30])
@pytest.mark.parametrize("data", [0, 8, 16])
def test_a_lone_value_is_checked_as_a_column_is(first: int, end: int, data: int) -> None:
    columns = struct.pack("<ii", first, end) + bytes(data)
    raw = bytearray(HEADER_SIZE) + columns
    seal(raw, (int(Columns.VALUE), 1, 0, 1, 0, 0), group=5)
    batch, column = Batch(raw).check(5), Batch(raw)
    refusal = ""
    try:
        column.check_layout()
        column.value_column.check()
    except BadBatch as error:
        refusal = str(error)
    if refusal:
        with pytest.raises(BadBatch) as caught:
            batch.check_columns()
        assert str(caught.value) == refusal
    else:
        batch.check_columns()
        assert batch.values() == [bytes(end)]


@pytest.mark.parametrize("size", [3, 5_000])
@pytest.mark.parametrize("at", [64, 72, 79, 16, 47, HEADER_SIZE + 9])
def test_a_stamp_fails_the_checksum_and_all_else_fails_the_hash_too(at: int, size: int) -> None:
    batch = bytearray(encode([b"v" * size], group=5, producer=1))
    batch[at] ^= 1
    is_stamp = 64 <= at < 80
    with pytest.raises(BadBatch, match="CRC" if at < HEADER_SIZE else "hash"):
        Batch(batch).check(5)
    struct.pack_into("<I", batch, 84, crc32c(bytes(batch[:84])))
    if is_stamp:
        Batch(batch).check(5)
    else:
        with pytest.raises(BadBatch, match="hash"):
            Batch(batch).check(5)
