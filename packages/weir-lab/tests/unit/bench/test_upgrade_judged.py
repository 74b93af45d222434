"""What an upgrade's clients saw is judged: what is lost, repeated, reordered or differs."""

from __future__ import annotations

from typing import Any

import pytest

from weir_lab.bench.faults.upgrade.run import judged

PUBLISHED = ["now 0", "now 1", "before 0"]
ORDER = ["0 0 now 0", "1 0 before 0", "0 1 now 1"]
NOTHING = {"lost": 0, "repeated": 0, "reordered": 0, "differing": 0}


def came() -> dict[str, Any]:
    return {
        "before": {"read": [*ORDER], "acked": ["before 0", "now 1"]},
        "now": {"read": [*ORDER], "acked": ["now 0"]},
    }


def test_all_that_was_published_came_once() -> None:
    assert judged(PUBLISHED, ORDER, ORDER[::-1], came()) == NOTHING


@pytest.mark.parametrize("where", ["read", "acked"])
def test_what_a_client_lacks_or_has_twice(where: str) -> None:
    lacks, twice = came(), came()
    lacks["before"][where].pop()
    twice["now"][where].append(twice["now"][where][-1])
    assert judged(PUBLISHED, ORDER, ORDER, lacks) == {**NOTHING, "lost": 1}
    assert judged(PUBLISHED, ORDER, ORDER, twice) == {**NOTHING, "repeated": 1}


def test_what_a_topic_lacks_or_has_twice() -> None:
    assert judged(PUBLISHED, ORDER, ORDER[:-1], came()) == {**NOTHING, "lost": 1}
    assert judged(PUBLISHED, ORDER, [*ORDER, ORDER[0]], came()) == {**NOTHING, "repeated": 1}
    assert judged([*PUBLISHED, "now 2"], ORDER, ORDER, came())["lost"] == 5


def test_what_comes_in_another_order() -> None:
    other = came()
    other["before"]["read"] = ORDER[::-1]
    assert judged(PUBLISHED, ORDER, ORDER, other) == {**NOTHING, "differing": 2}
    turned = [*reversed(ORDER)]
    assert judged(PUBLISHED, turned, turned, came()) == {**NOTHING, "reordered": 1, "differing": 4}
