"""Every request of the device dialect, by every way to come, kind of role and mode: a hub may do
what its fleet may, a hub of no fleet what everybody may, and nobody more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from rigs.access import give, rule, set_mode
from rigs.shards import catalog_of
from weir.access.devices import Claim, Level, derive_secret, prove_broker, prove_device
from weir.access.wrapping import KeyRing
from weir.broker.api import events as ev
from weir.broker.metadata.security.enrolment import purpose_of
from weir.broker.metadata.security.fleets import Fleet
from weir.broker.metadata.security.rules import Rule
from weir.broker.records.security import FleetKey, RoleChanged
from weir.errors import NoHello, NotSubscribed, ProofNeeded, Unauthorized, UnknownTopic
from weir.model.ids import place_of
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.proof import Challenge, DeviceProof, DeviceProven

HUB, SYSTEM, KEY = 42, 99, b"f" * 32
RING = KeyRing([bytes(range(32))])
TOPIC, CREW = "default/t", "default/t:crew"
#: What a role allows, and whether by it a hub may publish, and subscribe as `crew`.
ROLES: dict[str, tuple[list[Rule], bool, bool]] = {
    "none": ([], False, False),
    "publish": ([rule("publish", "topic", TOPIC)], True, False),
    "publish by prefix": ([rule("publish", "topic", "default/", True)], True, False),
    "topic": ([rule("publish", "topic", TOPIC), rule("consume", "topic", TOPIC)], True, True),
    "cluster": ([rule("publish", "topic", TOPIC), rule("consume", "cluster", CREW)], True, True),
    "consume": ([rule("consume", "topic", TOPIC)], False, False),
    "another cluster": (
        [rule("publish", "topic", TOPIC), rule("consume", "cluster", f"{TOPIC}:cre")], True, False,
    ),
    "namesake": (
        [rule("publish", "topic", "default/t2"), rule("publish", "topic", "default/T"),
         rule("publish", "topic", "other/t"), rule("publish", "topic", "default/t/", True)],
        False, False,
    ),
    "other kind": ([rule("publish", "namespace", "default")], False, False),
}  # fmt: skip
REFUSED = (Unauthorized.code, UnknownTopic.code)
#: A hub of no fleet; one that proves itself here; and what other shards and nodes pass on.
WAYS = ("hub", "fleet", "trunk", "link")
SENT = {
    "hello": d.DeviceHello, "proof": d.DeviceProof, "proven": DeviceProven,
    "publish": d.DevicePublishes, "sequenced": d.DevicePublishes, "subscribe": d.DeviceSubscribe,
    "pull": d.DevicePull, "ack": d.DeviceAck, "nack": d.DeviceNack, "extend": d.DeviceExtend,
    "ping": d.DevicePing, "unknown": d.DeviceRefused,
}  # fmt: skip


def test_there_is_a_sample_of_each_request() -> None:
    assert set(SENT.values()) == set(get_args(d.DeviceRequest))


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    """A node with topic t, a fleet of hubs 40 to 49, and an administrator."""
    made = make_rig(key_ring=RING, secret_bytes=lambda size: b"s" * size)
    made.connect()
    made.topic(1, "t")
    wrapped = RING.wrap(KEY, purpose_of("locks", 1), bytes(12))
    fleet = Fleet("locks", 40, 49, Level.PROOF, (FleetKey(1, wrapped),))
    catalog_of(made.shard).fleets.put(fleet)
    return made


def heard(rig: Any, session: int, *frames: bytes) -> list[d.DeviceReply]:
    rig.device(session, *frames)
    rig.settle()
    found: list[d.DeviceReply] = rig.device_replies[session][:]
    rig.device_replies[session].clear()
    return found


def claim_of(nonce: bytes) -> Claim:
    return Claim(SYSTEM, HUB, 0, 1, 1, d.BY_HUB, Level.PROOF, "t", nonce, b"device nonce 16b")


def begin(rig: Any, session: int, way: str) -> int:
    """Let a device connect and say who it is; return what it was answered at last."""
    secret = derive_secret(KEY, SYSTEM, HUB, 0)
    hello = d.DeviceHello(0, HUB, 1, d.BY_HUB, "t")
    if way == "hub":
        (reply,) = heard(rig, session, d.hello(7, 1, "t"))
        return reply.code
    if way == "fleet":
        (reply,) = heard(rig, session, d.hello(HUB, 1, "t"))
        assert reply.code == ProofNeeded.code
        assert isinstance(reply.content, Challenge)
        claim = claim_of(reply.content.nonce)
        proof = prove_device(secret, claim)
        prove = d.prove(DeviceProof(0, 0, 1, Level.PROOF, claim.device_nonce, proof))
        (reply,) = heard(rig, session, prove)
        return reply.code
    rig.expects_device(session)
    place = 1 if way == "trunk" else place_of(2, 1)
    rig.handle(ev.Opened(session, "fleet:locks", place))
    claim = claim_of(b"n" * 16)
    rig.handle(ev.Received(session, [DeviceProven(0, hello, 0, prove_broker(secret, claim))]))
    rig.settle()
    (reply,) = rig.device_replies[session][:]
    rig.device_replies[session].clear()
    return int(reply.code)


def codes(replies: list[d.DeviceReply]) -> list[int]:
    return [one.code for one in replies if one.opcode != d.DeviceOpcode.NOTIFY]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["open", "watch", "closed"])
@pytest.mark.parametrize("role", ROLES)
def test_a_hub_may_do_what_its_fleet_may(
    rig: Any, way: str, mode: str, role: str, tell: Callable[..., None]
) -> None:
    rules, publishes, subscribes = ROLES[role]
    access = catalog_of(rig.shard).access
    set_mode(access, "open")
    # A user of the fleet's very name has nothing to do with it.
    give(access, "default/locks", rule("publish", "topic", "", True), admin=True)
    access.apply(RoleChanged("fleet.locks", tuple((*one,) for one in rules), ()))
    set_mode(access, mode)
    if mode != "closed":
        publishes = subscribes = True
    elif way == "hub":
        publishes = subscribes = False  # whatever fleets may
    code = begin(rig, 50, way)
    tell(cases=1, refused=int(not publishes), bypasses=int(code == 0 and not publishes))
    assert (code in REFUSED, code == 0) == (not publishes, publishes)
    if way in ("hub", "fleet"):
        look_at_subscriptions(rig, publishes, subscribes)
    if way in ("hub", "fleet") or publishes:
        sent = d.publish(1, b"a"), d.publish(2, b"b", 0), d.frame(d.DeviceOpcode.PING, 3, b"")
        expected = [0, 0, 0] if publishes else [NoHello.code] * 3
        assert codes(heard(rig, 50, *sent)) == expected
    if way in ("hub", "fleet"):
        look_at_pulls(rig, publishes and subscribes)
    set_mode(access, "open")
    rig.connect(9)
    info = rig.answer(9, m.DescribeTopic("t"))
    found = rig.answer(9, m.Positions(info.addresses[0]))
    assert found.end == (2 if publishes else 0), "what is refused leaves nothing"


def look_at_subscriptions(rig: Any, publishes: bool, subscribes: bool) -> None:
    (code,) = codes(heard(rig, 50, d.subscribe(1, "crew", "t")))
    if publishes:
        assert (code == 0) == subscribes
    else:
        assert code == NoHello.code
    if not subscribes:
        assert code in (NoHello.code, *REFUSED)


def look_at_pulls(rig: Any, subscribed: bool) -> None:
    """Look at what only a subscribed device may do: pull, ack, nack, extend."""
    pulled = heard(rig, 50, d.pull(1, 9))
    if not subscribed:
        assert codes(pulled) == [NotSubscribed.code]
        changes = [kind(1, 0, 1, 0, 1) for kind in (d.DeviceAck, d.DeviceNack)]
        changes.append(d.DeviceExtend(1, 0, 1, 5_000))
        for change in changes:
            assert codes(heard(rig, 50, d.encode_change(change))) == [NotSubscribed.code]
        return
    (delivery,) = [one.content for one in pulled if one.opcode == d.DeviceOpcode.PULL]
    assert isinstance(delivery, d.Delivery)
    assert delivery.values[0] == b"a"
    acked = d.ack(1, delivery.partition, delivery.fence, 0, 1)
    assert codes(heard(rig, 50, acked))[0] == 0


@pytest.mark.parametrize("way", ["trunk", "link"])
def test_what_is_passed_on_without_a_proof_is_no_hub_of_a_fleet(rig: Any, way: str) -> None:
    rig.expects_device(50)
    rig.handle(ev.Opened(50, "fleet:locks", 1 if way == "trunk" else place_of(2, 1)))
    replies = heard(rig, 50, d.hello(HUB, 1, "t"), d.publish(1, b"a"))
    assert 0 not in codes(replies)
    assert len(replies) == 2
