"""What a fetch that wants some tags is answered: all that has them, and where nothing has."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.runtime import filtering
from weir.broker.runtime.filtering import Slices, filtered
from weir.broker.state.ranges import Ranges
from weir.codec import total
from weir.model.batch import Batch, split
from weir.protocol.client import messages as m
from weir.storage import log_reader

#: The tags of each batch.
BATCHES: list[list[str | None]] = [
    ["a"] * 3,
    ["b"] * 4,
    ["a", "b", "b", None, "c", "b"],
    [None] * 2,
    ["c", "a"],
]


@pytest.fixture
def info(rig: Any) -> Any:
    info = rig.topic(rig.connect())
    grant, sequence = rig.answer(1, m.OpenProducer()), 0
    for number, tags in enumerate(BATCHES):
        values = [b"%d.%d" % (number, at) * 9 for at in range(len(tags))]
        request = rig.batch(info, grant, sequence, *values, tags=tags if any(tags) else None)
        assert isinstance(rig.answer(1, request), m.Confirm)
        sequence += len(tags)
    return info


def fetched(rig: Any, info: Any, *tags: str, offset: int = 0, **more: Any) -> m.Fetched:
    request = m.Fetch(
        info.addresses[0], offset, more.pop("max_bytes", 1 << 20), equal_stamps=True, tags=tags,
        **more,
    )  # fmt: skip
    answer = rig.answer(1, request)
    assert isinstance(answer, m.Fetched), answer
    return answer


def batches(info: Any, answer: m.Fetched) -> list[Batch]:
    group = info.addresses[0].group
    return [batch for payload in answer.batches for batch in split(payload, group)]


def tagged(info: Any, answer: m.Fetched, *tags: str) -> list[tuple[int, bytes]]:
    return [
        (one.offset, one.value)
        for batch in batches(info, answer)
        for one in batch.messages()
        if (one.tag or "") in tags
    ]


def covered(info: Any, answer: m.Fetched) -> list[tuple[int, int]]:
    """Return what the answer covers, in order."""
    runs = [(one.header.first_offset, one.header.next_offset) for one in batches(info, answer)]
    return sorted([*runs, *answer.skipped, *answer.voids])


@pytest.mark.parametrize("tags", [("a",), ("b",), ("c",), ("",), ("a", "c"), ("", "b"), ("x",)])
def test_all_messages_with_a_wanted_tag_come_and_the_answer_covers_the_rest(
    rig: Any, info: Any, tags: tuple[str, ...]
) -> None:
    everything = fetched(rig, info)
    assert not everything.is_filtered
    answer = fetched(rig, info, *tags)
    assert (answer.offset, answer.next_offset, answer.is_filtered) == (0, 17, True)
    assert tagged(info, answer, *tags) == tagged(info, everything, *tags)
    at = 0
    for first, behind in covered(info, answer):
        assert first == at, "a gap or an overlap"
        at = behind
    assert at == 17
    assert total(answer.batches) <= total(everything.batches)


def test_what_is_passed_over_costs_no_disk_read(rig: Any, info: Any) -> None:
    answer = fetched(rig, info, "x")
    assert (answer.batches, answer.skipped) == ((), ((0, 17),))
    answer = fetched(rig, info, "b", offset=3)
    assert [one.header.first_offset for one in batches(info, answer)] == [3, 7]


def test_an_answer_begins_within_a_batch_and_within_what_is_skipped(rig: Any, info: Any) -> None:
    answer = fetched(rig, info, "b", offset=5)
    assert covered(info, answer)[0] == (3, 7)
    answer = fetched(rig, info, "a", offset=5)
    assert answer.skipped[0] == (5, 7)
    assert tagged(info, answer, "a") == [(7, b"2.0" * 9), (16, b"4.1" * 9)]


def test_a_batch_with_few_matches_comes_as_a_slice(rig: Any, info: Any) -> None:
    (slice_,) = [one for one in batches(info, fetched(rig, info, "c")) if one.slice_of]
    whole = batches(info, fetched(rig, info))[2]
    assert slice_.slice_of is not None
    assert (slice_.slice_of.hash, list(slice_.slice_of.rows)) == (whole.header.hash, [4])
    assert slice_.header.stamp == whole.header.stamp


def test_an_answer_looks_at_so_many_entries_and_goes_on_there(
    rig: Any, info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "PASSED_ENTRIES_MAX", 2)
    answer = fetched(rig, info, "c")
    assert (answer.batches, answer.skipped, answer.next_offset) == ((), ((0, 7),), 7)
    assert tagged(info, fetched(rig, info, "c", offset=7), "c") == [(11, b"2.4" * 9)]


def test_an_answer_looks_at_so_many_messages_and_goes_on_there(
    rig: Any, info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "EXAMINED_MAX", 6)
    answer = fetched(rig, info, "a")
    assert answer.next_offset in (13, 15)
    assert covered(info, answer)[-1][1] == answer.next_offset
    rest = fetched(rig, info, "a", offset=answer.next_offset)
    assert tagged(info, rest, "a") == [(16, b"4.1" * 9)]


def test_whoever_waits_is_told_that_others_came(rig: Any, info: Any) -> None:
    request = m.Fetch(info.addresses[0], 17, 1 << 20, 60_000, equal_stamps=True, tags=("a",))
    waits = rig.ask(1, request)
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"x", tags=["b"]))
    (answer,) = [reply for number, reply in rig.replies[1] if number == waits]
    assert (answer.skipped, answer.next_offset) == (((17, 18),), 18)


def test_slices_are_kept_and_the_oldest_leave(rig: Any, info: Any) -> None:
    whole = batches(info, fetched(rig, info))[2]
    group = info.addresses[0].group
    slices = Slices(1_500)
    first = slices.part(whole, frozenset("c"), group)
    assert slices.part(whole, frozenset("c"), group).bytes is first.bytes
    assert slices.part(whole, frozenset("a"), group).bytes is not first.bytes
    slices.part(whole, frozenset(("",)), group)
    again = slices.part(whole, frozenset("c"), group)
    assert (again.bytes == first.bytes, again.bytes is first.bytes) == (True, False)


def test_tags_that_a_reader_names_count_among_what_is_kept(rig: Any, info: Any) -> None:
    whole, group = batches(info, fetched(rig, info))[2], info.addresses[0].group
    slices, wanted = Slices(10_000), frozenset(("c", *(f"{n:0250}" for n in range(63))))
    first = slices.part(whole, wanted, group)
    assert slices.part(whole, wanted, group).bytes == first.bytes
    assert slices.part(whole, wanted, group).bytes is not first.bytes


def test_a_slice_is_never_published(rig: Any, info: Any) -> None:
    (slice_,) = [one for one in batches(info, fetched(rig, info, "c")) if one.slice_of]
    answer = rig.answer(1, m.Produce(info.addresses[0], 0, memoryview(bytes(slice_.view))))
    assert isinstance(answer, m.Refusal)
    assert "never published" in answer.message


def test_what_is_void_is_not_skipped(rig: Any, info: Any) -> None:
    parts, group = batches(info, fetched(rig, info)), info.addresses[0].group
    voids = Ranges(((3, 7),))
    for passed in ((), ((3, 7),)):
        some = [one for one in parts if not passed or one.header.first_offset != 3]
        found = filtered(some, 0, 17, passed, voids, frozenset("a"), group, Slices())
        assert found.skipped == ((13, 15),)


def test_what_was_neither_read_nor_passed_over_is_in_no_run(rig: Any, info: Any) -> None:
    parts, group = batches(info, fetched(rig, info)), info.addresses[0].group
    found = filtered(parts[2:], 0, 17, ((0, 3),), Ranges(), frozenset("x"), group, Slices())
    assert found.skipped == ((0, 3), (7, 17))
