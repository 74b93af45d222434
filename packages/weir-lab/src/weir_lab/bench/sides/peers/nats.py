"""NATS JetStream: one node, a file stream."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from weir_lab.bench.sides.peers.natstext import Publishing, Pulling, asking, stream_requests
from weir_lab.bench.sides.peers.server import PEERS_FOLDER, Peer, ask, program


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
        """Make a stream and its durable consumer."""
        for request in stream_requests(topic):
            ask(self.port, asking([request]), b'"config":', b'"error":', self.name)

    def publishing(self, topic: str, size: int) -> Publishing:
        """Return a producer's side."""
        return Publishing(topic, size)

    def consuming(self, topic: str, size: int) -> Pulling:
        """Return the consumer's side."""
        return Pulling(topic, size)

    def program(self) -> str:
        """Return the path of the server. Raises `NotInstalled`."""
        return program("nats-server", PEERS_FOLDER / "nats-server")
