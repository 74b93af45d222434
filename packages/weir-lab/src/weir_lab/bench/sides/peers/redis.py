"""Redis streams over RESP2: XADD, XREADGROUP with XACK. The best of those that sync before they
confirm, in our measurements.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from weir_lab.bench.sides.peers.dialect import Marker, OneByOne, refused
from weir_lab.bench.sides.peers.server import Peer, ask, program

GROUP = b"g"
_COUNT = 2_000
#: A worker acks so many entries by one XACK.
ACK_ENTRIES = 100
BLOCK_MS = 5_000


class Redis(Peer):
    """`always` syncs its append-only file before the reply, `everysec` once a second after it."""

    name = "redis"
    variants = ("always", "everysec")
    one_thread = True

    @property
    def synced(self) -> bool:  # type: ignore[override]
        """Whether a confirmed message survives the loss of power."""
        return self.variant == "always"

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        when = "before the reply" if self.synced else "up to a second after the reply"
        return f"appendonly yes, appendfsync {self.variant} (fsync {when}), no snapshots"

    def version(self) -> str:
        """Return its version."""
        said = subprocess.check_output([program("redis-server"), "--version"], text=True)
        return said.partition("v=")[2].split()[0]

    def command(self, folder: Path) -> list[str]:
        """Return how to start it; it takes its settings as arguments."""
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": self.variant,
            "save": "",
            "maxclients": "15000",
            "tcp-backlog": "4096",
            "auto-aof-rewrite-percentage": "0",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [program("redis-server"), *words]

    def prepare(self, topic: str) -> None:
        """Make a stream with a consumer group."""
        words = (b"XGROUP", b"CREATE", topic.encode(), GROUP, b"0", b"MKSTREAM")
        ask(self.port, command(*words), b"+OK\r\n", b"-ERR", self.name)

    def publishing(self, topic: str, size: int) -> Adding:
        """Return a producer's side."""
        return Adding(topic, size)

    def consuming(self, topic: str, size: int) -> Reading:
        """Return the consumer's side."""
        return Reading(topic, size)

    def working(self, topic: str, size: int, number: int, grant: int) -> Reading:
        """Return a worker's side."""
        return Reading(topic, size, b"c%d" % number, grant, ACK_ENTRIES)


def command(*words: bytes) -> bytes:
    """Return one command, as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Adding(OneByOne):
    """XADD topic * d VALUE; each reply is the id of an entry, a bulk string of two lines."""

    def __init__(self, topic: str, size: int) -> None:
        """Publish values of `size` bytes to a stream."""
        whole = command(b"XADD", topic.encode(), b"*", b"d", b"\0" * size)
        self.head, self.tail = whole[: -size - 2], b"\r\n"
        self.ready = True
        self.confirmed = 0
        self._lines = 0
        self._errors = Marker(b"\n-", b"\n")

    def opening(self) -> bytes:
        """Return nothing: a connection is ready as it is."""
        return b""

    def receive(self, data: bytes) -> bytes:
        """Count replies. Raises `PeerRefused`."""
        if self._errors.count(data):
            raise refused("redis", data)
        self._lines += data.count(b"\n")
        self.confirmed = self._lines // 2
        return b""


class Reading:
    """XREADGROUP of many entries at a time; all of a reply are acked with the next read. What an
    XACK returns is how many entries the server has noted as acked.
    """

    _BEGIN = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n")
    _ACKED = re.compile(rb":(\d+)\r\n|\*-1\r\n")

    def __init__(
        self,
        topic: str,
        size: int,
        consumer: bytes = b"c",
        count: int = _COUNT,
        ack_entries: int = _COUNT,
    ) -> None:
        """Consume values of `size` bytes from a stream whose group exists, as one of its consumers:
        read `count` entries at a time, and ack up to `ack_entries` by one command.
        """
        self.ready = True
        self._topic = topic.encode()
        self._consumer = consumer
        self._count = b"%d" % count
        self._ack_entries = ack_entries
        self._taken = self._acked = 0
        self._entry = re.compile(
            rb"\*2\r\n(\$\d+\r\n[\d-]+\r\n)\*2\r\n\$1\r\nd\r\n\$%d\r\n(.{%d})\r\n" % (size, size),
            re.DOTALL,
        )
        self._rest = b""

    @property
    def settled(self) -> bool:
        """Whether the replies of all XACKs came, for all that was taken."""
        return self._acked == self._taken

    def opening(self) -> bytes:
        """Return nothing: a connection is ready as it is."""
        return b""

    def begin(self) -> bytes:
        """Return a read, which waits for entries."""
        words = (b"GROUP", GROUP, self._consumer, b"COUNT", self._count, b"BLOCK", b"%d" % BLOCK_MS)
        return command(b"XREADGROUP", *words, b"STREAMS", self._topic, b">")

    def end(self) -> bytes:
        """Return nothing: each XACK has a reply."""
        return b""

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the values of whole replies, their acks and the next read."""
        data = self._rest + data
        values: list[bytes] = []
        answer = b""
        at = 0
        while at < len(data):
            if (acked := self._ACKED.match(data, at)) is not None:
                at = acked.end()
                if acked[1] is None:  # nothing came within the time of a read
                    answer += self.begin()
                else:
                    self._acked += int(acked[1])
            elif (begin := self._BEGIN.match(data, at)) is not None:
                found = self._entry.findall(data, begin.end())
                count = int(begin[1])
                if len(found) < count:
                    break
                values += [value for _, value in found[:count]]
                answer += self._acks([number for number, _ in found[:count]]) + self.begin()
                self._taken += count
                at = self._end(data, begin.end(), found[:count])
            elif data[at : at + 1] == b"-":
                raise refused("redis", data[at:])
            else:
                break
        self._rest = data[at:]
        return values, answer

    def _acks(self, ids: list[bytes]) -> bytes:
        words = b"$4\r\nXACK\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
            len(self._topic), self._topic, len(GROUP), GROUP,
        )  # fmt: skip
        commands = []
        for first in range(0, len(ids), self._ack_entries):
            some = ids[first : first + self._ack_entries]
            commands += [b"*%d\r\n" % (len(some) + 3), words, *some]
        return b"".join(commands)

    @staticmethod
    def _end(data: bytes, at: int, found: list[tuple[bytes, bytes]]) -> int:
        _, value = found[0]
        around = len(b"*2\r\n" + b"*2\r\n$1\r\nd\r\n" + b"$%d\r\n" % len(value) + b"\r\n")
        return at + sum(len(number) for number, _ in found) + (around + len(value)) * len(found)
