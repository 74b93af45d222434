"""Limits that lean on each other."""

from __future__ import annotations

from weir.model import limits
from weir.model.ids import PARTITIONS_MAX


def test_every_frame_takes_the_largest_batch_and_its_prefix() -> None:
    assert limits.CLIENT_FRAME_BYTES_MAX >= limits.BATCH_BYTES_MAX + 1024
    assert limits.FETCH_BYTES_MAX >= limits.BATCH_BYTES_MAX


def test_a_fetch_fits_a_frame() -> None:
    assert limits.FETCH_BYTES_MAX <= limits.CLIENT_FRAME_BYTES_MAX


def test_a_segment_takes_four_of_the_largest_batches() -> None:
    assert limits.SEGMENT_BYTES_DEFAULT >= 4 * limits.BATCH_BYTES_MAX


def test_partitions_have_numbers() -> None:
    assert limits.PARTITIONS_PER_TOPIC_MAX <= PARTITIONS_MAX


def test_all_acks_of_one_frame_fit_it() -> None:
    range_bytes = 1 + 3 * 9  # MessagePack: an array of three, numbers of nine bytes at most
    assert limits.ACK_RANGES_MAX * range_bytes < limits.CLIENT_FRAME_BYTES_MAX


def test_offsets_of_a_batch_fit_32_bits() -> None:
    assert limits.BATCH_BYTES_MAX < 2**31
    assert limits.HEADERS_PER_BATCH_MAX < 2**31
