"""NATS JetStream over its text protocol: PUB with an ack for each, and pulls."""

from __future__ import annotations

import json
from secrets import token_hex

from weir_lab.bench.sides.peers.dialect import Marker, OneByOne, Records, refused

DURABLE = "g"
_CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"weir-bench","version":"0","protocol":1}\r\n'
)
_PULL = 2_000
_PULL_NS = 600_000_000_000


def stream_requests(topic: str, replicas: int = 1) -> list[tuple[str, bytes]]:
    """Return the API subjects and bodies that make a file stream with one durable consumer."""
    stream = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": replicas}
    config = {
        "durable_name": DURABLE,
        "ack_policy": "all",
        "max_ack_pending": 50_000,
        "deliver_policy": "all",
    }
    consumer = {"stream_name": topic, "config": config}
    return [
        (f"$JS.API.STREAM.CREATE.{topic}", json.dumps(stream).encode()),
        (f"$JS.API.CONSUMER.DURABLE.CREATE.{topic}.{DURABLE}", json.dumps(consumer).encode()),
    ]


def asking(requests: list[tuple[str, bytes]]) -> bytes:
    """Return what sends requests one after the other, with replies to one inbox."""
    parts = [_CONNECT, b"SUB _INBOX.a 1\r\n"]
    parts += [b"PUB %b _INBOX.a %d\r\n%b\r\n" % (to.encode(), len(b), b) for to, b in requests]
    return b"".join(parts)


class Publishing(OneByOne):
    """PUB with a reply subject; the ack of each message tells its sequence in the stream."""

    def __init__(self, topic: str, size: int) -> None:
        """Publish values of `size` bytes to a stream's subject."""
        # Of its own: a subject that connections share brings each of them the acks of all.
        self._inbox = b"_INBOX." + token_hex(8).encode()
        self.head = b"PUB %b %b %d\r\n" % (topic.encode(), self._inbox, size)
        self.tail = b"\r\n"
        self.ready = True
        self.confirmed = 0
        self._acks = Marker(b'"seq":')
        self._errors = [Marker(b'"error":'), Marker(b"\n-ERR", b"\n"), Marker(b"\nHMSG", b"\n")]

    def opening(self) -> bytes:
        """Return who we are and where acks go; the server needs no more before messages."""
        return _CONNECT + b"SUB %b 1\r\n" % self._inbox

    def receive(self, data: bytes) -> bytes:
        """Count acks. Raises `PeerRefused`."""
        if any(marker.count(data) for marker in self._errors):
            raise refused("nats", data)
        self.confirmed += self._acks.count(data)
        return b""


class Pulling:
    """Pulls of many messages from a durable consumer, acked by the last one of each read."""

    def __init__(self, topic: str, size: int) -> None:
        """Consume values of `size` bytes."""
        self.ready = False
        self._topic = topic
        self._records = Records(rb"MSG \S+ 1 (\S+) %d\r\n(.{%d})\r\n" % (size, size))
        self._left = 0
        self._errors = [Marker(b'"error":'), Marker(b"\n-ERR", b"\n"), Marker(b"\nHMSG", b"\n")]
        self._pong = Marker(b"PONG\r\n")

    def opening(self) -> bytes:
        """Return the first two pulls: one is always there when the other runs out."""
        self._left = 2 * _PULL
        return _CONNECT + b"SUB _INBOX.c 1\r\n" + self._pull() * 2 + b"PING\r\n"

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole messages; ack the last of them, and pull more in time."""
        if any(marker.count(data) for marker in self._errors):
            raise refused("nats", data)
        self.ready = self.ready or bool(self._pong.count(data))
        found = self._records.take(data)
        if not found:
            return [], b""
        answer = b"PUB %b 4\r\n+ACK\r\n" % found[-1][0]
        self._left -= len(found)
        while self._left <= _PULL:
            self._left += _PULL
            answer += self._pull()
        return [value for _, value in found], answer

    def _pull(self) -> bytes:
        body = b'{"batch":%d,"expires":%d}' % (_PULL, _PULL_NS)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._topic}.{DURABLE}".encode()
        return b"PUB %b _INBOX.c %d\r\n%b\r\n" % (subject, len(body), body)
