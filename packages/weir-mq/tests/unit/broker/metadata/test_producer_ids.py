"""Who holds which producer id, against a plain dict."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.shards import bytes_of_ids
from weir.broker.metadata import producer_ids
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.producer_ids import NOT_STAMPED, Holding, ProducerIds
from weir.broker.records.registry import ProducerOpened
from weir.broker.records.snapshots import pack, taken, unpack
from weir.model.ids import WINDOWS, producer_of

steps = st.lists(
    st.tuples(
        st.sampled_from(("new", "new", "renew", "again", "stamp", "forget", "repack")),
        st.integers(0, 30),
        st.sampled_from((0, *WINDOWS[1:])),
        st.sampled_from(("ann", "bob", "cy")),
    ),
    max_size=80,
)


def same(ids: ProducerIds, twin: dict[int, Holding]) -> None:
    assert set(ids) == set(twin)
    assert len(ids) == len(twin)
    assert {producer: ids.get(producer) for producer in twin} == twin
    assert {one[0]: Holding(*one[1:]) for one in ids.rows()} == twin
    held = [holding.principal for holding in twin.values()]
    assert dict(ids.held_by()) == {name: held.count(name) for name in held}
    assert ids.windows == sum(producer >> 60 > 0 for producer in twin)
    for producer in (0, 1, 1 << 62):
        assert ids.get(producer) == twin.get(producer)


@given(steps)
def test_ids_agree_with_a_dict(rows: list[tuple[str, int, int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_ids, "_CHUNK", 3)
        patch.setattr(producer_ids, "_RECENT_MAX", 4)
        play(rows)


def play(rows: list[tuple[str, int, int, str]]) -> None:
    ids, twin, stamp = ProducerIds(), dict[int, Holding](), 100
    for kind, number, window, principal in rows:
        stamp += number
        known = sorted(twin)
        if kind == "new":
            stamp += 1
            producer = producer_of(stamp, window)
            ids.put(producer, 0, principal)
            twin[producer] = Holding(0, principal, stamp)
        elif kind == "renew" and known:
            producer = known[number % len(known)]
            epoch = twin[producer].epoch + 1
            ids.put(producer, epoch, principal)
            twin[producer] = Holding(epoch, principal, NOT_STAMPED)
        elif kind == "again":  # an epoch of what was forgotten meanwhile
            producer = producer_of(50 + number, window)
            if producer not in twin:
                ids.put(producer, 1, principal)
                twin[producer] = Holding(1, principal, NOT_STAMPED)
        elif kind == "stamp":
            ids.stamp(stamp)
            unstamped = [p for p, h in twin.items() if h.granted == NOT_STAMPED]
            twin |= {p: twin[p]._replace(granted=stamp) for p in unstamped}
        elif kind == "forget":
            ids.stamp(stamp)
            unstamped = [p for p, h in twin.items() if h.granted == NOT_STAMPED]
            twin |= {p: twin[p]._replace(granted=stamp) for p in unstamped}
            below = stamp - number
            ids.forget(below)
            twin = {p: h for p, h in twin.items() if h.granted >= below}
        elif kind == "repack":
            same(ProducerIds.of_rows(ids.rows()), twin)
            ids = ProducerIds.decode(unpack(pack(ids.encode())))
        same(ids, twin)


@given(steps, steps)
def test_a_snapshot_stays_what_it_was(
    before: list[tuple[str, int, int, str]], after: list[tuple[str, int, int, str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_ids, "_CHUNK", 3)
        ids = ProducerIds()
        for at, (_, _, window, principal) in enumerate(before, 1):
            ids.put(producer_of(at, window), 0, principal)
        frozen = ids.encode()
        packed = pack(frozen)
        for at, (_, number, window, principal) in enumerate(after, len(before) + 1):
            ids.put(producer_of(at, window), 0, principal)
            ids.put(producer_of(number + 1, window), number, principal)
            ids.stamp(at)
        ids.forget(len(before) // 2)
        assert pack(frozen) == packed


def test_ids_take_twelve_bytes_each() -> None:
    ids = ProducerIds()
    for at in range(1, 20_001):
        ids.put(producer_of(at << 16, 1), 0, "ann")
    assert sum(bytes_of_ids(ids)) == 20_000 * 12
    assert len(bytes_of_ids(ids)) == 5


def test_golden_bytes_of_ids_with_windows() -> None:
    """What a checkpoint of the registry holds: it is read back for as long as weir is."""
    catalog = Catalog()
    catalog.open(ProducerOpened(0x50000, 0, "ann"))
    catalog.open(ProducerOpened(producer_of(0x60000, 4), 0, "bob"))
    catalog.open(ProducerOpened(0x50000, 1, "ann"))
    version, *fields = unpack(pack(taken(catalog.encode())))
    assert version == 10
    keys, owners = array("Q", [0x280000, 0x300003]), array("I", [0, 1])
    assert fields[4] == [
        [["ann", "bob"], [[0x50000, 1, 0]]],
        [keys.tobytes(), owners.tobytes()],
    ]
    again = Catalog.decode([version, *fields])
    assert again.producer(producer_of(0x60000, 4)) == Holding(0, "bob", 0x60000)
    assert again.producer(0x50000) == Holding(1, "ann", 0)
    assert pack(again.encode()) == pack(catalog.encode())


def test_a_registry_without_windows_is_written_as_before() -> None:
    """Releases below format level 3 read it."""
    catalog = Catalog()
    catalog.open(ProducerOpened(0x50000, 0, "ann"))
    version, *fields = unpack(pack(catalog.encode()))
    assert (version, fields[4]) == (5, [[0x50000, 0, "ann", 0x50000]])
