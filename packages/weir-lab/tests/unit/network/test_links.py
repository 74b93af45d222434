"""What becomes of packets on emulated links, by a clock of the test."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from weir_lab.network.links import Link, Switch, Wire

A, B = 0, 1
THERE, BACK = (A, B), (B, A)


def wire(link: Link, seed: int = 1) -> Wire:
    return Wire(link, random.Random(seed))


@pytest.mark.parametrize(
    "wrong",
    [{"loss": 1.1}, {"duplicate": -0.1}, {"reorder": 2}, {"delay_ms": -1}, {"jitter_ms": 1e9},
     {"queue_ms": float("nan")}, {"rate_mbit": -1}],
)  # fmt: skip
def test_links_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        wire(Link(**wrong))


def test_a_delay_is_kept_to_the_point() -> None:
    switch = Switch({THERE: Link(delay_ms=20), BACK: Link(delay_ms=5)}, random.Random(1))
    switch.take(1.0, THERE, b"there")
    switch.take(1.0, BACK, b"back")
    assert switch.next_at == pytest.approx(1.005)
    assert list(switch.due(1.004)) == []
    assert list(switch.due(1.0051)) == [(A, b"back")]
    assert switch.next_at == pytest.approx(1.02)
    assert list(switch.due(1.03)) == [(B, b"there")]
    assert switch.next_at is None


def test_what_has_no_link_goes_nowhere() -> None:
    switch = Switch({THERE: Link()}, random.Random(1))
    switch.take(1.0, BACK, b"x")
    assert switch.next_at is None


def test_a_rate_spreads_packets_and_a_full_queue_drops_them() -> None:
    one = wire(Link(rate_mbit=8, queue_ms=3, delay_ms=10))  # 1,000 bytes take 1 ms
    found = [one.offer(0.0, 1_000) for _ in range(6)]
    assert [round(at[0] * 1e3, 6) for at in found if at] == [11, 12, 13, 14]
    assert one.count.dropped == 2
    assert one.offer(0.004, 500) == (pytest.approx(0.0145),), "the queue is empty again"


def test_jitter_varies_the_delay_and_keeps_the_order() -> None:
    one = wire(Link(delay_ms=50, jitter_ms=5))
    times = [one.offer(at / 10, 100)[0] - at / 10 for at in range(2_000)]
    assert statistics.mean(times) == pytest.approx(0.05, rel=0.02)
    assert statistics.stdev(times) == pytest.approx(0.005, rel=0.1)
    close = [one.offer(1_000 + at / 1e6, 100)[0] for at in range(1_000)]
    assert close == sorted(close)


def test_reordered_packets_pass_those_before_them() -> None:
    one = wire(Link(delay_ms=50, jitter_ms=5, reorder=0.2))
    times = [one.offer(at / 1e6, 100)[0] for at in range(1_000)]
    behind = sum(later < earlier for earlier, later in itertools.pairwise(times))
    assert 20 < behind < 400


def test_shares_are_lost_and_come_twice() -> None:
    one = wire(Link(loss=0.1, duplicate=0.05))
    arrivals = [len(one.offer(float(at), 100)) for at in range(10_000)]
    assert arrivals.count(0) == one.count.lost == pytest.approx(1_000, rel=0.1)
    assert arrivals.count(2) == pytest.approx(450, rel=0.15)


def test_a_lost_packet_takes_its_time_on_the_link() -> None:
    one = wire(Link(loss=1, rate_mbit=8))
    assert one.offer(0.0, 1_000) == ()
    one.link = Link(rate_mbit=8)
    assert one.offer(0.0, 1_000) == (pytest.approx(0.002),)


def test_a_cut_stops_one_way_alone_and_what_is_on_its_way() -> None:
    switch = Switch({THERE: Link(delay_ms=10), BACK: Link(delay_ms=10)}, random.Random(1))
    switch.take(0.0, THERE, b"on its way")
    switch.cut(THERE, True)
    switch.take(0.001, THERE, b"cut")
    switch.take(0.001, BACK, b"back")
    assert list(switch.due(0.02)) == [(A, b"back")]
    switch.cut(THERE, False)
    switch.take(0.03, THERE, b"healed")
    assert list(switch.due(0.05)) == [(B, b"healed")]
    there, back = switch.counts()[THERE], switch.counts()[BACK]
    assert (there.packets, there.bytes, there.cut) == (1, 6, 2)
    assert (back.packets, back.bytes, back.cut) == (1, 4, 0)
    with pytest.raises(KeyError):
        switch.cut((A, 7), True)


def test_one_seed_makes_the_same_of_the_same_packets() -> None:
    link = Link(delay_ms=3, jitter_ms=1, loss=0.2, duplicate=0.1, reorder=0.1)
    one, other, another = wire(link, 7), wire(link, 7), wire(link, 8)
    found = [one.offer(float(at), 9) for at in range(200)]
    assert found == [other.offer(float(at), 9) for at in range(200)]
    assert found != [another.offer(float(at), 9) for at in range(200)]
