"""Peers on three nodes of this machine: quorum queues of RabbitMQ, streams of NATS JetStream."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from weir.server.interpreter import environment
from weir_lab.bench.sides.peers.dialect import PeerRefused
from weir_lab.bench.sides.peers.nats import Acks, Nats, asking, stream_requests
from weir_lab.bench.sides.peers.rabbitmq import RabbitMq
from weir_lab.bench.sides.peers.server import (
    START_SECONDS,
    PeerFailed,
    answers,
    ask,
    free_port,
    program,
)

NODES = 3
#: Behind the name of a peer that runs as a set.
SET = "-set"
_MADE_WITHIN_SECONDS = 60.0
_AGAIN_SECONDS = 0.2
_LEADER = re.compile(rb'"leader":"([^"]+)"')


class NatsSet(Nats):
    """Three servers in a cluster; each syncs each write, and an ack needs two of them."""

    name = "nats" + SET
    variants = ("always",)

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        return f"JetStream file store, {NODES} replicas on {NODES} servers, synced always"

    def command(self, folder: Path) -> list[str]:
        """Write a configuration for each server; return how to start all."""
        self._servers = {"n1": self.port, **{f"n{n}": free_port() for n in range(2, NODES + 1)}}
        self._between = {name: free_port() for name in self._servers}
        self._told = {name: free_port() for name in self._servers}
        commands = []
        for name, port in self._servers.items():
            self._own, self.port = name, port
            place = folder / name
            place.mkdir()
            commands.append(shlex.join(super().command(place)))
        self.port = self._servers["n1"]
        return ["sh", "-c", " & ".join(commands) + " & wait"]

    def among_others(self) -> dict[str, object]:
        """Return its identity, and the addresses of the others."""
        routes = [f"nats://127.0.0.1:{port}" for port in self._between.values()]
        listen = f"127.0.0.1:{self._between[self._own]}"
        return {
            "server_name": self._own,
            "http": f"127.0.0.1:{self._told[self._own]}",
            "cluster": {"name": "weir", "listen": listen, "routes": routes},
        }

    def answers(self) -> bool:
        """Return whether all servers accept connections, and know the leader of JetStream."""
        return all(map(answers, self._servers.values())) and all(map(_healthy, self._told.values()))

    def _make(self, topic: str, acks: Acks) -> None:
        """Make a stream and its consumer; clients go to the server that leads the stream."""
        create, consume = stream_requests(topic, acks, NODES)
        answer = self._asked(create)
        self._asked(consume)
        leader = _LEADER.search(answer)
        if leader is None:
            raise PeerFailed(f"{self.label} does not name the leader of {topic}: {answer[:300]!r}")
        self.port = self._servers[leader[1].decode()]

    def _asked(self, request: tuple[str, bytes]) -> bytes:
        """Ask until there is a leader."""
        until = time.monotonic() + _MADE_WITHIN_SECONDS
        while True:
            try:
                return ask(self.port, asking([request]), b'"config":', b'"error":', self.name)
            except PeerRefused:
                if time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)


def _healthy(port: int) -> bool:
    """Return what a server of NATS says of itself."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        asking.request("GET", "/healthz")
        return asking.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        asking.close()


class RabbitMqSet(RabbitMq):
    """Three nodes in a cluster; a quorum queue has a member on each."""

    name = "rabbitmq" + SET
    variants = ("quorum",)

    def __init__(self, variant: str) -> None:
        """Choose a kind of queue."""
        super().__init__(variant)
        self._ports: list[int] = []
        self._names: list[str] = []
        self._environment: dict[str, str] = {}

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        return f"quorum queue of {NODES} members, persistent, confirm after the fsync of a majority"

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return nothing: each node has its own."""
        return {}

    def command(self, folder: Path) -> list[str]:
        """Write a configuration for each node; return how to start all."""
        first, names, commands = self.port, 0, []
        self._ports = [first, *(free_port() for _ in range(NODES - 1))]
        self._names = [f"weir{port}@localhost" for port in self._ports]
        others = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
            f"cluster_formation.classic_config.nodes.{n} = {name}\n"
            for n, name in enumerate(self._names, 1)
        )
        for port in self._ports:
            self.port, place = port, folder / str(port)
            place.mkdir()
            command = super().command(place)
            # One daemon of names serves all nodes.
            names = self._names_port = names or self._names_port
            with (place / "rabbitmq.conf").open("a", encoding="ascii") as config:
                config.write(others)
            self._environment = dict(super().environment(place))
            commands.append(
                shlex.join(["env", *map("=".join, self._environment.items()), *command])
            )
        self.port = self._amqp_port = first
        return ["sh", "-c", " & ".join(commands) + " & wait"]

    def answers(self) -> bool:
        """Tell whether all nodes take connections."""
        return all(answers(port) for port in self._ports)

    def start(self, folder: Path) -> None:
        """Start all nodes; return once they have found each other."""
        super().start(folder)
        self._ctl("await_online_nodes", str(NODES))

    def prepare(self, topic: str) -> None:
        """Declare a queue. Raises `PeerFailed` unless it has a member on each node."""
        super().prepare(topic)
        members = self._ctl("--silent", "--formatter", "json", "list_queues", "name", "members")
        found = {row["name"]: row["members"] for row in json.loads(members)}
        if len(found[topic]) != NODES:
            raise PeerFailed(f"{self.label}: {topic} has members on {found[topic]} alone")

    def _ctl(self, *words: str) -> str:
        done = subprocess.run(
            [program("rabbitmqctl", Path("/usr/lib/rabbitmq/bin/rabbitmqctl")), *words],
            env={**environment(), **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise PeerFailed(f"{self.label}: rabbitmqctl {words}: {done.stderr or done.stdout}")
        return done.stdout
