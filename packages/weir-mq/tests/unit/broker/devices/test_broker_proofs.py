"""Hubs of a fleet come in by a proof alone, and whoever has none leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import end_revoked, set_mode
from rigs.fleets import (
    FLEET_KEY,
    HUB,
    NEWER_KEY,
    RING,
    SYSTEM,
    answer,
    challenged,
    door_of,
    fleet_of,
    heard,
)
from rigs.shards import catalog_of
from weir.access.devices import (
    Level,
    derive_secret,
    frame_keys,
    prove_broker,
)
from weir.access.wrapping import KeyRing
from weir.broker.api import events as ev
from weir.broker.api.effects import Hangup, SignFrames
from weir.broker.metadata.security.fleets import Fleet
from weir.broker.records.security import DeviceSet, RoleChanged
from weir.errors import (
    BadRequest,
    ErasedBoot,
    NoHello,
    NotAuthenticated,
    NotSubscribed,
    ProofNeeded,
    Unauthorized,
    Unavailable,
    UnknownTopic,
)
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.device import BY_HUB
from weir.protocol.proof import Challenge, DeviceProof, DeviceProven, Proven
from weir.protocol.trunk import Arrival


@pytest.fixture
def door(make_rig: Callable[..., Any]) -> Any:
    return door_of(make_rig)


def origins(rig: Any) -> list[Any]:
    info = rig.answer(1, m.DescribeTopic("t"))
    states = [rig.shard.topics.partition(a.group)[1].state for a in info.addresses]
    return [standing for state in states for standing in state.origins.of_hub(HUB)]


def test_a_hub_with_its_secret_comes_in(door: Any) -> None:
    asked = challenged(door, 50)
    assert (asked.system, asked.level) == (SYSTEM, Level.PROOF)
    frame, claim = answer(asked)
    (reply,) = heard(door, 50, frame)
    secret = derive_secret(FLEET_KEY, SYSTEM, HUB, 0)
    assert reply.content == Proven(SYSTEM, prove_broker(secret, claim))
    assert [r.code for r in heard(door, 50, d.publish(1, b"open", 0))] == [0]
    assert not [e for e in door.others if isinstance(e, Hangup | SignFrames)]


def test_a_proof_and_publishes_may_come_at_once(door: Any) -> None:
    frame, _ = answer(challenged(door, 50))
    replies = heard(door, 50, frame, d.publish(1, b"open", 0), d.publish(1, b"close", 1))
    assert [r.code for r in replies] == [0, 0, 0]


def test_the_other_version_of_the_key_is_taken(door: Any) -> None:
    secret = derive_secret(NEWER_KEY, SYSTEM, HUB, 0)
    frame, _ = answer(challenged(door, 50), secret, key_version=2)
    assert [r.code for r in heard(door, 50, frame)] == [0]


OTHER = derive_secret(FLEET_KEY, SYSTEM, 43, 0)


def test_a_key_that_no_fleet_has_makes_no_secret(door: Any) -> None:
    """What stands for it is in the source: who makes a secret of that must not come in."""
    nothing = b"no fleet has this key".ljust(32, b"\0")
    for version in (0, 3):
        secret = derive_secret(nothing, SYSTEM, HUB, 0)
        frame, _ = answer(challenged(door, 50 + version), secret, key_version=version)
        replies = heard(door, 50 + version, frame)
        assert [r.code for r in replies] == [NotAuthenticated.code]


def test_a_crowd_gets_no_seat_without_proofs(door: Any) -> None:
    arrivals = []
    for hub in (41, 42, 60):
        door.device_replies[hub] = []
        stream = d.DeviceStream()
        said = stream.receive(d.hello(hub, 1, "t") + d.publish(1, b"open", 0))
        arrivals.append(Arrival(hub, *said))
        door.expects_device(hub)
    door.handle(ev.Arrived(arrivals))
    door.settle()
    refused = [ProofNeeded.code, NoHello.code]
    codes = {hub: [r.code for r in door.device_replies[hub]] for hub in (41, 42, 60)}
    assert codes == {41: refused, 42: refused, 60: [0, 0]}
    assert origins(door) == []


@pytest.mark.parametrize(
    ("secret", "changes"),
    [
        (b"x" * 32, {}), (FLEET_KEY, {}), (OTHER, {}), (None, {"system": 98}), (None, {"hub": 43}),
        (derive_secret(FLEET_KEY, 98, HUB, 0), {}), (None, {"boot": 2}), (None, {"partition": 0}),
        (None, {"topic": "u"}), (None, {"topic": "T"}), (None, {"generation": 1}),
        (derive_secret(FLEET_KEY, SYSTEM, HUB, 1), {"generation": 1}), (None, {"key_version": 2}),
        (None, {"key_version": 3}), (None, {"key_version": 0}), (None, {"level": Level.NONE}),
        (None, {"level": 3}), (None, {"device_nonce": bytes(16)}),
        (None, {"broker_nonce": b"another nonce 16"}), (None, {"broker_nonce": bytes(16)}),
    ],
)  # fmt: skip
def test_another_proof_is_refused_and_leaves_nothing(
    door: Any, secret: bytes | None, changes: dict[str, Any]
) -> None:
    frame, _ = answer(challenged(door, 50), secret, **changes)
    (reply,) = heard(door, 50, frame)
    assert (reply.opcode, reply.code) == (12, NotAuthenticated.code)
    assert [e.session for e in door.others if isinstance(e, Hangup)] == [50]
    assert [r.code for r in heard(door, 50, d.publish(1, b"open", 0))] == [NoHello.code]
    assert origins(door) == []
    # The real one comes in with the boot that it has.
    frame, _ = answer(challenged(door, 51))
    assert [r.code for r in heard(door, 51, frame, d.publish(1, b"open", 0))] == [0, 0]


def test_reflected_and_repeated_proofs_are_refused(door: Any) -> None:
    asked = challenged(door, 50)
    frame, _ = answer(asked, device_nonce=asked.nonce)
    assert [r.code for r in heard(door, 50, frame)] == [NotAuthenticated.code]
    frame, claim = answer(challenged(door, 51))
    (reply,) = heard(door, 51, frame)
    assert isinstance(reply.content, Proven)
    # Again on this connection, on another one, and the broker's own proof sent back.
    assert [r.code for r in heard(door, 51, frame)] == [NoHello.code]
    challenged(door, 52)
    assert [r.code for r in heard(door, 52, frame)] == [NotAuthenticated.code]
    challenged(door, 53)
    back = d.prove(DeviceProof(0, 0, 1, 1, claim.device_nonce, reply.content.proof))
    assert [r.code for r in heard(door, 53, back)] == [NotAuthenticated.code]


def test_a_challenge_is_asked_once_and_void_behind_the_next(door: Any) -> None:
    asked = [challenged(door, session) for session in (50, 51, 50)]
    assert len({one.nonce for one in asked}) == 3
    old, _ = answer(asked[0])
    assert [r.code for r in heard(door, 50, old)] == [NotAuthenticated.code]
    new, _ = answer(asked[2])
    assert [r.code for r in heard(door, 50, new)] == [NoHello.code]


def test_a_proof_without_a_challenge_is_refused(door: Any) -> None:
    frame, _ = answer(Challenge(SYSTEM, 1, bytes(16)))
    assert [r.code for r in heard(door, 50, frame)] == [NoHello.code]


def test_without_a_proof_a_hub_of_a_fleet_does_nothing(door: Any) -> None:
    frames = (d.hello(HUB, 9, "t"), d.publish(1, b"open", 0), d.publish(1, b"open"))
    assert [r.code for r in heard(door, 50, *frames)] == [ProofNeeded.code, *[NoHello.code] * 2]
    ask = (d.subscribe(1, "crew", "t"), d.pull(1, 1), d.frame(d.DeviceOpcode.PING, 0, b""))
    assert [r.code for r in heard(door, 50, *ask)] == [
        NoHello.code,
        NotSubscribed.code,
        NoHello.code,
    ]
    assert origins(door) == []
    door.tick(11_000)
    assert [e.session for e in door.others if isinstance(e, Hangup)] == [50]


def test_a_crowd_of_a_fleet_is_asked_one_by_one(door: Any) -> None:
    for hub in (41, 42, 60):
        door.device(hub, d.hello(hub, 1, "t"), d.publish(1, b"open", 0))
    door.settle()
    codes = {hub: [r.code for r in door.device_replies[hub]] for hub in (41, 42, 60)}
    refused = [ProofNeeded.code, NoHello.code]
    assert codes == {41: refused, 42: refused, 60: [0, 0]}


def test_hubs_beside_the_fleet_come_as_before(door: Any) -> None:
    for hub in (39, 50):
        (reply,) = heard(door, hub + 100, d.hello(hub, 1, "t"))
        assert reply.code == 0


def test_a_stranger_learns_nothing_of_topics(door: Any) -> None:
    challenged(door, 50, topic="none")
    frame, _ = answer(challenged(door, 51, topic="none"), topic="none")
    assert [r.code for r in heard(door, 51, frame)] == [UnknownTopic.code]
    assert [e.session for e in door.others if isinstance(e, Hangup)] == [51]


def test_erased_flash_is_told_before_it_is_asked(door: Any) -> None:
    (reply,) = heard(door, 50, d.hello(HUB, 0xFFFFFFFF, "t"))
    assert reply.code == ErasedBoot.code


def test_a_fleet_of_signed_frames_takes_no_less(door: Any) -> None:
    door.shard.topics.catalog.fleets.put(fleet_of(Level.SIGNED))
    asked = challenged(door, 50)
    assert asked.level == Level.SIGNED
    frame, _ = answer(asked)
    assert [r.code for r in heard(door, 50, frame)] == [NotAuthenticated.code]


@pytest.mark.parametrize("level", [Level.PROOF, Level.SIGNED])
def test_a_device_may_sign_where_a_proof_is_enough(door: Any, level: Level) -> None:
    door.shard.topics.catalog.fleets.put(fleet_of(level))
    frame, claim = answer(challenged(door, 50), level=Level.SIGNED)
    (reply,) = heard(door, 50, frame)
    assert reply.code == 0
    (signs,) = [e for e in door.others if isinstance(e, SignFrames)]
    secret = derive_secret(FLEET_KEY, SYSTEM, HUB, 0)
    assert signs == SignFrames(50, frame_keys(secret, claim))


def test_frames_are_signed_from_before_the_reply_on(door: Any) -> None:
    """Else the host would send what comes behind the reply as it is."""
    frame, _ = answer(challenged(door, 50), level=Level.SIGNED)
    effects = door.shard.handle(ev.Received(50, d.DeviceStream().receive(frame)))
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds.index("SignFrames") < kinds.index("Send")


def test_a_replaced_device_comes_with_its_new_secret_alone(door: Any) -> None:
    door.shard.topics.catalog.fleets.set_device(DeviceSet(HUB, 1, False))
    frame, _ = answer(challenged(door, 50))
    assert [r.code for r in heard(door, 50, frame)] == [NotAuthenticated.code]
    # The old secret, with the new generation written on it.
    frame, _ = answer(challenged(door, 51), generation=1)
    assert [r.code for r in heard(door, 51, frame)] == [NotAuthenticated.code]
    secret = derive_secret(FLEET_KEY, SYSTEM, HUB, 1)
    for generation in (0, 2):
        frame, _ = answer(challenged(door, 53 + generation), secret, generation=generation)
        assert [r.code for r in heard(door, 53 + generation, frame)] == [NotAuthenticated.code]
    frame, _ = answer(challenged(door, 52), secret, generation=1)
    assert [r.code for r in heard(door, 52, frame)] == [0]


def test_a_revoked_device_hears_what_a_stranger_does(door: Any) -> None:
    fleets = door.shard.topics.catalog.fleets
    fleets.set_device(DeviceSet(HUB, 0, True))
    asked = challenged(door, 50)
    assert asked.level == Level.PROOF
    frame, _ = answer(asked)
    (revoked,) = heard(door, 50, frame)
    frame, _ = answer(challenged(door, 51), b"x" * 32)
    (stranger,) = heard(door, 51, frame)
    assert revoked == stranger
    texts = {e.reason for e in door.others if isinstance(e, Hangup)}
    assert len(texts) == 1
    fleets.set_device(DeviceSet(HUB, 1, False))
    secret = derive_secret(FLEET_KEY, SYSTEM, HUB, 1)
    frame, _ = answer(challenged(door, 52), secret, generation=1)
    assert [r.code for r in heard(door, 52, frame)] == [0]


def test_a_device_that_is_revoked_behind_its_challenge_stays_out(door: Any) -> None:
    frame, _ = answer(challenged(door, 50))
    door.shard.topics.catalog.fleets.set_device(DeviceSet(HUB, 0, True))
    assert [r.code for r in heard(door, 50, frame)] == [NotAuthenticated.code]


@pytest.mark.parametrize(
    "settings",
    [
        {"secret_bytes": lambda size: b"s" * size},
        {"secret_bytes": lambda size: b"s" * size, "key_ring": KeyRing([b"o" * 32])},
        {"key_ring": RING},
    ],
)
def test_a_node_that_cannot_check_sends_devices_elsewhere(
    make_rig: Callable[..., Any], settings: dict[str, Any]
) -> None:
    rig = make_rig(**settings)
    rig.connect()
    rig.topic(1, "t")
    rig.shard.topics.catalog.fleets.put(fleet_of())
    (reply,) = heard(rig, 50, d.hello(HUB, 1, "t"))
    if reply.code == ProofNeeded.code:
        frame, _ = answer(reply.content)
        (reply,) = heard(rig, 50, frame)
    assert reply.code == Unavailable.code


def test_a_hello_of_a_fleet_that_another_shard_passes_on_is_refused(door: Any) -> None:
    """A shard that knows of no fleet yet lets the hub in; the one that has the seat does not."""
    door.handle(ev.Opened(70, "anonymous", 1))
    said = d.DeviceStream().receive(d.hello(HUB, 1, "t"))
    (sent,) = door.shard.handle(ev.Received(70, said))
    (reply,) = d.DeviceReplies().receive(b"".join(sent.buffers))
    assert reply.code == NotAuthenticated.code


def test_a_proof_that_another_shard_checked_is_checked_against_the_copy_here(door: Any) -> None:
    hello = d.DeviceHello(0, HUB, 1, BY_HUB, "t")
    for session, generation in ((70, 1), (71, 0)):
        door.handle(ev.Opened(session, "anonymous", 1))
        proven = DeviceProven(0, hello, generation, b"p" * 32)
        effects = door.shard.handle(ev.Received(session, [proven]))
        (reply,) = d.DeviceReplies().receive(b"".join(effects[0].buffers))
        if generation:
            assert reply.code == NotAuthenticated.code
            assert isinstance(effects[1], Hangup)
        else:
            assert reply.content == Proven(SYSTEM, b"p" * 32)


def test_publishes_wait_until_a_hub_that_moves_has_its_replies(door: Any) -> None:
    frame, _ = answer(challenged(door, 50))
    assert [r.code for r in heard(door, 50, frame)] == [0]
    door.device(50, d.publish(1, b"open", 0))
    challenge = next(
        r.content for r in heard_now(door, d.hello(HUB, 2, "t")) if r.code == ProofNeeded.code
    )
    frame, _ = answer(challenge, boot=2)
    replies = heard(door, 50, frame)
    assert BadRequest.code in [r.code for r in replies]


def heard_now(rig: Any, *frames: bytes) -> list[d.DeviceReply]:
    rig.device(50, *frames)
    replies = rig.device_replies[50][:]
    rig.device_replies[50].clear()
    return replies


def test_in_a_closed_set_a_hub_may_what_its_fleet_may(door: Any) -> None:
    access = catalog_of(door.shard).access
    set_mode(access, "closed")
    frame, _ = answer(challenged(door, 50))
    assert [r.code for r in heard(door, 50, frame)] == [UnknownTopic.code], "it has no role"
    row = (("publish",), "topic", "default/t", False)
    access.apply(RoleChanged("fleet.other", (row,), ()))
    frame, _ = answer(challenged(door, 51))
    assert [r.code for r in heard(door, 51, frame)] == [UnknownTopic.code]
    access.apply(RoleChanged("fleet.locks", (row,), ()))
    frame, _ = answer(challenged(door, 52))
    assert [r.code for r in heard(door, 52, frame, d.publish(1, b"open", 0))] == [0, 0]
    refused = heard(door, 52, d.subscribe(1, "crew", "t", 0, 5_000))
    assert [r.code for r in refused] == [Unauthorized.code], "it may publish alone"
    assert heard(door, 60, d.hello(7, 1, "t"))[0].code == UnknownTopic.code, "who is of no fleet"
    assert 52 not in end_revoked(door.shard)
    access.apply(RoleChanged("fleet.locks", (), (row,)))
    assert 52 in end_revoked(door.shard)
    assert heard(door, 52, d.publish(1, b"open", 1)) == []


def test_who_came_by_a_key_that_is_dropped_goes(door: Any) -> None:
    newer = derive_secret(NEWER_KEY, SYSTEM, HUB, 0)
    for session, secret, version in ((50, None, 1), (51, newer, 2)):
        frame, _ = answer(challenged(door, session), secret, key_version=version)
        assert [r.code for r in heard(door, session, frame)] == [0]
    fleets = door.shard.topics.catalog.fleets
    known = fleets.find(HUB)
    kept = tuple(key for key in known.keys if key.version != 1)
    fleets.put(Fleet(known.name, known.first, known.last, known.level, kept))
    assert set(end_revoked(door.shard)) & {50, 51} == {50}


def test_who_signs_nothing_goes_once_a_fleet_must(door: Any) -> None:
    frame, _ = answer(challenged(door, 50))
    assert [r.code for r in heard(door, 50, frame)] == [0]
    fleets = door.shard.topics.catalog.fleets
    known = fleets.find(HUB)
    fleets.put(Fleet(known.name, known.first, known.last, int(Level.SIGNED), known.keys))
    assert 50 in end_revoked(door.shard)


def test_a_subscription_of_an_open_set_ends_where_no_rule_allows_it_once_closed(door: Any) -> None:
    access = catalog_of(door.shard).access
    frame, _ = answer(challenged(door, 50))
    assert [r.code for r in heard(door, 50, frame)] == [0]
    (reply,) = heard(door, 50, d.subscribe(1, "crew", "t", 0, 5_000))
    assert reply.code == 0
    row = (("publish",), "topic", "default/t", False)
    access.apply(RoleChanged("fleet.locks", (row,), ()))
    set_mode(access, "closed")
    assert 50 in end_revoked(door.shard)
