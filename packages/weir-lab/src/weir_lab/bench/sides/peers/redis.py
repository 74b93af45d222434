"""Redis with streams: the best of those that sync before they confirm, in our measurements."""

from __future__ import annotations

import subprocess
from pathlib import Path

from weir_lab.bench.sides.peers.resp import GROUP, Adding, Reading, command
from weir_lab.bench.sides.peers.server import Peer, ask, program


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
