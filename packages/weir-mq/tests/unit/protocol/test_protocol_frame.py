"""The reassembler: copies only what spans reads, keeps no large read alive for a small frame."""

from __future__ import annotations

import pytest

from weir.errors import RemoteProtocolError
from weir.model.limits import CLIENT_FRAME_BYTES_MAX, CONTROL_FRAME_BYTES_MAX
from weir.protocol.client.codec import body_bytes_max, client_frame_size
from weir.protocol.frame import (
    CLIENT_HEADER,
    ClientFrame,
    Reassembler,
    take_client_frame,
)


def frame(body: bytes, opcode: int = 16, correlation: int = 7) -> bytes:
    return CLIENT_HEADER.pack(2, 0, opcode, len(body), correlation) + body


def reassembler() -> Reassembler:
    return Reassembler(CLIENT_HEADER.size, client_frame_size)


def test_a_header_keeps_batches_on_eights() -> None:
    assert CLIENT_HEADER.size == 16


def test_a_large_frame_in_one_read_is_not_copied() -> None:
    read = frame(bytes(1000)) + frame(b"x")
    large, small = reassembler().receive(read)
    assert large.obj is read
    assert small.obj is not read  # or one byte would keep the whole read alive
    assert small == frame(b"x")


def test_a_frame_that_spans_reads_is_held_as_it_comes() -> None:
    whole = frame(bytes(range(256)))
    stream = reassembler()
    for at in range(len(whole) - 1):
        assert stream.receive(whole[at : at + 1]) == []
        assert stream.pending == at + 1
    (found,) = stream.receive(whole[-1:] + whole[:5])
    assert found == whole
    assert stream.pending == 5


def test_frames_that_were_handed_out_do_not_change() -> None:
    stream = reassembler()
    first, second = frame(b"a" * 50), frame(b"b" * 50)
    assert stream.receive(first[:40]) == []
    (found,) = stream.receive(first[40:] + second[:40])
    assert stream.receive(second[40:]) == [second]
    assert found == first


def test_nothing_comes_of_nothing() -> None:
    stream = reassembler()
    assert stream.receive(b"") == []
    assert stream.pending == 0


def test_a_frame_without_a_body_is_a_frame() -> None:
    (found,) = reassembler().receive(frame(b""))
    assert take_client_frame(found) == ClientFrame(0, 16, 7, memoryview(b""))


@pytest.mark.parametrize("opcode", [1, 16 - 1, 16, 65_535])
def test_the_limit_itself_is_allowed_and_one_more_is_not(opcode: int) -> None:
    data = opcode >= 16
    limit = CLIENT_FRAME_BYTES_MAX if data else CONTROL_FRAME_BYTES_MAX
    assert body_bytes_max(opcode) == limit
    stream = reassembler()
    assert stream.receive(CLIENT_HEADER.pack(2, 0, opcode, limit, 1)) == []
    assert stream.pending == CLIENT_HEADER.size
    with pytest.raises(RemoteProtocolError, match="allows"):
        reassembler().receive(CLIENT_HEADER.pack(2, 0, opcode, limit + 1, 1))


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_another_version_ends_the_stream(version: int) -> None:
    stream = reassembler()
    stream.receive(frame(b"fine"))
    with pytest.raises(RemoteProtocolError, match="version 2"):
        stream.receive(bytes([version]) + frame(b"")[1:])
    assert stream.pending == 0
