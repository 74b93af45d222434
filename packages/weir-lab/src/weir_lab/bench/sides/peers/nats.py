"""NATS JetStream over its text protocol, one node with a file stream: PUB with an ack for each, and
pulls.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from secrets import token_hex
from typing import Literal

from weir_lab.bench.sides.peers.dialect import Marker, OneByOne, Records, Sharing, refused
from weir_lab.bench.sides.peers.server import PEERS_FOLDER, Peer, ask, program

DURABLE = "g"
#: Pulls that may wait at once; by default 512.
_WAITING_MAX = 4_096
_CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"weir-bench","version":"0","protocol":1}\r\n'
)
_PULL = 2_000
_PULL_NS = 600_000_000_000

#: What an ack is for: all messages up to its own, or that alone.
Acks = Literal["all", "explicit"]


class Nats(Peer):
    """`always` syncs each write, `default` every two minutes, so not before it confirms."""

    name = "nats"
    variants: tuple[str, ...] = ("always", "default")

    @property
    def synced(self) -> bool:  # type: ignore[override]
        """Whether a confirmed message survives the loss of power."""
        return self.variant == "always"

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        when = "always: each write" if self.synced else "by default: every two minutes"
        return f"JetStream file store, 1 replica, synced {when}"

    def version(self) -> str:
        """Return its version."""
        said = subprocess.check_output([self.program(), "--version"], text=True)
        return said.rpartition("v")[2].strip()

    def command(self, folder: Path) -> list[str]:
        """Write its configuration, and return how to start it."""
        jetstream: dict[str, object] = {
            "store_dir": str(folder / "js"),
            "max_file_store": 40 << 30,
            "max_memory_store": 2 << 30,
            # By default it refuses messages beyond 10,000 under way.
            "max_buffered_msgs": 1_000_000,
            "max_buffered_size": 1 << 30,
        }
        if self.synced:
            jetstream["sync_interval"] = "always"
        config = folder / "nats.conf"
        settings: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "max_connections": 20_000,
            "ping_interval": "30m",
            "jetstream": jetstream,
            **self.among_others(),
        }
        config.write_text(json.dumps(settings), encoding="utf-8")
        return [self.program(), "-c", str(config)]

    def among_others(self) -> dict[str, object]:
        """Return what a node of several is told of them."""
        return {}

    def prepare(self, topic: str) -> None:
        """Make a stream and its durable consumer, of which an ack acks all before it."""
        self._make(topic, "all")

    def share(self, topic: str) -> None:
        """Make a stream and its durable consumer, of which each message is acked by itself."""
        self._make(topic, "explicit")

    def _make(self, topic: str, acks: Acks) -> None:
        for request in stream_requests(topic, acks):
            ask(self.port, asking([request]), b'"config":', b'"error":', self.name)

    def publishing(self, topic: str, size: int) -> Publishing:
        """Return a producer's side."""
        return Publishing(topic, size)

    def consuming(self, topic: str, size: int) -> Pulling:
        """Return the consumer's side."""
        return Pulling(topic, size)

    def working(self, topic: str, size: int, number: int, grant: int) -> Sharing:
        """Return a worker's side, with two pulls of half a grant under way."""
        return PullingWork(topic, size, max(1, grant // 2))

    def program(self) -> str:
        """Return the path of the server. Raises `NotInstalled`."""
        return program("nats-server", PEERS_FOLDER / "nats-server")


def stream_requests(topic: str, acks: Acks, replicas: int = 1) -> list[tuple[str, bytes]]:
    """Return the API subjects and bodies that make a file stream with one durable consumer."""
    stream = {"name": topic, "subjects": [topic], "storage": "file", "num_replicas": replicas}
    config = {
        "durable_name": DURABLE,
        "ack_policy": acks,
        "max_waiting": _WAITING_MAX,
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

    def __init__(self, topic: str, size: int, pull: int = _PULL) -> None:
        """Consume values of `size` bytes, of which `pull` are asked for at a time."""
        self.ready = False
        self._topic = topic
        self._messages = pull
        # Of its own: a subject that connections share brings each of them what all have asked for.
        self._inbox = b"_INBOX." + token_hex(8).encode()
        self._records = Records(rb"MSG \S+ 1 (\S+) %d\r\n(.{%d})\r\n" % (size, size))
        self._left = 0
        self._errors = [Marker(b'"error":'), Marker(b"\n-ERR", b"\n"), Marker(b"\nHMSG", b"\n")]
        self._pong = Marker(b"PONG\r\n")

    def opening(self) -> bytes:
        """Return who we are and where messages go."""
        return _CONNECT + b"SUB %b 1\r\nPING\r\n" % self._inbox

    def begin(self) -> bytes:
        """Return the first two pulls: one is always there when the other runs out."""
        self._left = 2 * self._messages
        return self._pull() * 2

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole messages; ack the last of them, and pull more in time."""
        if any(marker.count(data) for marker in self._errors):
            raise refused("nats", data)
        self.ready = self.ready or bool(self._pong.count(data))
        found = self._records.take(data)
        if not found:
            return [], b""
        answer = self._acks([to for to, _ in found])
        self._left -= len(found)
        while self._left <= self._messages:
            self._left += self._messages
            answer += self._pull()
        return [value for _, value in found], answer

    def _acks(self, subjects: list[bytes]) -> bytes:
        return b"PUB %b 4\r\n+ACK\r\n" % subjects[-1]

    def _pull(self) -> bytes:
        body = b'{"batch":%d,"expires":%d}' % (self._messages, _PULL_NS)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._topic}.{DURABLE}".encode()
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(body), body)


class PullingWork(Pulling):
    """Pulls of which each message is acked by itself. The server takes the acks of a connection in
    their order, and replies to one that names an inbox: the last is sent again, with one.
    """

    def __init__(self, topic: str, size: int, pull: int) -> None:
        """Consume values of `size` bytes, of which `pull` are asked for at a time."""
        super().__init__(topic, size, pull)
        self._last: bytes | None = None
        self._known = self._inbox + b".known"
        self._replies = Marker(b"MSG %b 2 0\r\n" % self._known)
        self.settled = False

    def opening(self) -> bytes:
        """Return who we are, where messages go, and where the reply to the last ack goes."""
        return super().opening() + b"SUB %b 2\r\n" % self._known

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole messages; ack each, and pull more in time."""
        self.settled = bool(self._replies.count(data)) or self.settled
        return super().receive(data)

    def end(self) -> bytes:
        """Return the last ack once more, with a reply; nothing if there was none."""
        if self._last is None:
            self.settled = True
            return b""
        return b"PUB %b %b 4\r\n+ACK\r\n" % (self._last, self._known)

    def _acks(self, subjects: list[bytes]) -> bytes:
        self._last = subjects[-1]
        return b"".join([b"PUB %b 4\r\n+ACK\r\n" % one for one in subjects])
