"""docs/device-frames.json and .txt are what the code makes, and are read as they say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from weir.access.devices import Claim, prove_broker, prove_device
from weir.errors import BadChecksum, RemoteProtocolError
from weir.model.columns import NO_SEQUENCE
from weir.protocol.device import (
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceHello,
    DeviceNack,
    DevicePing,
    DevicePublishes,
    DevicePull,
    DeviceRefused,
    DeviceReplies,
    DeviceReply,
    DeviceStream,
    DeviceSubscribe,
)
from weir.protocol.proof import Challenge, DeviceProof, FrameOpener, Proven

ROOT = Path(__file__).resolve().parents[4]
FRAMES = json.loads((ROOT / "docs" / "device-frames.json").read_text(encoding="utf-8"))["frames"]


def cases(side: str, *verdicts: str) -> list[Any]:
    return [
        pytest.param(frame, id=f"{frame['kind']}-{n}")
        for n, frame in enumerate(FRAMES)
        if frame["side"] == side and frame["verdict"] in verdicts
    ]


def test_the_files_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "device_frames.py"))
    for name, text in (
        ("device-frames.json", made["as_json"]()),
        ("device-frames.txt", made["as_text"]()),
    ):
        found = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert found == text, "the dialect changed: python scripts/device_frames.py, and say why"


def expected_request(kind: str, f: dict[str, Any]) -> Any:
    text = {k: bytes.fromhex(f[k]).decode() for k in ("topic", "cluster") if k in f}
    match kind:
        case "hello":
            return DeviceHello(f["sn"], f["hub"], f["boot"], f["partition"], text["topic"])
        case "publish" | "sequenced":
            sequence = f.get("sequence", NO_SEQUENCE)
            return DevicePublishes([f["sn"]], [sequence], [bytes.fromhex(f["value"])], [0])
        case "ping":
            return DevicePing(f["sn"])
        case "subscribe":
            names = (text["cluster"], text["topic"])
            return DeviceSubscribe(f["sn"], f["partition"], f["lease"], *names)
        case "limited":
            names = (text["cluster"], text["topic"])
            return DeviceSubscribe(f["sn"], f["partition"], f["lease"], *names, f["hand"])
        case "pull":
            return DevicePull(f["sn"], f["messages"], f["bytes"])
        case "proof":
            numbers = (f["generation"], f["version"], f["level"])
            parts = [bytes.fromhex(f[name]) for name in ("nonce", "proof")]
            assert parts[1] == prove_device(bytes.fromhex(f["secret"]), claim_of(f))
            return DeviceProof(f["sn"], *numbers, *parts)
        case _:
            return settled(kind, f)


def claim_of(f: dict[str, Any]) -> Claim:
    return Claim(
        f["system"], f["hub"], f["generation"], f["version"], f["boot"], f["partition"],
        f["level"], bytes.fromhex(f["topic"]).decode(), bytes.fromhex(f["asked"]),
        bytes.fromhex(f["nonce"]),
    )  # fmt: skip


def settled(kind: str, f: dict[str, Any]) -> Any:
    head = (f["sn"], f["partition"], f["fence"])
    match kind:
        case "ack" | "acked":
            return DeviceAck(*head, f["first"], f["next"])
        case "nack" | "nacked":
            return DeviceNack(*head, f["first"], f["next"], f["delay"])
        case _:
            return DeviceExtend(*head, f["lease"])


@pytest.mark.parametrize("case", cases("request", "good"))
def test_good_requests_say_what_their_fields_say(case: dict[str, Any]) -> None:
    if case["kind"] == "signed":
        check_signed(case)
        return
    expected = expected_request(case["kind"], case["fields"])
    assert DeviceStream().receive(bytes.fromhex(case["hex"])) == [expected]


def expected_reply(kind: str, opcode: int, f: dict[str, Any]) -> DeviceReply:
    sn, code = f["sn"], f["code"]
    match kind:
        case "confirm":
            return DeviceReply(opcode, sn, code, f["sequence"], f["offset"])
        case "delivery":
            pairs = [pair.split(":") for pair in f["messages"].split(",") if pair]
            offsets, values = [int(o) for o, _ in pairs], [bytes.fromhex(v) for _, v in pairs]
            delivery = Delivery(
                f["partition"], f["fence"], f["attempts"], offsets, values, f["size"]
            )
            return DeviceReply(opcode, sn, code, content=delivery)
        case "acked" | "nacked" | "extended":
            return DeviceReply(opcode, sn, code, content=settled(kind, f))
        case "challenge":
            content = Challenge(f["system"], f["level"], bytes.fromhex(f["asked"]))
            return DeviceReply(opcode, sn, code, content=content)
        case "proven":
            proof = bytes.fromhex(f["proof"])
            assert proof == prove_broker(bytes.fromhex(f["secret"]), claim_of(f))
            return DeviceReply(opcode, sn, code, content=Proven(f["system"], proof))
        case _:
            return DeviceReply(opcode, sn, code)


def check_signed(case: dict[str, Any]) -> None:
    """A signed frame is the plain one, opened by the key as the frame of this number."""
    f = case["fields"]
    frame, plain, key = (bytes.fromhex(x) for x in (case["hex"], f["plain"], f["key"]))
    assert FrameOpener(key, f["counter"]).open(frame) == plain
    for counter in {0, 1, f["counter"] - 1} - {f["counter"], -1}:
        with pytest.raises(RemoteProtocolError):
            FrameOpener(key, counter).open(frame)


@pytest.mark.parametrize("case", cases("reply", "good"))
def test_good_replies_say_what_their_fields_say(case: dict[str, Any]) -> None:
    if case["kind"] == "signed":
        check_signed(case)
        return
    frame = bytes.fromhex(case["hex"])
    opcode = int.from_bytes(frame[5:7], "big") & 0x7FFF
    expected = expected_reply(case["kind"], opcode, case["fields"])
    assert DeviceReplies().receive(frame) == [expected]


@pytest.mark.parametrize("case", cases("reply", "check", "version", "length"))
def test_bad_replies_end_the_connection(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        DeviceReplies().receive(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", cases("request", "check", "version", "length"))
def test_of_bad_requests_those_in_step_are_numbered(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    if case["verdict"] == "check":
        (refused,) = DeviceStream().receive(frame)
        assert isinstance(refused, DeviceRefused)
        assert refused.code == BadChecksum.code
    else:
        with pytest.raises(RemoteProtocolError):
            DeviceStream().receive(frame)


@pytest.mark.parametrize("case", cases("reply", "short"))
def test_of_short_replies_the_rest_is_waited_for(case: dict[str, Any]) -> None:
    assert DeviceReplies().receive(bytes.fromhex(case["hex"])) == []
