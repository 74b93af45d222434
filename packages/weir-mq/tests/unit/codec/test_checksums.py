"""Checksums against published vectors."""

from __future__ import annotations

import pytest
import xxhash

from weir.codec import crc32c, xxh3


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, B.4; the last is the check value of the CRC catalogues
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c_gives_the_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c(bytearray(data)) == expected
    assert crc32c(memoryview(data)) == expected


def test_crc32c_goes_on_from_a_seed() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_xxh3_gives_the_values_that_disks_hold() -> None:
    assert xxh3((b"",), 0) == 0x2D06800538D394C2  # published with the algorithm
    assert xxh3((b"xxhash",), 20141025) == 10258567178643282864


def test_xxh3_does_not_see_where_buffers_end() -> None:
    parts = (b"ab", memoryview(b"cd"), bytearray(b""), b"e")
    assert xxh3(parts, 7) == xxh3((b"abcde",), 7)
    assert xxh3(parts, 7) != xxh3(parts, 8)


def test_xxh3_takes_its_seed_modulo_two_to_the_64() -> None:
    assert xxh3((b"a",), 2**64 + 5) == xxh3((b"a",), 5)


@pytest.mark.parametrize("size", [4_095, 4_096, 4_097, 10_000])
def test_what_is_long_has_the_hash_that_it_has_in_one_piece(size: int) -> None:
    data = bytes(range(256)) * 40
    whole = xxhash.xxh3_64_intdigest(data[:size], 7)
    assert xxh3((data[:size],), 7) == whole
    assert xxh3((data[:56], memoryview(data)[56:size]), 7) == whole
