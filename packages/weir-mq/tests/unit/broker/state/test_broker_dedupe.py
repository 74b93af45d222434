"""The dedupe table of devices against a plain dict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.shards import stripes_of
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state import dedupe
from weir.broker.state.dedupe import EpochFloors, Origin, OriginTable
from weir.model.columns import epoch_of
from weir.model.limits import DEVICE_WINDOW


def through_msgpack(data: Any) -> Any:
    return unpack(pack(data))


hubs = st.sampled_from([1, 2, 3, 1 << 40, (1 << 64) - 1])


@given(st.lists(st.tuples(hubs, st.integers(0, 255), st.integers(0, 20)), max_size=400))
def test_hubs_that_are_forgotten_agree_with_a_dict(rows: list[tuple[int, int, int]]) -> None:
    """Whatever place a device has in its stripe, the others are found when it is gone."""
    table = OriginTable()
    twin: dict[tuple[int, int], int] = {}
    shots = []
    for at, (hub, sn, kind) in enumerate(rows):
        if kind == 0:
            gone = {key for key in twin if key[0] == hub}
            shots.append((table.encode(), dict(twin)))
            assert table.forget(hub) == len(gone)
            for key in gone:
                del twin[key]
        else:
            table.record(hub, sn, 7, 0, at, at)
            twin[hub, sn] = at
    for kept in (table, OriginTable.decode(through_msgpack(table.encode()))):
        assert len(kept) == len(twin)
        for hub, sn, _ in rows:
            known = kept.known(hub, sn)
            assert (known.offset if known is not None else None) == twin.get((hub, sn))
        for hub in {hub for hub, *_ in rows}:
            assert {row[1] for row in kept.of_hub(hub)} == {sn for h, sn in twin if h == hub}
        listed, part = kept.part(0, 100)
        while part:
            more, part = kept.part(part, 100)
            listed += more
        assert sorted(listed) == sorted((*key, 7, 1, at) for key, at in twin.items())


def test_forgetting_in_a_full_stripe_loses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "_STRIPES", 1)
    table = OriginTable()
    for hub in range(300):
        for sn in range(hub % 5 + 1):
            table.record(hub, sn, 1, 0, hub, hub)
    before = table.encode()
    for hub in range(0, 300, 3):
        assert table.forget(hub) == hub % 5 + 1
    old = OriginTable.decode(through_msgpack(before))
    for hub in range(300):
        for sn in range(hub % 5 + 1):
            assert (table.known(hub, sn) is None) == (hub % 3 == 0)
            table.record(hub, sn, 2, 0, hub, hub)
    assert len(table) == sum(hub % 5 + 1 for hub in range(300))
    assert all((old.known(hub, 0) or old.known(hub, 1)) is not None for hub in range(300))


def test_nobody_is_known_at_first() -> None:
    assert OriginTable().known(1, 2) is None
    assert len(OriginTable()) == 0


messages = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1)),
        st.integers(0, 255),
        st.one_of(st.integers(0, 2), st.just(2**32 - 1)),
        st.integers(0, 2**32 - 1),
    ),
    max_size=200,
)


@given(messages)
def test_origins_agree_with_a_dict(rows: list[tuple[int, int, int, int]]) -> None:
    table = OriginTable()
    twin: dict[tuple[int, int], tuple[int, int, list[int]]] = {}
    for offset, (hub, sn, boot, value) in enumerate(rows):
        held_boot, _, values = twin.get((hub, sn), (boot, 0, []))
        values = [*values, value] if held_boot == boot else [value]
        table.record(hub, sn, boot, len(values) - 1, offset, value)
        twin[hub, sn] = (boot, offset, values)
    copy = OriginTable.decode(through_msgpack(table.encode()))
    for kept in (table, copy):
        assert len(kept) == len(twin)
        assert kept.known(21, 0) is None or (21, 0) in twin
        for (hub, sn), (boot, offset, values) in twin.items():
            origin = kept.known(hub, sn)
            assert origin is not None
            assert origin[:3] == (boot, len(values), offset)
            for sequence, value in enumerate(values):
                is_kept = sequence >= len(values) - DEVICE_WINDOW
                assert origin.holds(sequence, value) == is_kept
                assert not origin.holds(sequence, value ^ 1)
            assert not origin.holds(len(values), values[0]), "it is the next one"


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_what_is_under_way_stands_as_it_will_in_the_table(values: list[int]) -> None:
    origin, table = Origin(7, 0, 0), OriginTable()
    for sequence, value in enumerate(values):
        origin = origin.after(sequence, 3 * sequence, value)
        table.record(5, 1, 7, sequence, 3 * sequence, value)
    assert table.known(5, 1) == origin


def test_the_last_sequence_is_0xfffffffe() -> None:
    table = OriginTable()
    table.record(1, 1, 1, 0xFFFFFFFE, 5, 77)
    origin = table.known(1, 1)
    assert origin is not None
    assert origin.next_sequence == 0xFFFFFFFF
    assert origin.holds(0xFFFFFFFE, 77)
    assert not origin.holds(0, 77)


#: Hubs as they are numbered: in a row, by MAC address, and with that address in the upper bits.
NUMBERINGS = [
    lambda n: n,
    lambda n: 977 * n,
    lambda n: 0xAABBCC000000 + n,
    lambda n: (0xAABBCC000000 + n) << 16,
    lambda n: n << 56,
]


def test_the_mixer_is_splitmix64() -> None:
    """Its first two outputs from seed 0, as published with the xoshiro generators."""
    assert dedupe._mix(1, 0) == 0xE220A8397B1DCDAF
    assert dedupe._mix(2, 0) == 0x6E789E6AA1B965F4


@pytest.mark.parametrize("hub_of", NUMBERINGS)
def test_devices_are_spread_over_stripes_and_places(hub_of: Callable[[int], int]) -> None:
    """200 hubs of 256 locks: each stripe gets its share, and places are found in few steps."""
    table = OriginTable()
    for n in range(200):
        for sn in range(256):
            table.record(hub_of(n), sn, 1, n, sn, 9)
    assert len(table) == 200 * 256
    for n in (0, 199):
        for sn in (0, 255):
            origin = table.known(hub_of(n), sn)
            assert origin is not None
            assert origin[:3] == (1, n + 1, sn)
    sizes = [len(stripe) for stripe in stripes_of(table)]
    assert len(sizes) == 256
    assert 100 < min(sizes) <= max(sizes) < 300
    steps = [
        (place - (dedupe._mix(*dedupe._DEVICE.unpack_from(stripe.rows, 60 * row)) >> 8))
        % len(stripe.places)
        for stripe in stripes_of(table)
        for place, row in enumerate(stripe.places)
        if row != dedupe._FREE
    ]
    assert sum(steps) / len(steps) < 1
    assert max(steps) < 64


def test_a_device_takes_less_than_100_bytes() -> None:
    table = OriginTable()
    for hub in range(200):
        for sn in range(256):
            table.record(hub, sn, 1, 0, 0, 0)
    stripes = stripes_of(table)
    spent = sum(sys.getsizeof(s.rows) + sys.getsizeof(s.places) + sys.getsizeof(s) for s in stripes)
    assert spent / len(table) < 100


def test_a_table_in_a_snapshot_is_so_many_bytes() -> None:
    """A format: it must not change but with the version of a partition's snapshot."""
    table = OriginTable()
    table.record(0x1122334455667788, 0x99, 0xA1A2A3A4, 9, 0xC1C2, 0xD1D2D3D4)
    ((number, places, rows),) = through_msgpack(table.encode())
    assert number == 0xC8
    assert places.hex() == "ffffffff" * 4 + "00000000" + "ffffffff" * 3
    assert rows.hex() == (
        "8877665544332211" "99" "000000" "a4a3a2a1" "0a000000" "c2c1000000000000"
        "00000000" "d4d3d2d1" + "00000000" * 6
    )  # fmt: skip


def test_a_generation_takes_the_three_bytes_that_were_spare() -> None:
    """Level 3; a release before wrote zeros there."""
    table = OriginTable()
    epoch = epoch_of(0xB3B2B1, 0xA1A2A3A4)
    table.record(0x1122334455667788, 0x99, epoch - (1 << 33), 4, 0, 0)
    table.record(0x1122334455667788, 0x99, epoch, 8, 0xC1C2, 0xD1D2D3D4)
    ((_, _, rows),) = through_msgpack(table.encode())
    assert rows.hex() == (
        "8877665544332211" "99" "b1b2b3" "a4a3a2a1" "09000000" "c2c1000000000000"
        "d4d3d2d1" + "00000000" * 7
    )  # fmt: skip
    known = OriginTable.decode(through_msgpack(table.encode())).known(0x1122334455667788, 0x99)
    assert known is not None
    assert known[:3] == (epoch, 9, 0xC1C2)
    assert table.of_hub(0x1122334455667788) == table.part(0, 1)[0]


def test_floors_in_a_snapshot_are_so_many_bytes() -> None:
    floors = EpochFloors()
    floors.raise_to(7, epoch_of(2, 0))
    floors.raise_to(7, epoch_of(1, 9))
    floors.bury(8, 4)
    floors.bury(8, 3)
    assert floors.encode() == (
        1,
        bytes.fromhex("07000000000000000800000000000000"),
        bytes.fromhex("00000000020000000500000000000000"),
    )
    again = EpochFloors.decode(*through_msgpack(floors.encode()))
    assert again.encode() == floors.encode()
    assert [again.least(hub) for hub in (7, 8, 9)] == [2 << 32, 5, 0]


def test_an_idle_partition_pays_for_no_stripe() -> None:
    table = OriginTable()
    assert stripes_of(table) == []
    table.record(1, 1, 1, 0, 1, 1)
    assert len(stripes_of(table)) == 1


@given(messages, messages)
def test_a_snapshot_of_origins_stays_what_it_was(
    before: list[tuple[int, int, int, int]], after: list[tuple[int, int, int, int]]
) -> None:
    table = OriginTable()
    for offset, (hub, sn, boot, value) in enumerate(before):
        table.record(hub, sn, boot, offset, offset, value)
    frozen, packed = table.encode(), pack(table.encode())
    for offset, (hub, sn, boot, value) in enumerate(after):
        table.record(hub, sn, boot, offset, offset, value ^ 5)
    assert pack(frozen) == packed
    assert pack(OriginTable.decode(unpack(packed)).encode()) == packed
