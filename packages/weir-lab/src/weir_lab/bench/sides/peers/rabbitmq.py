"""RabbitMQ: quorum and durable classic queues over AMQP 0-9-1, streams over their own protocol."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from weir_lab.bench.sides.peers import amqp, rabbitstream
from weir_lab.bench.sides.peers.dialect import Consuming, Publishing, Sharing
from weir_lab.bench.sides.peers.server import (
    Peer,
    PeerFailed,
    answers,
    free_port,
    package_version,
    program,
)

_DECLARE_SECONDS = 30.0

#: Connections that may wait to be taken: a burst's. Each of its doors keeps 128 unless told.
_BACKLOG = 4096


class RabbitMq(Peer):
    """A `quorum` queue of one member confirms after its WAL's fsync; `classic` before it is read.

    A classic queue syncs in batches, but confirms what a consumer took before that without any. A
    `stream` confirms what was written, and leaves the sync to the system: that is its design.
    """

    name = "rabbitmq"
    variants: tuple[str, ...] = ("quorum", "classic", "stream")

    def __init__(self, variant: str) -> None:
        """Choose a kind of queue."""
        super().__init__(variant)
        self.no_workers = "a stream is no work queue" if variant == "stream" else ""
        self._names_port = 0
        self._nodes_port = 0
        self._amqp_port = 0

    @property
    def synced(self) -> bool:  # type: ignore[override]
        """Whether a confirmed message survives the loss of power."""
        return self.variant != "stream"

    @property
    def node_name(self) -> str:
        """What the node is called among nodes."""
        return f"weir{self.port}@localhost"

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        if self.variant == "stream":
            return "stream of one replica, confirm after the write, no fsync (by design)"
        if self.variant == "quorum":
            return "quorum queue of one member, persistent, confirm after the fsync of its Raft log"
        return "classic queue, durable, persistent, confirm after a batched fsync or a consumer ack"

    def version(self) -> str:
        """Return its version."""
        return package_version("rabbitmq-server").partition("-")[0]

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return an environment in which nothing but `folder` and our ports is touched."""
        return {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +P 2000000"
            ),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def command(self, folder: Path) -> list[str]:
        """Write its configuration, and return how to start it."""
        server = program("rabbitmq-server", Path("/usr/lib/rabbitmq/bin/rabbitmq-server"))
        self._names_port, self._nodes_port = free_port(), free_port()
        streaming = self.variant == "stream"
        self._amqp_port = free_port() if streaming else self.port
        cookie = folder / ".erlang.cookie"
        cookie.write_text("WEIRBENCH", encoding="ascii")
        cookie.chmod(0o400)
        (folder / "log").mkdir()
        plugins = "[rabbitmq_stream]." if streaming else "[]."
        (folder / "plugins").write_text(plugins, encoding="ascii")
        (folder / "rabbitmq.conf").write_text(self.configuration(), encoding="ascii")
        return [server]

    def configuration(self) -> str:
        """Return what its file of settings holds."""
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self._amqp_port}",
            f"tcp_listen_options.backlog = {_BACKLOG}",
            "loopback_users = none",
            "disk_free_limit.absolute = 1GB",
            "log.file.level = warning",
        ]
        if self.variant == "stream":
            lines += [
                f"stream.listeners.tcp.1 = 127.0.0.1:{self.port}",
                f"stream.tcp_listen_options.backlog = {_BACKLOG}",
            ]
        return "".join(f"{line}\n" for line in lines)

    def answers(self) -> bool:
        """Tell whether both of its ports take connections."""
        return answers(self.port) and answers(self._amqp_port)

    def prepare(self, topic: str) -> None:
        """Declare a durable queue; the server takes logins a little after connections."""
        deadline = time.monotonic() + _DECLARE_SECONDS
        declaring = amqp.Declaring(topic, self.variant)
        with socket.create_connection(
            ("127.0.0.1", self._amqp_port), _DECLARE_SECONDS
        ) as connection:
            connection.sendall(declaring.opening())
            while not declaring.done:
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                data = connection.recv(1 << 16)
                if not data:
                    raise PeerFailed(f"{self.label} closed the connection: {self.last_words()}")
                connection.sendall(declaring.receive(data))

    def stop(self) -> None:
        """End it, and its daemon of names, which leaves the session that started it."""
        super().stop()
        if self._names_port:
            subprocess.run(
                [program("epmd"), "-port", str(self._names_port), "-kill"],
                capture_output=True,
                check=False,
                timeout=10,
            )

    def publishing(self, topic: str, size: int) -> Publishing:
        """Return a producer's side."""
        if self.variant == "stream":
            return rabbitstream.Publishing(topic, size)
        return amqp.Publishing(topic, size)

    def consuming(self, topic: str, size: int) -> Consuming:
        """Return the consumer's side."""
        if self.variant == "stream":
            return rabbitstream.Subscribing(topic, size)
        return amqp.Consuming(topic, size)

    def working(self, topic: str, size: int, number: int, grant: int) -> Sharing:
        """Return a worker's side; there is none for a stream."""
        if self.variant == "stream":
            return super().working(topic, size, number, grant)
        return amqp.Consuming(topic, size, grant)
