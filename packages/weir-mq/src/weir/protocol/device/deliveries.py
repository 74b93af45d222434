"""Bodies of the receiving half of the device dialect: subscribe, pull, ack, nack, extend
(SmartDep §2.1.3: persist, notify, pull, ack). `weir.protocol.device.codec` puts them into
frames; docs/DEVICE.md has every byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import msgspec

from weir.codec.fields import Unsigned8, Unsigned16, Unsigned32, Unsigned64
from weir.errors import BadRequest, RemoteProtocolError, TooLarge
from weir.model.limits import DEVICE_BODY_BYTES_MAX

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


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a pull brought: values by their offsets, of one grant of one partition, or nothing.

    With `too_large` there is one offset and an empty value: the message there has so many bytes,
    which do not fit into the reply that was asked for.
    """

    partition: int = 0
    fence: int = 0
    attempts: int = 0
    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
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
