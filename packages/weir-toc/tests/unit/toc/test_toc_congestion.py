"""Phantom queues mark, windows shrink by the share of marks, timeouts follow round trips."""

from __future__ import annotations

from random import Random

from weir_toc.congestion import RATE_SHIFT, CongestionWindow, PhantomQueue, RoundTrips


def test_a_phantom_queue_marks_above_its_threshold_and_drains() -> None:
    queue = PhantomQueue(rate=1_000, threshold=2_500)
    assert [queue.add(0, 1_000) for _ in range(3)] == [False, False, True]
    assert not queue.add(2 << RATE_SHIFT, 1_000)  # 2,000 bytes have drained
    assert queue.add(0, 1_000)  # time that goes back drains nothing
    assert not PhantomQueue(0, 0).add(0, 1 << 40)


def test_a_run_is_marked_as_its_packets_would_be() -> None:
    dice, now = Random("runs"), 0
    for rate, threshold in ((1_000, 2_500), (700, 0), (0, 0)):
        runs, single = PhantomQueue(rate, threshold), PhantomQueue(rate, threshold)
        for _ in range(300):
            now += dice.choice((0, 0, 1 << RATE_SHIFT, 3 << RATE_SHIFT))
            size, count = dice.choice((40, 500, 1_440)), dice.randrange(1, 9)
            marks = [single.add(now, size) for _ in range(count)]
            marked = runs.add_run(now, size, count)
            assert marks == [False] * (count - marked) + [True] * marked


def test_a_window_grows_without_marks_and_shrinks_by_their_share() -> None:
    one = CongestionWindow(floor=1_000, limit=64_000)
    while one.bytes < 64_000:
        one.acknowledged(1_000, 1, 0)
    for _ in range(64):
        one.acknowledged(1_000, 1, 0)
    some, all_of_them = CongestionWindow(1_000, 64_000), CongestionWindow(1_000, 64_000)
    for n in range(200):
        some.acknowledged(1_000, 1, n % 8 == 0)
        all_of_them.acknowledged(1_000, 1, 1)
    assert 1_000 <= all_of_them.bytes < some.bytes < one.bytes
    one.lost(20, 10)
    assert one.bytes == 32_000
    one.lost(30, 20)  # it was under way then, too
    assert one.bytes == 32_000
    one.lost(40, 21)
    assert one.bytes == 16_000


def test_a_timeout_follows_round_trips_and_doubles_when_it_expires() -> None:
    trips = RoundTrips(first=4_000, least=100, most=10_000)
    for _ in range(100):
        trips.measured(500)
    assert 500 <= trips.timeout < 600
    before = trips.timeout
    trips.expired()
    assert trips.timeout == 2 * before
    for _ in range(20):
        trips.expired()
    assert trips.timeout == 10_000
    trips.answered()
    assert trips.timeout < 600
