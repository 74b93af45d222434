"""Random and damaged input for everything that reads bytes from a peer: all dialects, both sides,
and batches. Only documented exceptions may come out, and little may be held.

    python packages/weir-mq/tests/fuzz/fuzz_dialects.py            # 50,000 inputs for each reader
    WEIR_FUZZ=10000000 python packages/weir-mq/tests/fuzz/fuzz_dialects.py
    WEIR_FUZZ_SEED=7 python packages/weir-mq/tests/fuzz/fuzz_dialects.py device

Prints one JSON object a reader: its inputs, how many were whole, refused or broken, and inputs a
second. The first input that breaks a promise is printed in hex, with its seed, and ends with 1.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from weir.access.tokens import SessionToken, TokenLimits
from weir.errors import BadBatch, Refused, RemoteProtocolError
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.columns import Origins, References
from weir.model.limits import DEVICE_BODY_BYTES_MAX, LINK_FRAME_BYTES_MAX
from weir.protocol import trunk
from weir.protocol.client.codec import ClientStream, decode_reply, decode_request
from weir.protocol.device import (
    NO_SEQUENCE,
    DeviceAck,
    DeviceHello,
    DevicePublishes,
    DeviceRefused,
    DeviceReplies,
    DeviceStream,
    DeviceSubscribe,
    encode_code,
    encode_confirms,
    encode_proven,
    encode_welcome,
    xor,
)
from weir.protocol.link import Greeting, LinkStream, decode_answer, decode_hello
from weir.protocol.proof import DeviceProof, DeviceProven, Proven
from weir.protocol.trunk import Arrival, Introduction, Kind, TrunkFrame, TrunkStream

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (0, 1, 0x7FFF, 0xFFFF, 0x10000, 0x10001, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
#: What a reader may hold besides what came: a device frame, or nothing at all.
SLACK = DEVICE_BODY_BYTES_MAX + 64


Order = Literal["big", "little"]


class Dice:
    """Damages seeds, as a line that drops, doubles and flips, and as somebody who means it."""

    def __init__(
        self, seed: int, seeds: list[bytes], length_at: int, order: Order, checked: bool
    ) -> None:
        self.random = random.Random(seed)
        self._seeds = seeds
        self._length_at = length_at
        self._order: Order = order
        self._checked = checked

    def roll(self) -> bytes:
        """Return an input: seldom noise, mostly one to three seeds with up to four damages."""
        r = self.random
        bits = r.getrandbits(16)
        if bits & 31 == 0:
            return r.randbytes(bits >> 5 & 127)
        data = bytearray(r.choice(self._seeds))
        for _ in range(bits >> 5 & 1):
            data += r.choice(self._seeds)
        for _ in range(1 + (bits >> 7 & 3)):
            self._damage(data, r.getrandbits(32))
        if self._checked and bits >> 9 & 1 and data:
            data[-1] = xor(data[:-1])  # damage behind the check byte must be met, too
        return bytes(data)

    def _damage(self, data: bytearray, bits: int) -> None:
        at = (bits >> 8) % (len(data) or 1)
        kind = bits & 7
        if kind <= 2 and data:
            data[at] ^= 1 << (bits >> 5 & 7)
        elif kind == 3 and data:
            data[at] = (0, 0x7F, 0x80, 0xFF)[bits >> 5 & 3]
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data[at:at] = self.random.randbytes(bits >> 3 & 15)
        elif kind == 6:
            data += data[at : at + (bits >> 3 & 31)]
        else:
            length = LENGTHS[(bits >> 3) % len(LENGTHS)].to_bytes(4, self._order)
            data[self._length_at : self._length_at + 4] = length

    def cut(self, data: bytes) -> Iterable[bytes]:
        """Return the input as reads: in one, or in a few."""
        bits = self.random.getrandbits(8)
        if bits & 1 or not data:
            return (data,)
        at = bits % len(data)
        return (data[:at], data[at:])


def _device(data: bytes, dice: Dice, found: Counter[str]) -> None:
    stream = DeviceStream()
    try:
        for read in dice.cut(data):
            for request in stream.receive(read):
                if isinstance(request, DevicePublishes):
                    found["refused" if any(request.codes) else "whole"] += 1
                    assert len(set(map(len, (request.sns, request.sequences, request.values)))) == 1
                else:
                    found["refused" if isinstance(request, DeviceRefused) else "whole"] += 1
            assert stream.pending <= len(data)
            assert stream.claimed <= SLACK
    except RemoteProtocolError:
        found["broken"] += 1


def _device_replies(data: bytes, dice: Dice, found: Counter[str]) -> None:
    replies = DeviceReplies()
    try:
        for read in dice.cut(data):
            found["whole"] += len(replies.receive(read))
    except RemoteProtocolError:
        found["broken"] += 1


def _client(data: bytes, dice: Dice, found: Counter[str]) -> None:
    stream = ClientStream()
    try:
        for read in dice.cut(data):
            for frame in stream.receive(read):
                try:
                    decode_request(frame)
                    found["whole"] += 1
                except Refused:
                    found["refused"] += 1
            assert stream.pending <= len(data)
    except RemoteProtocolError:
        found["broken"] += 1


def _client_replies(data: bytes, dice: Dice, found: Counter[str]) -> None:
    stream = ClientStream()
    try:
        for read in dice.cut(data):
            for frame in stream.receive(read):
                decode_reply(frame)
                found["whole"] += 1
    except (RemoteProtocolError, BadBatch):
        found["broken"] += 1


def _link_greeting(data: bytes, dice: Dice, found: Counter[str]) -> None:
    stream = Greeting()
    try:
        for read in dice.cut(data):
            body = stream.receive(read)
            for decode in (decode_hello, decode_answer) if body is not None else ():
                try:
                    decode(body)
                    found["whole"] += 1
                except RemoteProtocolError:
                    found["refused"] += 1
    except RemoteProtocolError:
        found["broken"] += 1


def _link(data: bytes, dice: Dice, found: Counter[str]) -> None:
    stream = LinkStream()
    try:
        for read in dice.cut(data):
            found["whole"] += len(stream.receive(read))
            assert stream.pending <= len(data)
            assert stream.pending <= LINK_FRAME_BYTES_MAX + 16
    except RemoteProtocolError:
        found["broken"] += 1


def _trunk(data: bytes, dice: Dice, found: Counter[str]) -> None:
    """Both ends of a trunk, and what each does with a frame before a shard is told anything."""
    stream = TrunkStream()
    try:
        for read in dice.cut(data):
            for frame in stream.receive(read):
                try:
                    _follow(frame)
                    found["whole"] += 1
                except Refused:
                    found["refused"] += 1
            assert stream.pending <= len(data)
    except RemoteProtocolError:
        found["broken"] += 1


def _follow(frame: TrunkFrame) -> None:
    """Read what a frame holds as a shard does. Raises `Refused` for the request of a client."""
    kind, _, body = frame
    if kind == Kind.OPENED:
        trunk.decode_opened(body)
    elif kind == Kind.CLIENT:
        decode_request(body)
    elif kind == Kind.HANGUP:
        str(body, "utf-8")
    elif kind == Kind.REPLIES:
        trunk.count_confirms(body)
    elif kind == Kind.ANSWERS:
        for _, replies in body:
            trunk.count_confirms(replies)
    elif kind == Kind.DEVICE:
        _answer(body)
    elif kind == Kind.ARRIVALS:
        for one in body[1]:
            _answer(one.hello)
            _answer(one.publishes)


def _answer(request: Any) -> None:
    """Whatever was read can be answered: its numbers fit the replies to them."""
    if isinstance(request, DevicePublishes):
        assert request.sns, "an empty read is no request"
        offsets = [0] * len(request.sns)
        encode_confirms(request.sns, request.sequences, request.codes, offsets)
    elif isinstance(request, DeviceRefused):
        encode_code(request.opcode & 0x7FFF, request.sn, request.code)
    else:
        encode_code(1, request.sn, 0)


def _batches(data: bytes, dice: Dice, found: Counter[str]) -> None:
    try:
        batch = Batch(data)
        batch.check_columns()  # as after a hash that somebody made on purpose
        batch.values(), batch.keys(), batch.tags(), batch.times(), batch.headers()
        found["whole"] += 1
    except BadBatch:
        found["broken"] += 1
        return
    try:
        batch.check(1)
    except BadBatch:
        found["refused"] += 1


def _device_seeds(side: str) -> list[bytes]:
    path = ROOT.parents[2] / "docs" / "device-frames.json"
    frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
    return [bytes.fromhex(f["hex"]) for f in frames if f["side"] == side]


def _client_seeds(side: str) -> list[bytes]:
    path = ROOT.parents[2] / "docs" / "client-frames.json"
    frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
    return [
        bytes.fromhex("".join(data for _, data, _ in f["fields"]))
        for f in frames
        if f["side"] == side
    ]


def _link_seeds(greetings: bool) -> list[bytes]:
    path = ROOT / "golden" / "link_frames.json"
    frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
    return [
        bytes.fromhex("".join(data for _, data, _ in f["fields"]))
        for f in frames
        if (f["kind"] != "LinkFrame") == greetings
    ]


def _trunk_seeds() -> list[bytes]:
    hello = DeviceHello(1, 7, 3, 4, "ns/topic")
    publishes = DevicePublishes([1, 2], [0, NO_SEQUENCE], [b"", b"v" * 40], [0, 8])
    uneven = [
        DevicePublishes([1, 2], [0], [b"v", b"v"], [0, 0]),
        DevicePublishes([1], [0], [b"v"], [0, 0]),
        DevicePublishes([], [], [], []),
    ]
    token = SessionToken("weir", "k1", "9", TokenLimits(topics=("ns/topic",)))
    welcome, confirms = encode_welcome(1, 0, 99), encode_confirms([1, 2], [0, 1], [0, 0], [5, 6])
    frames = [
        trunk.encode_opened(5, "anonymous"),
        trunk.encode_opened(6, "user:ann", Introduction("10.0.0.1", 4, token)),
        trunk.encode(Kind.CLOSED, 5),
        trunk.encode(Kind.REPLIES, 5, welcome, confirms),
        trunk.encode(Kind.REPLIES, 5, encode_proven(1, Proven(99, b"p" * 32)), confirms),
        trunk.encode(Kind.HANGUP, trunk.OWN_SESSION, b"gone: connect again"),
        trunk.encode_arrivals("anonymous", [Arrival(4, hello, publishes)] * 3),
        trunk.encode_answers([(4, welcome + confirms), (5, confirms)]),
        trunk.encode_device(5, hello),
        trunk.encode_device(5, publishes),
        trunk.encode_device(5, DeviceRefused(1, 77, 22)),
        trunk.encode_device(5, DeviceSubscribe(1, 2, 3_000, "crew", "ns/topic", 2)),
        trunk.encode_device(5, DeviceAck(1, 2, 3, 4, 5)),
        trunk.encode_device(5, DeviceProof(1, 2, 3, 4, b"n" * 16, b"p" * 32)),
        trunk.encode_device(5, DeviceProven(1, hello, 5, None)),
        # What no shard that is sound sends, and damage hardly ever comes to.
        *(trunk.encode_device(5, one) for one in uneven),
        *(trunk.encode_arrivals("anonymous", [Arrival(4, hello, one)]) for one in uneven),
    ]
    stream = ClientStream()
    frames += [
        trunk.encode_client(5, one)
        for seed in _client_seeds("request")
        for one in stream.receive(seed)
    ]
    return [b"".join(map(bytes, frame)) for frame in frames]


def _batch_seeds() -> list[bytes]:
    values = [b"a", b"", b"ccc"]
    origins = Origins([1, 2, 3], [1, 1, 1], [0, 1, 2], [7, 8, 9])
    made = [
        encode(values, group=1),
        encode([b"x" * 9] * 40, group=1, tags=["UA", None] * 20),
        encode(values, group=1, keys=[b"k", None, b""], tags=["a", "b", None]),
        encode(values, group=1, headers=[{"h": b"1"}, {}, {"h": b"2", "i": b""}]),
        encode(values, group=1, times=[1, 2, 3], dues=[4, 5, 6], expires=[7, 8, 9]),
        encode(values, group=1, origins=origins),
        encode([b"x" * 9] * 40, group=1, tags=["UA", None] * 20, compression=1),
        encode([b"x" * 9] * 40, group=1, keys=[b"k"] * 40, compression=2),
        encode([], group=1, references=References(9_000_000, 5, ((3, 2),))),
    ]
    return [bytes(batch) for batch in made]


Reader = Callable[[bytes, Dice, Counter[str]], None]
#: Name: the reader, its seeds, where their length field lies, and its byte order.
READERS: dict[str, tuple[Reader, list[bytes], int, Order]] = {
    "device": (_device, _device_seeds("request"), 1, "big"),
    "device-replies": (_device_replies, _device_seeds("reply"), 1, "big"),
    "client": (_client, _client_seeds("request"), 4, "little"),
    "client-replies": (_client_replies, _client_seeds("reply"), 4, "little"),
    "link-greeting": (_link_greeting, _link_seeds(True), 2, "little"),
    "link": (_link, _link_seeds(False), 4, "little"),
    "trunk": (_trunk, _trunk_seeds(), 4, "little"),
    "batch": (_batches, _batch_seeds(), 8, "little"),
}


def fuzz(name: str, count: int, seed: int) -> bool:
    """Give `count` inputs to a reader and print what came of it; return whether all was well."""
    reader, seeds, length_at, order = READERS[name]
    dice = Dice(seed, seeds, length_at, order, name.startswith("device"))
    found: Counter[str] = Counter()
    began = time.perf_counter()
    for _ in range(count):
        data = dice.roll()
        try:
            reader(data, dice, found)
        except Exception:
            traceback.print_exc()
            print(json.dumps({"reader": name, "seed": seed, "broke_at": data.hex()}))
            return False
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "reader": name,
                "inputs": count,
                **{kind: found[kind] for kind in ("whole", "refused", "broken")},
                "inputs_per_second": round(count / seconds),
                "seed": seed,
            }
        )
    )
    return True


if __name__ == "__main__":
    inputs = int(os.environ.get("WEIR_FUZZ", "50000"))
    start = int(os.environ.get("WEIR_FUZZ_SEED", "1"))
    names = sys.argv[1:] or list(READERS)
    results = [fuzz(name, inputs, start) for name in names]  # all of them, whatever one finds
    sys.exit(0 if all(results) else 1)
