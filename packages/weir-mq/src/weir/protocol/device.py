"""The device dialect: the seven-field frame of SmartDep, big-endian (DESIGN §4 Device frame).

    version u8 = 1 | length u32 of the body | opcode u16 | sn u8 | body | check u8

`check` is the XOR of all bytes before it. A reply has its request's opcode with the top bit set and
its `sn`; every reply's body begins with a number: 0, or an error code of `weir.errors`.

    opcode 1  hello         u64 hub, u32 boot count, u16 partition (65,535: by hub), topic UTF-8
              -> u16 code, u64 system id
    opcode 2  publish       any bytes, up to 64 KiB
    opcode 3  publish with sequence: u32 sequence, then any bytes. Per (hub, sn) and boot the first
              is 0, each next one more, the last 0xFFFFFFFE: then raise the boot count
              -> both: u16 code, u32 sequence (none: 0xFFFFFFFF), u64 offset, or what the error
              says (for a gap: the expected sequence)
    opcode 4  ping          -> u16 code
    opcode 5  subscribe     u16 partition (65,535: by hub; 65,534: all), u32 lease in ms, u8 size of
              the cluster's name, its name, topic UTF-8
              -> u16 code
    opcode 11 subscribe with a limit: u16 messages in hand at most, then as a subscribe
              -> u16 code
    opcode 12 prove         the answer to a challenge, and signed frames: see `weir.protocol.proof`
    opcode 6  pull          u16 messages at most, u32 bytes of the reply's body at most (0: 64 KiB)
              -> u16 code, u16 partition, u64 fence, u16 attempts, u16 count, and for each message
              u64 offset, u32 size, value; after an error other than 7 the code alone
    opcode 7  ack           u16 partition, u64 fence, u64 first offset, u64 offset behind the last
              -> u16 code, then what was acked, as asked
    opcode 9  nack          as an ack, then u32 delay in ms
    opcode 10 extend        u16 partition, u64 fence, u32 lease in ms
              -> both: u16 code, then what was asked
    opcode 8  notify        from the broker alone, with the top bit set: u16 0, or why the
              subscription is over

Rules for firmware:
    Hello first; anything else is answered with `NoHello`. A later hello may name another place, hub
    or boot when every publish has its reply; before, it is refused and changes nothing.
    At most 8 sequenced publishes of one (hub, sn) under way: of the last 8 the broker knows a hash.
    A repeat of one of them, same bytes, is confirmed again, as a duplicate (an offset of all
    ones). Other bytes, or an older sequence, are refused with `SequenceReused`.
    The boot count never falls, and rises whenever sequences begin anew: no device is forgotten.
    Sequences are counted in each partition: after hello to another place begin at 0 there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated

import msgspec

from weir.access.devices import MAC_BYTES, FrameKeys, Level
from weir.codec import Buffer, Unsigned8, Unsigned16, Unsigned32, Unsigned64
from weir.errors import (
    BadChecksum,
    BadRequest,
    ProofNeeded,
    RemoteProtocolError,
    TooLarge,
    UnknownOpcode,
)
from weir.model.columns import NO_SEQUENCE
from weir.model.limits import DEVICE_BODY_BYTES_MAX, GRANT_MS_DEFAULT
from weir.protocol.frame import DEVICE_HEADER, Reassembler, check_no_http, xor
from weir.protocol.proof import (
    PROVE,
    PROVEN,
    SIGNED,
    Challenge,
    DeviceProof,
    DeviceProven,
    FrameOpener,
    Proven,
)
from weir.protocol.proof import DeviceHello as DeviceHello

VERSION = 1
REPLY = 0x8000

#: What a device publishes.
Value = Annotated[bytes, msgspec.Meta(max_length=DEVICE_BODY_BYTES_MAX)]

HEADER = DEVICE_HEADER
_SEQUENCE = struct.Struct(">I")
_WELCOME = struct.Struct(">HQ")
_CONFIRM = struct.Struct(">HIQ")
_CONFIRM_FRAME = struct.Struct(">BIHBHIQB")  # a header, a confirm, the check byte
_FRAME_SIZE_MIN = HEADER.size + 1
#: Instead of the number of a partition.
BY_HUB = 0xFFFF
ALL_PARTITIONS = 0xFFFE

_SUBSCRIBE = struct.Struct(">HIB")
_IN_HAND = struct.Struct(">H")
_PULL = struct.Struct(">HI")
_ACK = struct.Struct(">HQQQ")
_NACK = struct.Struct(">HQQQI")
_EXTEND = struct.Struct(">HQI")
_CODE = struct.Struct(">H")
_PULLED = struct.Struct(">HHQHH")
_MESSAGE = struct.Struct(">QI")

#: What a pull must leave room for: the head of its reply, and that of one message.
PULL_BYTES_MIN = _PULLED.size + _MESSAGE.size
#: The largest value that a device can pull.
PULL_VALUE_BYTES_MAX = DEVICE_BODY_BYTES_MAX - PULL_BYTES_MIN
_NAME_BYTES_MAX = 255


class DeviceSubscribe(msgspec.Struct, frozen=True, array_like=True):
    """The device `sn` joins a cluster that reads one partition of a topic, or all; what it pulls is
    its own for `lease_ms`. It holds at most `in_hand` messages at a time; 0: the broker's default.
    """

    sn: Unsigned8
    partition: Unsigned16
    lease_ms: Unsigned32
    cluster: str
    topic: str
    in_hand: Unsigned16 = 0

    def pack(self) -> bytes:
        """Return the body; it begins with `in_hand` if that is not 0.

        Raises `BadRequest` where the cluster's name is over 255 bytes.
        """
        cluster = self.cluster.encode()
        if len(cluster) > _NAME_BYTES_MAX:
            raise BadRequest(
                f"the name of a cluster is at most {_NAME_BYTES_MAX} bytes: shorten it"
            )
        head = _IN_HAND.pack(self.in_hand) if self.in_hand else b""
        head += _SUBSCRIBE.pack(self.partition, self.lease_ms, len(cluster))
        return head + cluster + self.topic.encode()

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceSubscribe:
        """Read a body without `in_hand`. Raises `struct.error` or `UnicodeDecodeError`."""
        partition, lease_ms, size = _SUBSCRIBE.unpack_from(body)
        if _SUBSCRIBE.size + size > len(body):
            raise struct.error("the cluster's name leaves the body")
        names = body[_SUBSCRIBE.size :]
        return cls(sn, partition, lease_ms, names[:size].decode(), names[size:].decode())

    @classmethod
    def unpack_limited(cls, sn: int, body: bytes) -> DeviceSubscribe:
        """Read a body that begins with `in_hand`. Raises as `unpack`, also where that is 0."""
        (in_hand,) = _IN_HAND.unpack_from(body)
        if not in_hand:
            raise struct.error("a device that may hold no message receives none")
        return msgspec.structs.replace(cls.unpack(sn, body[_IN_HAND.size :]), in_hand=in_hand)


class DevicePull(msgspec.Struct, frozen=True, array_like=True):
    """Ask for up to `max_messages` in a reply whose body has up to `max_bytes` (0: 64 KiB)."""

    sn: Unsigned8
    max_messages: Unsigned16
    max_bytes: Unsigned32 = 0

    def pack(self) -> bytes:
        """Return the body."""
        return _PULL.pack(self.max_messages, self.max_bytes)

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DevicePull:
        """Read a body. Raises `struct.error`."""
        return cls(sn, *_PULL.unpack(body))


class DeviceAck(msgspec.Struct, frozen=True, array_like=True):
    """Done with messages [first, next) of grant `fence` of a partition."""

    sn: Unsigned8
    partition: Unsigned16
    fence: Unsigned64
    first: Unsigned64
    next: Unsigned64

    def pack(self) -> bytes:
        """Return the body."""
        return _ACK.pack(self.partition, self.fence, self.first, self.next)

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceAck:
        """Read a body. Raises `struct.error`."""
        return cls(sn, *_ACK.unpack(body))


class DeviceNack(msgspec.Struct, frozen=True, array_like=True):
    """Give messages [first, next) of grant `fence` back, to be had no sooner than in `delay_ms`."""

    sn: Unsigned8
    partition: Unsigned16
    fence: Unsigned64
    first: Unsigned64
    next: Unsigned64
    delay_ms: Unsigned32 = 0

    def pack(self) -> bytes:
        """Return the body."""
        return _NACK.pack(self.partition, self.fence, self.first, self.next, self.delay_ms)

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceNack:
        """Read a body. Raises `struct.error`."""
        return cls(sn, *_NACK.unpack(body))


class DeviceExtend(msgspec.Struct, frozen=True, array_like=True):
    """Keep grant `fence` of a partition for `lease_ms` from now."""

    sn: Unsigned8
    partition: Unsigned16
    fence: Unsigned64
    lease_ms: Unsigned32

    def pack(self) -> bytes:
        """Return the body."""
        return _EXTEND.pack(self.partition, self.fence, self.lease_ms)

    @classmethod
    def unpack(cls, sn: int, body: bytes) -> DeviceExtend:
        """Read a body. Raises `struct.error`."""
        return cls(sn, *_EXTEND.unpack(body))


#: What is said of messages that were pulled. The reply has its code, then what was asked.
DeviceGrantChange = DeviceAck | DeviceNack | DeviceExtend


class Delivery(msgspec.Struct, frozen=True):
    """What a pull brought: values by their offsets, of one grant of one partition, or nothing.

    With `too_large` there is one offset and an empty value: the message there has so many bytes,
    which do not fit into the reply that was asked for.
    """

    partition: int = 0
    fence: int = 0
    attempts: int = 0
    offsets: list[int] = msgspec.field(default_factory=list)
    values: list[bytes] = msgspec.field(default_factory=list)
    too_large: int = 0

    def pack(self) -> bytes:
        """Return the body of the reply."""
        code = TooLarge.code if self.too_large else 0
        attempts = min(self.attempts, 0xFFFF)
        head = _PULLED.pack(code, self.partition, self.fence, attempts, len(self.offsets))
        parts = [head]
        for offset, value in zip(self.offsets, self.values, strict=True):
            parts += _MESSAGE.pack(offset, self.too_large or len(value)), value
        return b"".join(parts)

    @classmethod
    def unpack(cls, body: memoryview) -> Delivery:
        """Read a reply's body. Raises `RemoteProtocolError`."""
        if len(body) < _PULLED.size:
            raise RemoteProtocolError("the reply to a pull is too short")
        code, partition, fence, attempts, count = _PULLED.unpack_from(body)
        if code:
            if (code, count, len(body)) != (TooLarge.code, 1, PULL_BYTES_MIN):
                raise RemoteProtocolError(f"the reply to a pull holds messages and code {code}")
            offset, size = _MESSAGE.unpack_from(body, _PULLED.size)
            return cls(partition, fence, attempts, [offset], [b""], size)
        offsets, values, at = [], [], _PULLED.size
        for _ in range(count):
            if at + _MESSAGE.size > len(body):
                raise RemoteProtocolError("the reply to a pull ends within a message")
            offset, size = _MESSAGE.unpack_from(body, at)
            at += _MESSAGE.size
            offsets.append(offset)
            values.append(bytes(body[at : at + size]))
            at += size
        if at != len(body):
            raise RemoteProtocolError("the reply to a pull is not as long as its messages")
        return cls(partition, fence, attempts, offsets, values)


def message_bytes(value: bytes) -> int:
    """Return what a value takes in the body of a reply."""
    return _MESSAGE.size + len(value)


def pack_change_reply(code: int, request: DeviceGrantChange) -> bytes:
    """Return the body of the reply to an ack, a nack or an extend: its code, and what was asked."""
    return _CODE.pack(code) + request.pack()


class DeviceOpcode(IntEnum):
    """What a device frame asks."""

    HELLO = 1
    PUBLISH = 2
    PUBLISH_SEQUENCED = 3
    PING = 4
    SUBSCRIBE = 5
    PULL = 6
    ACK = 7
    NOTIFY = 8
    NACK = 9
    EXTEND = 10
    SUBSCRIBE_LIMITED = 11
    PROVE = PROVE


#: Plain numbers: each frame of a crowd is compared with them, or carries one.
_PUBLISH, _PUBLISH_SEQUENCED = int(DeviceOpcode.PUBLISH), int(DeviceOpcode.PUBLISH_SEQUENCED)
_PUBLISHES = (_PUBLISH, _PUBLISH_SEQUENCED)
_CHALLENGED = int(DeviceOpcode.HELLO) | REPLY


class DevicePing(msgspec.Struct, frozen=True, array_like=True):
    """Answered at once."""

    sn: Unsigned8


class DevicePublishes(msgspec.Struct, array_like=True):
    """Publishes of one read, column by column, in order; one whose code is not 0 is refused."""

    sns: list[Unsigned8]
    sequences: list[Unsigned32]
    values: list[Value]
    codes: list[Unsigned16]


class DeviceRefused(msgspec.Struct, frozen=True, array_like=True):
    """A frame that is no publish and cannot be served; its connection can go on."""

    sn: Unsigned8
    opcode: Unsigned16
    code: Unsigned16


DeviceRequest = (
    DeviceHello
    | DevicePing
    | DevicePublishes
    | DeviceRefused
    | DeviceSubscribe
    | DevicePull
    | DeviceGrantChange
    | DeviceProof
    | DeviceProven
)
_CHANGES: dict[int, type[DeviceGrantChange]] = {
    DeviceOpcode.ACK: DeviceAck,
    DeviceOpcode.NACK: DeviceNack,
    DeviceOpcode.EXTEND: DeviceExtend,
}
_CHANGE_OPCODES = {kind: opcode for opcode, kind in _CHANGES.items()}
_BODIES: dict[int, Callable[[int, bytes], DeviceRequest]] = {
    DeviceOpcode.HELLO: DeviceHello.unpack,
    DeviceOpcode.PING: lambda sn, _: DevicePing(sn),
    DeviceOpcode.SUBSCRIBE: DeviceSubscribe.unpack,
    DeviceOpcode.SUBSCRIBE_LIMITED: DeviceSubscribe.unpack_limited,
    DeviceOpcode.PULL: DevicePull.unpack,
    DeviceOpcode.PROVE: DeviceProof.unpack,
    **{opcode: kind.unpack for opcode, kind in _CHANGES.items()},
}


def frame(opcode: int, sn: int, body: bytes) -> bytes:
    """Return a whole device frame, check byte included. Raises `BadRequest` over 64 KiB."""
    if len(body) > DEVICE_BODY_BYTES_MAX:
        raise BadRequest(f"a device body of {len(body):,} bytes; {DEVICE_BODY_BYTES_MAX:,} allowed")
    head = HEADER.pack(VERSION, len(body), opcode, sn) + body
    return head + bytes((xor(head),))


def hello(hub: int, boot: int, topic: str, partition: int = BY_HUB, sn: int = 0) -> bytes:
    """Return a hello frame."""
    return frame(DeviceOpcode.HELLO, sn, DeviceHello(sn, hub, boot, partition, topic).pack())


def publish(sn: int, value: bytes, sequence: int = NO_SEQUENCE) -> bytes:
    """Return a publish frame; with a sequence where one is given."""
    if sequence == NO_SEQUENCE:
        return frame(DeviceOpcode.PUBLISH, sn, value)
    return frame(DeviceOpcode.PUBLISH_SEQUENCED, sn, _SEQUENCE.pack(sequence) + value)


def frame_size(view: Buffer, at: int) -> int:
    """Return the size of the frame at `at`. Raises `RemoteProtocolError` if it cannot be one."""
    version, length, opcode, _ = HEADER.unpack_from(view, at)
    if version != VERSION:
        check_no_http(view, at)
        raise RemoteProtocolError(f"a device frame begins with version 1, not {version}")
    if length > DEVICE_BODY_BYTES_MAX + (MAC_BYTES if opcode & SIGNED else 0):
        raise RemoteProtocolError(f"a device body of {length:,}; {DEVICE_BODY_BYTES_MAX:,} allowed")
    return int(_FRAME_SIZE_MIN + length)


def _published(frame: bytes, opcode: int) -> tuple[int, bytes, int]:
    """Return what a publish says: its sequence, its value, and 0 or why it is refused."""
    code, sequence, at = 0, NO_SEQUENCE, HEADER.size
    if opcode == _PUBLISH_SEQUENCED:
        if len(frame) - 1 >= HEADER.size + _SEQUENCE.size:
            (sequence,) = _SEQUENCE.unpack_from(frame, at)
            at += _SEQUENCE.size
        if sequence == NO_SEQUENCE:  # too short, or a number that would quietly lose dedupe
            code = BadRequest.code
    if xor(frame):  # the check byte makes the XOR of the whole frame 0
        code = BadChecksum.code
    return sequence, b"" if code else frame[at:-1], code


class DeviceStream:
    """The broker's side of one connection in the device dialect."""

    __slots__ = ("_opener", "_reassembler", "_waits")

    def __init__(self) -> None:
        """Start at the first byte of the connection."""
        self._reassembler: Reassembler | None = None  # only while something is not whole
        #: Behind a proof of signed frames nothing may come until `sign` is called.
        self._waits = False
        self._opener: FrameOpener | None = None

    def expect_signed(self, keys: FrameKeys) -> None:
        """Take only signed frames from now on, and take frames again behind the proof."""
        self._waits = False
        self._opener = FrameOpener(keys.of_device)

    @property
    def pending(self) -> int:
        """Bytes held for a frame that is not whole yet."""
        return self._reassembler.pending if self._reassembler is not None else 0

    @property
    def claimed(self) -> int:
        """Bytes that the frame under way will take when it is whole; 0 until its header is."""
        return self._reassembler.claimed if self._reassembler is not None else 0

    def receive(self, data: bytes) -> list[DeviceRequest]:
        """Take bytes as they come; return requests in order, publishes gathered into columns."""
        found: list[DeviceRequest] = []
        publishes: DevicePublishes | None = None
        frames = self._cut(data)
        if self._opener is not None:
            frames = [self._opener.open(frame) for frame in frames]
        for frame in frames:
            if self._waits:
                raise RemoteProtocolError("a frame behind a proof came before the reply to that")
            _, _, opcode, sn = HEADER.unpack_from(frame)
            if opcode not in _PUBLISHES:
                publishes = None
                found.append(request := self._control(frame, opcode, sn))
                self._waits = type(request) is DeviceProof and request.level >= Level.SIGNED
                continue
            sequence, value, code = _published(frame, opcode)
            if publishes is None:
                publishes = DevicePublishes([sn], [sequence], [value], [code])
                found.append(publishes)
            else:
                publishes.sns.append(sn)
                publishes.sequences.append(sequence)
                publishes.values.append(value)
                publishes.codes.append(code)
        return found

    def _cut(self, data: bytes) -> Sequence[bytes]:
        """Return the frames that are whole now."""
        if self._reassembler is not None:
            frames = [bytes(view) for view in self._reassembler.receive(data)]
            if not self._reassembler.pending:
                self._reassembler = None
            return frames
        frames, at, end = [], 0, len(data)
        while end - at >= HEADER.size:
            version, length, _, _ = HEADER.unpack_from(data, at)
            if version != VERSION or length > DEVICE_BODY_BYTES_MAX:
                frame_size(data, at)  # says what is wrong with it
            if (behind := at + _FRAME_SIZE_MIN + length) > end:
                break
            frames.append(data[at:behind])
            at = behind
        if at < end:
            self._reassembler = Reassembler(HEADER.size, frame_size)
            self._reassembler.receive(data[at:])
        return frames

    @staticmethod
    def _control(frame: bytes, opcode: int, sn: int) -> DeviceRequest:
        if xor(frame):
            return DeviceRefused(sn, opcode, BadChecksum.code)
        if (unpack := _BODIES.get(opcode)) is None:
            return DeviceRefused(sn, opcode, UnknownOpcode.code)
        try:
            return unpack(sn, frame[HEADER.size : -1])
        except (struct.error, UnicodeDecodeError):
            return DeviceRefused(sn, opcode, BadRequest.code)


@lru_cache(maxsize=512)
def encode_welcome(sn: int, code: int, system: int) -> bytes:
    """Return the reply to hello; thousands of devices that come at once get the same."""
    return frame(DeviceOpcode.HELLO | REPLY, sn, _WELCOME.pack(code, system))


def encode_code(opcode: int, sn: int, code: int) -> bytes:
    """Return a reply that is a number only."""
    return frame(opcode | REPLY, sn, _CODE.pack(code))


def encode_confirm(sn: int, sequence: int, code: int, offset: int) -> bytes:
    """Return the reply to a publish."""
    opcode = (_PUBLISH if sequence == NO_SEQUENCE else _PUBLISH_SEQUENCED) | REPLY
    # The XOR of all bytes is that of the bytes of all numbers' XOR: it takes a third of the time.
    folded = VERSION ^ _CONFIRM.size ^ opcode ^ sn ^ code ^ sequence ^ offset
    folded ^= folded >> 32
    folded ^= folded >> 16
    folded = (folded ^ folded >> 8) & 0xFF
    return _CONFIRM_FRAME.pack(VERSION, _CONFIRM.size, opcode, sn, code, sequence, offset, folded)


def encode_confirms(
    sns: Sequence[int], sequences: Sequence[int], codes: Sequence[int], offsets: Sequence[int]
) -> bytes:
    """Return the replies to publishes, glued together, in order."""
    rows = zip(sns, sequences, codes, offsets, strict=True)
    return b"".join([encode_confirm(*row) for row in rows])


def prove(request: DeviceProof) -> bytes:
    """Return the frame of a proof."""
    return frame(DeviceOpcode.PROVE, request.sn, request.pack())


def encode_challenge(sn: int, challenge: Challenge) -> bytes:
    """Return the reply to the hello of a hub that must prove itself."""
    return frame(DeviceOpcode.HELLO | REPLY, sn, challenge.pack())


def encode_proven(sn: int, proven: Proven) -> bytes:
    """Return the reply to a proof that was right."""
    return frame(PROVEN, sn, proven.pack())


def subscribe(
    sn: int,
    cluster: str,
    topic: str,
    partition: int = BY_HUB,
    lease_ms: int = GRANT_MS_DEFAULT,
    in_hand: int = 0,
) -> bytes:
    """Return a subscribe frame, with a limit of messages in hand where one is given."""
    request = DeviceSubscribe(sn, partition, lease_ms, cluster, topic, in_hand)
    return frame(subscribe_opcode(request), sn, request.pack())


def subscribe_opcode(request: DeviceSubscribe) -> DeviceOpcode:
    """Return the opcode of a subscribe frame, with which it is also answered."""
    return DeviceOpcode.SUBSCRIBE_LIMITED if request.in_hand else DeviceOpcode.SUBSCRIBE


def pull(sn: int, max_messages: int, max_bytes: int = 0) -> bytes:
    """Return a pull frame."""
    return frame(DeviceOpcode.PULL, sn, DevicePull(sn, max_messages, max_bytes).pack())


def ack(sn: int, partition: int, fence: int, first: int, next: int) -> bytes:
    """Return an ack frame of messages [first, next)."""
    return encode_change(DeviceAck(sn, partition, fence, first, next))


def encode_change(request: DeviceGrantChange) -> bytes:
    """Return the frame of an ack, a nack or an extend."""
    return frame(_CHANGE_OPCODES[type(request)], request.sn, request.pack())


def encode_delivery(sn: int, delivery: Delivery) -> bytes:
    """Return the reply to a pull."""
    return frame(DeviceOpcode.PULL | REPLY, sn, delivery.pack())


def encode_change_reply(code: int, request: DeviceGrantChange) -> bytes:
    """Return the reply to an ack, a nack or an extend."""
    return frame(
        _CHANGE_OPCODES[type(request)] | REPLY, request.sn, pack_change_reply(code, request)
    )


class DeviceReply(msgspec.Struct, frozen=True):
    """A reply as a device reads it; `sequence` and `offset` only for publishes, `content` what a
    pull brought, what an ack, a nack or an extend asked, or a challenge and the broker's proof. A
    notify is one too.
    """

    opcode: int
    sn: int
    code: int
    sequence: int = NO_SEQUENCE
    offset: int = 0
    content: Delivery | DeviceGrantChange | Challenge | Proven | None = None


class DeviceReplies:
    """The device's side: cuts replies out of the stream."""

    __slots__ = ("_opener", "_reassembler")

    def __init__(self) -> None:
        """Start at the first byte of the connection."""
        self._reassembler = Reassembler(HEADER.size, frame_size)
        self._opener: FrameOpener | None = None

    def expect_signed(self, keys: FrameKeys) -> None:
        """Take only signed replies from now on."""
        self._opener = FrameOpener(keys.of_broker)

    def receive(self, data: bytes) -> list[DeviceReply]:
        """Take bytes as they come, return whole replies. Raises `RemoteProtocolError`."""
        views = self._reassembler.receive(data)
        if self._opener is not None:
            views = [memoryview(self._opener.open(bytes(view))) for view in views]
        return [self._reply(view) for view in views]

    @staticmethod
    def _reply(view: memoryview) -> DeviceReply:
        if xor(view):
            raise RemoteProtocolError("a reply fails its check byte")
        _, _, opcode, sn = HEADER.unpack_from(view)
        if not opcode & REPLY:
            raise RemoteProtocolError(f"opcode {opcode} is a request: a device reads only replies")
        body = view[HEADER.size : -1]
        if opcode & ~REPLY in _PUBLISHES and len(body) == _CONFIRM.size:
            return DeviceReply(opcode & ~REPLY, sn, *_CONFIRM.unpack(body))
        if len(body) < _CODE.size:
            raise RemoteProtocolError("a reply without a code")
        (code,) = _CODE.unpack_from(body)
        content: Delivery | DeviceGrantChange | Challenge | Proven | None = None
        if opcode & ~REPLY == DeviceOpcode.PULL and code in (0, TooLarge.code):
            content = Delivery.unpack(body)
        elif opcode == _CHALLENGED and code == ProofNeeded.code and len(body) != _WELCOME.size:
            content = Challenge.unpack(bytes(body))
        elif opcode == PROVEN and not code:
            content = Proven.unpack(bytes(body))
        elif opcode & ~REPLY in _CHANGES and len(body) > _CODE.size:
            content = _change_of(opcode & ~REPLY, sn, body[_CODE.size :])
        return DeviceReply(opcode & ~REPLY, sn, code, content=content)


def _change_of(opcode: int, sn: int, body: memoryview) -> DeviceGrantChange:
    try:
        return _CHANGES[opcode].unpack(sn, bytes(body))
    except struct.error:
        text = f"the reply to {DeviceOpcode(opcode).name.lower()} has another size"
        raise RemoteProtocolError(text) from None
