"""What devices of a fleet with a tag publish has it, as if clients had published it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rigs.fleets import FLEET_KEY, SYSTEM, answer, door_of, fleet_of, heard
from weir.access.devices import derive_secret
from weir.broker.produce import batcher
from weir.model.batch import Batch, split
from weir.protocol import device as d
from weir.protocol.client import messages as m

#: A hub of each fleet, and one of none; the session of a hub is its number.
NORTH, SOUTH, BARE, STRANGER = 42, 52, 62, 1234


@pytest.fixture
def sites(make_rig: Callable[..., Any]) -> Any:
    rig = door_of(make_rig)
    rig.topic(1, "one")
    for name, first, tag in (("locks", 40, "north"), ("doors", 50, "south"), ("gates", 60, "")):
        fleet = msgspec.structs.replace(fleet_of(name=name, first=first), tag=tag)
        rig.shard.topics.catalog.fleets.put(fleet)
    for hub in (NORTH, SOUTH, BARE):
        (reply,) = heard(rig, hub, d.hello(hub, 1, "one"))
        secret = derive_secret(FLEET_KEY, SYSTEM, hub, 0)
        frame, _ = answer(reply.content, secret, hub=hub, topic="one")
        assert [reply.code for reply in heard(rig, hub, frame)] == [0]
    assert [reply.code for reply in heard(rig, STRANGER, d.hello(STRANGER, 1, "one"))] == [0]
    rig.device(STRANGER, d.publish(0, b"first"))  # its flush is under way: all else is cut at once
    return rig


def stored(rig: Any) -> list[list[tuple[str | None, bytes]]]:
    """Return tag and value of each message, batch by batch, without the first one."""
    at = rig.answer(1, m.DescribeTopic("one")).addresses[0]
    fetched = rig.answer(1, m.Fetch(at, 0, 8 << 20))
    found: list[Batch] = [one for data in fetched.batches for one in split(data, at.group)]
    return [[*zip(batch.tags(), batch.values(), strict=True)] for batch in found][1:]


def test_messages_have_their_fleets_tag_and_share_batches(sites: Any) -> None:
    for hub, value in ((SOUTH, b"1"), (BARE, b"2"), (NORTH, b"3"), (STRANGER, b"4"), (SOUTH, b"5")):
        sites.device(hub, d.publish(0, value))
    sites.settle()
    plain, tagged = stored(sites)
    assert plain == [(None, b"4")]
    assert sorted(tagged, key=lambda row: row[1]) == [
        ("south", b"1"), (None, b"2"), ("north", b"3"), ("south", b"5"),
    ]  # fmt: skip
    replies = [reply.offset for reply in sites.device_replies[SOUTH]]
    assert replies == sorted(replies)


def test_a_tag_with_enough_for_a_batch_has_its_own(
    sites: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "TAG_RUN_BYTES", 2_048)
    value = bytes(2_048 // 8)
    for number in range(8):
        sites.device(NORTH, d.publish(0, value, number))
        sites.device(SOUTH, d.publish(0, b"s", number))
        sites.device(BARE, d.publish(0, b"b", number))
    sites.settle()
    tags = [{tag for tag, _ in batch} for batch in stored(sites)]
    assert tags == [{"north"}, {"south", None}]
    for hub in (NORTH, SOUTH, BARE):
        replies = sites.device_replies[hub]
        assert [(reply.sequence, reply.code) for reply in replies] == [(n, 0) for n in range(8)]


def test_without_tags_there_is_no_column(sites: Any) -> None:
    sites.device(BARE, d.publish(0, b"a"))
    sites.settle()
    at = sites.answer(1, m.DescribeTopic("one")).addresses[0]
    (data,) = sites.answer(1, m.Fetch(at, 1, 1 << 20)).batches
    (batch,) = split(data, at.group)
    assert batch.is_verified
    assert batch.tag_column is None
