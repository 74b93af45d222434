"""What relays say to each other: its bytes, for ever, and what is refused when it is read."""

from __future__ import annotations

import struct

import msgspec
import pytest

from weir.codec import crc32c, padding
from weir.errors import RemoteProtocolError
from weir.relay import messages as m
from weir.relay.rows import Row, RowKind, roster_entry

PREFIX = struct.Struct("<BBHIII")
BYTES = bytes(range(32))
#: Each kind of message, and its bytes; docs/RELAYS.md has their meaning.
GOLDEN: dict[str, tuple[m.AnyMessage, bytes, str]] = {
    "pull": (
        m.Pull(7, 30, 1, 3, 2, 9, 1, 100, 4, ("", "a"), 8_388_608, 90, 120, 1, 5, 77),
        b"",
        (
            "010100001a0000005dbff1ee00000000dc0010071e0103020901640492a0a161ce008000005a7801"
            "054d000000000000"
        ),
    ),
    "begin": (
        m.Pull(7, 30, 1, 3, 2, 9, 0, m.UNKNOWN, 0, None, 1, 0),
        b"",
        (
            "01010000230000006553bcc600000000dc0010071e0103020900ff00c00100cf7fffffffffffffff"
            "0000cf7fffffffffffffff0000000000"
        ),
    ),
    "answer": (
        m.Answer(
            196_610,
            9,
            1,
            100,
            105,
            (Row(RowKind.BATCH, 2, 50, 32), Row(RowKind.SKIPPED, 3)),
            40,
            110,
            (roster_entry(1, 102, 3),),
            (m.Mark(2, 60, 105),),
            age_ms=700,
            knows_log_start=False,
        ),
        BYTES,
        (
            "020100002b000000a3def827200000009dce00030002090164699294010232209403030000286e91"
            "930166c404030000009193023c6990cd02bcc20000000000000102030405060708090a0b0c0d0e0f"
            "101112131415161718191a1b1c1d1e1f"
        ),
    ),
    "chunks": (
        m.Answer(196_610, 9, 1, 100, 100, (), 40, 110, (), (), (m.Chunk(6, 8), m.Chunk(8, 24))),
        BYTES,
        (
            "0201000017000000d549e738200000009cce000300020901646490286e9090929206089208180000"
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        ),
    ),
    "filter-not-covered": (
        m.FilterNotCovered(196_610, 9, m.UNKNOWN),
        b"",
        "03010000080000002b4ad2430000000093ce0003000209ff",
    ),
    "out-of-range": (
        m.OffsetOutOfRange(196_610, 9, 40, 35),
        b"",
        "0401000009000000fe487bf40000000094ce0003000209282300000000000000",
    ),
    "lineage-ended": (
        m.LineageEnded(196_610, 9, 3, 80, ((2, 80), (3, 95))),
        b"",
        "05010000100000006c78a5e80000000095ce000300020903509292025092035f",
    ),
    "topic-gone": (
        m.TopicGone(196_610, 9),
        b"",
        "0601000007000000ba0937260000000092ce000300020900",
    ),
    "overloaded": (
        m.Overloaded(196_610, 9, 200),
        b"",
        "0701000009000000075f5a9c0000000093ce0003000209ccc800000000000000",
    ),
    "behind": (m.Behind(196_610, 9, 99), b"", "0801000008000000383624060000000093ce000300020963"),
    "ask-filter": (
        m.AskFilter(7, 30, 1, 3, 2, 10, ("a", "b")),
        b"",
        "090100000c000000cc235d0c0000000097071e0103020a92a161a16200000000",
    ),
    "filter-from": (
        m.FilterFrom(196_610, 10, 110),
        b"",
        "0a010000080000007fbf1f6c0000000093ce000300020a6e",
    ),
    "hold": (
        m.SayHold(7, 30, 1, 3, 2, 1, 95),
        b"",
        "0b010000080000009ea0f1a60000000097071e010302015f",
    ),
}


def joined(message: m.AnyMessage, data: bytes = b"") -> bytes:
    return b"".join(m.encode_message(message, (data,) if data else ()))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes_of_messages(name: str) -> None:
    message, data, golden = GOLDEN[name]
    assert joined(message, data).hex() == golden
    found, behind = m.decode_message(bytes.fromhex(golden))
    assert (found, bytes(behind)) == (message, data)


def test_an_answer_that_says_that_it_knows_the_start_is_one_that_does_not_say_it() -> None:
    told = (
        "02010000180000001b8858bc200000009dce000300020901646490286e90909292060892081800c3"
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    )
    found, behind = m.decode_message(bytes.fromhex(told))
    assert (found, bytes(behind)) == GOLDEN["chunks"][:2]


def test_every_kind_of_message_has_golden_bytes() -> None:
    kinds = {bytes.fromhex(golden)[0] for _, _, golden in GOLDEN.values()}
    assert kinds == set(range(1, 12))


def test_a_changed_byte_of_a_head_ends_the_connection() -> None:
    for at in range(40):
        data = bytearray(joined(GOLDEN["behind"][0]))
        if at < len(data):
            data[at] ^= 4
            try:
                found, _ = m.decode_message(data)
            except RemoteProtocolError:
                continue
            assert found == GOLDEN["behind"][0], "it was padding"


def forged(kind: int, head: object, data: bytes = b"", version: int = 1) -> bytes:
    """Return a message whose CRC is right, whatever it says."""
    packed = msgspec.msgpack.encode(head)
    start = PREFIX.pack(kind, version, 0, len(packed), 0, len(data))[:8]
    prefix = PREFIX.pack(
        kind, version, 0, len(packed), crc32c(packed, crc32c(start)), len(data)
    )  # fmt: skip
    return prefix + packed + padding(len(packed)) + data


PULL = (7, 30, 1, 3, 2, 9, 1, 100, 4, None, 1000, 90)


def pull(at: int, value: object) -> tuple[object, ...]:
    return (*PULL[:at], value, *PULL[at + 1 :])


def answer(
    first: int, next_: int, rows: object, *, start: int = 0, head: int = 200, roster: object = (),
    marks: object = (), chunks: object = (),
) -> tuple[object, ...]:  # fmt: skip
    return (196_610, 9, 1, first, next_, rows, start, head, roster, marks, chunks)


HOSTILE: dict[str, tuple[int, object, bytes]] = {
    "a credit of 2^63": (1, pull(10, 1 << 63), b""),
    "a credit of nothing": (1, pull(10, 0), b""),
    "65,536 tags": (1, pull(9, tuple(f"{n:05}" for n in range(65_536))), b""),
    "tags twice": (1, pull(9, ("a", "a")), b""),
    "a long tag": (1, pull(9, ("é" * 200,)), b""),
    "an offset below all": (1, pull(7, -2), b""),
    "a set that is no u32": (1, pull(1, 1 << 32), b""),
    "no topic": (1, pull(3, 0), b""),
    "a partition too many": (1, pull(4, 65_536), b""),
    "bytes behind a pull": (1, PULL, BYTES),
    "a gap in an answer": (2, answer(100, 110, [(3, 9, 0, 0)]), b""),
    "an overlap in an answer": (2, answer(100, 110, [(3, 11, 0, 0)]), b""),
    "a range that goes back": (2, answer(110, 100, []), b""),
    "fewer bytes than rows": (2, answer(100, 101, [(1, 1, 5, 40)]), BYTES),
    "more bytes than rows": (2, answer(100, 101, [(1, 1, 5, 8)]), BYTES),
    "a mark before its messages": (2, answer(100, 100, [], marks=[(1, 5, 101)]), b""),
    "a roster entry too early": (2, answer(100, 100, [], roster=[(0, 101, b"\3\0\0\0")]), b""),
    "a roster entry of no number": (2, answer(100, 100, [], roster=[(0, 0, b"\3\0\0")]), b""),
    "a roster of nobody": (2, answer(100, 100, [], roster=[(0, 0, bytes(4))]), b""),
    "a roster of too many": (2, answer(100, 100, [], roster=[(0, 0, b"\1\0\1\0")]), b""),
    "chunks and messages": (2, answer(100, 101, [(3, 1, 0, 0)], chunks=[(5, 32)]), BYTES),
    "chunks that fall": (2, answer(100, 100, [], chunks=[(5, 16), (5, 16)]), BYTES),
    "a log that ends before it starts": (2, answer(100, 100, [], start=9, head=8), b""),
    "a wait of a day": (7, (196_610, 9, 86_400_000), b""),
    "lineages that fall": (5, (196_610, 9, 2, 80, [(3, 80), (2, 90)]), b""),
    "no such kind": (12, (1,), b""),
    "no message": (8, "x", b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_nobody_may_say_ends_the_connection(name: str) -> None:
    kind, head, data = HOSTILE[name]
    with pytest.raises(RemoteProtocolError):
        m.decode_message(forged(kind, head, data))


def test_what_is_like_it_and_right_is_taken() -> None:
    told = [
        forged(1, PULL),
        forged(2, answer(100, 110, [(3, 10, 0, 0)], marks=[(1, 5, 110)])),
        forged(2, answer(100, 101, [(1, 1, 5, 32)]), BYTES),
    ]
    (pull, _), (skips, nothing), (batch, data) = map(m.decode_message, told)
    assert isinstance(pull, m.Pull)
    assert isinstance(skips, m.Answer)
    assert isinstance(batch, m.Answer)
    assert (bytes(nothing), bytes(data)) == (b"", BYTES)


def test_another_version_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="version 2"):
        m.decode_message(forged(1, PULL, version=2))


def test_sizes_that_are_not_there_end_the_connection() -> None:
    whole = joined(*GOLDEN["answer"][:2])
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            m.decode_message(whole[:size])
    with pytest.raises(RemoteProtocolError):
        m.decode_message(whole + b"\0")
