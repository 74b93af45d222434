"""Where a query begins and ends, read from text."""

from __future__ import annotations

import pytest

from weir.errors import BadOption
from weir.order.clock import stamp_at
from weir.spark.options import (
    Bound,
    Earliest,
    Latest,
    Offsets,
    Stamped,
    parse_ending,
    parse_starting,
)

NOON = 1_769_860_800_000


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Earliest()),
        ({"startingoffsets": " Latest "}, Latest()),
        ({"startingoffsets": '{"0": 12, "3": 0}'}, Offsets({0: 12, 3: 0})),
        ({"startingtime": "2026-01-31T12:00:00Z"}, Stamped(stamp_at(NOON))),
        ({"startingtime": "2026-01-31T13:00:00+01:00"}, Stamped(stamp_at(NOON))),
        # Rounded up: what was stamped in the millisecond that began before is earlier.
        ({"startingtime": "2026-01-31T12:00:00.000001Z"}, Stamped(stamp_at(NOON + 1))),
        ({"startingtime": str(NOON)}, Stamped(stamp_at(NOON))),
        ({"startingbarrier": "77"}, Stamped(78)),
    ],
)
def test_a_start_is_read(options: dict[str, str], expected: Bound) -> None:
    assert parse_starting(options) == expected


def test_an_end_at_a_barrier_is_the_start_after_it() -> None:
    """So two queries, one that ends and one that starts at a barrier, read each message once."""
    assert parse_ending({"endingbarrier": "77"}) == parse_starting({"startingbarrier": "77"})
    assert parse_ending({}) is None
    assert parse_ending({"endingoffsets": "latest"}) == Latest()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingtime": "2026-01-31T12:00:00"}, "with its zone"),
        ({"startingtime": "yesterday"}, "with its zone"),
        ({"startingtime": "1969-12-31T23:59:59Z"}, "since 1970"),
        ({"startingtime": "9" * 30}, "since 1970"),
        ({"startingbarrier": "-1"}, "give a stamp"),
        ({"startingbarrier": str(1 << 63)}, "give a stamp"),
        ({"startingoffsets": "{}x"}, "earliest, latest"),
        ({"startingoffsets": "latest", "startingtime": "1"}, "startingOffsets or startingTime"),
        ({"startingtime": "1", "startingbarrier": "1"}, "startingTime or startingBarrier"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse_starting(options)


def test_nothing_ends_at_the_earliest() -> None:
    with pytest.raises(BadOption, match="nothing lies before it"):
        parse_ending({"endingoffsets": "earliest"})
