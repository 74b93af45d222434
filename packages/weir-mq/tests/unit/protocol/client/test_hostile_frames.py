"""Bodies of the client dialect that are made to hurt: refused with a reason, and no more."""

from __future__ import annotations

import msgspec
import pytest

from weir.errors import BadRequest, RemoteProtocolError
from weir.protocol.client.codec import decode_reply, decode_request
from weir.protocol.client.messages import Opcode
from weir.protocol.frame import ClientFrame

ADDRESSED = b"\x93\x00\x00\x01"
DEEP = b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    ("opcode", "body", "why"),
    [
        (Opcode.DESCRIBE_TOPIC, b"\x91\xa1\xff", "utf-8"),
        (Opcode.DESCRIBE_TOPIC, b"\x92\xa1a" + DEEP, "recursion"),
        (Opcode.ACK, b"\x93" + ADDRESSED + b"\xa1c\xdd\xff\xff\xff\xff", "length <="),
        (Opcode.ACK, msgspec.msgpack.encode([[0, 0, 1], "c", [[1, 2, 3]] * 10_001]), "length <="),
        (Opcode.NACK, msgspec.msgpack.encode([[0, 0, 1], "c", 1, [[1, 2]] * 10_001]), "length <="),
        (Opcode.EXTEND, msgspec.msgpack.encode([[0, 0, 1], "c", [1] * 10_001, 1]), "length <="),
        (Opcode.PULL, msgspec.msgpack.encode([[0, 0, 1], "c", 1, 1, 0, 1, 3]), "enum"),
        (Opcode.FETCH, msgspec.msgpack.encode([[0, 0, 1], 2**63, 1]), "int` <="),
        (Opcode.FETCH, msgspec.msgpack.encode([[0, 0, 1], -1, 1]), "int` >= 0"),
        (Opcode.FETCH, msgspec.msgpack.encode([[65_536, 0, 1], 0, 1]), "<= 65535"),
        (Opcode.PULL, msgspec.msgpack.encode([[0, 0, 2**63], "c", 1, 1]), "int` <="),
        (Opcode.PRODUCE, bytes(23), "too few"),
    ],
)
def test_hostile_bodies_are_bad_requests(opcode: Opcode, body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        decode_request(ClientFrame(0, opcode, 1, memoryview(body)))


@pytest.mark.parametrize(
    ("flags", "opcode", "body", "why"),
    [
        (3, Opcode.FETCH, b"\x92\x01\xa1\xff", "utf-8"),
        (1, Opcode.PRODUCE, b"\x95\x01\x02\xc2\x00" + DEEP, "recursion"),
        (1, Opcode.PRODUCE, msgspec.msgpack.encode([0, 2**63]), "int` <="),
        (1, Opcode.LIST_TOPICS, b"\x91\xdd\xff\xff\xff\xff", "truncated"),
        (1, Opcode.FETCH, bytes(39), "too few"),
        (1, Opcode.PULL, bytes(71), "too few"),
        (1, Opcode.PULL, bytes(64) + b"\1" + bytes(22), "no 1 runs"),
        (1, Opcode.PULL, bytes(64) + b"\1\x10" + bytes(70_000), "no 4,097 runs"),
        (1, 99, b"\x90", "99"),
        (0, Opcode.PING, b"\x90", "no reply"),
        (5, Opcode.PING, b"\x90", "no reply"),
    ],
)
def test_hostile_replies_are_the_peers_fault(
    flags: int, opcode: int, body: bytes, why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode_reply(ClientFrame(flags, opcode, 1, memoryview(body)))
