"""Entries of a relay's log: their bytes, for ever, and what is refused when they are read."""

from __future__ import annotations

import struct

import msgspec
import pytest

from weir.codec import crc32c, padding
from weir.errors import Damaged, Halted
from weir.relay import entries as e
from weir.relay.rows import Row, RowKind, roster_entry

PREFIX = struct.Struct("<BBHIII")
BATCHES = bytes(range(64))
ROWS = (
    Row(RowKind.SKIPPED, 3, 7),
    Row(RowKind.BATCH_MORE, 2, 9, 24),
    Row(RowKind.BATCH, 1, 9, 40),
    Row(RowKind.VOID, 4),
)
#: Each kind of entry, and its bytes; docs/RELAYS.md has their meaning.
GOLDEN: dict[str, tuple[e.AnyRecord, bytes, str]] = {
    "relayed": (
        e.Relayed(2, 100, 110, 3, 1_700_000_000_000, ROWS, (roster_entry(0, 104, 3),)),
        BATCHES,
        (
            "010100002d000000c723ff4c400000009702646e03cf0000018bcfe5680094940303070094020209"
            "189401010928940404000091930068c40403000000000000000102030405060708090a0b0c0d0e0f"
            "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637"
            "38393a3b3c3d3e3f"
        ),
    ),
    "chunk": (
        e.ChunkStored(77, 110),
        BATCHES[:8],
        "0201000003000000e0a9f2b408000000924d6e00000000000001020304050607",
    ),
    "filter": (
        e.FilterSet(4, ("", "north"), 120),
        b"",
        "030100000b000000a848030e00000000930492a0a56e6f727468780000000000",
    ),
    "everything": (
        e.FilterSet(1, None, 0),
        b"",
        "030100000400000019e3edb6000000009301c00000000000",
    ),
    "gap": (
        e.GapTold(110, 150, "retention"),
        b"",
        "040100000e000000d8807d3700000000936ecc96a9726574656e74696f6e0000",
    ),
    "holds": (
        e.HoldsStored((e.HoldRow(7, 3, 99, 5, ("a",)),), 4, 90),
        b"",
        "050100000c000000b619ffd9000000009391950703630591a161045a00000000",
    ),
    "start": (e.StartMoved(100), b"", "0601000002000000aee5ba0d000000009164000000000000"),
    "forked": (
        e.Forked(3, 105, ((2, 80), (3, 105))),
        b"",
        "070100000a000000356d04060000000093036992920250920369000000000000",
    ),
}


def joined(record: e.AnyRecord, data: bytes = b"") -> bytes:
    return b"".join(e.encode_entry(record, data) if data else e.encode_entry(record))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    record, data, golden = GOLDEN[name]
    assert joined(record, data).hex() == golden
    found, behind = e.decode_entry(bytes.fromhex(golden))
    assert (found, bytes(behind)) == (record, data)


def test_data_is_not_copied() -> None:
    view = memoryview(BATCHES)
    record = GOLDEN["relayed"][0]
    assert e.encode_entry(record, view)[1] is view
    _, behind = e.decode_entry(joined(record, BATCHES))
    assert len(joined(record, BATCHES)) % 8 == 0
    assert len(behind) == 64


@pytest.mark.parametrize("at", range(0, 24))
def test_a_byte_that_changed_is_found(at: int) -> None:
    data = bytearray(joined(GOLDEN["gap"][0]))
    data[at] ^= 1
    with pytest.raises((Damaged, Halted)):
        e.decode_entry(data)


def test_bytes_that_are_missing_are_found() -> None:
    data = joined(GOLDEN["relayed"][0], BATCHES)
    for size in range(len(data)):
        with pytest.raises(Damaged):
            e.decode_entry(data[:size])


def forged(kind: int, head: bytes, data: bytes = b"", version: int = 1) -> bytes:
    """Return an entry whose CRC is right, whatever it says."""
    first = PREFIX.pack(kind, version, 0, len(head), 0, len(data))[:8]
    crc = crc32c(head, crc32c(first))
    prefix = PREFIX.pack(kind, version, 0, len(head), crc, len(data))
    return prefix + head + padding(len(head)) + data


def test_what_a_newer_release_wrote_stops_the_group() -> None:
    head = msgspec.msgpack.encode((1, 2, "x"))
    for entry in (forged(99, head), forged(4, head, version=2), forged(4, b"\xc1")):
        with pytest.raises(Halted, match="upgrade this node"):
            e.decode_entry(entry)


WRONG: list[tuple[int, object, bytes]] = [
    # Rows that leave a gap, or overlap what comes next, or cover nothing.
    (1, (1, 0, 10, 1, 0, [(3, 9, 0, 0)], []), b""),
    (1, (1, 0, 10, 1, 0, [(3, 11, 0, 0)], []), b""),
    (1, (1, 0, 0, 1, 0, [(3, 0, 0, 0)], []), b""),
    (1, (1, 9, 3, 1, 0, [], []), b""),
    # Batches without bytes, bytes without batches, void offsets with a stamp, kinds there are none.
    (1, (1, 0, 1, 1, 0, [(1, 1, 5, 0)], []), b""),
    (1, (1, 0, 1, 1, 0, [(3, 1, 5, 8)], []), BATCHES[:8]),
    (1, (1, 0, 1, 1, 0, [(1, 1, 5, 16)], []), BATCHES[:8]),
    (1, (1, 0, 1, 1, 0, [(4, 1, 5, 0)], []), b""),
    (1, (1, 0, 1, 1, 0, [(5, 1, 5, 0)], []), b""),
    # Roster entries behind the range, or with a hole.
    (1, (1, 0, 1, 1, 0, [(3, 1, 0, 0)], [(0, 2, b"")]), b""),
    (1, (1, 0, 1, 1, 0, [(3, 1, 0, 0)], [(0, 1, b""), (2, 1, b"")]), b""),
    # Numbers out of bounds.
    (1, (1, 0, 1 << 63, 1, 0, [(3, 1, 0, 0)], []), b""),
    (1, (-1, 0, 1, 1, 0, [(3, 1, 0, 0)], []), b""),
    (2, (5, 5), b""),
    (3, (1, ("b", "a"), 0), b""),
    (3, (1, ("a", "a"), 0), b""),
    (3, (1, tuple(f"{n:05}" for n in range(65_536)), 0), b""),
    (3, (1, ("x" * 256,), 0), b""),
    (3, (1, ("é" * 200,), 0), b""),
    (4, (10, 10, ""), b""),
    (4, (10, 11, ""), BATCHES[:8]),
    (5, ([(1 << 32, 1, 0, 0, None)], 0, 0), b""),
    (5, ([(1, 1 << 31, 0, 0, None)], 0, 0), b""),
    (5, ([(1, 1, 0, 0, ("b", "a"))], 0, 0), b""),
    (7, (3, 5, [(3, 5), (2, 5)]), b""),
    (7, (4, 5, [(2, 5), (3, 5)]), b""),
]


@pytest.mark.parametrize(("kind", "head", "data"), WRONG)
def test_what_makes_no_sense_is_refused(kind: int, head: object, data: bytes) -> None:
    with pytest.raises((Damaged, Halted)):
        e.decode_entry(forged(kind, msgspec.msgpack.encode(head), data))
