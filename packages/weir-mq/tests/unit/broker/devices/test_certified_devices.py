"""Hubs of a fleet come in by a certificate of their own, and by nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import end_revoked, set_mode
from rigs.fleets import HUB, door_of, heard
from rigs.shards import catalog_of, sessions_of
from weir.broker.api import events as ev
from weir.broker.api.effects import Hangup
from weir.broker.records.security import DeviceReplaced, DeviceSet, RoleChanged
from weir.errors import NoHello, NotAuthenticated, ProofNeeded, UnknownTopic
from weir.model.batch import Batch
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.proof import DeviceHello, DeviceProven

NEXT = 1


@pytest.fixture
def door(make_rig: Callable[..., Any]) -> Any:
    return door_of(make_rig)


def come(
    rig: Any, session: int, device: tuple[int, int] | None, *frames: bytes, user: str = ""
) -> list[d.DeviceReply]:
    """Return what a peer hears that has shown a certificate of this set."""
    rig.device_replies[session] = []
    rig.expects_device(session)
    rig.handle(ev.Opened(session))
    if device is not None or user:
        rig.handle(ev.Certified(session, user, device))
    rig.handle(ev.Received(session, d.DeviceStream().receive(b"".join(frames))))
    rig.settle()
    found = rig.device_replies[session][:]
    rig.device_replies[session].clear()
    return found


def hello(hub: int = HUB, boot: int = 1, topic: str = "t") -> bytes:
    return d.hello(hub, boot, topic)


def codes(replies: list[d.DeviceReply]) -> list[int]:
    return [reply.code for reply in replies]


def rows_of(rig: Any) -> list[Any]:
    """Return what partitions know of the hub."""
    info = rig.answer(1, m.DescribeTopic("t"))
    states = [rig.shard.topics.partition(a.group)[1].state for a in info.addresses]
    return [one for state in states for one in state.origins.of_hub(HUB)]


def hung_up(rig: Any) -> list[Hangup]:
    return [effect for effect in rig.others if isinstance(effect, Hangup)]


def test_a_hub_comes_in_by_its_certificate_and_counts_as_verified(door: Any) -> None:
    replies = come(door, 50, (HUB, 0), hello(), d.publish(1, b"open", 0))
    assert codes(replies) == [0, 0]
    assert replies[0].opcode == d.DeviceOpcode.HELLO, "there is nothing to prove"
    assert not hung_up(door)
    info = door.answer(1, m.DescribeTopic("t"))
    verified: list[bool] = []
    for address in info.addresses:
        reply = door.answer(1, m.Fetch(address, 0, 1 << 20))
        verified += [Batch(data).is_verified for data in reply.batches]
    assert verified == [True]


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ((41, 0), None), ((43, 0), None), ((HUB + (1 << 32), 0), None),  # of another hub
        ((HUB, 1), None), ((HUB, 1 << 40), None),  # of a generation that is not there
        ((HUB, 0), DeviceSet(HUB, 1, False)),  # replaced
        ((HUB, 0), DeviceSet(HUB, 0, True)), ((HUB, 1), DeviceSet(HUB, 1, True)),  # revoked
    ],
)  # fmt: skip
def test_an_impostor_hears_one_code_and_leaves_nothing(
    door: Any, device: tuple[int, int], row: DeviceSet | None
) -> None:
    if row is not None:
        door.shard.topics.catalog.fleets.set_device(row)
    first, *later = come(door, 50, device, hello(boot=9), d.publish(1, b"open", 0))
    assert (first.opcode, first.code) == (d.DeviceOpcode.HELLO, NotAuthenticated.code)
    assert set(codes(later)) <= {NoHello.code}
    (hangup,) = hung_up(door)
    assert (hangup.session, hangup.failed) == (50, True)
    assert rows_of(door) == []
    if row is None:  # the real one comes with the boot that it has
        assert codes(come(door, 51, (HUB, 0), hello(), d.publish(1, b"open", 0))) == [0, 0]


def test_all_refusals_of_certificates_are_the_same_bytes(door: Any) -> None:
    """And those by which a host refuses one whose serial number is revoked."""
    fleets = door.shard.topics.catalog.fleets
    fleets.set_device(DeviceSet(43, 0, True))
    seen = set()
    for session, (hub, device) in enumerate([(HUB, (41, 0)), (HUB, (HUB, 7)), (43, (43, 0))], 50):
        door.handle(ev.Opened(session))
        door.handle(ev.Certified(session, "", device))
        said = d.DeviceStream().receive(hello(hub))
        effects = door.shard.handle(ev.Received(session, said))
        sent = b"".join(effects[0].buffers)
        seen.add(sent)
    assert seen == {d.encode_welcome(0, NotAuthenticated.code, 0)}


@pytest.mark.parametrize("user", ["", "default/ann"])
def test_no_certificate_and_that_of_a_user_is_no_devices(door: Any, user: str) -> None:
    assert codes(come(door, 50, None, hello(), user=user)) == [ProofNeeded.code]


def test_a_hub_without_a_fleet_is_not_verified_by_a_certificate(door: Any) -> None:
    assert codes(come(door, 50, (7, 0), hello(7))) == [0]
    assert codes(come(door, 51, (7, 0), hello(8))) == [NotAuthenticated.code]
    device = sessions_of(door.shard)[50].device
    assert device is not None
    assert not device.is_verified


def test_the_next_generation_ends_the_one_before(door: Any) -> None:
    """Its welcome waits until its use is an entry; then the one before is refused."""
    assert codes(come(door, 50, (HUB, 0), hello(), d.publish(1, b"old", 0))) == [0, 0]
    fleets = door.shard.topics.catalog.fleets
    fleets.replace_device(DeviceReplaced(HUB, NEXT))
    assert codes(heard(door, 50, d.publish(1, b"old", 1))) == [0], "until the new one is there"
    replies = come(door, 51, (HUB, NEXT), hello(), d.publish(1, b"new", 0))
    assert codes(replies) == [0, 0]
    assert fleets.device(HUB).before == -1
    assert codes(come(door, 52, (HUB, 0), hello(boot=2))) == [NotAuthenticated.code]
    assert 50 in [*[e.session for e in hung_up(door)], *end_revoked(door.shard)]


def test_a_session_ends_with_its_generation(door: Any) -> None:
    assert codes(come(door, 50, (HUB, 0), hello())) == [0]
    assert 50 not in end_revoked(door.shard)
    door.shard.topics.catalog.fleets.set_device(DeviceSet(HUB, NEXT, False))
    assert 50 in end_revoked(door.shard)


def test_a_certificate_speaks_for_its_hub_alone_in_later_hellos(door: Any) -> None:
    assert codes(come(door, 50, (HUB, 0), hello())) == [0]
    assert codes(heard(door, 50, hello(43))) == [NotAuthenticated.code]
    assert [one.session for one in hung_up(door)] == [50]


def test_in_a_closed_set_a_certified_hub_may_what_its_fleet_may(door: Any) -> None:
    access = catalog_of(door.shard).access
    set_mode(access, "closed")
    assert codes(come(door, 50, (HUB, 0), hello())) == [UnknownTopic.code], "it has no role"
    row = (("publish",), "topic", "default/t", False)
    access.apply(RoleChanged("fleet.locks", (row,), ()))
    assert codes(come(door, 51, (HUB, 0), hello(), d.publish(1, b"open", 0))) == [0, 0]
    assert codes(come(door, 52, (7, 0), hello(7))) == [UnknownTopic.code], "who is of no fleet"


@pytest.mark.parametrize("generation", [0, NEXT])
def test_a_certificate_that_another_shard_checked_is_checked_against_the_copy_here(
    door: Any, generation: int
) -> None:
    said = DeviceHello(0, HUB, 1, d.BY_HUB, "t")
    door.handle(ev.Opened(70, "anonymous", 1))
    effects = door.shard.handle(ev.Received(70, [DeviceProven(0, said, generation, None)]))
    (reply,) = d.DeviceReplies().receive(b"".join(effects[0].buffers))
    assert reply.opcode == d.DeviceOpcode.HELLO
    assert reply.code == (NotAuthenticated.code if generation else 0)


def test_what_another_shard_passes_on_has_no_certificate_here(door: Any) -> None:
    door.handle(ev.Opened(70, "anonymous", 1))
    door.handle(ev.Certified(70, "", (HUB, 0)))
    effects = door.shard.handle(ev.Received(70, d.DeviceStream().receive(hello())))
    (reply,) = d.DeviceReplies().receive(b"".join(effects[0].buffers))
    assert reply.code == NotAuthenticated.code
