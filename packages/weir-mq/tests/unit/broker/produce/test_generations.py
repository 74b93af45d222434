"""A device that was replaced begins anew, nothing of the one before is taken behind it, and who
proved itself shares no batch with who did not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.fleets import FLEET_KEY, HUB, SYSTEM, answer, challenged, door_of, heard
from rigs.shards import sessions_of
from weir.access.devices import derive_secret
from weir.broker.produce.batcher import DUPLICATE
from weir.broker.records.security import DeviceSet
from weir.broker.state.state import PartitionState
from weir.errors import Fenced, NotAuthenticated
from weir.model.batch import Batch, split
from weir.model.message import Origin
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.device import DevicePublishes

STRANGER = 1234


@pytest.fixture
def door(make_rig: Callable[..., Any]) -> Any:
    rig = door_of(make_rig)
    rig.topic(1, "one")
    return rig


def come(rig: Any, session: int, generation: int = 0, boot: int = 1) -> None:
    rig.shard.topics.catalog.fleets.set_device(DeviceSet(HUB, generation, False))
    secret = derive_secret(FLEET_KEY, SYSTEM, HUB, generation)
    asked = challenged(rig, session, boot, "one")
    frame, _ = answer(asked, secret, generation=generation, boot=boot, topic="one")
    (reply,) = heard(rig, session, frame)
    assert reply.code == 0


def told(rig: Any, session: int, *frames: bytes) -> list[tuple[int, int]]:
    return [(reply.code, reply.offset) for reply in heard(rig, session, *frames)]


def address(rig: Any) -> Any:
    return rig.answer(1, m.DescribeTopic("one")).addresses[0]


def state(rig: Any) -> PartitionState:
    found: PartitionState = rig.shard.topics.partition(address(rig).group)[1].state
    return found


def batches(rig: Any) -> list[Batch]:
    at = address(rig)
    fetched = rig.answer(1, m.Fetch(at, 0, 1 << 20))
    return [batch for data in fetched.batches for batch in split(data, at.group)]


def test_a_new_generation_begins_boot_and_sequences_anew(door: Any) -> None:
    come(door, 50, boot=9)
    assert told(door, 50, d.publish(1, b"a", 0), d.publish(1, b"b", 1)) == [(0, 0), (0, 1)]
    come(door, 51, generation=3, boot=1)
    assert told(door, 51, d.publish(1, b"a", 0)) == [(0, 2)]
    assert told(door, 51, d.publish(1, b"a", 0)) == [(0, DUPLICATE)]
    origins = [message.origin for batch in batches(door) for message in batch.messages()]
    assert origins == [
        Origin(HUB, 1, 9, 0, 0, True),
        Origin(HUB, 1, 9, 1, 0, True),
        Origin(HUB, 1, 1, 0, 3, True),
    ]


@pytest.mark.parametrize("sequence", [d.NO_SEQUENCE, 1, 7])
def test_the_generation_before_is_refused_from_the_first_message_of_the_next(
    door: Any, sequence: int
) -> None:
    """By any of its devices, also by one that the new one has not spoken for, in flight or not."""
    come(door, 50, boot=9)
    assert told(door, 50, d.publish(1, b"a", 0)) == [(0, 0)]
    come(door, 51, generation=1)
    assert told(door, 50, d.publish(1, b"b", 1)) == [(0, 1)], "it was not used yet"
    door.device(51, d.publish(2, b"new"))
    door.device(50, d.publish(1, b"old", sequence), d.publish(2, b"old"))
    door.settle()
    refused = (NotAuthenticated.code, 0)
    assert told(door, 50) == [refused, refused]
    assert told(door, 50, d.publish(3, b"old", 0)) == [refused]
    assert told(door, 51) == [(0, 2)]
    values = [value for batch in batches(door) for value in batch.values()]
    assert values == [b"a", b"b", b"new"]


def test_a_generation_that_is_not_committed_yet_bars_the_one_before(door: Any) -> None:
    come(door, 50, boot=9)
    assert told(door, 50, d.publish(1, b"a", 0)) == [(0, 0)]
    come(door, 51, generation=1)
    leading = door.shard.topics.partition(address(door).group)[1].led()
    batcher = leading.device_batcher
    for session, value in ((51, b"new"), (50, b"old")):
        device = sessions_of(door.shard)[session].device
        batcher.publish([(device, DevicePublishes([2], [d.NO_SEQUENCE], [value], [0]))])
        batcher.cut()
    leading.appender.cut()
    door.tick()
    door.settle()
    assert told(door, 51) == [(0, 1)]
    assert told(door, 50) == [(NotAuthenticated.code, 0)]


def test_who_says_hello_as_another_hub_has_not_proved_to_be_that(door: Any) -> None:
    come(door, 50, generation=1)
    assert told(door, 50, d.publish(1, b"a", 0)) == [(0, 0)]
    assert told(door, 50, d.hello(STRANGER, 1, "one"), d.publish(1, b"b", 0))[1:] == [(0, 1)]
    origins = [message.origin for batch in batches(door) for message in batch.messages()]
    assert origins == [Origin(HUB, 1, 1, 0, 1, True), Origin(STRANGER, 1, 1, 0, 0, False)]


def test_generations_are_known_after_a_restart(door: Any) -> None:
    come(door, 50, boot=9)
    told(door, 50, d.publish(1, b"a", 0))
    come(door, 51, generation=1)
    told(door, 51, d.publish(1, b"n", 0), d.publish(2, b"plain"))
    before = state(door).origins.of_hub(HUB), state(door).origins.floors.encode()
    assert before[0] == [(HUB, 1, 1 << 32 | 1, 1, 1)]
    for _ in range(2):  # from the log, then from a checkpoint
        door.tick()
        door.settle()
        door.disk.crash()
        door.boot()
        door.connect()
        assert (state(door).origins.of_hub(HUB), state(door).origins.floors.encode()) == before
        door.shard.writers[0].checkpoints.save()
        door.tick()
        door.settle()


def test_verified_and_others_are_never_in_one_batch(door: Any) -> None:
    come(door, 50)
    door.device(60, d.hello(STRANGER, 1, "one"))
    door.device(61, d.hello(STRANGER + 1, 1, "one"))
    door.device_replies[60].clear()
    door.device(61, d.publish(1, b"first"))  # a flush is under way, the rest is cut at once
    door.device(60, d.publish(1, b"a", 0))
    door.device(50, d.publish(1, b"b", 0))
    door.device(60, d.publish(1, b"c", 1))
    door.device(50, d.publish(1, b"d", 1))
    door.settle()
    assert told(door, 60) == [(0, 1), (0, 2)]
    assert told(door, 50) == [(0, 3), (0, 4)]
    found = [(batch.is_verified, batch.values()) for batch in batches(door)]
    assert found == [(False, [b"first"]), (False, [b"a", b"c"]), (True, [b"b", b"d"])]
    assert [m.origin.verified for batch in batches(door) for m in batch.messages()] == [
        False, False, False, True, True,
    ]  # fmt: skip


def test_a_hub_that_was_forgotten_comes_again_with_a_higher_boot_alone(door: Any) -> None:
    door.device(60, d.hello(STRANGER, 5, "one"))
    door.device_replies[60].clear()
    assert told(door, 60, d.publish(1, b"a", 0), d.publish(2, b"b", 0)) == [(0, 0), (0, 1)]
    assert door.answer(1, a.ForgetHub(address(door), STRANGER)) == a.HubForgotten(2)
    assert state(door).origins.of_hub(STRANGER) == []
    for sequence in (0, 1, d.NO_SEQUENCE):
        assert told(door, 60, d.publish(1, b"a", sequence)) == [(Fenced.code, 5)]
    door.device(60, d.hello(STRANGER, 6, "one"))
    door.device_replies[60].clear()
    assert told(door, 60, d.publish(1, b"a", 0)) == [(0, 2)]
    assert state(door).origins.floors.tombstones == 1


def test_what_erased_flash_reads_as_leaves_no_tombstone() -> None:
    """A release before recorded it: then the hub could never come again."""
    found = PartitionState()
    found.origins.record(STRANGER, 1, 0xFFFFFFFF, 0, 5, 9)
    assert found.origins.bury(STRANGER) == 1
    assert found.origins.floors.least(STRANGER) == 0
    found.origins.record(STRANGER, 1, 0xFFFFFFFF, 0, 5, 9)
    found.origins.record(STRANGER, 2, 4, 0, 5, 9)
    assert found.origins.bury(STRANGER) == 2
    assert found.origins.floors.least(STRANGER) == 5


def test_a_release_before_reads_what_is_written_without_generations() -> None:
    found = PartitionState()
    found.origins.record(STRANGER, 1, 7, 0, 5, 9)
    version, *_ = found.encode()  # type: ignore[misc]
    assert version == 7
    found.origins.floors.raise_to(STRANGER, 8)
    version, *_ = found.encode()  # type: ignore[misc]
    assert version == 11


def test_below_the_level_a_hub_is_forgotten_as_before(door: Any) -> None:
    door.shard.topics.catalog.nodes.level = 2
    door.device(60, d.hello(STRANGER, 5, "one"))
    door.device_replies[60].clear()
    told(door, 60, d.publish(1, b"a", 0))
    door.answer(1, a.ForgetHub(address(door), STRANGER))
    assert len(state(door).origins.floors) == 0
    assert told(door, 60, d.publish(1, b"b", 0)) == [(0, 1)]
