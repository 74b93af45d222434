"""A hub lands on one shard and has its seat on another: what each of them looks at, and says."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.access import set_mode
from rigs.shards import catalog_of, sessions_of
from rigs.shards_of_a_node import RING, SYSTEM
from weir.access.devices import Level, derive_secret, prove_broker, prove_device
from weir.broker.access.confirmations import REACHED_WITHIN_MS
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.security.enrolment import purpose_of
from weir.broker.metadata.security.fleets import Device, Fleet
from weir.broker.records.security import DeviceSet, FleetKey, RoleChanged
from weir.errors import NotAuthenticated, Overloaded, ProofNeeded, Unavailable
from weir.model.batch_builder import encode
from weir.protocol import device as d
from weir.protocol.client import access as w
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.device import DeviceReplies, DeviceStream
from weir.protocol.proof import Challenge, DeviceHello, DeviceProof, Proven

HUB, SESSION = 42, 500


def fleet() -> Fleet:
    wrapped = RING.wrap(b"f" * 32, purpose_of("locks", 1), bytes(12))
    return Fleet("locks", 40, 49, Level.PROOF, (FleetKey(1, wrapped),))


def heard(node: Any, one: Any, *frames: bytes) -> list[d.DeviceReply]:
    if SESSION not in one.raw:
        one.raw[SESSION] = b""
        one.handle(ev.Opened(SESSION))
    one.handle(ev.Received(SESSION, DeviceStream().receive(b"".join(frames))))
    node.settle()
    replies = DeviceReplies().receive(one.raw[SESSION])
    one.raw[SESSION] = b""
    return replies


@pytest.fixture
def placed(node: Any) -> tuple[Any, Any, Any]:
    """A topic, the shard that leads its partition, and another one, by which the hub comes."""
    info = node.answer(0, m.CreateTopic("locks", 1))
    there = info.addresses[0].shard
    for one in node.all:
        catalog_of(one.shard).fleets.put(fleet())
    return node, node.all[there], node.all[(there + 1) % 3]


def proof(asked: Challenge, level: int = Level.PROOF, generation: int = 0) -> tuple[bytes, bytes]:
    """Return the frame, and the broker's proof that is to come back."""
    secret = derive_secret(b"f" * 32, SYSTEM, HUB, generation)
    unproven = DeviceProof(0, generation, 1, level, b"n" * 16, bytes(32))
    hello = DeviceHello(0, HUB, 1, d.BY_HUB, "locks")
    claim = unproven.claim(asked, hello)
    made = DeviceProof(0, generation, 1, level, b"n" * 16, prove_device(secret, claim))
    return d.prove(made), prove_broker(secret, claim)


def challenged(node: Any, one: Any) -> Challenge:
    (reply,) = heard(node, one, d.hello(HUB, 1, "locks"))
    assert reply.code == ProofNeeded.code
    assert isinstance(reply.content, Challenge)
    return reply.content


def test_the_owner_answers_a_proof_that_another_shard_checked(placed: Any) -> None:
    node, owner, landing = placed
    frame, expected = proof(challenged(node, landing))
    assert not owner.guests.keys() & {SESSION}
    (reply,) = heard(node, landing, frame)
    assert reply.content == Proven(SYSTEM, expected)
    replies = heard(node, landing, *(d.publish(1, b"v%d" % n, n) for n in range(3)))
    assert [(r.code, r.offset) for r in replies] == [(0, 0), (0, 1), (0, 2)]
    # Nothing is left under way: the hub may move.
    frame, expected = proof(challenged(node, landing))
    (reply,) = heard(node, landing, frame)
    assert reply.content == Proven(SYSTEM, expected)


def test_frames_are_signed_where_the_device_is_connected(placed: Any) -> None:
    node, owner, landing = placed
    seen: dict[int, list[ef.SignFrames]] = {one.number: [] for one in node.all}
    for one in node.all:

        def do(effects: Any, one: Any = one, do: Any = one.do) -> None:
            seen[one.number] += [e for e in effects if isinstance(e, ef.SignFrames)]
            do(effects)

        one.do = do
    frame, _ = proof(challenged(node, landing), Level.SIGNED)
    heard(node, landing, frame)
    assert [sign.session for sign in seen[landing.number]] == [SESSION]
    assert not seen[owner.number]


def test_an_owner_that_knows_of_a_revocation_sooner_refuses(placed: Any) -> None:
    node, owner, landing = placed
    frame, _ = proof(challenged(node, landing))
    catalog_of(owner.shard).fleets.set_device(DeviceSet(HUB, 0, True))
    (reply,) = heard(node, landing, frame)
    assert (reply.opcode, reply.code) == (12, NotAuthenticated.code)
    assert landing.hung_up == [SESSION]


def test_an_owner_that_knows_of_a_fleet_sooner_refuses_a_plain_hello(placed: Any) -> None:
    node, _, landing = placed
    catalog_of(landing.shard).fleets.remove("locks")
    replies = heard(node, landing, d.hello(HUB, 1, "locks"), d.publish(1, b"open", 0))
    assert replies[0].code == NotAuthenticated.code
    assert all(reply.code for reply in replies)
    (info,) = [node.answer(0, m.DescribeTopic("locks"))]
    assert node.answer(0, m.Fetch(info.addresses[0], 0, 1 << 20)).batches == ()


def test_a_hub_receives_in_a_closed_set_from_what_a_third_shard_leads(node: Any) -> None:
    """Two shards know of its proof; the third is told by whose rights it asks."""
    info = node.answer(0, m.CreateTopic("locks", 3))
    shards = [address.shard for address in info.addresses]
    topic = catalog_of(node.all[0].shard).by_id(info.id)
    assert topic is not None
    seat = topic.partition_of_hub(HUB)
    landing, third = (p for p in range(3) if p != seat)
    assert len(set(shards)) == 3
    grant = node.answer(0, m.OpenProducer())
    address = info.addresses[third]
    batch = encode([b"open"], group=address.group, producer=grant.producer, epoch=grant.epoch)
    assert isinstance(node.answer(0, m.Produce(address, 0, memoryview(batch))), m.Confirm)
    rows = tuple(((verb,), "topic", "default/locks", False) for verb in ("publish", "consume"))
    for one in node.all:
        catalog = catalog_of(one.shard)
        catalog.fleets.put(fleet())
        catalog.access.apply(RoleChanged("fleet.locks", rows, ()))
        set_mode(catalog.access, "closed")
    one = node.all[shards[landing]]

    frame, _ = proof(challenged(node, one))
    assert [reply.code for reply in heard(node, one, frame)] == [0]
    first, *_ = heard(node, one, d.subscribe(1, "crew", "locks", third, 5_000))
    assert first.code == 0, first
    replies = heard(node, one, d.pull(1, 9, 0))
    delivered = [r.content for r in replies if isinstance(r.content, d.Delivery)]

    assert [value for one in delivered for value in one.values] == [b"open"]
    assert one.hung_up in ([], [1]), "session 1 was let in while the set was open"


def test_no_refusal_overtakes_the_welcome_of_another_shard(
    placed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that heard its refusals first took the welcome for the answer to its publishes."""
    node, _, landing = placed
    for one in node.all:
        catalog_of(one.shard).fleets.remove("locks")
    honest = Forwarder.device

    def device(self: Forwarder, session: Any, request: Any) -> None:
        if isinstance(request, d.DevicePublishes):
            raise Overloaded("the way to the other shard is full", 200)
        honest(self, session, request)

    monkeypatch.setattr(Forwarder, "device", device)
    # So that each frame goes by itself.
    monkeypatch.setattr(Forwarder, "device_batch", lambda *_: False)
    replies = heard(node, landing, d.hello(HUB, 1, "locks"), d.publish(1, b"open", 0))
    assert [reply.code for reply in replies] in ([], [0])
    assert landing.hung_up == [SESSION]


@pytest.mark.parametrize("landing", [0, 1, 2])
def test_a_new_device_is_used_wherever_it_lands(placed: Any, landing: int) -> None:
    """The shard that has the registry writes it, and each of the others hears of it."""
    node, *_ = placed
    one = node.all[landing]
    assert node.answer(0, f.ReplaceDevice(HUB, 1)).before == 0
    frame, _ = proof(challenged(node, one), generation=1)
    (reply,) = heard(node, one, frame)
    assert reply.code == 0
    assert [catalog_of(each.shard).fleets.device(HUB) for each in node.all] == [Device(1)] * 3
    replies = heard(node, one, d.publish(1, b"new", 0))
    assert [(r.code, r.offset) for r in replies] == [(0, 0)]


def test_the_owner_knows_the_generation_that_was_proved_elsewhere(placed: Any) -> None:
    node, owner, landing = placed
    node.answer(0, f.ReplaceDevice(HUB, 1))
    frame, _ = proof(challenged(node, landing), generation=1)
    assert heard(node, landing, frame)[0].code == 0
    device = next(s.device for s in sessions_of(owner.shard).values() if s.device is not None)
    assert (device.is_verified, device.generation, device.epoch) == (True, 1, 1 << 32 | 1)


@pytest.mark.parametrize("certified", [False, True])
def test_a_new_device_that_is_ahead_of_a_shard_is_served_once_the_news_has_come(
    placed: Any, certified: bool
) -> None:
    """It waits for the news, then for its entry, and is not told to come again in between."""
    node, *_ = placed
    one = node.all[1]
    if certified:
        show(one, generation=1)
        frame = d.hello(HUB, 1, "locks")
    else:
        frame, _ = proof(challenged(node, one), generation=1)
    node.blocked = {(0, 1), (1, 0)}
    node.ask(0, f.ReplaceDevice(HUB, 1))
    node.settle()
    assert catalog_of(one.shard).fleets.device(HUB) == Device(0)
    assert heard(node, one, frame) == []
    node.blocked.clear()
    node.settle()
    (reply,) = DeviceReplies().receive(one.raw[SESSION])
    assert (reply.code, one.hung_up) == (0, [])
    assert [catalog_of(each.shard).fleets.device(HUB) for each in node.all] == [Device(1)] * 3


def show(one: Any, hub: int = HUB, generation: int = 0) -> None:
    """Have a hub connect that shows the certificate of a device."""
    one.raw[SESSION] = b""
    one.handle(ev.Opened(SESSION))
    one.handle(ev.Certified(SESSION, "", (hub, generation)))


def test_the_owner_welcomes_a_hub_whose_certificate_another_shard_has_seen(placed: Any) -> None:
    node, owner, landing = placed
    show(landing)
    frames = d.hello(HUB, 1, "locks"), d.publish(1, b"open", 0)
    replies = heard(node, landing, *frames)
    assert [(r.opcode, r.code) for r in replies] == [
        (d.DeviceOpcode.HELLO, 0), (d.DeviceOpcode.PUBLISH_SEQUENCED, 0)
    ]  # fmt: skip
    device = next(s.device for s in sessions_of(owner.shard).values() if s.device is not None)
    assert (device.is_verified, device.generation, device.in_flight) == (True, 0, 0)


@pytest.mark.parametrize("certificate", [(43, 0), (HUB, 7)])
def test_an_impostor_that_lands_on_another_shard_never_reaches_the_owner(
    placed: Any, certificate: tuple[int, int]
) -> None:
    node, owner, landing = placed
    show(landing, *certificate)
    (reply, *later) = heard(node, landing, d.hello(HUB, 1, "locks"), d.publish(1, b"open", 0))
    assert (reply.code, landing.hung_up) == (NotAuthenticated.code, [SESSION])
    assert all(one.code for one in later)
    assert not [s for s in sessions_of(owner.shard).values() if s.device is not None]


def test_an_owner_that_knows_of_a_revocation_sooner_refuses_a_certificate(placed: Any) -> None:
    node, owner, landing = placed
    show(landing)
    catalog_of(owner.shard).fleets.set_device(DeviceSet(HUB, 0, True))
    (reply,) = heard(node, landing, d.hello(HUB, 1, "locks"))
    assert reply == d.DeviceReply(d.DeviceOpcode.HELLO, 0, NotAuthenticated.code)
    assert landing.hung_up == [SESSION]


def test_a_shard_without_news_lets_no_hub_of_a_fleet_in(node: Any) -> None:
    """Its device may have been replaced or revoked; one that is there goes on."""
    info = node.answer(0, m.CreateTopic("locks", 1))
    rows = ((("publish",), "topic", "default/locks", False),)
    for one in node.all:
        catalog = catalog_of(one.shard)
        catalog.fleets.put(fleet())
        catalog.access.apply(RoleChanged("fleet.locks", rows, ()))
        set_mode(catalog.access, "closed")
    landing = node.all[info.addresses[0].shard]
    assert landing.number != 0, "it has a copy"
    frame, expected = proof(challenged(node, landing))
    assert [reply.content for reply in heard(node, landing, frame)] == [Proven(SYSTEM, expected)]
    for _ in range(30):
        node.clock.monotonic += 1_000
        if node.clock.monotonic == 1_000:
            node.cut(0, landing.number)
        landing.handle(ev.Ticked())
    confirmed = heard(node, landing, d.publish(1, b"open", 0))
    assert [reply.code for reply in confirmed] == [0], "its partition goes on"
    frame, _ = proof(challenged(node, landing))
    (reply,) = heard(node, landing, frame)
    assert (reply.opcode, reply.code) == (12, Unavailable.code)
    assert landing.hung_up == [SESSION]
    landing.handle(ev.Closed(SESSION))
    show(landing)
    (reply,) = heard(node, landing, d.hello(HUB, 1, "locks"))
    assert (reply.opcode, reply.code) == (d.DeviceOpcode.HELLO, Unavailable.code)
    landing.handle(ev.Closed(SESSION))
    node.join(0, landing.number)
    node.settle()
    landing.raw.clear()
    frame, expected = proof(challenged(node, landing))
    assert [reply.content for reply in heard(node, landing, frame)] == [Proven(SYSTEM, expected)]


def came(placed: Any) -> tuple[Any, Any, Any]:
    """Let a device publish by a shard that has neither the registry nor its partition."""
    node, owner, _ = placed
    (number,) = {0, 1, 2} - {owner.number, node.layout.registry_shard}
    landing = node.all[number]
    frame, expected = proof(challenged(node, landing))
    (reply,) = heard(node, landing, frame)
    assert reply.content == Proven(SYSTEM, expected)
    assert [one.code for one in heard(node, landing, d.publish(1, b"open", 0))] == [0]
    return node, owner, landing


@pytest.mark.parametrize("request_", [f.SetDevice(HUB, 0, True), f.SetDevice(HUB, 1)])
def test_a_device_is_out_of_each_shard_by_the_answer(placed: Any, request_: Any) -> None:
    node, owner, landing = came(placed)
    before = catalog_of(landing.shard).access.version
    changed = node.answer(0, request_)
    assert changed == w.AccessChanged(before + 1, [])
    assert {catalog_of(one.shard).access.version for one in node.all} == {changed.version}
    assert SESSION in landing.hung_up
    for one in (landing, owner):
        assert not any("fleet:" in s.principal for s in sessions_of(one.shard).values())
    landing.handle(ev.Closed(SESSION))
    landing.raw.clear()
    frame, _ = proof(challenged(node, landing))
    assert [reply.code for reply in heard(node, landing, frame)] == [NotAuthenticated.code]
    assert node.answer(0, request_).unreached == [], "it may be asked again"


def test_a_shard_that_still_serves_a_revoked_device_is_named(placed: Any) -> None:
    node, _, landing = came(placed)
    node.cut(node.layout.registry_shard, landing.number)
    number = node.ask(0, f.SetDevice(HUB, 0, True))
    node.settle()
    assert node.reply(0, number) is None, "it may come back"
    assert not catalog_of(landing.shard).fleets.device(HUB).is_revoked
    node.clock.monotonic += REACHED_WITHIN_MS
    for one in node.all:
        one.handle(ev.Ticked())
    node.settle()
    changed = node.reply(0, number)
    assert (changed.unreached, changed.stops_by_ms) == ([(1, landing.number)], 0)
    assert catalog_of(landing.shard).access.version < changed.version
    node.join(node.layout.registry_shard, landing.number)
    node.settle()
    assert SESSION in landing.hung_up
    assert catalog_of(landing.shard).access.version == changed.version


def test_the_answer_is_awaited_while_a_shard_has_not_heard_of_it(placed: Any) -> None:
    node, _, landing = came(placed)
    registry = node.layout.registry_shard
    node.blocked.add((landing.number, registry))
    node.blocked.add((registry, landing.number))
    number = node.ask(0, f.SetDevice(HUB, 0, True))
    node.settle()
    assert node.reply(0, number) is None
    assert not catalog_of(landing.shard).fleets.device(HUB).is_revoked
    node.blocked.clear()
    node.settle()
    assert SESSION in landing.hung_up
    assert node.reply(0, number).unreached == []


@pytest.mark.parametrize("mode", ["open", "watch"])
def test_a_shard_without_news_lets_no_other_hub_into_a_set_that_watches(
    node: Any, mode: str
) -> None:
    """The set may be closed by now, and a hub without a fleet be nobody."""
    info = node.answer(0, m.CreateTopic("locks", 1))
    for one in node.all:
        set_mode(catalog_of(one.shard).access, mode)
    landing = node.all[info.addresses[0].shard]
    (reply,) = heard(node, landing, d.hello(HUB, 1, "locks"))
    assert reply.code == 0
    node.cut(0, landing.number)
    node.clock.monotonic += 30_000
    landing.handle(ev.Ticked())
    confirmed = heard(node, landing, d.publish(1, b"open", 0))
    assert [reply.code for reply in confirmed] == [0], "one that is there goes on"
    landing.handle(ev.Closed(SESSION))
    del landing.raw[SESSION]
    (reply,) = heard(node, landing, d.hello(HUB, 2, "locks"))
    assert reply.code == (Unavailable.code if mode == "watch" else 0)
