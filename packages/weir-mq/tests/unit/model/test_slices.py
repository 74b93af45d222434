"""Slices of batches: what is in them, what they say, and that both ways of making them agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import BadBatch
from weir.model import arrow_slices
from weir.model.batch import Batch, Columns, check_whole, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins, Scattered
from weir.model.slices import Plain, few_tags_of, part_with, slice_of, tags_of

GROUP = 77
TAGS = (None, "a", "b", "c")


def batch_of(values: list[bytes], first: int = 1_000, stamp: int = 5, **columns: Any) -> Batch:
    """Return a stamped batch of `GROUP`."""
    whole = encode(values, group=GROUP, producer=9, epoch=2, sequence=4, **columns)
    whole[:88] = stamped(memoryview(whole), stamp, first)
    return Batch(bytes(whole)).check(GROUP)


def with_tags(tags: list[str | None], **columns: Any) -> Batch:
    values = [b"%08d" % at * 5 for at in range(len(tags))]
    return batch_of(values, tags=tags, **columns)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    n = draw(st.integers(1, 40))
    columns: dict[str, Any] = {"tags": [draw(st.sampled_from(TAGS)) for _ in range(n)]}
    times = st.lists(st.integers(-(2**62), 2**62), min_size=n, max_size=n)
    if draw(st.booleans()):
        devices = st.lists(st.integers(0, 255), min_size=n, max_size=n)
        sns, hubs = draw(devices), draw(devices)
        columns["origins"] = Origins(hubs, sns, hubs, sns, hubs if draw(st.booleans()) else ())
        columns["verified"] = bool(columns["origins"].generations) or draw(st.booleans())
    else:
        keys = st.lists(st.none() | st.binary(max_size=5), min_size=n, max_size=n)
        pairs = st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=3)
        columns |= {
            "keys": draw(st.none() | keys),
            "times": draw(st.none() | times),
            "dues": draw(st.none() | times),
            "expires": draw(st.none() | times),
            "headers": draw(st.none() | st.lists(pairs, min_size=n, max_size=n)),
            "compression": draw(st.sampled_from((0, 1, 2))),
            "schema": draw(st.sampled_from((0, 3))),
        }
        if columns["dues"] is None and draw(st.booleans()):
            columns["scattered"] = Scattered(6, (8, 10))
    return batch_of([draw(st.binary(max_size=20)) for _ in range(n)], **columns)


@settings(max_examples=40, deadline=None)
@given(batches(), st.data())
def test_a_slice_has_these_messages_of_its_batch_however_often_it_is_sliced(
    batch: Batch, data: st.DataObject
) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, len(batch) - 1), min_size=1)))
    whole = list(batch.messages("t", 3))
    made = slice_of(batch, rows, GROUP, Plain())
    assert made == slice_of(batch, rows, GROUP, arrow_slices.GATHERER)
    assert check_whole(bytes(made), GROUP).next_offset == batch.header.next_offset
    part = Batch(bytes(made))
    part.check_columns()
    assert list(part.messages("t", 3)) == [whole[row] for row in rows]
    assert list(part.offsets) == [whole[row].offset for row in rows]
    assert part.scattered == batch.scattered
    assert part.slice_of is not None
    assert (part.slice_of.hash, list(part.slice_of.rows)) == (batch.header.hash, rows)
    same = ("producer", "epoch", "sequence", "base_time", "stamp", "first_offset", "schema")
    assert all(getattr(part.header, name) == getattr(batch.header, name) for name in same)
    assert set(tags_of(part)) == {whole[row].tag or "" for row in rows}
    some = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    again = slice_of(part, some, GROUP, Plain())
    assert again == slice_of(batch, [rows[row] for row in some], GROUP, Plain())


@settings(max_examples=40, deadline=None)
@given(batches(), st.sets(st.sampled_from(("", "a", "b", "c", "d"))))
def test_what_is_served_has_every_message_with_a_wanted_tag(batch: Batch, tags: set[str]) -> None:
    wanted = [one for one in batch.messages() if (one.tag or "") in tags]
    part = part_with(batch, frozenset(tags), GROUP, Plain())
    assert part == part_with(batch, frozenset(tags), GROUP, arrow_slices.GATHERER)
    if not wanted:
        assert not part.bytes
        return
    served = Batch(part.bytes).check(GROUP)
    assert [one for one in served.messages() if (one.tag or "") in tags] == wanted
    assert served.header.next_offset == batch.header.next_offset
    if served.slice_of is not None:
        assert list(served.messages()) == wanted
        assert len(part.bytes) < batch.header.total_size


def test_less_than_half_of_the_bytes_is_sliced_and_half_of_them_goes_whole() -> None:
    half = with_tags(["a", "b"] * 50)
    assert part_with(half, frozenset({"a"}), GROUP).bytes == half.view
    less = with_tags(["a", "b", "b"] * 50)
    part = Batch(part_with(less, frozenset({"a"}), GROUP).bytes)
    assert part.slice_of is not None
    assert list(part.slice_of.rows) == [*range(0, 150, 3)]
    assert part_with(less, frozenset({"x"}), GROUP) == (b"", 0)
    assert part_with(less, frozenset({"a", "b"}), GROUP) == (less.view, 0)
    untagged = batch_of([b"x"])
    assert part_with(untagged, frozenset({""}), GROUP).bytes == untagged.view
    assert not part_with(untagged, frozenset({"a"}), GROUP).bytes


def test_a_batch_that_compresses_better_than_its_slice_goes_whole() -> None:
    packed = with_tags(["a"] + ["b"] * 3, compression=0)
    assert Batch(part_with(packed, frozenset({"a"}), GROUP).bytes).slice_of is not None
    packed = batch_of([b"x" * 1_000] * 4, tags=["a", "b", "b", "b"], compression=1)
    assert part_with(packed, frozenset({"a"}), GROUP).bytes == packed.view


def test_many_tags_are_not_listed_where_an_entry_lies() -> None:
    def listed(batch: Batch) -> tuple[str, ...]:
        return few_tags_of(batch.view, batch.header.columns)

    names = [f"t{at}" for at in range(33)]
    assert listed(with_tags(names[:32])) == tuple(names[:32])
    assert listed(with_tags(names)) == ()
    assert listed(batch_of([b""])) == ("",)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (28, 4, "rows that 3 messages have not|makes? no|leaves the batch|cannot lie|says 4"),
        (52, 2, "rows that 2 messages"),
        (52, 0, "says 1 messages of 0"),
        (52, 1 << 21, "says 1 messages of"),
    ],
)
def test_a_slice_that_makes_no_sense_is_refused(at: int, value: int, why: str) -> None:
    made = slice_of(with_tags(["a", "b", "c"]), [2], GROUP)
    made[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(BadBatch, match=why):
        Batch(bytes(made)).check_columns()


def test_rows_that_do_not_rise_are_refused() -> None:
    made = slice_of(with_tags(["a", "b", "c", "c"]), [2, 3], GROUP)
    at = made.index((2).to_bytes(4, "little") + (3).to_bytes(4, "little"))
    made[at : at + 8] = made[at + 4 : at + 8] * 2
    with pytest.raises(BadBatch, match="rows that"):
        Batch(bytes(made)).check_layout()


@pytest.mark.parametrize("flag", [Columns.CHUNK, Columns.REFERENCES, Columns.PUBLICATION])
def test_what_is_one_message_has_no_slice(flag: Columns) -> None:
    made = slice_of(with_tags(["a"]), [0], GROUP)
    made[12:16] = (int.from_bytes(made[12:16], "little") | int(flag)).to_bytes(4, "little")
    with pytest.raises(BadBatch, match="has columns"):
        Batch(bytes(made))
