"""AMQP 0-9-1: as much of it as publisher confirms and one consumer need."""

from __future__ import annotations

import struct

from weir_lab.bench.sides.peers.dialect import Marker, OneByOne, PeerRefused, Records, refused

_PROTOCOL = b"AMQP\0\0\x09\x01"
_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
_END = b"\xce"
_PREFETCH = 2_000
_FRAME_MAX = 131_072

_START, _TUNE, _OPEN_OK = (10, 10), (10, 30), (10, 41)
_CHANNEL_OPEN_OK, _DECLARE_OK = (20, 11), (50, 11)
_CONFIRM_OK, _QOS_OK, _PURGE_OK = (85, 11), (60, 11), (50, 31)


def _frame(kind: int, channel: int, body: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(body)) + body + _END


def _method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    return _frame(1, channel, _METHOD.pack(*method) + arguments)


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


_LOGIN = _long(b"") + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
_TUNED = struct.pack(">HIH", 2_047, _FRAME_MAX, 0)  # as many channels as it has; no heartbeat


class _Conversation:
    """What comes before messages: the login, a channel, and then one method after the other."""

    def __init__(self, methods: list[tuple[tuple[int, int], bytes]]) -> None:
        """`methods`: what the peer must have said before each, on the channel, goes out."""
        self._next = dict(methods)
        self._buffer = b""

    def receive(self, data: bytes) -> tuple[bytes, set[tuple[int, int]], bytes]:
        """Return the answer, the methods that came, and the bytes behind what is known."""
        self._buffer += data
        answer = b""
        came = set()
        while (whole := self._whole()) is not None:
            kind, _, _ = _FRAME.unpack_from(self._buffer)
            method = _METHOD.unpack_from(self._buffer, _FRAME.size)
            if kind != 1 or method not in self._next:
                break
            came.add(method)
            answer += self._next[method]
            self._buffer = self._buffer[whole:]
        rest = self._buffer
        return answer, came, rest

    def drop(self) -> None:
        """Forget the rest, which somebody else reads from now on."""
        self._buffer = b""

    def _whole(self) -> int | None:
        if self._buffer[:4] == b"AMQP":
            raise PeerRefused("rabbitmq refused: it speaks another version of AMQP")
        if len(self._buffer) < _FRAME.size + _METHOD.size:
            return None
        size = _FRAME.size + int(_FRAME.unpack_from(self._buffer)[2]) + 1
        return size if len(self._buffer) >= size else None


def _login(then: list[tuple[tuple[int, int], bytes]]) -> _Conversation:
    return _Conversation(
        [
            (_START, _method(0, (10, 11), _LOGIN)),
            (_TUNE, _method(0, (10, 31), _TUNED) + _method(0, (10, 40), _short(b"/") + b"\0\0")),
            (_OPEN_OK, _method(1, (20, 10), b"\0")),
            *then,
        ]
    )


def _closed(rest: bytes) -> None:
    """Raise `PeerRefused` where the rest begins with a close or a nack."""
    if len(rest) >= _FRAME.size + _METHOD.size and rest[0] == 1:
        method = _METHOD.unpack_from(rest, _FRAME.size)
        if method in ((10, 50), (20, 40), (60, 120)):
            raise refused("rabbitmq", rest[_FRAME.size + _METHOD.size :])


class Publishing(OneByOne):
    """basic.publish of a persistent message, with confirms, which may be for many at once."""

    def __init__(self, topic: str, size: int) -> None:
        """Publish values of `size` bytes to a queue, by the default exchange."""
        name = _short(topic.encode())
        self.head = (
            _method(1, (60, 40), b"\0\0" + _short(b"") + name + b"\0")
            + _frame(2, 1, struct.pack(">HHQHB", 60, 0, size, 0x1000, 2))
            + _FRAME.pack(3, 1, size)
        )
        self.tail = _END
        self.ready = False
        self.confirmed = 0
        confirm = (_CHANNEL_OPEN_OK, _method(1, (85, 10), b"\0"))
        self._talk = _login([confirm, (_CONFIRM_OK, b"")])
        self._acks = Records(rb"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50(.{8})(.)\xce")
        self._low = 0
        self._single: set[int] = set()

    def opening(self) -> bytes:
        """Return the protocol header."""
        return _PROTOCOL

    def receive(self, data: bytes) -> bytes:
        """Log in, then count acks. Raises `PeerRefused`."""
        if not self.ready:
            answer, came, rest = self._talk.receive(data)
            _closed(rest)
            if _CONFIRM_OK not in came:
                return answer
            self.ready = True
            self._talk.drop()
            data = rest
        for tag, multiple in self._acks.take(data):
            self._acked(int.from_bytes(tag, "big"), multiple != b"\0")
        _closed(self._acks.rest)
        self.confirmed = self._low + len(self._single)
        return b""

    def _acked(self, tag: int, multiple: bool) -> None:
        """Note an ack of one message, or of all up to `tag`."""
        if multiple:
            self._low = max(self._low, tag)
            self._single = {other for other in self._single if other > self._low}
        else:
            self._single.add(tag)
        while self._low + 1 in self._single:
            self._low += 1
            self._single.discard(self._low)


class Consuming:
    """basic.consume with a prefetch; the last message of a read acks all before it.

    No ack has an answer. But a queue takes what comes by one channel in its order, a quorum queue
    by its log, so that it knows all acks when it answers a queue.purge behind them.
    """

    def __init__(self, topic: str, size: int, prefetch: int = _PREFETCH) -> None:
        """Consume values of `size` bytes from a queue that exists; up to `prefetch` of them may
        wait for their ack.
        """
        self.ready = False
        self.settled = False
        self._name = _short(topic.encode())
        qos = _method(1, (60, 10), struct.pack(">IHB", 0, prefetch, 0))
        self._talk = _login([(_CHANNEL_OPEN_OK, qos), (_QOS_OK, b"")])
        self._purged = Marker(_FRAME.pack(1, 1, 8) + _METHOD.pack(*_PURGE_OK))
        # Three frames: the destination, the properties, the value.
        self._records = Records(
            rb"\x01\x00\x01.{4}\x00\x3c\x00\x3c\x01t(.{8}).\x00.[^\xce]*\xce"
            rb"\x02\x00\x01.{4}\x00\x3c\x00\x00.{8}[^\xce]*\xce"
            rb"\x03\x00\x01" + size.to_bytes(4, "big").replace(b"\\", b"\\\\")
            + rb"(.{%d})\xce" % size
        )  # fmt: skip

    def opening(self) -> bytes:
        """Return the protocol header."""
        return _PROTOCOL

    def begin(self) -> bytes:
        """Return what makes the server deliver."""
        arguments = b"\0\0" + self._name + _short(b"t") + b"\0" + _long(b"")
        return _method(1, (60, 20), arguments)

    def end(self) -> bytes:
        """Return a purge, of which nothing is left to delete."""
        return _method(1, (50, 30), b"\0\0" + self._name + b"\0")

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole messages and the ack of the last. Raises `PeerRefused`."""
        answer = b""
        if not self.ready:
            answer, came, rest = self._talk.receive(data)
            _closed(rest)
            if _QOS_OK not in came:
                return [], answer
            self.ready = True
            self._talk.drop()
            data = rest
        self.settled = bool(self._purged.count(data)) or self.settled
        found = self._records.take(data)
        _closed(self._records.rest)
        if found:
            answer += _method(1, (60, 80), found[-1][0] + b"\1")
        return [value for _, value in found], answer


class Declaring:
    """Makes one durable queue, and is `done` when the server has it."""

    def __init__(self, topic: str, kind: str) -> None:
        """Declare a `classic`, `quorum` or `stream` queue."""
        table = _short(b"x-queue-type") + b"S" + _long(kind.encode())
        declare = b"\0\0" + _short(topic.encode()) + b"\x02" + _long(table)
        steps = [(_CHANNEL_OPEN_OK, _method(1, (50, 10), declare)), (_DECLARE_OK, b"")]
        self._talk = _login(steps)
        self.done = False

    def opening(self) -> bytes:
        """Return the protocol header."""
        return _PROTOCOL

    def receive(self, data: bytes) -> bytes:
        """Go on with the login and the declaration. Raises `PeerRefused`."""
        answer, came, rest = self._talk.receive(data)
        _closed(rest)
        self.done = self.done or _DECLARE_OK in came
        return answer
