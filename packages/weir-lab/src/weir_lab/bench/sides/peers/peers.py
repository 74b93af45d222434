"""All peers, by name."""

from __future__ import annotations

from weir_lab.bench.sides.peers.activemq import ActiveMq
from weir_lab.bench.sides.peers.nats import Nats
from weir_lab.bench.sides.peers.rabbitmq import RabbitMq
from weir_lab.bench.sides.peers.redis import Redis
from weir_lab.bench.sides.peers.server import Peer
from weir_lab.bench.sides.peers.sets import SET, NatsSet, RabbitMqSet
from weir_lab.bench.sides.peers.shipped.nats_py import NatsPy
from weir_lab.bench.sides.peers.shipped.redis_py import RedisPy

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (Redis, Nats, RabbitMq, ActiveMq, NatsSet, RabbitMqSet, RedisPy, NatsPy)
}
#: What cannot be had from Debian or as a Python wheel is not compared, and this is said.
ABSENT = "Kafka and RocketMQ servers are neither Debian packages nor Python wheels: not compared"


def set_of(label: str) -> str:
    """Return how the peer is labelled that runs as a set of nodes. Raises `ValueError`."""
    name, _, variant = label.partition(":")
    wanted = name if name.endswith(SET) else name + SET
    if wanted not in PEERS:
        there = ", ".join(one for one in PEERS if one.endswith(SET))
        raise ValueError(f"{name} does not run as a set of nodes here; these do: {there}")
    return f"{wanted}:{variant}" if variant else wanted


def peer(label: str) -> list[Peer]:
    """Return the peer that `name` or `name:variant` names; a bare name stands for all variants.

    Raises `ValueError` for one that there is not.
    """
    name, _, variant = label.partition(":")
    if name not in PEERS:
        raise ValueError(f"no peer {name!r}: there are {', '.join(PEERS)}")
    kind = PEERS[name]
    return [kind(one) for one in ((variant,) if variant else kind.variants)]
