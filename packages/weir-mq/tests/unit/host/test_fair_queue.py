"""Deficit round robin: each key gets as much as any other, whatever its parts cost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.host.fair_queue import FairQueue


def serve(queue: FairQueue[str], costs: dict[str, int], turns: int) -> Counter[str]:
    """Serve so many parts; items come again, at the same cost. The first letter is the key."""
    served: Counter[str] = Counter()
    for _ in range(turns):
        taken = queue.take()
        assert taken is not None
        key, item = taken
        assert key == item[0]
        queue.add(item[0], item)  # it has more, as a connection in line does
        queue.charge(item[0], costs[item])
        served[item[0]] += costs[item]
    return served


def test_many_connections_of_one_namespace_get_no_more_than_one_of_another() -> None:
    queue: FairQueue[str] = FairQueue(1_000)
    costs = {**{f"a{number}": 500 for number in range(50)}, "b": 500}
    for item in costs:
        queue.add(item[0], item)
    served = serve(queue, costs, 2_000)
    assert abs(served["a"] - served["b"]) <= 2_000


@pytest.mark.parametrize("cost", [1, 300, 64_000])
def test_what_a_part_costs_beyond_the_quantum_is_missing_later(cost: int) -> None:
    queue: FairQueue[str] = FairQueue(1_000)
    costs = {"a": cost, "b": 700}
    for item in costs:
        queue.add(item, item)
    served = serve(queue, costs, 5_000)
    assert abs(served["a"] - served["b"]) <= max(cost, 1_000) + 1_000


def test_connections_of_a_namespace_come_in_turn() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "a3"):
        queue.add("a", item)
    queue.add("a", "a1")
    assert (len(queue), list(queue)) == (3, ["a1", "a2", "a3"])
    for expected in ("a1", "a2", "a3"):
        assert queue.take() == ("a", expected)
        queue.charge("a", 5)
    assert queue.take() is None
    assert not queue


def test_who_waits_alone_owes_nothing_to_those_that_come_later() -> None:
    queue: FairQueue[str] = FairQueue(10)
    queue.add("a", "a")
    serve(queue, {"a": 1_000_000}, 5)
    queue.add("b", "b")
    served = serve(queue, {"a": 10, "b": 10}, 100)
    assert served["a"] == served["b"] == 500


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 5_000), min_size=2),
    st.integers(1, 2_000),
)
def test_no_key_is_ever_far_behind(costs: dict[str, int], quantum: int) -> None:
    queue: FairQueue[str] = FairQueue(quantum)
    for item in costs:
        queue.add(item, item)
    served = serve(queue, costs, 500)
    spread = max(served[key] for key in costs) - min(served[key] for key in costs)
    assert spread <= 2 * (max(costs.values()) + quantum)
