"""The bytes of a slice, field by field: clients of other releases open it."""

from __future__ import annotations

from weir.model.batch import Batch, stamped
from weir.model.batch_builder import encode
from weir.model.slices import slice_of

#: A change of these bytes needs a decision.
SLICE = (
    ("magic, version, no compression, header size", "7765697201005800"),
    ("264 bytes, VALUE KEY TAG TIME HEADERS SLICED", "080100004f008000"),
    ("producer 9, epoch 2, 2 messages here", "09000000000000000200000002000000"),
    ("sequence 4, base time 7", "04000000000000000700000000000000"),
    ("176 bytes of columns, 3 messages in the original", "b000000003000000"),
    ("hash", "baede3072b343155"),
    ("stamp 5, first offset 1,000 of the original", "0500000000000000e803000000000000"),
    ("no schema, CRC-32C", "00000000353c0264"),
    ("the tag list: b", "010000000000000000000000010000006200000000000000"),
    ("SLICED: hash of the original, rows 1 and 2", "15a01d572ea06e310100000002000000"),
    ("VALUE", "000000000300000008000000000000007477 6f7468726565".replace(" ", "")),
    ("KEY: none, l; hashes", "0200000000000000" + "000000000000000001000000" + "00000000"),
    ("", "6c00000000000000" + "000000003a0c0c58"),
    ("TAG", "0000000000000000"),
    ("TIME", "02000000000000000300000000000000"),
    ("HEADERS", "000000000100000001000000000000000000000001000000680000000000000000000000"),
    ("", "010000007600000000000000"),
)


def test_a_slice_has_these_bytes() -> None:
    whole = encode(
        [b"one", b"two", b"three"],
        group=77,
        producer=9,
        epoch=2,
        sequence=4,
        base_time=7,
        tags=["a", "b", "b"],
        keys=[b"k", None, b"l"],
        times=[1, 2, 3],
        headers=[{}, {"h": b"v"}, {}],
    )
    whole[:88] = stamped(memoryview(whole), 5, 1_000)
    made = slice_of(Batch(bytes(whole)), [1, 2], 77)
    assert made.hex() == "".join(data for _, data in SLICE)
    assert [one.offset for one in Batch(bytes(made)).check(77).messages()] == [1_001, 1_002]
