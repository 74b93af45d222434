"""Records are counted however they are cut, and floods and garbage end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import RemoteProtocolError
from weir.tls.records import RECORD_BYTES, SILENT_BYTES_MAX, Records


def record(size: int, kind: int = 0x17) -> bytes:
    return bytes([kind, 3, 3]) + size.to_bytes(2, "big") + bytes(size)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.lists(st.integers(1, 97), min_size=1),
)
def test_records_are_counted_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    data = b"".join(map(record, sizes))
    records, whole, at, n = Records(), 0, 0, 0
    while at < len(data):
        step = cuts[n % len(cuts)]
        n += 1
        whole += records.take(data[at : at + step])
        at = min(at + step, len(data))
        begun = sum(5 + size for size in sizes[:whole])
        assert records.partial == at - begun
        assert records.silent == at
    assert whole == len(sizes)
    assert records.partial == 0


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
)
def test_a_record_is_alone_where_nothing_else_came_with_it(
    sizes: list[int], cuts: list[int]
) -> None:
    data = b"".join(map(record, sizes))
    records, at, n = Records(), 0, 0
    ends = {sum(5 + size for size in sizes[:count]): count for count in range(len(sizes) + 1)}
    while at < len(data):
        # Often up to the end of a record, for else none comes alone.
        end = next(end for end in ends if end > at) if n % 2 == 0 else at + cuts[n % len(cuts)]
        piece = data[at : min(end, len(data))]
        n += 1
        is_alone = at in ends and ends.get(at + len(piece)) == ends[at] + 1
        before = records.partial, records.silent
        assert records.are_alone(piece) == is_alone
        assert (records.partial, records.silent) == before, "it only looks"
        records.take(piece)
        at += len(piece)


@pytest.mark.parametrize(
    "data",
    [b"\x13" + record(9)[1:], b"\x17\x02" + record(9)[2:], record(0), record(RECORD_BYTES + 2_049)],
    ids=["kind", "version", "empty", "long"],
)
def test_what_is_no_record_is_not_alone(data: bytes) -> None:
    records = Records()
    assert not records.are_alone(data)
    with pytest.raises(RemoteProtocolError):
        records.take(data)


def test_what_looks_like_a_record_within_another_one_is_not_alone() -> None:
    records = Records()
    records.take(record(50)[:10])
    assert not records.are_alone(record(9))


@pytest.mark.parametrize("kind", [0x14, 0x15, 0x16])
def test_a_record_that_is_for_tls_itself_is_not_alone(kind: int) -> None:
    assert not Records().are_alone(record(9, kind))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n", bytes(5), b"\x16\x02\x00\x00\x05", b"\x13\x03\x03\x00\x05",
        b"\x17\x03\x03\xff\xff", b"\x17\x03\x03\x48\x01", b"\x17\x03\x03\x00\x00",
    ],
)  # fmt: skip
def test_what_is_no_record_ends_before_memory_is_spent(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Records().take(data)


def test_the_longest_record_is_one() -> None:
    assert Records().take(record(RECORD_BYTES + 2_048)) == 1


def test_a_flood_without_data_ends() -> None:
    records = Records()
    update = record(22)
    for _ in range(SILENT_BYTES_MAX // len(update)):
        records.take(update)
        records.check_flood()
    records.take(update)
    with pytest.raises(RemoteProtocolError, match="without a byte"):
        records.check_flood()
    records.silent = 0
    records.take(update)
    records.check_flood()
