"""Values out of batches, as devices get them."""

from __future__ import annotations

import pytest

from weir.broker.devices.receivers import Taken, take
from weir.codec import Buffer
from weir.errors import BadBatch
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.columns import References
from weir.protocol.device import message_bytes

ROOM = 1 << 16


def batch(first: int, *values: bytes, **more: int) -> bytes:
    """Return a batch as a leader stamped it."""
    made = encode(list(values), group=1, **more)
    return stamped(made, 7, first) + made[HEADER_SIZE:]


def test_values_are_those_of_the_offsets_that_were_granted() -> None:
    payloads: list[Buffer] = [batch(10, b"a", b"b") + batch(12, b"c"), batch(13, b"d", b"e")]
    assert take(payloads, 11, 14, 9, ROOM) == Taken([11, 12, 13], [b"b", b"c", b"d"])
    assert take(payloads, 11, 14, 2, ROOM) == Taken([11, 12], [b"b", b"c"])
    assert take(payloads, 20, 30, 2, ROOM) == Taken()


def test_a_header_that_lies_apart_belongs_to_what_follows() -> None:
    whole = batch(0, b"a", b"b")
    payloads: list[Buffer] = [whole[:HEADER_SIZE], whole[HEADER_SIZE:], batch(2, b"c")]
    assert take(payloads, 0, 3, 9, ROOM).values == [b"a", b"b", b"c"]


def test_the_room_is_for_values_and_all_heads_but_one() -> None:
    payloads: list[Buffer] = [batch(0, bytes(100), bytes(100), bytes(101))]
    room = 100 + message_bytes(bytes(100))
    assert take(payloads, 0, 3, 9, room).offsets == [0, 1]
    assert take(payloads, 0, 3, 9, room - 1).offsets == [0]
    assert take(payloads, 2, 3, 9, 101).offsets == [2]
    assert take(payloads, 2, 3, 9, 100) == Taken([2], [b""], 101)


def test_compressed_values_come_out_whole() -> None:
    values = [b"open the door %d" % n for n in range(100)]
    packed = batch(0, *values, compression=1)
    assert len(packed) < len(batch(0, *values))
    assert take([packed], 0, 100, 100, ROOM).values == values


def test_a_value_in_chunks_never_fits_and_says_how_large_it_is() -> None:
    made = encode([], group=1, references=References(9_000_000, 5, ((3, 2),)))
    closing = stamped(made, 7, 1) + made[HEADER_SIZE:]
    payloads: list[Buffer] = [batch(0, b"a"), closing, batch(2, b"c")]
    assert take(payloads, 0, 3, 9, ROOM) == Taken([0], [b"a"])
    assert take(payloads, 1, 3, 9, ROOM) == Taken([1], [b""], 9_000_000)
    assert take(payloads, 2, 3, 9, ROOM).values == [b"c"]


def test_bytes_that_are_no_batch_are_bad() -> None:
    with pytest.raises(BadBatch):
        take([b"x" * 200], 0, 3, 9, ROOM)


def test_what_has_expired_is_left_out_and_named() -> None:
    expires = [0, 500, 501, 400, 300, 0, 500]
    made = encode([b"%d" % n for n in range(7)], group=1, expires=expires, compression=1)
    payloads: list[Buffer] = [stamped(made, 7, 10) + made[HEADER_SIZE:]]
    taken = take(payloads, 10, 17, 9, ROOM, 500)
    assert (taken.offsets, taken.values) == ([10, 12, 15], [b"0", b"2", b"5"])
    assert taken.expired == [(11, 12), (13, 15), (16, 17)]
    assert taken.passed == 17
    assert take(payloads, 13, 15, 9, ROOM, 500) == Taken(passed=15, expired=[(13, 15)])
    assert take(payloads, 10, 17, 2, ROOM, 500).expired == [(11, 12)]
    assert take(payloads, 13, 17, 9, 0, 500) == Taken([15], [b""], 1, 15, [(13, 15)])
