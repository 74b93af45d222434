"""RabbitMQ's stream protocol: publish frames of many messages, chunks by credit.

Numbers are big-endian: u32 size | u16 key | u16 version 1 | u32 correlation, where there is a
reply | fields. Strings have a u16 length.
"""

from __future__ import annotations

import struct

from weir_lab.bench.sides.peers.dialect import refused

_HEAD = struct.Struct(">IHH")
_DECLARE, _PUBLISH, _CONFIRM, _ERROR = 0x0001, 0x0002, 0x0003, 0x0004
_SUBSCRIBE, _DELIVER, _CREDIT = 0x0007, 0x0008, 0x0009
_PROPERTIES, _MECHANISMS, _LOGIN, _TUNE, _OPEN = 0x0011, 0x0012, 0x0013, 0x0014, 0x0015
_REPLY = 0x8000
_OK = 1
#: Of a chunk, before its entries; the count of entries stands at 2.
_CHUNK_HEAD = 48
_CREDITS = 10
_ENTRY = struct.Struct(">QI")


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _frame(key: int, fields: bytes) -> bytes:
    return _HEAD.pack(len(fields) + 4, key, 1) + fields


def _asked(key: int, fields: bytes = b"") -> bytes:
    return _frame(key, struct.pack(">I", key) + fields)


class _Conversation:
    """Cuts frames, and does what comes before messages: the login, and one more request."""

    def __init__(self, last: int, request: bytes) -> None:
        """`request`, of key `last`, is what makes us ready once it is granted."""
        self.ready = False
        self._last = last
        self._request = request
        self._rest = b""

    def opening(self) -> bytes:
        """Return the first request: our properties, of which there are none."""
        return _asked(_PROPERTIES, struct.pack(">I", 0))

    def frames(self, data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
        """Return (key, fields) of frames that are not of the login, and what to answer."""
        whole = self._rest + data
        found = []
        answer = b""
        at = 0
        while len(whole) - at >= _HEAD.size:
            size, key, _ = _HEAD.unpack_from(whole, at)
            if len(whole) - at < 4 + size:
                break
            fields = whole[at + _HEAD.size : at + 4 + size]
            at += 4 + size
            if key == _TUNE:
                # As large as it likes, and no heartbeat.
                answer += _frame(_TUNE, fields[:4] + bytes(4)) + _asked(_OPEN, _text(b"/"))
            elif key & _REPLY:
                answer += self._granted(key & ~_REPLY, fields)
            else:
                found.append((key, fields))
        self._rest = whole[at:]
        return found, answer

    def _granted(self, key: int, fields: bytes) -> bytes:
        code = struct.unpack_from(">H", fields, 4)[0]
        if code != _OK:
            raise refused("rabbitmq", f"request {key:#06x} with code {code}".encode())
        if key == self._last:
            self.ready = True
        secret = b"\0guest\0guest"
        login = _text(b"PLAIN") + struct.pack(">I", len(secret)) + secret
        answers = {
            _PROPERTIES: _asked(_MECHANISMS),
            _MECHANISMS: _asked(_LOGIN, login),
            _OPEN: self._request,
        }
        return answers.get(key, b"")


class Publishing:
    """Publish frames of many messages, all with number 0: we count confirms, and name nobody."""

    def __init__(self, topic: str, size: int) -> None:
        """Publish values of `size` bytes to a stream."""
        self.head = _ENTRY.pack(0, size)
        self.tail = b""
        self.confirmed = 0
        self._size = size
        declare = _asked(_DECLARE, b"\1" + _text(b"") + _text(topic.encode()))
        self._talk = _Conversation(_DECLARE, declare)

    @property
    def ready(self) -> bool:
        """Whether the server knows us as a publisher."""
        return self._talk.ready

    def opening(self) -> bytes:
        """Return the first request."""
        return self._talk.opening()

    def before(self, count: int) -> bytes:
        """Return the head of a frame of `count` messages."""
        size = 4 + 5 + count * (_ENTRY.size + self._size)
        return _HEAD.pack(size, _PUBLISH, 1) + struct.pack(">BI", 1, count)

    def receive(self, data: bytes) -> bytes:
        """Count confirms. Raises `PeerRefused`."""
        found, answer = self._talk.frames(data)
        for key, fields in found:
            if key == _CONFIRM:
                self.confirmed += struct.unpack_from(">I", fields, 1)[0]
            elif key == _ERROR:
                raise refused("rabbitmq", b"a publish failed")
        return answer


class Subscribing:
    """Chunks from the stream's beginning on; each one that is taken gives a credit back."""

    def __init__(self, topic: str, size: int) -> None:
        """Consume values of `size` bytes from a stream."""
        self._size = size
        # From the first message (1) on.
        subscribe = b"\1" + _text(topic.encode()) + struct.pack(">HH", 1, _CREDITS)
        self._talk = _Conversation(_SUBSCRIBE, _asked(_SUBSCRIBE, subscribe))

    @property
    def ready(self) -> bool:
        """Whether the server knows that we consume."""
        return self._talk.ready

    def opening(self) -> bytes:
        """Return the first request."""
        return self._talk.opening()

    def begin(self) -> bytes:
        """Return nothing: to subscribe is part of being ready."""
        return b""

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole chunks, and their credits. Raises `PeerRefused`."""
        found, answer = self._talk.frames(data)
        values: list[bytes] = []
        step = 4 + self._size
        for key, fields in found:
            if key != _DELIVER:
                continue
            count = struct.unpack_from(">H", fields, 1 + 2)[0]
            first = 1 + _CHUNK_HEAD + 4
            ends = range(first, first + count * step, step)
            values += [fields[at : at + self._size] for at in ends]
            answer += _frame(_CREDIT, struct.pack(">BH", 1, 1))
        return values, answer
