"""Bodies of the client dialect that are made to hurt: refused with a reason, and no more."""

from __future__ import annotations

import msgspec
import pytest

from weir.errors import BadRequest, RemoteProtocolError
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_reply, decode_request
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import ClientFrame

ADDRESSED = b"\x93\x00\x00\x01"
DEEP = b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    ("opcode", "body", "why"),
    [
        (opcode_of(m.DescribeTopic), b"\x91\xa1\xff", "utf-8"),
        (opcode_of(m.DescribeTopic), b"\x92\xa1a" + DEEP, "recursion"),
        (opcode_of(m.Ack), b"\x93" + ADDRESSED + b"\xa1c\xdd\xff\xff\xff\xff", "length <="),
        (
            opcode_of(m.Ack),
            msgspec.msgpack.encode([[0, 0, 1], "c", [[1, 2, 3]] * 10_001]),
            "length <=",
        ),
        (
            opcode_of(m.Nack),
            msgspec.msgpack.encode([[0, 0, 1], "c", 1, [[1, 2]] * 10_001]),
            "length <=",
        ),
        (
            opcode_of(m.Extend),
            msgspec.msgpack.encode([[0, 0, 1], "c", [1] * 10_001, 1]),
            "length <=",
        ),
        (opcode_of(m.Pull), msgspec.msgpack.encode([[0, 0, 1], "c", 1, 1, 0, 1, 3]), "enum"),
        (opcode_of(m.Fetch), msgspec.msgpack.encode([[0, 0, 1], 2**63, 1]), "int` <="),
        (opcode_of(m.Fetch), msgspec.msgpack.encode([[0, 0, 1], -1, 1]), "int` >= 0"),
        (opcode_of(m.Fetch), msgspec.msgpack.encode([[65_536, 0, 1], 0, 1]), "<= 65535"),
        (opcode_of(m.Pull), msgspec.msgpack.encode([[0, 0, 2**63], "c", 1, 1]), "int` <="),
        (opcode_of(m.Produce), bytes(23), "too few"),
    ],
)
def test_hostile_bodies_are_bad_requests(opcode: int, body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        decode_request(ClientFrame(0, opcode, 1, memoryview(body)))


@pytest.mark.parametrize(
    ("flags", "opcode", "body", "why"),
    [
        (3, opcode_of(m.Fetch), b"\x92\x01\xa1\xff", "utf-8"),
        (1, opcode_of(m.Produce), b"\x95\x01\x02\xc2\x00" + DEEP, "recursion"),
        (1, opcode_of(m.Produce), msgspec.msgpack.encode([0, 2**63]), "int` <="),
        (1, opcode_of(m.ListTopics), b"\x91\xdd\xff\xff\xff\xff", "truncated"),
        (1, opcode_of(m.Fetch), bytes(39), "too few"),
        (1, opcode_of(m.Pull), bytes(71), "too few"),
        (1, opcode_of(m.Pull), bytes(64) + b"\1" + bytes(22), "no 1 runs"),
        (1, opcode_of(m.Pull), bytes(64) + b"\1\x10" + bytes(70_000), "no 4,097 runs"),
        (1, 99, b"\x90", "99"),
        (0, opcode_of(m.Ping), b"\x90", "no reply"),
        (5, opcode_of(m.Ping), b"\x90", "no reply"),
    ],
)
def test_hostile_replies_are_the_peers_fault(
    flags: int, opcode: int, body: bytes, why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode_reply(ClientFrame(flags, opcode, 1, memoryview(body)))
