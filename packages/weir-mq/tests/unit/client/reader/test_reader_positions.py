"""What `start=` and `until=` mean, before a broker is asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weir.client.reader.options import At, Begin, End, at, begin_of, end_of, last
from weir.errors import BadRequest
from weir.order.clock import stamp_at
from weir.protocol.client.messages import PositionsReply

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
HELD = PositionsReply(start=10, end=50, at=33)


def noon() -> float:
    return NOON.timestamp()


NOON_MS = int(noon() * 1_000)


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        ("earliest", 10),
        ("latest", 50),
        ("last", 49),
        (last(7), 43),
        (last(1_000), 10),
        ({0: 20, 1: 5}, 20),
        ({1: 5}, 10),
        ("-1h", 33),
        (NOON, 33),
        (At(5), 33),
    ],
)
def test_a_start_is_an_offset_of_each_partition(start: Any, offset: int) -> None:
    assert begin_of(start).settled(NOON_MS).offset(0, HELD) == offset


def test_times_become_stamps() -> None:
    then = stamp_at(int(noon() * 1_000))
    assert at(NOON).stamp == then
    assert at("2026-11-22T12:00:00+00:00").stamp == then
    assert at("2026-11-22T13:00:00+01:00").stamp == then
    assert at(noon()).stamp == then
    milliseconds = int(noon() * 1_000)
    for later in range(1_000):
        assert at((milliseconds + later) / 1_000).stamp == stamp_at(milliseconds + later)
    assert at(NOON.replace(tzinfo=None)).stamp == at(NOON.replace(tzinfo=None).astimezone()).stamp
    hour_ago = stamp_at(int((noon() - 3_600) * 1_000))
    for ago in ("-1h", at("-1h")):
        assert begin_of(ago).needs_clock
        assert begin_of(ago).settled(NOON_MS) == Begin(stamp=hour_ago)
        assert end_of(ago).settled(NOON_MS) == End(stamp=hour_ago)
    assert end_of(NOON - timedelta(hours=1)).settled(NOON_MS) == End(stamp=hour_ago)
    assert begin_of("-365000d").settled(NOON_MS) == Begin(stamp=0)


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        ("soonest", '"earliest"'),
        ("-1 parsec", '"-1h"'),
        (5, "weir.last"),
        (None, "weir.at"),
        ({"0": 1}, "JSON makes strings"),
        ({0: -1}, "from 0 on"),
        ({-1: 0}, "from 0 on"),
    ],
)
def test_another_start_says_what_can_be_given(start: Any, hint: str) -> None:
    with pytest.raises(BadRequest, match=hint):
        begin_of(start)


@pytest.mark.parametrize(
    ("until", "hint"),
    [
        ("tomorrow", "no time"),
        ({0: -1}, "from 0 on"),
        (5, "give a time"),
        (last(3), "give a time"),
    ],
)
def test_another_until_says_what_can_be_given(until: Any, hint: str) -> None:
    with pytest.raises(BadRequest, match=hint):
        end_of(until)


def test_an_end_lies_no_further_ahead_than_a_leader_can_promise() -> None:
    assert end_of(NOON + timedelta(seconds=1)).settled(NOON_MS).stamp == stamp_at(NOON_MS + 1_000)
    with pytest.raises(BadRequest, match="a time ahead"):
        end_of(NOON + timedelta(seconds=1, milliseconds=1)).settled(NOON_MS)


def test_what_cannot_be_is_refused_where_it_is_made() -> None:
    with pytest.raises(BadRequest, match="1 or more"):
        last(0)
    with pytest.raises(BadRequest, match="from 1970 on"):
        at(datetime(1960, 1, 1, tzinfo=UTC))


def test_an_end_is_an_offset_of_each_partition() -> None:
    assert End().offset(0, HELD, follow=True) == 50
    bounded = end_of({0: 40, 1: 70})
    assert bounded.offset(0, HELD, follow=True) == 40
    assert bounded.offset(1, HELD, follow=True) == 70  # it is waited for
    assert bounded.offset(1, HELD, follow=False) == 50
    assert bounded.offset(2, HELD, follow=True) == 50
