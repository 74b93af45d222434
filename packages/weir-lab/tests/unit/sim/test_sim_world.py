"""Virtual time, connections in memory, and what a run reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.broker.produce.appender import Appender
from weir.testing.simulator.network import Link, Net
from weir.testing.simulator.world import MS, SECOND, SkewedTime, World
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import Shape


def test_events_run_in_the_order_of_their_times_and_then_of_their_making() -> None:
    world, seen = World(1), list[tuple[str, int]]()

    def see(name: str) -> None:
        seen.append((name, world.now))

    world.after(20, see, "late")
    world.after(10, see, "first")
    world.after(10, lambda: world.after(0, see, "third"))
    world.after(10, see, "second")
    world.after(99, see, "never")
    world.run(50)
    assert seen == [("first", 10), ("second", 10), ("third", 10), ("late", 20)]
    assert world.now == 50


def test_a_run_ends_early_when_all_is_done() -> None:
    world, seen = World(1), list[int]()
    for at in (1, 2, 3):
        world.after(at, seen.append, at)
    world.run(10, lambda: len(seen) == 2)
    assert seen == [1, 2]


def test_the_wall_clock_jumps_and_the_other_does_not() -> None:
    world = World(1)
    time = SkewedTime(world)
    before = time.wall_ms()
    world.run(5 * MS)
    time.skew_ms = -3_000
    assert time.wall_ms() == before + 5 - 3_000
    assert time.monotonic_ms() == 5


class Side:
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.gone = 0

    def received(self, link: Link, data: bytes) -> None:
        self.data.append(data)

    def lost(self, link: Link) -> None:
        self.gone += 1


def test_bytes_arrive_in_order_in_pieces_of_any_size() -> None:
    world, client, host = World(5), Side(), Side()
    link = Link(world, client, host)
    sent = [bytes((n,)) * n for n in range(1, 60)]
    for n, data in enumerate(sent):
        world.after(n * MS, link.to_host, data)
    world.run(SECOND)
    assert b"".join(host.data) == b"".join(sent)
    assert not set(host.data) <= set(sent), "cut anew"
    assert client.data == []


def test_a_cut_loses_what_is_under_way_and_both_sides_hear_of_it() -> None:
    world, client, host = World(5), Side(), Side()
    link = Link(world, client, host)
    link.to_host(b"lost")
    link.to_client(b"lost")
    link.cut()
    link.cut()
    link.to_host(b"too late")
    world.run(SECOND)
    assert (client.data, host.data) == ([], [])
    assert (client.gone, host.gone) == (1, 1)


def test_a_held_link_keeps_its_bytes_and_a_finished_one_delivers_them() -> None:
    world, client, host = World(5), Side(), Side()
    link = Link(world, client, host)
    link.hold(True)
    link.to_host(b"later")
    world.run(SECOND)
    assert host.data == []
    link.hold(False)
    link.to_client(b"goodbye")
    link.finish()
    world.run(2 * SECOND)
    assert b"".join(host.data) == b"later"
    assert b"".join(client.data) == b"goodbye"
    assert not link.open


def test_a_closed_way_keeps_what_is_sent_until_it_is_open_again() -> None:
    world, net, client, host = World(6), Net(far=True), Side(), Side()
    link = Link(world, client, host, net.way(-1, 2), net.way(2, -1))
    net.close(-1, 2)
    link.to_host(b"hello")
    link.to_client(b"welcome")
    world.run(500 * MS)
    assert not net.joined(-1, 2)
    assert host.data == []
    assert b"".join(client.data) == b"welcome"
    net.heal()
    world.run(SECOND)
    assert b"".join(host.data) == b"hello"
    assert link.open


def test_who_does_not_get_through_gives_the_connection_up() -> None:
    world, net, client, host = World(7), Net(far=True), Side(), Side()
    link = Link(world, client, host, net.way(1, 2), net.way(2, 1))
    net.close(1, 2)
    net.close(2, 1)
    link.to_host(b"hello")
    world.run(10 * SECOND)
    assert not link.open
    assert client.gone == 1
    assert host.data == []
    # The other side hears nothing of that, and finds out by itself in the end.
    assert host.gone == 1


def test_what_ends_without_a_word_is_noticed_late() -> None:
    world, net, client, host = World(8), Net(far=True), Side(), Side()
    link = Link(world, client, host, net.way(1, 2), net.way(2, 1))
    link.cut(silent=True)
    link.to_host(b"nobody hears this")
    world.run(900 * MS)
    assert (client.gone, host.gone) == (0, 0)
    world.run(5 * SECOND)
    assert (client.gone, host.gone) == (1, 1)
    assert host.data == []


SMALL = Shape(faults_until=500 * MS, producers=2, hubs=0, consumers=0, batches=3)


def test_a_run_that_fails_tells_how_to_see_it_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Appender, *_: object) -> None:
        raise KeyError("planted")

    assert run_seed(3, SMALL).violations == []
    monkeypatch.setattr(Appender, "accept", broken)
    outcome = run_seed(3, SMALL)
    assert outcome.violations[0][0] == "Crash"
    report = outcome.report()
    assert "KeyError" in report
    assert "run_seed(3, Shape(" in report
    assert outcome.trace_hash in report
    assert len(outcome.recent) > 3


def test_a_world_in_which_too_little_was_done_goes_on_under_faults() -> None:
    few = run_seed(3, SMALL)
    more = run_seed(3, replace(SMALL, operations=few.operations + 100))
    assert more.operations >= few.operations + 100
    assert more.faults > few.faults
    assert not more.violations, more.report()
