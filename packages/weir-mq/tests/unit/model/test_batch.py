"""`encode` and `Batch`: limits, and columns whose contents make no sense."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from weir.errors import BadBatch, TooLarge
from weir.model.batch import HEADER_SIZE, Batch, Columns, Packed, seal, split
from weir.model.batch_builder import encode
from weir.model.columns import NO_SEQUENCE, Origins, are_set
from weir.model.message import Origin

N = 3
VALUES = [b"one", b"", b"three"]


def resealed(batch: bytearray) -> Batch:
    """Seal what an encoder at fault has made, so that CRC and hash hold."""
    h = Batch(batch).header
    seal(batch, (h.columns, h.producer, h.epoch, h.count, h.sequence, h.base_time), 1)
    return Batch(batch).check(1)


def overwrite(batch: bytearray, part: memoryview, index: int, number: int) -> Batch:
    """Write over element `index` of `part`, a column in place of `batch`."""
    at = bytes(batch).index(bytes(part), HEADER_SIZE)
    struct.pack_into("<i", batch, at + 4 * index, number)
    return resealed(batch)


@pytest.mark.parametrize("count", [0, 2**20 + 1])
def test_a_batch_has_one_to_a_million_messages(count: int) -> None:
    with pytest.raises(TooLarge, match="messages in a batch"):
        encode([b""] * count, group=1)


def test_the_largest_counts_and_sizes_pass() -> None:
    assert len(Batch(encode([b""] * 2**20, group=1)).check(1)) == 2**20
    room = 8 * 1024 * 1024 - HEADER_SIZE - 8
    assert len(encode([bytes(room)], group=1)) == 8 * 1024 * 1024
    with pytest.raises(TooLarge):
        encode([bytes(room + 1)], group=1)


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": [b"k" * 65_537, None, None]},
        {"tags": ["t" * 256, None, None]},
        {"tags": ["ö" * 128, None, None]},
        {"headers": [{str(i): b"" for i in range(2**20 + 1)}, {}, {}]},
    ],
    ids=["key", "tag", "tag in UTF-8", "headers"],
)
def test_each_column_has_its_limit(columns: dict[str, Any]) -> None:
    with pytest.raises(TooLarge):
        encode(VALUES, group=1, **columns)


def test_a_batch_has_at_most_4096_tags() -> None:
    tags = [str(i) for i in range(4_097)]
    with pytest.raises(TooLarge, match="tags"):
        encode([b""] * 4_097, group=1, tags=tags)
    assert Batch(encode([b""] * 4_096, group=1, tags=tags[:-1])).tags() == tags[:-1]


def test_limits_themselves_are_allowed() -> None:
    keys = [b"k" * 65_536, None, b""]
    tags = ["t" * 255, None, "ö" * 127]
    batch = Batch(encode(VALUES, group=1, keys=keys, tags=tags)).check(1)
    assert batch.keys() == keys
    assert batch.tags() == tags


@pytest.mark.parametrize("name", ["keys", "tags", "times", "dues", "expires", "headers"])
@pytest.mark.parametrize("length", [0, N - 1, N + 1])
def test_a_column_of_another_length_is_refused(name: str, length: int) -> None:
    item = {"keys": b"k", "tags": "t", "headers": {}}.get(name, 1)
    with pytest.raises(ValueError, match="give one for each"):
        encode(VALUES, group=1, **{name: [item] * length})


@pytest.mark.parametrize("name", Origins.__slots__)
def test_every_part_of_an_origin_must_be_there(name: str) -> None:
    columns = {part: [1] * N for part in Origins.__slots__} | {name: [1] * (N - 1)}
    with pytest.raises(ValueError, match="give one for each"):
        encode(VALUES, group=1, origins=Origins(**columns))


def test_an_empty_tag_is_no_tag() -> None:
    assert Batch(encode(VALUES, group=1, tags=["", None, "a"])).tags() == [None, None, "a"]


def test_an_empty_key_is_a_key() -> None:
    batch = Batch(encode(VALUES, group=1, keys=[b"", None, b"k"]))
    assert batch.keys() == [b"", None, b"k"]
    assert batch.key_column is not None
    assert list(batch.key_column[2])[1] == 0


def test_messages_know_their_place() -> None:
    batch = Batch(encode(VALUES, group=1, base_time=5, headers=[{"a": b"1"}, {}, {}]))
    messages = list(batch.messages("locks", 2))
    assert [m.offset for m in messages] == [0, 1, 2]
    assert [m.headers for m in messages] == [{"a": b"1"}, {}, {}]
    assert {(m.topic, m.partition, m.stamp, m.time) for m in messages} == {("locks", 2, 0, 5)}


def test_a_batch_is_opened_where_it_lies() -> None:
    batch = encode(VALUES, group=1)
    entry = b"12345678" + batch + batch + b"behind"
    opened = Batch(entry, 8)
    assert opened.check(1) is opened
    assert len(opened) == N
    assert opened.view == batch
    assert opened.view.obj is entry
    assert repr(opened) == f"<Batch 3 messages from offset 0, {len(batch)} bytes>"


def test_split_opens_every_batch_and_nothing_behind() -> None:
    batch = bytes(encode(VALUES, group=1))
    assert [b.values() for b in split(batch * 3, 1)] == [VALUES] * 3
    assert split(b"", 1) == []
    for bad in (batch + b"\0", batch + bytes(encode(VALUES, group=2))):
        with pytest.raises(BadBatch):
            split(bad, 1)


@pytest.mark.parametrize("index", [-1, 2, 2**31 - 1, -(2**31)])
def test_a_tag_index_outside_the_list_is_bad(index: int) -> None:
    batch = encode(VALUES, group=1, tags=["a", "b", "b"])
    column = Batch(batch).tag_column
    assert column is not None
    bad = overwrite(batch, column[1], 1, index)
    with pytest.raises(BadBatch, match="outside the tag list"):
        bad.tags()
    assert bad.values() == VALUES


@pytest.mark.parametrize("offset", [-1, 3, 2**31 - 1])
def test_falling_offsets_of_header_pairs_are_bad(offset: int) -> None:
    batch = encode(VALUES, group=1, headers=[{"a": b"", "b": b""}, {}, {}])
    column = Batch(batch).headers_column
    assert column is not None
    with pytest.raises(BadBatch, match="fall"):
        overwrite(batch, column[0], 1, offset).headers()


def test_a_header_name_that_is_no_text_is_bad() -> None:
    batch = encode(VALUES, group=1, headers=[{"name": b""}, {}, {}])
    at = bytes(batch).index(b"name")
    batch[at] = 0xFF
    with pytest.raises(BadBatch, match="not UTF-8"):
        resealed(batch).headers()


def test_falling_value_offsets_are_bad() -> None:
    batch = encode(VALUES, group=1)
    bad = overwrite(batch, Batch(batch).value_column.offsets, 1, 7)
    with pytest.raises(BadBatch, match="fall"):
        bad.values()
    with pytest.raises(BadBatch, match="fall"):
        list(bad.messages())


def test_columns_must_end_where_the_batch_ends() -> None:
    batch = encode(VALUES, group=1) + bytes(8)
    struct.pack_into("<I", batch, 8, len(batch))
    struct.pack_into("<I", batch, 48, len(batch) - HEADER_SIZE)
    with pytest.raises(BadBatch, match="columns end at"):
        resealed(batch).values()


def test_columns_that_are_claimed_must_be_there() -> None:
    batch = encode(VALUES, group=1)
    struct.pack_into("<I", batch, 12, int(Columns.VALUE | Columns.ORIGIN))
    with pytest.raises(BadBatch, match="leaves the batch"):
        resealed(batch).values()


def test_what_is_compressed_stands_for_256_times_its_bytes_at_most() -> None:
    plain = encode([b""] * 2**20, group=1, compression=2)
    assert len(plain) > 2**22
    assert Batch(plain).header.compression == 0
    packed = encode([bytes(20_000)], group=1, compression=2)
    header = Batch(packed).header
    assert header.compression == 2
    fields = (header.columns, 0, 0, 1, 0, 0)
    for raw_size, refused in ((256 * len(packed), False), (256 * len(packed) + 8, True)):
        seal(packed, fields, 1, Packed(2, raw_size, header.packed_size))
        if refused:
            with pytest.raises(BadBatch, match="256 times"):
                Batch(packed)
        else:
            Batch(packed)


def test_what_devices_sent_tells_its_origin() -> None:
    origins = Origins(hubs=[7, 8], boots=[1, 2], sequences=[5, NO_SEQUENCE], sns=[3, 4])
    data = encode([b"a", b"b"], group=1, origins=origins)
    first, second = Batch(data).messages("t", 0)
    assert first.origin == Origin(hub=7, sn=3, boot=1, sequence=5)
    assert second.origin == Origin(hub=8, sn=4, boot=2, sequence=None)
    (plain,) = Batch(encode([b"a"], group=1)).messages("t", 0)
    assert plain.origin is None


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("keyed", ["none", "some", "all"])
def test_some_rows_are_split_as_all_are(uniform: bool, keyed: str) -> None:
    count = 19
    values = [b"%03d" % i if uniform else b"v" * (i % 4) for i in range(count)]
    keys = [b"k%d" % i if keyed == "all" or i % 5 else None for i in range(count)]
    columns: dict[str, Any] = {} if keyed == "none" else {"keys": keys}
    batch = Batch(
        encode(
            values,
            group=1,
            tags=[(None, "a", "b")[i % 3] for i in range(count)],
            times=[*range(count)],
            headers=[{"h": b"%d" % i} if i % 2 else {} for i in range(count)],
            **columns,
        )
    )
    whole = [*batch.messages("t", 3)]
    assert [one.value for one in whole] == values
    assert [one.key for one in whole] == (keys if columns else [None] * count)
    for first in range(count + 1):
        for behind in (first, first + 1, 8, 9, 16, count):
            assert [*batch.messages("t", 3, first, behind)] == whole[first:behind]
            assert batch.values(first, behind) == values[first:behind]
            assert batch.keys(first, behind) == [one.key for one in whole[first:behind]]


@pytest.mark.parametrize("unset", [None, *range(20)])
def test_bits_are_set_where_none_is_not(unset: int | None) -> None:
    bits = bytearray(b"\xff\xff\x0f")
    if unset is not None:
        bits[unset >> 3] ^= 1 << (unset & 7)
    for first in range(0, 20, 8):
        for behind in range(first, 21):
            whole = unset is None or not first <= unset < behind
            assert are_set(memoryview(bits), first, behind) == whole
