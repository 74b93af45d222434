"""Write the golden frames of the device dialect: docs/device-frames.json, and the same as .txt.

    python scripts/device_frames.py

Firmware is checked against them: an encoder must make the bytes of every good request from its
fields, a decoder must find the fields of every good reply, and tell what is wrong with each bad
frame.
A line of the .txt has five parts, separated by tabs: side, kind, verdict, hex, and name=value pairs
separated by blanks; bytes and text are in hex, the messages of a delivery are offset:value, with
commas between them. Verdicts: good; check (the check byte is wrong); version; length (the body is
over 64 KiB); short (bytes are missing: wait for more).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weir.access.devices import (
    Claim,
    derive_secret,
    frame_keys,
    prove_broker,
    prove_device,
)
from weir.errors import (
    BadRequest,
    ErasedBoot,
    Fenced,
    NoHello,
    NotAuthenticated,
    ProofNeeded,
    SequenceGap,
    StaleGrant,
    TooLarge,
    UnknownTopic,
)
from weir.model.columns import NO_SEQUENCE
from weir.protocol import device as d
from weir.protocol.device import (
    ALL_PARTITIONS,
    BY_HUB,
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceNack,
)
from weir.protocol.proof import Challenge, DeviceProof, FrameSigner, Proven

DOCS = Path(__file__).resolve().parent.parent / "docs"
HUB = 0x0102030405060708
U64 = (1 << 64) - 1


FLEET_KEY = bytes(range(32))
SECRET = derive_secret(FLEET_KEY, 99, 42, 0)
CLAIM = Claim(99, 42, 0, 1, 7, BY_HUB, 2, "locks", bytes(range(16)), bytes(range(16, 32)))
#: What a device without randomness takes as nonce: its boot, and which connection of it this is.
_COUNTED = (7).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(8)
REPLACED = Claim(99, 42, 1, 1, 7, 0, 1, "home/locks", bytes(range(16)), _COUNTED)


def _claimed(claim: Claim) -> dict[str, Any]:
    return {
        "system": claim.system, "hub": claim.hub, "generation": claim.generation,
        "version": claim.key_version, "boot": claim.boot, "partition": claim.partition,
        "level": claim.level, "topic": claim.topic.encode(), "asked": claim.broker_nonce,
        "nonce": claim.device_nonce,
    }  # fmt: skip


def _signed(key: bytes, counter: int, frame: bytes) -> bytes:
    return FrameSigner(key, counter).sign(frame)


def frames() -> list[dict[str, Any]]:
    """Return all frames: side, kind, verdict, meaning, hex, and fields."""
    return [*_requests(), *_replies(), *_bad()]


def _case(
    side: str, kind: str, meaning: str, frame: bytes, verdict: str = "good", **fields: Any
) -> dict[str, Any]:
    shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in fields.items()}
    return {
        "side": side,
        "kind": kind,
        "verdict": verdict,
        "meaning": meaning,
        "hex": frame.hex(),
        "fields": shown,
    }


def _requests() -> list[dict[str, Any]]:
    def hello(meaning: str, sn: int, hub: int, boot: int, partition: int, topic: str) -> Any:
        frame = d.hello(hub, boot, topic, partition, sn)
        return _case("request", "hello", meaning, frame, sn=sn, hub=hub, boot=boot,
                     partition=partition, topic=topic.encode())  # fmt: skip

    def publish(meaning: str, sn: int, value: bytes) -> Any:
        return _case("request", "publish", meaning, d.publish(sn, value), sn=sn, value=value)

    def sequenced(meaning: str, sn: int, sequence: int, value: bytes) -> Any:
        frame = d.publish(sn, value, sequence)
        return _case("request", "sequenced", meaning, frame, sn=sn, sequence=sequence, value=value)

    def subscribe(meaning: str, sn: int, partition: int, lease: int, crew: str, topic: str) -> Any:
        frame = d.subscribe(sn, crew, topic, partition, lease)
        return _case("request", "subscribe", meaning, frame, sn=sn, partition=partition,
                     lease=lease, cluster=crew.encode(), topic=topic.encode())  # fmt: skip

    def limited(
        meaning: str, sn: int, hand: int, partition: int, lease: int, crew: str, topic: str
    ) -> Any:
        frame = d.subscribe(sn, crew, topic, partition, lease, hand)
        return _case("request", "limited", meaning, frame, sn=sn, hand=hand, partition=partition,
                     lease=lease, cluster=crew.encode(), topic=topic.encode())  # fmt: skip

    def pull(meaning: str, sn: int, messages: int, size: int) -> Any:
        frame = d.pull(sn, messages, size)
        return _case("request", "pull", meaning, frame, sn=sn, messages=messages, bytes=size)

    def ack(meaning: str, sn: int, partition: int, fence: int, first: int, behind: int) -> Any:
        frame = d.ack(sn, partition, fence, first, behind)
        return _case("request", "ack", meaning, frame, sn=sn, partition=partition, fence=fence,
                     first=first, next=behind)  # fmt: skip

    def nack(meaning: str, given: DeviceNack) -> Any:
        return _case("request", "nack", meaning, d.encode_change(given), sn=given.sn,
                     partition=given.partition, fence=given.fence, first=given.first,
                     next=given.next, delay=given.delay_ms)  # fmt: skip

    def extend(meaning: str, given: DeviceExtend) -> Any:
        return _case("request", "extend", meaning, d.encode_change(given), sn=given.sn,
                     partition=given.partition, fence=given.fence,
                     lease=given.lease_ms)  # fmt: skip

    def proof(meaning: str, secret: bytes, claim: Claim, sn: int) -> Any:
        given = DeviceProof(sn, claim.generation, claim.key_version, claim.level,
                            claim.device_nonce, prove_device(secret, claim))  # fmt: skip
        return _case("request", "proof", meaning, d.prove(given), sn=sn, secret=secret,
                     **_claimed(claim), proof=given.proof)  # fmt: skip

    def signed(meaning: str, counter: int, frame: bytes) -> Any:
        key = frame_keys(SECRET, CLAIM).of_device
        return _case("request", "signed", meaning, _signed(key, counter, frame), key=key,
                     counter=counter, plain=frame)  # fmt: skip

    ping = d.frame(d.DeviceOpcode.PING, 9, b"")
    return [
        hello("a hub, to the partition that its number chooses", 0, HUB, 1, BY_HUB, "locks"),
        hello("partition 2 of a topic in a namespace", 0, U64, 0xFFFFFFFE, 2, "home/locks"),
        hello("a name beyond ASCII", 255, 5, 0, 0, "größe"),
        publish("lock 7 says that it was opened", 7, b"open 2026-11-22 08:15:01"),
        publish("nothing is a message too", 0, b""),
        publish("any byte may be in a value", 1, bytes(range(256))),
        sequenced("the first of this boot", 7, 0, b"open"),
        sequenced("the same again, after no reply", 7, 0, b"open"),
        sequenced("the last: raise the boot count behind it", 7, 0xFFFFFFFE, b"close"),
        _case("request", "ping", "are you there?", ping, sn=9),
        subscribe("lock 7 receives", 7, BY_HUB, 30_000, "firmware", "commands"),
        subscribe("all partitions", 0, ALL_PARTITIONS, 1, "c", "home/commands"),
        limited("a hub that works on 16 at a time", 7, 16, BY_HUB, 30_000, "firmware", "commands"),
        pull("up to 16 messages, as many as fit", 7, 16, 0),
        pull("one message, for a device with little memory", 7, 1, 256),
        ack("messages 40 to 42 are done", 7, 3, 77, 40, 43),
        nack("messages 40 to 42 are for another, at once", DeviceNack(7, 3, 77, 40, 43)),
        nack("message 40 is for anybody, in a minute", DeviceNack(7, 3, 77, 40, 41, 60_000)),
        extend("30 s more for what was pulled", DeviceExtend(7, 3, 77, 30_000)),
        proof("hub 42 of system 99, whose frames will be signed", SECRET, CLAIM, 0),
        proof(
            "a device that was replaced, without randomness: boot 7, connection 3",
            derive_secret(FLEET_KEY, 99, 42, 1),
            REPLACED,
            5,
        ),
        signed("the first signed frame behind the proof above", 0, d.publish(7, b"open", 0)),
        signed("the second", 1, ping),
        signed("the largest counter", U64, ping),
    ]


def _replies() -> list[dict[str, Any]]:
    def welcome(meaning: str, sn: int, code: int, system: int) -> Any:
        frame = d.encode_welcome(sn, code, system)
        return _case("reply", "welcome", meaning, frame, sn=sn, code=code, system=system)

    def confirm(meaning: str, sn: int, sequence: int, code: int, offset: int) -> Any:
        frame = d.encode_confirms([sn], [sequence], [code], [offset])
        return _case("reply", "confirm", meaning, frame, sn=sn, code=code, sequence=sequence,
                     offset=offset)  # fmt: skip

    def number(meaning: str, opcode: int, sn: int, code: int) -> Any:
        frame = d.encode_code(opcode, sn, code)
        return _case("reply", "number", meaning, frame, opcode=opcode, sn=sn, code=code)

    def delivery(meaning: str, sn: int, found: Delivery) -> Any:
        pairs = zip(found.offsets, found.values, strict=True)
        return _case(
            "reply", "delivery", meaning, d.encode_delivery(sn, found), sn=sn,
            code=TooLarge.code if found.too_large else 0, partition=found.partition,
            fence=found.fence, attempts=found.attempts, size=found.too_large,
            messages=",".join(f"{offset}:{value.hex()}" for offset, value in pairs),
        )  # fmt: skip

    def acked(meaning: str, code: int, request: DeviceAck) -> Any:
        frame = d.encode_change_reply(code, request)
        return _case("reply", "acked", meaning, frame, sn=request.sn, code=code,
                     partition=request.partition, fence=request.fence, first=request.first,
                     next=request.next)  # fmt: skip

    def nacked(meaning: str, code: int, request: DeviceNack) -> Any:
        frame = d.encode_change_reply(code, request)
        return _case("reply", "nacked", meaning, frame, sn=request.sn, code=code,
                     partition=request.partition, fence=request.fence, first=request.first,
                     next=request.next, delay=request.delay_ms)  # fmt: skip

    def extended(meaning: str, code: int, request: DeviceExtend) -> Any:
        frame = d.encode_change_reply(code, request)
        return _case("reply", "extended", meaning, frame, sn=request.sn, code=code,
                     partition=request.partition, fence=request.fence,
                     lease=request.lease_ms)  # fmt: skip

    def challenge(meaning: str, asked: Challenge) -> Any:
        return _case("reply", "challenge", meaning, d.encode_challenge(0, asked), sn=0,
                     code=ProofNeeded.code, system=asked.system, level=asked.level,
                     asked=asked.nonce)  # fmt: skip

    def proven(meaning: str, secret: bytes, claim: Claim) -> Any:
        given = Proven(claim.system, prove_broker(secret, claim))
        return _case("reply", "proven", meaning, d.encode_proven(0, given), sn=0, code=0,
                     secret=secret, **_claimed(claim), proof=given.proof)  # fmt: skip

    def signed(meaning: str, counter: int, frame: bytes) -> Any:
        key = frame_keys(SECRET, CLAIM).of_broker
        return _case("reply", "signed", meaning, _signed(key, counter, frame), key=key,
                     counter=counter, plain=frame)  # fmt: skip

    op = d.DeviceOpcode
    return [
        welcome("welcome to system 99", 0, 0, 99),
        welcome("no such topic, or no such partition of it", 0, UnknownTopic.code, 99),
        welcome("the boot count is what erased flash reads as", 0, ErasedBoot.code, 99),
        confirm("durable, without a sequence", 7, NO_SEQUENCE, 0, 41),
        confirm("durable: sequence 5 lies at offset 42", 7, 5, 0, 42),
        confirm("a duplicate: durable since an earlier try", 7, 5, 0, U64),
        confirm("a gap: sequence 6 is expected", 7, 8, SequenceGap.code, 6),
        confirm("a newer boot of this hub has spoken: it is boot 3", 7, 8, Fenced.code, 3),
        number("the answer to a ping", op.PING, 9, 0),
        number("ping before hello", op.PING, 9, NoHello.code),
        number("subscribed", op.SUBSCRIBE, 7, 0),
        number("subscribed as another already", op.SUBSCRIBE, 7, BadRequest.code),
        number("subscribed with a limit", op.SUBSCRIBE_LIMITED, 7, 0),
        number("notify: there is something to pull", op.NOTIFY, 7, 0),
        number("notify: the subscription is over, its topic is gone", op.NOTIFY, 7, 4),
        delivery("nothing there", 7, Delivery()),
        delivery("two messages of one grant", 7, Delivery(3, 77, 1, [40, 41], [b"open", b""])),
        delivery("handed out the second time", 7, Delivery(0, U64, 2, [0], [b"\xff" * 3])),
        delivery("message 42 does not fit", 7, Delivery(3, 77, 1, [42], [b""], 70_000)),
        number("a pull before a subscribe", op.PULL, 7, 38),
        acked("done for good", 0, DeviceAck(7, 3, 77, 40, 43)),
        acked("too late: another has it", StaleGrant.code, DeviceAck(7, 3, 77, 40, 43)),
        nacked("given back", 0, DeviceNack(7, 3, 77, 40, 43)),
        nacked("too late: another has it", StaleGrant.code, DeviceNack(7, 3, 77, 40, 41, 60_000)),
        extended("yours for longer", 0, DeviceExtend(7, 3, 77, 30_000)),
        challenge("prove who you are, and sign your frames", Challenge(99, 2, CLAIM.broker_nonce)),
        proven("the broker's own proof, to the first one of the requests", SECRET, CLAIM),
        number("a proof that was refused", op.PROVE, 0, NotAuthenticated.code),
        signed("the first signed reply", 0, d.encode_confirms([7], [0], [0], [42])),
        extended("too late: it was over", StaleGrant.code, DeviceExtend(7, 3, 77, 30_000)),
    ]


def _bad() -> list[dict[str, Any]]:
    ping = d.frame(d.DeviceOpcode.PING, 9, b"")
    confirm = d.encode_confirms([7], [5], [0], [42])
    flipped = confirm[:-1] + bytes((confirm[-1] ^ 0x10,))
    changed = confirm[:12] + bytes((confirm[12] ^ 1,)) + confirm[13:]
    huge = bytes((1,)) + b"\xff\xff\xff\xff" + b"\x00\x02\x07"
    over = bytes((1,)) + (65_537).to_bytes(4, "big") + b"\x80\x02\x07"

    def bad(side: str, verdict: str, meaning: str, frame: bytes) -> Any:
        return _case(side, "bad", meaning, frame, verdict)

    return [
        bad("request", "check", "a ping whose check byte is wrong", ping[:-1] + b"\x00"),
        bad("reply", "check", "a confirm whose check byte is wrong", flipped),
        bad("reply", "check", "a confirm whose sequence changed on the way", changed),
        bad("request", "version", "the client dialect's version", b"\x02" + ping[1:]),
        bad("reply", "version", "a reply of version 0", b"\x00" + confirm[1:]),
        bad("request", "length", "a body of 4 GiB", huge),
        bad("reply", "length", "a body of one byte too many", over),
        bad("reply", "short", "half a header", confirm[:4]),
        bad("reply", "short", "all but the check byte", confirm[:-1]),
    ]


def as_json() -> str:
    """Return docs/device-frames.json."""
    comment = "Golden frames of the device dialect (docs/DEVICE.md); bytes and text are in hex."
    rows = ",\n".join(f"  {json.dumps(frame, ensure_ascii=False)}" for frame in frames())
    return f'{{\n "comment": "{comment}",\n "frames": [\n{rows}\n ]\n}}\n'


def as_text() -> str:
    """Return docs/device-frames.txt."""
    lines = [
        "# Golden frames of the device dialect, as in device-frames.json:",
        "# side, kind, verdict, hex, name=value pairs; bytes and text are in hex.",
    ]
    for frame in frames():
        fields = " ".join(f"{name}={value}" for name, value in frame["fields"].items())
        parts = (frame["side"], frame["kind"], frame["verdict"], frame["hex"], fields)
        lines.append("\t".join(parts))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (DOCS / "device-frames.json").write_text(as_json(), encoding="utf-8")
    (DOCS / "device-frames.txt").write_text(as_text(), encoding="utf-8")
