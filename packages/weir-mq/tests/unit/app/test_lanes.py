"""Lanes: whatever is added and done in whatever order, a lane's items begin one after the other."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from weir.app.work_queue import Lanes

Item = tuple[str | None, int]


def lane_of(item: Item) -> str | None:
    return item[0]


def test_without_lanes_it_is_a_queue() -> None:
    lanes: Lanes[int] = Lanes()
    lanes.add([1, 2])
    lanes.add([3])
    assert len(lanes) == 3
    assert [lanes.next() for _ in range(4)] == [1, 2, 3, None]
    lanes.done(1)
    assert not lanes


def test_one_behind_another_of_its_lane_waits_and_those_of_no_lane_do_not() -> None:
    lanes = Lanes(lane_of)
    items: list[Item] = [("a", 1), ("a", 2), (None, 3), (None, 4), ("b", 5)]
    lanes.add(items)
    began = [lanes.next() for _ in range(4)]
    assert began == [("a", 1), (None, 3), (None, 4), ("b", 5)]
    assert not lanes
    assert len(lanes) == 1
    lanes.done(("b", 5))
    assert not lanes
    lanes.done(("a", 1))
    assert lanes.next() == ("a", 2)


def test_what_is_put_back_comes_first() -> None:
    lanes = Lanes(lane_of)
    lanes.add([("a", 1), ("a", 2), ("b", 3)])
    first = lanes.next()
    assert first is not None
    lanes.put_back(first)
    assert lanes.next() == ("a", 1)


def test_what_is_taken_out_blocks_no_lane() -> None:
    lanes = Lanes(lane_of)
    lanes.add([("a", 1), ("a", 2), ("b", 3), ("b", 4), (None, 5)])
    assert lanes.next() == ("a", 1)
    assert sorted(item[1] for item in lanes.taken_out()) == [2, 3, 4, 5]
    assert len(lanes) == 0
    lanes.add([("a", 6), ("b", 7)])
    assert lanes.next() == ("b", 7)
    assert lanes.next() is None
    lanes.done(("a", 1))
    assert lanes.next() == ("a", 6)


@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40),
    st.lists(st.integers(0, 7), max_size=120),
)
def test_every_item_begins_once_in_the_order_of_its_lane(
    keys: list[str | None], moves: list[int]
) -> None:
    lanes = Lanes(lane_of)
    waiting = [(key, number) for number, key in enumerate(keys)]
    began: list[Item] = []
    under_way: list[Item] = []
    for move in [*moves, *[0, 2, 4] * (2 * len(keys) + 2)]:
        if move < 2 and waiting:
            lanes.add([waiting.pop(0)])
        elif move < 4:
            if (item := lanes.next()) is not None:
                began.append(item)
                under_way.append(item)
        elif under_way:
            lanes.done(under_way.pop(move % len(under_way)))
        busy = [key for key, _ in under_way if key is not None]
        assert len(busy) == len(set(busy))
    assert sorted(number for _, number in began) == [*range(len(keys))]
    by_lane: dict[str, list[int]] = defaultdict(list)
    for key, number in began:
        if key is not None:
            by_lane[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_lane.values())
