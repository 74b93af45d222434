"""Fleets and devices through the registry's group: what is asked, kept, and never written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import catalog_of, restore_registry
from weir.access.devices import Claim, Level, Nonces, derive_secret, prove_device
from weir.access.wrapping import KeyRing
from weir.broker.api.effects import Hangup
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security.enrolment import FleetVault
from weir.broker.metadata.security.fleets import Device
from weir.broker.records.security import DeviceSet
from weir.errors import BadName, BadRequest, LevelTooLow, NoHello, ProofNeeded, Unavailable
from weir.protocol import device as d
from weir.protocol.client import access as w
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.device import BY_HUB
from weir.protocol.proof import Challenge, DeviceProof

KEY, NEXT_KEY = b"marked fleet key, 32 bytes long.", b"the next fleet key, 32 bytes too"
RING = KeyRing([bytes(range(32))])
SYSTEM = 99


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(key_ring=RING, secret_bytes=lambda size: b"s" * size)
    rig.connect()
    rig.topic(1, "t")
    return rig


def put(rig: Any, name: str = "locks", first: int = 40, last: int = 49, **more: Any) -> Any:
    asked = {"level": 1, "version": 1, "key": KEY, **more}
    return rig.answer(1, f.PutFleet(name, first, last, **asked))


def come(rig: Any, session: int, hub: int, generation: int = 0, key: bytes = KEY) -> list[int]:
    """Let a device say hello, prove itself if it must, and publish; return the codes."""
    rig.device(session, d.hello(hub, 1, "t"))
    reply = rig.device_replies[session].pop()
    codes = [reply.code]
    if isinstance(reply.content, Challenge):
        secret = derive_secret(key, SYSTEM, hub, generation)
        claim = Claim(
            SYSTEM, hub, generation, 1, 1, BY_HUB, 1, "t", reply.content.nonce, b"n" * 16
        )  # fmt: skip
        proof = prove_device(secret, claim)
        rig.device(session, d.prove(DeviceProof(0, generation, 1, 1, b"n" * 16, proof)))
    if not codes[-1] or isinstance(reply.content, Challenge):
        rig.device(session, d.publish(0, b"open", 0))
    rig.settle()
    codes += [reply.code for reply in rig.device_replies[session]]
    rig.device_replies[session].clear()
    return codes


def restart(rig: Any, checkpoint: bool) -> None:
    if checkpoint:
        rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    rig.disk.crash()
    rig.boot()
    rig.connect()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_fleet_is_kept_and_lets_its_devices_in(rig: Any, checkpoint: bool) -> None:
    row = f.FleetRow("locks", 40, 49, 1, (1,))
    assert put(rig) == f.FleetChanged(row)
    assert come(rig, 50, 42) == [ProofNeeded.code, 0, 0]
    assert rig.answer(1, f.SetDevice(43, 1)) == w.AccessChanged(1, [])
    assert rig.answer(1, f.SetDevice(44, 0, True)) == w.AccessChanged(2, [])
    assert rig.answer(1, f.DescribeDevice(44)) == f.DeviceInfo(44, "locks", 0, True)
    restart(rig, checkpoint)
    assert rig.answer(1, f.ListFleets()) == f.FleetList([row], True)
    assert rig.answer(1, f.DescribeDevice(43)) == f.DeviceInfo(43, "locks", 1, False)
    assert come(rig, 60, 45) == [ProofNeeded.code, 0, 0]
    assert come(rig, 61, 43)[1] == 60
    assert come(rig, 62, 43, generation=1) == [ProofNeeded.code, 0, 0]
    assert come(rig, 63, 44)[1] == 60
    assert come(rig, 64, 50) == [0, 0], "a hub beside the fleet"


def test_no_disk_holds_a_fleet_key(rig: Any) -> None:
    put(rig)
    put(rig, version=2, key=NEXT_KEY)
    rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    held = b"".join(bytes(rig.disk.read(name, 0, 1 << 24)) for name in rig.disk.names())
    assert b"locks" in held
    for key in (KEY, NEXT_KEY):
        assert key not in held
        assert key[:16] not in held


def test_a_key_rotates(rig: Any) -> None:
    put(rig)
    changed = put(rig, version=2, key=NEXT_KEY)
    assert changed.fleet.versions == (1, 2)
    assert put(rig, version=2, key=NEXT_KEY) == changed, "the answer may have been lost"
    refused = put(rig, version=2, key=b"x" * 32)
    assert (refused.code, refused.detail) == (BadRequest.code, 2)
    assert come(rig, 50, 42) == [ProofNeeded.code, 0, 0]
    assert rig.answer(1, f.DropFleetKey("locks", 1)).fleet.versions == (2,)
    assert come(rig, 51, 43)[1] == 60
    assert rig.answer(1, f.DropFleetKey("locks", 2)).code == BadRequest.code


def test_a_fleet_changes_without_its_key(rig: Any) -> None:
    put(rig)
    changed = put(rig, first=30, last=59, level=2, version=0, key=b"")
    assert changed == f.FleetChanged(f.FleetRow("locks", 30, 59, 2, (1,)))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"name": ".."}, BadName.code), ({"level": 0}, BadRequest.code),
        ({"level": 3}, BadRequest.code), ({"first": 50}, BadRequest.code),
        ({"key": b"short"}, BadRequest.code), ({"version": 0}, BadRequest.code),
        ({"key": b""}, BadRequest.code),
    ],
)  # fmt: skip
def test_what_can_be_no_fleet_is_refused(rig: Any, asked: dict[str, Any], code: int) -> None:
    assert put(rig, **asked).code == code
    assert rig.answer(1, f.ListFleets()).fleets == []


def test_fleets_do_not_overlap(rig: Any) -> None:
    put(rig)
    assert "fleet locks" in put(rig, "meters", 49, 60).message
    assert put(rig, "meters", 50, 60).fleet.name == "meters"


def test_what_is_not_there_is_not_changed(rig: Any) -> None:
    for request in (
        f.RemoveFleet("none"), f.DropFleetKey("none", 1), f.SetDevice(42, 1),
        f.SetDevice(42, 0, True),
    ):  # fmt: skip
        assert rig.answer(1, request).code == BadRequest.code
    assert rig.answer(1, f.DescribeDevice(42)) == f.DeviceInfo(42, "", 0, False)


def test_without_a_key_file_there_are_no_fleets(make_rig: Callable[..., Any]) -> None:
    for settings in ({}, {"secret_bytes": lambda size: b"s" * size}, {"key_ring": RING}):
        rig = make_rig(**settings)
        rig.connect()
        assert "access.key_file" in put(rig).message
        assert rig.answer(1, f.ListFleets()) == f.FleetList([], True)


def test_a_node_says_whether_it_opens_the_keys(rig: Any) -> None:
    put(rig)
    assert rig.answer(1, f.ListFleets()).opens
    fleets = catalog_of(rig.shard).fleets
    nonces = Nonces(b"s" * 32)
    for ring in (None, KeyRing([b"o" * 32])):
        assert not FleetVault(nonces, ring).opens(fleets)
    assert FleetVault(nonces, KeyRing([b"o" * 32, bytes(range(32))])).opens(fleets)


def test_devices_that_must_go_are_let_go(rig: Any) -> None:
    """Those that came before their fleet, that were replaced, or revoked; nobody else."""
    assert come(rig, 50, 42) == [0, 0]
    assert come(rig, 51, 60) == [0, 0]
    put(rig)
    assert hung_up(rig) == [50]
    for session, hub in ((52, 42), (53, 43), (54, 44)):
        assert come(rig, session, hub) == [ProofNeeded.code, 0, 0]
    assert rig.answer(1, f.SetDevice(42, 1)).version == 1
    assert hung_up(rig) == [52]
    assert rig.answer(1, f.SetDevice(43, 0, True)).version == 2
    assert hung_up(rig) == [53]
    assert rig.answer(1, f.SetDevice(45, 0, True)).version == 3
    assert hung_up(rig) == []
    # Nothing of a session that ended is served, whatever is on its way.
    rig.device(53, d.publish(0, b"open", 1))
    rig.settle()
    assert rig.device_replies[53] == []
    rig.answer(1, f.RemoveFleet("locks"))
    assert hung_up(rig) == [54], "nobody says any more that this hub has proved itself"
    assert come(rig, 55, 42) == [0, 0]


def hung_up(rig: Any) -> list[int]:
    found = [effect.session for effect in rig.others if isinstance(effect, Hangup)]
    rig.others.clear()
    return found


def test_the_secret_before_lives_until_the_new_one_is_used(rig: Any) -> None:
    put(rig)
    assert come(rig, 50, 42) == [ProofNeeded.code, 0, 0]
    assert rig.answer(1, f.ReplaceDevice(42, 1)) == f.DeviceInfo(42, "locks", 1, False, 0)
    assert hung_up(rig) == []
    assert come(rig, 51, 42)[1] == 0, "the one before may come"
    assert come(rig, 52, 42, generation=2)[1] == 60, "no other may"
    assert rig.answer(1, f.DescribeDevice(42)).before == 0
    assert come(rig, 53, 42, generation=1) == [ProofNeeded.code, 0, 0]
    assert hung_up(rig)[:2] == [52, 50]
    assert rig.answer(1, f.DescribeDevice(42)) == f.DeviceInfo(42, "locks", 1, False, -1)
    assert come(rig, 54, 42)[1] == 60
    assert come(rig, 55, 42, generation=1)[1] == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_device_that_was_used_is_known_after_a_restart(rig: Any, checkpoint: bool) -> None:
    put(rig)
    rig.answer(1, f.ReplaceDevice(42, 1))
    rig.answer(1, f.ReplaceDevice(43, 1))
    assert come(rig, 50, 42, generation=1)[1] == 0
    restart(rig, checkpoint)
    assert rig.answer(1, f.DescribeDevice(42)).before == -1
    assert rig.answer(1, f.DescribeDevice(43)).before == 0
    assert come(rig, 60, 42)[1] == 60
    assert come(rig, 61, 43)[1] == 0


def test_that_a_device_is_used_is_written_once(rig: Any) -> None:
    put(rig)
    rig.answer(1, f.ReplaceDevice(42, 1))
    assert come(rig, 50, 42, generation=1)[1] == 0
    registry = rig.shard.registry
    before = registry.group.node.log.applied
    for request in (f.UseDevice(42, 1), f.UseDevice(42, 2), f.UseDevice(43, 1)):
        registry.administration.fleets.use_device(request)
    rig.settle()
    assert registry.group.node.log.applied == before


def test_a_new_device_waits_no_longer_than_it_must(rig: Any, monkeypatch: Any) -> None:
    """Its entry is asked for again, and after five seconds it is told to come again."""
    put(rig)
    rig.answer(1, f.ReplaceDevice(42, 1))
    asked: list[f.UseDevice] = []
    fleets = type(rig.shard.registry.administration.fleets)
    monkeypatch.setattr(fleets, "use_device", lambda _, request: asked.append(request))
    assert come(rig, 50, 42, generation=1) == [ProofNeeded.code]
    assert asked == [f.UseDevice(42, 1)]
    rig.tick(600)
    assert len(asked) == 2
    assert rig.device_replies[50] == []
    rig.tick(4_600)
    assert [reply.code for reply in rig.device_replies[50]] == [
        Unavailable.code, NoHello.code,
    ]  # fmt: skip
    assert hung_up(rig) == [50]
    monkeypatch.undo()
    assert come(rig, 51, 42, generation=1) == [ProofNeeded.code, 0, 0]


def test_a_generation_that_no_record_can_hold_is_refused_before_it_is_written(rig: Any) -> None:
    put(rig)
    for request in (f.ReplaceDevice(42, 0), f.ReplaceDevice(42, 1 << 24), f.UseDevice(42, 0)):
        assert rig.answer(1, request).code in (BadRequest.code, 22)


def test_in_a_closed_set_a_fleet_has_roles(rig: Any) -> None:
    rule = w.RuleRow(("publish",), "topic", "default/t")
    rig.answer(1, w.ChangeRole("fleet.locks", added=(rule,)))
    put(rig)
    put(rig, "meters", 60, 69)
    close(rig)
    assert come(rig, 50, 42) == [ProofNeeded.code, 0, 0]
    (proof,) = come(rig, 51, 62)[1:2]
    assert proof != 0, "its fleet has no role that may publish"
    assert come(rig, 52, 80)[0] != 0, "no fleet has this hub"
    rig.others.clear()
    catalog_of(rig.shard).access.mode = "open"
    rig.answer(1, w.ChangeRole("fleet.locks", removed=(rule,)))
    assert hung_up(rig) == []
    close(rig)
    assert come(rig, 53, 43)[1] != 0


def close(rig: Any) -> None:
    """Let the set be closed, as an entry does; who may open it again is not of interest here."""
    catalog_of(rig.shard).access.mode = "closed"


def test_a_hub_that_proved_itself_says_nothing_for_another(rig: Any) -> None:
    rule = w.RuleRow(("publish",), "topic", "default/t")
    rig.answer(1, w.ChangeRole("fleet.locks", added=(rule,)))
    put(rig)
    assert come(rig, 50, 42) == [ProofNeeded.code, 0, 0]
    rig.device(50, d.hello(80, 1, "t"))
    rig.settle()
    assert [r.code for r in rig.device_replies[50]] == [0], "the set is open"
    rig.answer(1, f.SetDevice(42, 0, True))
    assert hung_up(rig) == [], "it is another hub by now"
    close(rig)
    rig.device_replies[50].clear()
    rig.device(50, d.hello(81, 1, "t"))
    rig.settle()
    assert rig.device_replies[50][0].code != 0


def test_a_snapshot_ends_those_that_it_does_not_let_in(rig: Any) -> None:
    put(rig)
    for session, hub in ((50, 42), (51, 43)):
        assert come(rig, session, hub) == [ProofNeeded.code, 0, 0]
    later = Catalog.decode(catalog_of(rig.shard).encode())
    later.fleets.set_device(DeviceSet(43, 1, False))
    restore_registry(rig.shard, later)
    rig.tick()
    assert hung_up(rig) == [51]


def test_older_releases_read_what_has_no_fleet(rig: Any) -> None:
    catalog = catalog_of(rig.shard)
    before = catalog.encode()[0]
    put(rig)
    after = catalog.encode()
    assert (before < after[0], after[0]) == (True, 9)
    again = Catalog.decode(after)
    assert list(again.fleets) == list(catalog.fleets)
    assert again.encode() == after


def test_a_set_of_a_lower_level_has_no_fleets(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(key_ring=RING, secret_bytes=lambda size: b"s" * size, level=2)
    rig.connect()
    assert put(rig).code == LevelTooLow.code
    assert rig.answer(1, f.SetDevice(42, 1)).code == LevelTooLow.code


def test_nothing_of_a_device_counts_before_its_proof(rig: Any) -> None:
    put(rig, level=int(Level.SIGNED))
    rig.device(50, d.hello(42, 1, "t"), d.publish(0, b"open", 0))
    rig.settle()
    assert [r.code for r in rig.device_replies[50]] == [ProofNeeded.code, NoHello.code]
    assert rig.answer(1, m.DescribeTopic("t")).name == "t"
    assert catalog_of(rig.shard).fleets.device(42) == Device()


def test_one_change_of_fleets_is_made_at_a_time(rig: Any) -> None:
    """Each holds all keys of its fleet: the second one would take back what the first added."""
    assert put(rig) == f.FleetChanged(f.FleetRow("locks", 40, 49, 1, (1,)))
    first = rig.ask(1, f.PutFleet("locks", 40, 49, 1, 2, NEXT_KEY))
    second = rig.ask(1, f.PutFleet("locks", 40, 49, 2))
    rig.settle()
    replies = dict(rig.replies[1])
    assert replies[first] == f.FleetChanged(f.FleetRow("locks", 40, 49, 1, (1, 2)))
    assert replies[second].code == Unavailable.code
    assert rig.answer(1, f.ListFleets()).fleets == [f.FleetRow("locks", 40, 49, 1, (1, 2))]
