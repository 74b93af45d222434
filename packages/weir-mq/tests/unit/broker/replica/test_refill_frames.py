"""What nodes say of rotten entries, on the wire."""

from __future__ import annotations

import pytest

from weir.broker.records.entries import NOOP, of_control
from weir.broker.records.partition import GrantsReleased
from weir.broker.replica.frames import (
    BadMessage,
    FrameKind,
    pack_ask,
    pack_give,
    unpack_ask,
    unpack_give,
)
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.protocol.link import LinkFrame, LinkStream
from weir.storage.format.frame import Kind

GROUP = 65536


def arrived(buffers: tuple[bytes | bytearray | memoryview, ...]) -> LinkFrame:
    (frame,) = LinkStream().receive(b"".join(buffers))
    return frame


def batch() -> bytes:
    sealed = encode([b"a", b"b"], group=GROUP)
    return stamped(sealed, 7, 40) + bytes(sealed[HEADER_SIZE:])


def given() -> list[tuple[tuple[int, int], Kind, bytes]]:
    released = b"".join(of_control(GrantsReleased(1)).buffers)
    noop = b"".join(NOOP.buffers)
    return [
        ((3, 1), Kind.BATCHES, batch()),
        ((4, 2), Kind.CONTROL, released),
        ((5, 2), Kind.NOOP, noop),
    ]


def test_an_ask_comes_as_it_was_sent() -> None:
    names = [(3, 1), (1 << 40, 1 << 33)]
    frame = arrived(pack_ask(GROUP, names))
    assert (frame.kind, frame.group) == (FrameKind.REFILL_ASK, GROUP)
    assert unpack_ask(frame) == names
    assert unpack_ask(arrived(pack_ask(GROUP, []))) == []


def test_what_is_given_comes_as_it_was_sent() -> None:
    frame = arrived(pack_give(GROUP, given()))
    assert (frame.kind, frame.group) == (FrameKind.REFILL_GIVE, GROUP)
    found = unpack_give(frame)
    assert [one.name for one in found] == [(3, 1), (4, 2), (5, 2)]
    for one, (_, kind, payload) in zip(found, given(), strict=True):
        assert (one.payload.kind, b"".join(one.payload.buffers)) == (kind, payload)
    assert unpack_give(arrived(pack_give(GROUP, []))) == []


def test_nothing_that_changed_on_its_way_is_taken() -> None:
    for buffers, unpack in (
        (pack_ask(GROUP, [(3, 1)]), unpack_ask),
        (pack_give(GROUP, given()), unpack_give),
    ):
        frame = arrived(buffers)
        for at in range(len(frame.body)):
            body = bytearray(frame.body)
            body[at] ^= 4
            with pytest.raises(BadMessage):
                unpack(LinkFrame(frame.kind, GROUP, memoryview(body)))
        for end in range(len(frame.body)):
            with pytest.raises(BadMessage):
                unpack(LinkFrame(frame.kind, GROUP, frame.body[:end]))


def test_batches_of_another_group_are_not_taken() -> None:
    frame = arrived(pack_give(GROUP + 1, given()[:1]))
    with pytest.raises(BadMessage, match="group"):
        unpack_give(frame)


def test_frames_are_so_many_bytes() -> None:
    """A format: other releases of a set read it."""
    assert bytes(arrived(pack_ask(GROUP, [(3, 1)])).body[4:]).hex() == (
        "01000000" "0300000000000000" "0100000000000000"
    )  # fmt: skip
    body = bytes(arrived(pack_give(GROUP, given()[2:])).body[4:])
    assert body[:28].hex() == "01000000050000000000000002000000000000000100000051537d52"
    assert body[28:].hex() == "060000000000000000"
