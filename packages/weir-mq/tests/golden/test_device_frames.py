"""docs/device-frames.json and .txt are what the code makes, and are read as they say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

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
        case _:
            return settled(kind, f)


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
            content = Delivery(
                f["partition"], f["fence"], f["attempts"], offsets, values, f["size"]
            )
            return DeviceReply(opcode, sn, code, content=content)
        case "acked" | "nacked" | "extended":
            return DeviceReply(opcode, sn, code, content=settled(kind, f))
        case _:
            return DeviceReply(opcode, sn, code)


@pytest.mark.parametrize("case", cases("reply", "good"))
def test_good_replies_say_what_their_fields_say(case: dict[str, Any]) -> None:
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
