"""Attacks by peers that have no right: each returns whether it achieved what it is named after."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from weir.errors import UnknownTopic
from weir.model.batch_builder import encode
from weir.protocol import device as d
from weir.protocol.client import access as a
from weir.protocol.client import admin as ad
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import CLIENT_HEADER
from weir_lab.attack.targets import DOOMED, LOCKS, OWN, VICTIM, Target
from weir_lab.attack.wire import ask, connection, say

#: Tries something; True if it was achieved.
Attack = Callable[[Target], bool]
#: The highest boot count, and what erased flash reads as.
_BOOTS = (0xFFFFFFFE, 0xFFFFFFFF)
_INVENTED = 50


def _each_way(target: Target, attack: Callable[[socket.socket], bool]) -> bool:
    """Try without TLS, and with it where there is some."""
    found = False
    for by_tls in (False, True) if target.bundle else (False,):
        with suppress(OSError), connection(target, by_tls) as sock:
            found |= attack(sock)
    return found


def fence_a_lock(target: Target) -> bool:
    """Publish as another's hub with a boot count that it never reaches."""

    def attack(sock: socket.socket) -> bool:
        frames = b"".join(
            d.hello(VICTIM, boot, LOCKS) + d.publish(1, b"fence", 0) for boot in _BOOTS
        )
        return any(one.code == 0 for one in say(sock, frames, 4) if one.opcode != d.BY_HUB)

    return _each_way(target, attack)


def fill_origins(target: Target) -> bool:
    """Publish as hubs that are invented, each of which takes a row for good."""

    def attack(sock: socket.socket) -> bool:
        frames = b"".join(
            d.hello(1_000_000 + number, 1, LOCKS) + d.publish(1, b"x", 0)
            for number in range(_INVENTED)
        )
        return any(one.code == 0 for one in say(sock, frames, 2 * _INVENTED))

    return _each_way(target, attack)


def delete_a_topic(target: Target) -> bool:
    """Delete a topic of somebody else, with its messages."""
    _each_way(target, lambda sock: bool(ask(sock, m.Hello("x"), ad.DeleteTopic(DOOMED))))
    with target.administrator() as root:
        try:
            root.describe(DOOMED)
        except UnknownTopic:
            root.create_topic(DOOMED)
            root.publish(DOOMED, b"a secret of its owner")
            return True
    return False


def _obtained(*requests: m.Request) -> Attack:
    """Return an attack that asks for something and achieves what is not refused."""

    def attack(target: Target) -> bool:
        def on(sock: socket.socket) -> bool:
            replies = ask(sock, m.Hello("x"), *requests)[1:]
            return any(not isinstance(one, m.Refusal) for one in replies)

        return _each_way(target, on)

    return attack


def read_messages(target: Target) -> bool:
    """Read what a topic of somebody else holds, by addresses that are guessed."""
    with target.administrator() as root:
        address = root.describe(DOOMED).addresses[0]
    return _obtained(m.Fetch(address, 0, 1 << 20))(target)


def write_messages(target: Target) -> bool:
    """Publish to a topic of somebody else."""
    with target.administrator() as root:
        address = root.describe(DOOMED).addresses[0]
    batch = memoryview(bytes(encode([b"v"], group=address.group)))
    return _obtained(m.OpenProducer(), m.Produce(address, 0, batch))(target)


def take_messages(target: Target) -> bool:
    """Join a cluster of somebody else."""
    with target.administrator() as root:
        address = root.describe(DOOMED).addresses[0]
    return _obtained(m.Pull(address, "work", 1, 1))(target)


def be_a_shard(target: Target) -> bool:
    """Ask what only shards of the set may ask."""
    return _obtained(m.Follow(0), m.ReachRegistry(), a.ReachAccess(1))(target)


def skip_hello(target: Target) -> bool:
    """Ask before saying who one is."""

    def attack(sock: socket.socket) -> bool:
        return any(not isinstance(one, m.Refusal) for one in ask(sock, m.ListTopics()))

    return _each_way(target, attack)


def subscribe_without_proof(target: Target) -> bool:
    """Subscribe as a hub that has said nothing of itself, and as one that is invented."""

    def attack(sock: socket.socket) -> bool:
        frames = d.hello(1_000_007, 1, LOCKS) + d.subscribe(1, "crew", DOOMED) + d.pull(1, 9)
        return any(one.code == 0 for one in say(sock, frames, 3))

    return _each_way(target, attack)


def claim_memory(target: Target) -> bool:
    """Send 64 KiB before a hello is whole, and stay connected."""

    def attack(sock: socket.socket) -> bool:
        head = CLIENT_HEADER.pack(2, 0, opcode_of(m.Produce), 8 << 20, 1)
        try:
            sock.sendall(head + bytes(65_536))
            sock.settimeout(1.0)
            return sock.recv(1) != b"" and not target.is_closed
        except TimeoutError:
            return True
        except OSError:
            return False

    return _each_way(target, attack)


def overreach_as_a_user(target: Target) -> bool:
    """Have one topic, and do something with another, with namesakes of it, or with users."""
    if not target.is_closed:
        return True  # there everybody may
    with target.administrator() as root:
        address = root.describe(DOOMED).addresses[0]
    requests: tuple[Any, ...] = (
        m.Fetch(address, 0, 100), m.Pull(address, OWN, 1, 1), m.DescribeTopic(DOOMED),
        ad.DeleteTopic(OWN), ad.DeleteTopic(DOOMED), ad.DescribePartition(address),
        m.CreateTopic(f"other/{OWN}"), m.CreateTopic(f"{OWN}2"), a.DescribeAccess(),
        a.ChangeUser("roles", "mallory", None, ("admin",)), a.SetAccessMode("open"),
        a.ChangeRole("own", (a.RuleRow(("read",), "topic", DOOMED),)), n.RaiseLevel(),
        n.ChangeNode("drain", 1), m.ResolveCut([OWN, DOOMED]),
    )  # fmt: skip
    with target.connect("mallory", "mallory's own") as mallory:
        achieved = [one.name for one in mallory.topics()] != [OWN]
    return bool(target.answers("mallory", "mallory's own", requests)) or achieved


ATTACKS: dict[str, Attack] = {
    "fence another's lock": fence_a_lock,
    "fill a partition's origins": fill_origins,
    "delete another's topic": delete_a_topic,
    "read another's messages": read_messages,
    "publish to another's topic": write_messages,
    "take another's messages": take_messages,
    "make a topic": _obtained(m.CreateTopic("made-by-nobody")),
    "list topics": _obtained(m.ListTopics(), m.ListOffsets()),
    "list nodes": _obtained(n.ListNodes()),
    "make an administrator": _obtained(a.ChangeUser("revoke", "nobody")),
    "open the set": _obtained(a.SetAccessMode("open")),
    "speak as a shard": be_a_shard,
    "ask before hello": skip_hello,
    "subscribe as a hub that is invented": subscribe_without_proof,
    "hold memory before hello": claim_memory,
    "do what is another user's": overreach_as_a_user,
}
