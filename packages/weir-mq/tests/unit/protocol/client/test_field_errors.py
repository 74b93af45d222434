"""A control body that does not decode is told by the names of its fields."""

from __future__ import annotations

import msgspec
import pytest

from weir.errors import BadRequest
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_request
from weir.protocol.frame import ClientFrame


@pytest.mark.parametrize(
    ("opcode", "body", "words"),
    [
        (m.Opcode.CREATE_TOPIC, ["t", -1], "CreateTopic: partitions: Expected `int` >= 0"),
        (m.Opcode.DESCRIBE_TOPIC, [None], "DescribeTopic: name: Expected `str`, got `None`"),
        (m.Opcode.FETCH, [[0, 0, -1], 0, 1], r"Fetch: address\[2\]: Expected `int` >= 0"),
        (m.Opcode.FETCH, [], "Fetch: Expected `array`"),
        (m.Opcode.PING, {}, "Ping: Expected `array`"),
    ],
)
def test_a_wrong_field_is_named(opcode: int, body: object, words: str) -> None:
    frame = ClientFrame(0, opcode, 1, memoryview(msgspec.msgpack.encode(body)))
    with pytest.raises(BadRequest, match=words):
        decode_request(frame)
