"""Filtering by column finds what looking at each message finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rigs.batches import batches_opened
from weir.client.core.delivered_batches import Delivered, Pick, tags_listed
from weir.model.batch import HEADER_SIZE, Batch, stamped
from weir.model.batch_builder import encode
from weir.model.message import Message

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
        if (keys is None or message.key in keys) and (tags is None or message.tag in tags)
    ]


@given(
    rows=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TAGS)), min_size=1),
    keys=st.none() | st.sets(st.sampled_from([b"", b"a", b"b", b"\0\0\0\0", b"no"]), min_size=1),
    tags=st.none() | st.sets(st.sampled_from(["x", "y", "no"]), min_size=1),
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
    assert tags_listed(part.batch) == ["x", ""]
    assert tags_listed(delivered(None, None, 1).batch) == []

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
