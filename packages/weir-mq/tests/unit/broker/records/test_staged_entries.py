"""Entries that stage a batch: their bytes never change, and what is not one is refused."""

from __future__ import annotations

import pytest

from weir.broker.records.entries import of_staged, read_back
from weir.broker.records.staging import StagedRecord, pack_staged, published, read_staged
from weir.errors import BadBatch, Halted
from weir.model.batch import HEADER_SIZE, Batch, parse
from weir.model.batch_builder import encode
from weir.storage.format.frame import Kind

GROUP = 65_536
BATCH = bytes(encode([b"one", b"two"], group=GROUP))
RECORD = StagedRecord(5, "größe", 7, 2, 1_700_000_000_000 << 16, 2, parse(BATCH).hash, len(BATCH))
#: Run, the query's batch, stamp, number, bytes of the name; the name, padded.
GOLDEN = (
    "0500000000000000070000000000000000000068e5cf8b01"
    "02000000070000006772c3b6c39f6500"
)  # fmt: skip


def test_its_bytes_are_golden() -> None:
    assert pack_staged(RECORD).hex() == GOLDEN
    payload = of_staged(RECORD, BATCH)
    assert b"".join(payload.buffers) == bytes.fromhex(GOLDEN) + BATCH
    assert payload.size == len(bytes.fromhex(GOLDEN)) + len(BATCH)


def test_it_is_read_back_as_it_was() -> None:
    data = pack_staged(RECORD) + BATCH
    assert read_staged(data, GROUP) == RECORD
    assert read_back(Kind.STAGED, data, GROUP).staged == RECORD


def test_readers_get_the_batch_with_its_place() -> None:
    head, body = published(pack_staged(RECORD) + BATCH, 99, 1_000)
    batch = Batch(head + bytes(body)).check(GROUP)
    assert (batch.header.first_offset, batch.header.stamp) == (1_000, 99)
    assert batch.values() == [b"one", b"two"]
    assert bytes(body) == BATCH[HEADER_SIZE:]


@pytest.mark.parametrize("cut", [0, 31, 39, 40, 60, -1])
def test_what_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(BadBatch):
        read_staged((pack_staged(RECORD) + BATCH)[:cut], GROUP)


@pytest.mark.parametrize(
    "wrong",
    [
        pack_staged(RECORD) + BATCH + BATCH,
        pack_staged(RECORD._replace(query="")) + BATCH,
        pack_staged(RECORD._replace(query="q" * 4_000)) + BATCH,
        pack_staged(RECORD._replace(run=1 << 63)) + BATCH,
        pack_staged(RECORD) + bytes(encode([b"x"], group=GROUP, dues=[1])),
        pack_staged(RECORD) + bytes(encode([b"x"], group=GROUP + 1)),
        bytes.fromhex(GOLDEN)[:32] + b"\xff" * 7 + b"\0" + BATCH,
    ],
    ids=["two batches", "no name", "a long name", "a high run", "a due time", "a group", "no text"],
)
def test_what_no_leader_wrote_is_refused(wrong: bytes) -> None:
    with pytest.raises(BadBatch):
        read_staged(wrong, GROUP)


def test_a_kind_that_is_not_known_halts() -> None:
    with pytest.raises(Halted):
        read_back(Kind.MARK, b"")
