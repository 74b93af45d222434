"""Fleets: a hub has one at most, and what differs from it takes a row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.access.devices import Level
from weir.broker.metadata.security import fleets as module
from weir.broker.metadata.security.fleets import Device, Fleet, Fleets
from weir.broker.records.security import DeviceReplaced, DeviceSet, DeviceUsed, FleetKey, FleetPut
from weir.errors import BadName, BadRequest
from weir.model.limits import GENERATION_MAX

KEY = FleetKey(1, bytes(65))
U64 = (1 << 64) - 1


def fleet(name: str, first: int, last: int, **changes: Any) -> Fleet:
    made = Fleet(name, first, last, Level.PROOF, (KEY,))
    return msgspec.structs.replace(made, **changes)


@given(st.sets(st.integers(0, 60), min_size=2, max_size=12))
def test_a_hub_belongs_to_the_fleet_that_holds_it(bounds: set[int]) -> None:
    marks = sorted(bounds)
    ranges = list(zip(marks[::2], marks[1::2], strict=False))
    fleets = Fleets()
    for first, last in reversed(ranges):
        fleets.put(fleet(f"f{first}", first, last))
    for hub in range(62):
        expected = [f"f{first}" for first, last in ranges if first <= hub <= last]
        found = fleets.find(hub)
        assert ([found.name] if found else []) == expected


def test_the_whole_range_of_numbers_may_be_one_fleet() -> None:
    fleets = Fleets()
    fleets.put(fleet("all", 0, U64))
    for hub in (0, 1, U64):
        assert fleets.find(hub) is not None


@pytest.mark.parametrize(
    "other",
    [
        fleet("b", 10, 19), fleet("b", 0, 10), fleet("b", 19, 30), fleet("b", 0, 30),
        fleet("b", 12, 13), fleet("b", 30, 29), fleet("b", 30, 40, keys=()),
        fleet("b", 30, 40, keys=(KEY, KEY)), fleet("b", 30, 40, level=Level.NONE),
        fleet("b", 30, 40, keys=tuple(FleetKey(n, bytes(65)) for n in range(1, 10))),
    ],
)  # fmt: skip
def test_a_fleet_that_cannot_be_is_refused(other: Fleet) -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    with pytest.raises(BadRequest):
        fleets.put(other)
    assert [one.name for one in fleets] == ["a"]


def test_a_name_is_one() -> None:
    with pytest.raises(BadName):
        Fleets().put(fleet("..", 0, 1))


def test_a_fleet_changes_in_place_and_goes() -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    fleets.put(fleet("b", 20, 29))
    fleets.put(fleet("a", 5, 19, level=Level.SIGNED))
    assert [(one.name, one.first, one.level) for one in fleets] == [("a", 5, 2), ("b", 20, 1)]
    with pytest.raises(BadRequest, match="fleet b"):
        fleets.put(fleet("a", 5, 20))
    assert fleets.remove("a").name == "a"
    assert fleets.find(15) is None
    with pytest.raises(BadRequest, match="no fleet"):
        fleets.remove("a")


def put(fleets: Fleets, hub: int, generation: int, is_revoked: bool = False) -> Device:
    return fleets.set_device(DeviceSet(hub, generation, is_revoked))


def test_a_device_is_replaced_and_revoked() -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    assert fleets.device(12) == Device(0, False)
    assert put(fleets, 12, 0) == Device(0, False)
    assert fleets.devices() == [], "what is as the fleet says takes no row"
    assert put(fleets, 12, 0, True) == fleets.device(12) == Device(0, True)
    assert put(fleets, 12, 1) == fleets.device(12) == Device(1, False)
    assert put(fleets, 12, 1) == Device(1, False)
    assert put(fleets, 12, 2, True) == put(fleets, 12, 2, True) == Device(2, True)
    assert put(fleets, 12, 3) == Device(3, False), "what was revoked is not what comes now"
    assert fleets.devices() == [(12, Device(3))]
    with pytest.raises(BadRequest, match="no fleet"):
        put(fleets, 20, 1)


@pytest.mark.parametrize("to", [(0, False), (0, True), (1, True), (2, False)])
def test_no_generation_that_ended_begins_again(to: tuple[int, bool]) -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    put(fleets, 12, 2, True)
    with pytest.raises(BadRequest, match="generation 2, which was revoked"):
        put(fleets, 12, *to)
    assert fleets.device(12) == Device(2, True)


def test_a_device_stays_revoked_when_its_fleet_changes_or_comes_again() -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    put(fleets, 12, 1, True)
    fleets.put(fleet("a", 10, 15))
    fleets.remove("a")
    fleets.put(fleet("b", 0, 99))
    assert fleets.device(12) == Device(1, True)


def test_a_record_becomes_a_fleet() -> None:
    record = FleetPut("a", 1, 2, 2, (KEY,))
    assert Fleet.of(record) == fleet("a", 1, 2, level=Level.SIGNED)
    for level in (0, 3):
        with pytest.raises(BadRequest):
            Fleet.of(FleetPut("a", 1, 2, level, (KEY,)))


def test_rows_and_fleets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICE_ROWS_MAX", 2)
    monkeypatch.setattr(module, "FLEETS_MAX", 1)
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    with pytest.raises(BadRequest, match="as many as"):
        fleets.put(fleet("b", 20, 29))
    fleets.put(fleet("a", 10, 18))
    put(fleets, 10, 0, True)
    put(fleets, 11, 1)
    with pytest.raises(BadRequest, match="another fleet"):
        put(fleets, 12, 1)
    put(fleets, 11, 2)


def test_the_device_before_may_come_until_the_new_one_does() -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    assert fleets.replace_device(DeviceReplaced(12, 1)) == Device(1, False, 0)
    assert fleets.replace_device(DeviceReplaced(12, 1)) == Device(1, False, 0), "asked again"
    # The first replacement never came: nobody has its secret but who lost it.
    assert fleets.replace_device(DeviceReplaced(12, 2)) == Device(2, False, 0)
    assert [fleets.device(12).admits(generation) for generation in range(-1, 4)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    fleets.use_device(DeviceUsed(12, 1))
    assert fleets.device(12) == Device(2, False, 0), "it was replaced before it came"
    fleets.use_device(DeviceUsed(12, 2))
    assert fleets.device(12) == Device(2)
    fleets.use_device(DeviceUsed(12, 2))
    assert fleets.replace_device(DeviceReplaced(12, 2)) == Device(2)
    with pytest.raises(BadRequest, match="at generation 2"):
        fleets.replace_device(DeviceReplaced(12, 1))


def test_now_ends_the_device_before_and_who_was_revoked_is_none() -> None:
    fleets = Fleets()
    fleets.put(fleet("a", 10, 19))
    fleets.replace_device(DeviceReplaced(12, 1))
    assert put(fleets, 12, 1) == Device(1)
    fleets.replace_device(DeviceReplaced(12, 2))
    assert put(fleets, 12, 2, True) == Device(2, True)
    fleets.use_device(DeviceUsed(12, 2))
    assert fleets.device(12) == Device(2, True)
    assert not fleets.device(12).admits(1)
    with pytest.raises(BadRequest, match="which was revoked"):
        fleets.replace_device(DeviceReplaced(12, 2))
    assert fleets.replace_device(DeviceReplaced(12, 3)) == Device(3)


def test_a_tag_is_as_short_as_those_of_clients() -> None:
    fleets = Fleets()
    fleets.put(msgspec.structs.replace(fleet("a", 10, 19), tag="ß" * 127))
    with pytest.raises(BadRequest, match="shorten it"):
        fleets.put(msgspec.structs.replace(fleet("a", 10, 19), tag="ß" * 128))


def test_it_comes_back_from_its_stored_form() -> None:
    fleets = Fleets()
    assert not fleets
    fleets.put(fleet("b", 20, 29, level=Level.SIGNED))
    fleets.put(fleet("a", 10, 19, keys=(KEY, FleetKey(7, b"\xff" * 65))))
    put(fleets, 12, 0, True)
    put(fleets, 25, GENERATION_MAX - 1)
    fleets.replace_device(DeviceReplaced(25, GENERATION_MAX))
    stored = msgspec.msgpack.encode(fleets.encode())
    again = Fleets.decode(msgspec.msgpack.decode(stored))
    assert again
    assert list(again) == list(fleets)
    assert (
        again.devices()
        == fleets.devices()
        == [(12, Device(0, True)), (25, Device(GENERATION_MAX, False, GENERATION_MAX - 1))]
    )
    assert again.find(25) == fleets.named("b") == again.named("b")
    assert msgspec.msgpack.encode(again.encode()) == stored


def test_keys_are_not_shown() -> None:
    assert "x" * 8 not in repr(fleet("a", 1, 2, keys=(FleetKey(1, b"x" * 65),)))
