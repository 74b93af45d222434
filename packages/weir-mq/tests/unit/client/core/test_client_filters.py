"""Filtering by column finds what looking at each message finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.batches import batches_opened
from weir.client.core.delivered_batches import Delivered, Pick, check_covered, deliver
from weir.errors import BadBatch
from weir.model.batch import HEADER_SIZE, Batch, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address
from weir.model.message import Message
from weir.model.slices import slice_of, tags_of
from weir.protocol.client.messages import Fetched

GROUP = 1 << 16
KEYS = [None, b"", b"a", b"b", b"\0\0\0\0"]
TAGS = [None, "x", "y", "z"]


def delivered(
    keys: list[bytes | None] | None,
    tags: list[str | None] | None,
    count: int,
    stamp: int = 100,
    first: int = 1_000,
) -> Delivered:
    raw = encode(
        [b"%d" % i for i in range(count)],
        group=GROUP,
        keys=keys,
        tags=tags,
        headers=[{"n": b"%d" % i} if i % 3 else {} for i in range(count)],
    )
    whole = stamped(memoryview(raw), stamp, first) + bytes(raw[HEADER_SIZE:])
    return Delivered("t", 0, Batch(whole), first, first + count)


def wanted(part: Delivered, keys: set[bytes] | None, tags: set[str] | None) -> list[Message]:
    return [
        message
        for message in part.messages()
        if (keys is None or message.key in keys) and (tags is None or (message.tag or "") in tags)
    ]


@given(
    rows=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TAGS)), min_size=1),
    keys=st.none() | st.sets(st.sampled_from([b"", b"a", b"b", b"\0\0\0\0", b"no"]), min_size=1),
    tags=st.none() | st.sets(st.sampled_from(["x", "y", "", "no"]), min_size=1),
    trimmed=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    columns=st.tuples(st.booleans(), st.booleans()),
)
def test_picking_is_filtering(
    rows: list[tuple[bytes | None, str | None]],
    keys: set[bytes] | None,
    tags: set[str] | None,
    trimmed: tuple[int, int],
    columns: tuple[bool, bool],
) -> None:
    part = delivered(
        [key for key, _ in rows] if columns[0] else None,
        [tag for _, tag in rows] if columns[1] else None,
        len(rows),
    )
    front, back = trimmed
    if front + back < len(rows):
        end = part.next_offset - back
        part = Delivered("t", 0, part.batch, part.offset + front, end)
    expected = wanted(part, keys, tags)
    found = [one for one in [Pick(keys, tags).wanted(part)] if one is not None]
    assert [m for one in found for m in one.messages()] == expected
    assert [v for one in found for v in one.values()] == [m.value for m in expected]
    assert sum(map(len, found)) == len(expected)


@given(
    rows=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TAGS)), min_size=1),
    tags=st.sets(st.sampled_from(["x", "y", "", "no"]), min_size=1),
    key=st.none() | st.sampled_from([b"", b"a"]),
    trimmed=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_picking_from_what_a_broker_has_filtered_is_filtering(
    rows: list[tuple[bytes | None, str | None]],
    tags: set[str],
    key: bytes | None,
    trimmed: tuple[int, int],
) -> None:
    part = delivered([key for key, _ in rows], [tag for _, tag in rows], len(rows))
    first, behind = part.offset + trimmed[0], part.next_offset - trimmed[1]
    keys = None if key is None else {key}
    expected = [one for one in wanted(part, keys, tags) if first <= one.offset < behind]
    offsets = [one.offset - 1_000 for one in part.messages() if (one.tag or "") in tags]
    if not offsets:
        return
    slice_ = bytes(slice_of(part.batch, offsets, GROUP))
    came = deliver([slice_], GROUP, "t", 0, first, behind)
    assert [(one.offset, one.next_offset) for one in came] == [(first, behind)] * (first < behind)
    found = [Pick(keys, tags).wanted(one) for one in came]
    assert [m for one in found if one is not None for m in one.messages()] == expected
    assert [v for one in found if one is not None for v in one.values()] == [
        one.value for one in expected
    ]


def fetched(offset: int, behind: int, *skipped: tuple[int, int], filtered: bool = True) -> Fetched:
    address, voids = Address(0, 0, GROUP), ((1_002, 1_004),)
    return Fetched(address, offset, behind, behind, voids=voids, is_filtered=filtered,
                   skipped=skipped)  # fmt: skip


def test_what_is_neither_skipped_nor_void_nor_there_is_missing() -> None:
    part = delivered(None, None, 2)  # 1,000 and 1,001, then two that are void
    check_covered(fetched(1_000, 1_010, (1_004, 1_010)), [part], 1_010, "x")
    check_covered(fetched(1_000, 1_010, (1_004, 1_010)), [part], 1_007, "x")
    check_covered(fetched(1_000, 1_010, filtered=False), [part], 1_010, ())
    for answer, parts, tags in (
        (fetched(1_000, 1_010, (1_005, 1_010)), [part], "x"),
        (fetched(1_000, 1_010, (1_004, 1_009)), [part], "x"),
        (fetched(1_000, 1_010, (1_001, 1_002), (1_004, 1_010)), [part], "x"),
        (fetched(1_000, 1_010, (1_004, 1_010)), [], "x"),
        (fetched(1_000, 1_004), [part], ()),  # nobody asked for it
    ):
        with pytest.raises(BadBatch, match="an answer"):
            check_covered(answer, parts, answer.next_offset, tags)


def test_rare_and_frequent_messages_come_out_equal() -> None:
    count = 200
    keys: list[bytes | None] = [b"rare" if i == 77 else b"%d" % (i % 2) for i in range(count)]
    part = delivered(keys, ["x" if i % 2 else "" for i in range(count)], count)
    for key in (b"rare", b"0", b"1"):
        found = Pick([key]).wanted(part)
        assert found is not None
        assert list(found.messages()) == wanted(part, {key}, None)


def test_a_batch_without_the_tag_is_skipped_by_its_list_alone() -> None:
    part = delivered(None, ["x", None], 2)
    assert tags_of(part.batch) == ["x", ""]
    assert tags_of(delivered(None, None, 1).batch) == [""]

    with batches_opened() as opened:
        assert Pick(tags=["y"]).wanted(part) is None
        assert Pick([b"k"], ["y"]).passes([part]) == ([part], None)
        assert not opened
        assert Pick(tags=["x"]).wanted(part)
        assert opened


def test_stamps_bound_what_passes() -> None:
    parts = [delivered(None, None, 2, stamp, 10 * stamp) for stamp in (1, 2, 3, 4)]
    found, ceiling = Pick(floor=2, ceiling=4).passes(parts)
    assert found == parts[1:3]
    assert ceiling == 40
