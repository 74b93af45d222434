"""`encode` and `Batch` against a slow codec of lists, written from the layout in the docstrings."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import lz4.block
import pytest
import xxhash
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from weir.errors import BadBatch
from weir.model import batch as subject
from weir.model.batch import Batch, Columns, check_batches, split, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins, References

HEADER = 88
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
GROUP = st.integers(0, 2**63 - 1)


@dataclass
class Rows:
    """A batch as people think of it: a list for each column, None for one that is not there."""

    group: int
    values: list[bytes]
    producer: int = 0
    epoch: int = 0
    sequence: int = 0
    base_time: int = 0
    keys: list[bytes | None] | None = None
    tags: list[str | None] | None = None
    times: list[int] | None = None
    dues: list[int] | None = None
    expires: list[int] | None = None
    headers: list[dict[str, bytes]] | None = None
    origins: list[tuple[int, int, int, int]] | None = None
    compression: int = 0


PACKERS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda data: bytes(lz4.block.compress(data, store_size=False)),
    2: lambda data: zstandard.ZstdCompressor(3).compress(data),
}


def eights(data: bytes) -> bytes:
    while len(data) % 8:
        data += b"\0"
    return data


def numbers(code: str, items: list[int]) -> bytes:
    return eights(b"".join(struct.pack("<" + code, item) for item in items))


def bytes_column(items: list[bytes]) -> bytes:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item))
    return numbers("i", ends) + eights(b"".join(items))


def bitmap(present: list[bool]) -> bytes:
    bits = 0
    for i, there in enumerate(present):
        if there:
            bits += 2**i
    return eights(bits.to_bytes((len(present) + 7) // 8, "little"))


def twin(rows: Rows) -> bytes:
    """The batch that the docstrings of `columns` and `header` describe, one field after another."""
    flags, body, bare = 1, b"", 0
    tag_list: list[str] = []
    for tag in rows.tags or []:
        if (tag or "") not in tag_list:
            tag_list.append(tag or "")
    if rows.tags is not None:
        flags |= 4
        body += struct.pack("<II", len(tag_list), 0)
        body += bytes_column([tag.encode() for tag in tag_list])
    if rows.dues is not None:
        flags |= 16
        body += numbers("q", rows.dues)
    bare = len(body)
    body += bytes_column(rows.values)
    if rows.keys is not None:
        flags |= 2
        body += bitmap([key is not None for key in rows.keys])
        body += bytes_column([key or b"" for key in rows.keys])
        hashes = [0 if k is None else xxhash.xxh3_64_intdigest(k) % 2**32 for k in rows.keys]
        body += numbers("I", hashes)
    if rows.tags is not None:
        body += numbers("i", [tag_list.index(tag or "") for tag in rows.tags])
    for flag, column in ((8, rows.times), (32, rows.expires)):
        if column is not None:
            flags |= flag
            body += numbers("q", column)
    if rows.headers is not None:
        flags |= 64
        ends = [sum(len(pairs) for pairs in rows.headers[:i]) for i in range(len(rows.headers) + 1)]
        body += numbers("i", ends)
        body += bytes_column([name.encode() for pairs in rows.headers for name in pairs])
        body += bytes_column([pairs[name] for pairs in rows.headers for name in pairs])
    if rows.origins is not None:
        flags |= 128
        for place, code in enumerate("QIIB"):
            body += numbers(code, [origin[place] for origin in rows.origins])
    return compressed(rows, flags, body, bare)


def compressed(rows: Rows, flags: int, body: bytes, bare: int) -> bytes:
    """All behind `bare` bytes compressed, if that is asked for, allowed, and makes it smaller."""
    if rows.compression and rows.origins is None:
        packed = PACKERS[rows.compression](body[bare:])
        if len(eights(packed)) < len(body) - bare:
            whole = body[:bare] + eights(packed)
            return sealed(rows, flags, whole, rows.compression, len(body), len(packed))
    return sealed(rows, flags, body)


def sealed(
    rows: Rows, flags: int, body: bytes, compression: int = 0, raw: int = 0, packed: int = 0
) -> bytes:
    head = b"weir" + struct.pack("<BBH", 1, compression, HEADER)
    head += struct.pack("<II", HEADER + len(body), flags)
    head += struct.pack("<QII", rows.producer, rows.epoch, len(rows.values))
    head += struct.pack("<QqII", rows.sequence, rows.base_time, raw or len(body), packed)
    head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head + body, seed=rows.group))
    head += struct.pack("<qqI", 0, 0, 0)
    return head + struct.pack("<I", google_crc32c.value(head)) + body


def encoded(rows: Rows) -> bytearray:
    origins = rows.origins
    columns = None if origins is None else Origins(*(list(c) for c in zip(*origins, strict=True)))
    return encode(
        rows.values,
        group=rows.group,
        producer=rows.producer,
        epoch=rows.epoch,
        sequence=rows.sequence,
        base_time=rows.base_time,
        keys=rows.keys,
        tags=rows.tags,
        times=rows.times,
        dues=rows.dues,
        expires=rows.expires,
        headers=rows.headers,
        origins=columns,
        compression=rows.compression,
    )


def decoded(batch: Batch, group: int) -> Rows:
    """What the readers' methods say, as `Rows`; columns that are not there stay None."""
    there = Columns(batch.header.columns)

    def column(flag: Columns, read: Callable[[], Any]) -> Any:
        return read() if flag in there else None

    def numbers_of(flag: Columns) -> list[int] | None:
        found = batch.numbers(flag)
        return None if found is None else list(found)

    o = batch.origins
    return Rows(
        group,
        batch.values(),
        batch.header.producer,
        batch.header.epoch,
        batch.header.sequence,
        batch.header.base_time,
        column(Columns.KEY, batch.keys),
        column(Columns.TAG, batch.tags),
        numbers_of(Columns.TIME),
        numbers_of(Columns.DUE),
        numbers_of(Columns.EXPIRES),
        column(Columns.HEADERS, lambda: [dict(pairs) for pairs in batch.headers()]),
        None if o is None else list(zip(o.hubs, o.boots, o.sequences, o.sns, strict=True)),
    )


def optional(draw: st.DrawFn, item: st.SearchStrategy[Any], n: int) -> Any:
    return draw(st.none() | st.lists(item, min_size=n, max_size=n))


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    n = draw(st.integers(1, 20))
    width = draw(st.none() | st.integers(0, 9))
    value = st.binary(max_size=40) if width is None else st.binary(min_size=width, max_size=width)
    return Rows(
        draw(GROUP),
        draw(st.lists(value, min_size=n, max_size=n)),
        draw(U64),
        draw(U32),
        draw(U64),
        draw(I64),
        optional(draw, st.none() | st.binary(max_size=9), n),
        optional(draw, st.none() | st.sampled_from(["a", "bö", "c" * 255]), n),
        optional(draw, I64, n),
        optional(draw, I64, n),
        optional(draw, I64, n),
        optional(draw, st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3), n),
        optional(draw, st.tuples(U64, U32, U32, st.integers(0, 255)), n),
        draw(st.integers(0, 2)),
    )


ONE_EMPTY = Rows(group=1, values=[b""])
FULL = Rows(
    0x1_0002, [b"one", b"", b"three"], 7, 3, 40, 1_700_000_000_000_000,
    [b"k", None, b""], ["red", None, "red"], [1, 2, -3], [0, 5, 0], [9, 0, 0],
    [{"a": b"1", "b": b""}, {}, {"a": b"2"}],
    [(5, 1, 0, 7), (5, 1, 1, 7), (6, 2, 2**32 - 1, 0)],
)  # fmt: skip


@given(batches())
@example(ONE_EMPTY)
@example(FULL)
def test_the_codec_and_its_twin_agree_byte_for_byte(rows: Rows) -> None:
    batch = encoded(rows)
    assert bytes(batch) == twin(rows)
    read = decoded(Batch(twin(rows)).check(rows.group), rows.group)
    assert replace(read, compression=rows.compression) == rows


@given(batches())
def test_columns_that_are_not_there_read_as_nothing(rows: Rows) -> None:
    n = len(rows.values)
    bare = replace(rows, keys=None, tags=None, times=None, headers=None)
    messages = list(Batch(encoded(bare)).messages("t", 3))
    assert [m.value for m in messages] == rows.values
    assert [m.key for m in messages] == [m.tag for m in messages] == [None] * n
    assert [m.time for m in messages] == [rows.base_time] * n
    assert [m.headers for m in messages] == [{}] * n
    assert [(m.topic, m.partition, m.offset) for m in messages] == [("t", 3, i) for i in range(n)]


@given(st.lists(batches(), min_size=1, max_size=4), GROUP, st.integers(0, 2**40))
def test_stamped_batches_glued_together_are_found_again(
    all_rows: list[Rows], group: int, stamp: int
) -> None:
    payload, offset = b"", 0
    for rows in all_rows:
        batch = encoded(replace(rows, group=group))
        payload += stamped(batch, stamp, offset) + batch[HEADER:]
        offset += len(rows.values)
    found = split(payload, group)
    assert [batch.values() for batch in found] == [rows.values for rows in all_rows]
    assert [b.header for b in found] == check_batches(payload, group) == subject.headers(payload)
    assert found[-1].header.next_offset == offset
    assert {batch.header.stamp for batch in found} == {stamp}


LZ4 = replace(FULL, values=[b"a" * 99] * 3, origins=None, compression=1)
ZSTD = replace(LZ4, compression=2)


@pytest.mark.parametrize(
    "rows", [ONE_EMPTY, FULL, LZ4, ZSTD], ids=["one empty value", "every column", "lz4", "zstd"]
)
def test_any_flipped_bit_is_found(rows: Rows) -> None:
    whole = bytearray(twin(rows))
    for bit in range(len(whole) * 8):
        whole[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadBatch):
            Batch(whole).check(rows.group)
        whole[bit >> 3] ^= 1 << (bit & 7)
    Batch(whole).check(rows.group)


@given(batches(), GROUP)
def test_another_group_is_refused(rows: Rows, group: int) -> None:
    batch = Batch(encoded(rows))
    if group == rows.group:
        group ^= 1
    with pytest.raises(BadBatch, match="fails its hash"):
        batch.check(group)


def readings(view: bytes, group: int) -> list[Any]:
    batch = Batch(view).check(group)
    return [list(batch.messages()), batch.origins]


@given(batches(), st.data())
def test_malformed_columns_are_bad_batches_or_read_whole(rows: Rows, data: st.DataObject) -> None:
    # The encoder is at fault here, not the line: CRC and hash are right.
    rows = replace(rows, compression=0)
    body = bytearray(twin(rows)[HEADER:])
    flags = data.draw(
        st.just(Batch(twin(rows)).header.columns) | st.integers(0, 255).map(lambda f: f | 1)
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
        new = data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 40))
        body[at : at + 4] = struct.pack("<i", new)
    del body[len(body) - 8 * data.draw(st.sampled_from([0, 0, 1, 3])) :]
    try:
        messages, _ = readings(sealed(rows, flags, bytes(body)), rows.group)
    except BadBatch:
        return
    assert len(messages) == len(rows.values)
    # What can be read takes each byte of the data once, so no value is invented or told twice.
    values = Batch(sealed(rows, flags, bytes(body))).value_column
    assert b"".join(m.value for m in messages) == bytes(values.data)


@given(batches(), st.data())
def test_a_compressed_part_that_makes_no_sense_is_a_bad_batch_and_takes_no_memory(
    rows: Rows, data: st.DataObject
) -> None:
    rows = replace(rows, values=[b"v" * 80] * len(rows.values), origins=None, compression=1)
    rows = replace(rows, compression=data.draw(st.integers(1, 2)))
    whole = twin(rows)
    header = Batch(whole).header
    at = header.total_size - len(eights(bytes(header.packed_size)))
    body = bytearray(whole[HEADER:])
    raw = header.raw_size + data.draw(st.sampled_from([-8, 8, 4_000, 8_000_000]))
    if data.draw(st.booleans()):
        raw = header.raw_size
        place = at - HEADER + data.draw(st.integers(0, header.packed_size - 1))
        body[place] ^= data.draw(st.integers(1, 255))
    bad = sealed(rows, header.columns, bytes(body), rows.compression, raw, header.packed_size)
    try:
        messages, _ = readings(bad, rows.group)
    except BadBatch:
        return
    assert len(messages) == len(rows.values)  # what was flipped was part of a value


CHUNKED = st.binary(min_size=1, max_size=60)


@given(CHUNKED, st.integers(0, 2**62), U64, st.integers(0, 2))
def test_a_chunk_says_where_its_piece_lies(
    piece: bytes, position: int, sequence: int, compression: int
) -> None:
    made = encode([piece], group=9, sequence=sequence, chunk_at=position, compression=compression)
    batch = Batch(made).check(9)
    batch.check_columns()
    assert batch.piece == (position, len(piece))
    assert (batch.values(), batch.references) == ([piece], None)
    assert batch.header.next_offset == batch.header.first_offset  # it holds no offset
    body = struct.pack("<QQ", position, len(piece)) + bytes_column([piece])
    if not batch.header.compression:
        assert bytes(made) == sealed(Rows(9, [piece], sequence=sequence), 1 | 1 << 17, body)


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**20)), min_size=1), U64)
def test_references_are_what_was_written_or_refused(
    steps: list[tuple[int, int]], hash_: int
) -> None:
    runs, at = [], 0
    for gap, count in steps:
        runs.append((at + gap, count))
        at += gap + count
    written = References(sum(count for _, count in steps), hash_, tuple(runs))
    made = encode([], group=9, keys=[b"k"], references=written, compression=1)
    batch = Batch(made).check(9)
    batch.check_columns()
    assert batch.references == written
    assert batch.keys() == [b"k"]
    packed = b"".join(struct.pack("<QQ", *pair) for pair in [(written.size, hash_), *runs])
    assert written.pack() == packed
    for wrong in (packed[:-1], packed[:16], packed + packed[-16:], b""):
        with pytest.raises(BadBatch):
            References.unpack(wrong)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_bad_batch(data: bytes, with_magic: bool) -> None:
    view = struct.pack("<4sBBH", b"weir", 1, 0, HEADER) + data if with_magic else data
    with pytest.raises(BadBatch):
        Batch(view).check(1)
