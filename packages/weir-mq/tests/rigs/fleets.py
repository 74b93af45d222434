"""A fleet of simulated devices, and how one of them comes in: shared by tests of device brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from weir.access.devices import Claim, Level, derive_secret, prove_device
from weir.access.wrapping import KeyRing
from weir.broker.metadata.security.enrolment import purpose_of
from weir.broker.metadata.security.fleets import Fleet
from weir.broker.records.security import FleetKey
from weir.errors import ProofNeeded
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.device import BY_HUB
from weir.protocol.proof import Challenge, DeviceProof

SYSTEM, HUB = 99, 42
RING = KeyRing([bytes(range(32))])
FLEET_KEY, NEWER_KEY = b"f" * 32, b"g" * 32
NONCE = b"device nonce 16b"


def wrapped(name: str, version: int, key: bytes) -> FleetKey:
    return FleetKey(version, RING.wrap(key, purpose_of(name, version), bytes(12)))


def fleet_of(level: Level = Level.PROOF, name: str = "locks", first: int = 40) -> Fleet:
    keys = wrapped(name, 1, FLEET_KEY), wrapped(name, 2, NEWER_KEY)
    return Fleet(name, first, first + 9, level, keys)


def door_of(make_rig: Callable[..., Any]) -> Any:
    """Return a node with topics t and u, and a fleet of hubs 40 to 49."""
    rig = make_rig(key_ring=RING, secret_bytes=lambda size: b"s" * size)
    rig.connect()
    rig.answer(1, m.CreateTopic("t", 4))
    rig.topic(1, "u")
    rig.shard.topics.catalog.fleets.put(fleet_of())
    return rig


def heard(rig: Any, session: int, *frames: bytes) -> list[d.DeviceReply]:
    rig.device(session, *frames)
    rig.settle()
    replies = rig.device_replies[session][:]
    rig.device_replies[session].clear()
    return replies


def challenged(rig: Any, session: int, boot: int = 1, topic: str = "t") -> Challenge:
    (reply,) = heard(rig, session, d.hello(HUB, boot, topic))
    assert reply.code == ProofNeeded.code
    assert isinstance(reply.content, Challenge)
    return reply.content


def answer(asked: Challenge, secret: bytes | None = None, **changes: Any) -> tuple[bytes, Claim]:
    """Return the frame of a proof, and what it proves: that of hub 42, with these changes."""
    claim = Claim(
        SYSTEM, HUB, 0, 1, 1, BY_HUB, Level.PROOF, "t", asked.nonce, NONCE
    )  # fmt: skip
    claim = msgspec.structs.replace(claim, **changes)
    secret = secret or derive_secret(FLEET_KEY, SYSTEM, HUB, 0)
    proof = DeviceProof(
        0, claim.generation, claim.key_version, claim.level, claim.device_nonce,
        prove_device(secret, claim),
    )  # fmt: skip
    return d.prove(proof), claim
