"""Frames of both dialects are the bytes of the golden files, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weir.model.ids import Address
from weir.model.topic import Mode
from weir.protocol import device as device
from weir.protocol.client import (
    access,
    admin,
    fleets,
    nodes,
    quotas,
    schemas,
    sinks,
    tokens,
    topology,
)
from weir.protocol.client import messages as m
from weir.protocol.client.codec import (
    ClientStream,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from weir.protocol.device import NO_SEQUENCE, DeviceReplies, DeviceReply, DeviceStream

DOCS = Path(__file__).resolve().parents[4] / "docs"


def cases(path: Path) -> list[Any]:
    frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
    return [pytest.param(case, id=case["name"]) for case in frames]


CLIENT = cases(DOCS / "client-frames.json")
DEVICE = cases(Path(__file__).with_name("device_frames.json"))


def golden(case: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, data) for name, data, _ in case["fields"]]


def golden_bytes(case: dict[str, Any]) -> bytes:
    return bytes.fromhex("".join(data for _, data in golden(case)))


def along(case: dict[str, Any], frame: bytes) -> list[tuple[str, str]]:
    """Cut `frame` where the golden fields end; what is left over is a field without a name."""
    at, found = 0, []
    for name, data in golden(case):
        found.append((name, frame[at : at + len(data) // 2].hex()))
        at += len(data) // 2
    return found + ([("", frame[at:].hex())] if frame[at:] else [])


def message(case: dict[str, Any]) -> Any:
    rooms = (m, admin, nodes, schemas, sinks, access, fleets, quotas, tokens, topology)
    room = next(one for one in rooms if hasattr(one, case["kind"]))
    kind, fields = getattr(room, case["kind"]), list(case["message"])
    if issubclass(kind, m.Control | m.ControlRequest):
        return msgspec.convert(fields, kind)
    fields[0] = Address(*fields[0])
    if kind is m.Fetched:
        fields[4] = tuple(map(bytes.fromhex, fields[4]))
        for runs in {7, 10} & {*range(len(fields))}:
            fields[runs] = tuple(map(tuple, fields[runs]))
        return m.Fetched(*fields)
    batches = tuple(bytes.fromhex(batch) for batch in fields[-1])
    if kind is m.Granted:
        fields[-2] = tuple(map(tuple, fields[-2]))
    return kind(*fields[:-1], memoryview(batches[0]) if kind is m.Produce else batches)


@pytest.mark.parametrize("case", CLIENT)
def test_client_frames_are_encoded_to_the_golden_bytes(case: dict[str, Any]) -> None:
    if case["side"] == "request":
        buffers = encode_request(message(case), case["correlation"])
    else:
        buffers = encode_reply(message(case), case["opcode"], case["correlation"])
    assert along(case, b"".join(buffers)) == golden(case)


@pytest.mark.parametrize("case", CLIENT)
def test_client_frames_are_read_from_the_golden_bytes(case: dict[str, Any]) -> None:
    (frame,) = ClientStream().receive(golden_bytes(case))
    assert (frame.opcode, frame.correlation) == (case["opcode"], case["correlation"])
    expected = message(case)
    if case["side"] == "request":
        assert decode_request(frame) == expected
        return
    reply = decode_reply(frame)
    if isinstance(reply, m.Fetched | m.FetchedChunks | m.Granted):
        # The frame glues batches; their own headers tell them apart.
        assert b"".join(reply.batches) == b"".join(expected.batches)
        plain = [name for name in type(reply).__slots__ if name != "batches"]
        assert [getattr(reply, f) for f in plain] == [getattr(expected, f) for f in plain]
    else:
        assert reply == expected


def test_pulls_of_an_earlier_release_are_read() -> None:
    body = "97940301ce0001000202a66b657970616464ce00010000cd01f4cd753001"
    head = "02001200%02x0000000900000000000000"
    (frame,) = ClientStream().receive(bytes.fromhex(head % 30 + body))
    pull = decode_request(frame)
    address = Address(3, 1, 65538, 2)
    assert pull == m.Pull(address, "keypad", 100, 65536, 500, 30_000, Mode.KEYED)
    assert isinstance(pull, m.Pull)
    assert pull.begun is None


def test_fetches_and_their_answers_of_an_earlier_release_are_read() -> None:
    address = Address(3, 1, 65538, 2)
    head = "02%02x1100%02x000000ffffffffffffffff"
    asked = "95940301ce0001000202cd03e8ce00100000cd1388c3"
    (frame,) = ClientStream().receive(bytes.fromhex(head % (0, 22) + asked))
    fetch = decode_request(frame)
    assert fetch == m.Fetch(address, 1000, 1_048_576, 5_000, True)
    assert isinstance(fetch, m.Fetch)
    assert not fetch.equal_stamps
    numbers = ("e803", "f203", "d007", "0200", "0400")
    told = "0300010002000000" + "0200010000000000" + "".join(n.ljust(16, "0") for n in numbers)
    (frame,) = ClientStream().receive(bytes.fromhex(head % (1, 64) + told + "00" * 8))
    assert decode_reply(frame) == m.Fetched(address, 1000, 1010, 2000, (), 2, 4, (), False)


def test_clusters_with_tags_have_these_bytes() -> None:
    """Without tags, the golden frames hold them as earlier releases know them."""
    address = Address(3, 1, 65538, 2)
    opens = m.OpenCluster(address, "c", Mode.SHARED, ("", "a"))
    pull = m.Pull(address, "c", 5, 6, 7, 8, Mode.SHARED, None, ("a",))
    listed = admin.ClusterList(1, 9, [], (), (("c", ("", "a")),))
    opened = m.ClusterIsOpen(("", "a"))
    asked = [
        (opens, "0200170011000000090000000000000094940301ce0001000202a1630092a0a161"),
        (pull, "0200120015000000090000000000000099940301ce0001000202a1630506070800c091a161"),
    ]
    for request, data in asked:
        assert b"".join(encode_request(request, 9)).hex() == data
        (frame,) = ClientStream().receive(bytes.fromhex(data))
        assert decode_request(frame) == request
    told = [
        (listed, "020118000d000000090000000000000095010990909192a16392a0a161", 24),
        (opened, "020117000500000009000000000000009192a0a161", 23),
    ]
    for reply, data, opcode in told:
        assert b"".join(encode_reply(reply, opcode, 9)).hex() == data
        (frame,) = ClientStream().receive(bytes.fromhex(data))
        assert decode_reply(frame) == reply


@pytest.mark.parametrize(
    ("tags", "data"),
    [
        ((), "020012001400000009000000000000009a940301ce0001000202a1630506070800c090c3"),
        (("a",), "020012001600000009000000000000009a940301ce0001000202a1630506070800c091a161c3"),
    ],
)
def test_pulls_of_offsets_only_have_these_bytes(tags: tuple[str, ...], data: str) -> None:
    pull = m.Pull(Address(3, 1, 65538, 2), "c", 5, 6, 7, 8, Mode.SHARED, None, tags, True)
    assert b"".join(encode_request(pull, 9)).hex() == data
    (frame,) = ClientStream().receive(bytes.fromhex(data))
    assert decode_request(frame) == pull


def test_pulls_with_a_token_have_these_bytes() -> None:
    address, token = Address(3, 1, 65538, 2), bytes(range(16))
    pull = m.Pull(address, "c", 5, 6, 7, 8, Mode.SHARED, None, (), False, token)
    data = (
        "020012002600000009000000000000009b940301ce0001000202a1630506070800c090c2c410"
        "000102030405060708090a0b0c0d0e0f"
    )
    assert b"".join(encode_request(pull, 9)).hex() == data
    (frame,) = ClientStream().receive(bytes.fromhex(data))
    assert decode_request(frame) == pull


def test_pings_and_extends_of_an_earlier_release_are_read() -> None:
    (ping,) = ClientStream().receive(bytes.fromhex("0200020001000000020000000000000090"))
    assert decode_request(ping) == m.Ping()
    body = "94940301ce0001000202a66b65797061649205cd012ccd7530"
    (extend,) = ClientStream().receive(bytes.fromhex("02001500190000002900000000000000" + body))
    assert decode_request(extend) == m.Extend(
        Address(3, 1, 65538, 2), "keypad", [5, 300], 30_000, None
    )


def test_acks_of_an_earlier_release_are_read() -> None:
    head = "02001300%02x0000000a00000000000000"
    body = "93940301ce0001000202a66b65797061649293050003930504ce00011170"
    (frame,) = ClientStream().receive(bytes.fromhex(head % 30 + body))
    address = Address(3, 1, 65538, 2)
    assert decode_request(frame) == m.Ack(address, "keypad", [(5, 0, 3), (5, 4, 70000)])
    (frame,) = ClientStream().receive(bytes.fromhex("0201" + head[4:] % 2 + "9103"))
    assert decode_reply(frame) == m.Acked(3)


def test_the_golden_frames_cover_every_message() -> None:
    kinds = {case.values[0]["kind"] for case in CLIENT}
    assert kinds == {kind.__name__ for kind in (*m.REQUESTS, *m.REPLIES)}
    calls = {case.values[0]["call"] for case in DEVICE}
    assert calls >= {"hello", "publish", "encode_welcome", "encode_confirms", "encode_code"}


def device_arguments(case: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes.fromhex(given) if name in ("value", "body") else given
        for name, given in case["arguments"].items()
    }


@pytest.mark.parametrize("case", DEVICE)
def test_device_frames_are_encoded_to_the_golden_bytes(case: dict[str, Any]) -> None:
    frame = getattr(device, case["call"])(**device_arguments(case))
    assert along(case, frame) == golden(case)


@pytest.mark.parametrize("case", DEVICE)
def test_device_frames_are_read_from_the_golden_bytes(case: dict[str, Any]) -> None:
    given, frame = device_arguments(case), golden_bytes(case)
    if case["side"] == "reply":
        assert DeviceReplies().receive(frame) == [expected_reply(case["call"], given)]
        return
    (request,) = DeviceStream().receive(frame)
    if case["call"] == "hello":
        partition = given.get("partition", device.BY_HUB)
        assert request == device.DeviceHello(
            given["sn"], given["hub"], given["boot"], partition, given["topic"]
        )
    elif case["call"] == "publish":
        sequence = given.get("sequence", NO_SEQUENCE)
        assert request == device.DevicePublishes([given["sn"]], [sequence], [given["value"]], [0])
    else:
        assert request == device.DevicePing(given["sn"])


def expected_reply(call: str, given: dict[str, Any]) -> DeviceReply:
    if call == "encode_confirms":
        sequence = given["sequences"][0]
        opcode = 2 if sequence == NO_SEQUENCE else 3
        return DeviceReply(
            opcode, given["sns"][0], given["codes"][0], sequence, given["offsets"][0]
        )
    return DeviceReply(given.get("opcode", 1), given["sn"], given["code"])
