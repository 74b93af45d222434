"""Hosts whose clocks stop while their timers go on: they end, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns
from typing import cast

import pytest

from rigs.late_clock import link_of, stand_still
from rigs.loopback import loopback
from weir_toc import sync
from weir_toc.errors import ClockStopped, Fenced, first_error
from weir_toc.hosts.alarm import Alarm
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.udp import Sending, UdpSocket
from weir_toc.member import Member
from weir_toc.node import SILENT_INTERVALS

T = 1_000_000
PATIENCE_SECONDS = 60


class Host:
    """A clock, and the timer beside it, which shows seconds."""

    def __init__(self) -> None:
        self.time = 5_000 * T
        self.timer = 1.0
        self.alarm = Alarm(cast(ControlLink, self), lambda: None, lambda: self.timer)

    def now(self) -> int:
        return self.time

    def run(self, intervals: int, step: int) -> None:
        """Let intervals pass by the timer while the clock shows `step` ns more each."""
        for _ in range(intervals):
            self.timer += T / 1e9
            self.time += step
            self.alarm.check(T)


@pytest.mark.parametrize("step", [0, 1, T // 20])
def test_a_clock_that_stands_still_while_its_timer_rings_has_stopped(step: int) -> None:
    host = Host()
    host.run(100, T)
    host.run(SILENT_INTERVALS - 1, step)
    with pytest.raises(ClockStopped, match="has stood still"):
        host.run(3, step)


@pytest.mark.parametrize("step", [T * 999 // 1_000, T // 5, 1_000 * T, -1_000 * T])
def test_a_clock_that_goes_on_is_not_taken_for_stopped(step: int) -> None:
    host = Host()
    host.run(100, step)
    host.run(100, T)


def test_a_host_that_was_stopped_itself_has_a_clock() -> None:
    host = Host()
    host.run(3, T)
    host.timer += 60.0
    host.time += 60_000 * T
    host.run(3, T)


def test_an_alarm_rings_at_once_if_it_is_due_and_knows_how_late() -> None:
    async def body() -> None:
        host, rang = Host(), list[int]()
        alarm = Alarm(cast(ControlLink, host), lambda: rang.append(host.time))
        assert not alarm.ring_if_due()  # nobody has set it
        alarm.set(host.time + T)
        host.time += T - 1
        assert not alarm.ring_if_due()
        host.time += 3 * T
        assert alarm.ring_if_due()
        assert alarm.late_max == 3 * T - 1
        assert not alarm.ring_if_due()  # it rings once
        await asyncio.sleep(0.01)
        assert len(rang) == 1

    asyncio.run(body())


def test_an_aggregator_whose_clock_stops_ends(tmp_path: Path) -> None:
    with loopback(tmp_path) as network, sync.join(network.url, name="a"):
        assert network.aggregator is not None
        stand_still(network.aggregator.link)

        async def ended() -> None:
            await asyncio.wait((network.tasks["aggregator"],), timeout=PATIENCE_SECONDS)

        asyncio.run_coroutine_threadsafe(ended(), network.loop).result(PATIENCE_SECONDS)
        error = network.tasks["aggregator"].exception()
        assert isinstance(first_error(cast(BaseException, error)), ClockStopped)


def test_a_process_whose_clock_stops_ends_and_others_go_on(tmp_path: Path) -> None:
    with loopback(tmp_path) as network, contextlib.ExitStack() as stack:
        one, other, third = (
            stack.enter_context(sync.join(network.url, name=name)) for name in "abc"
        )
        other.wait_for("a", "b", "c")
        stand_still(link_of(one))
        with pytest.raises(Fenced, match="clock of this host has stood still"):
            one.reliable.next(PATIENCE_SECONDS)
        other.send_reliable([("c", b"on")])
        events = [third.reliable.next(PATIENCE_SECONDS) for _ in range(2)]
        assert {type(event).__name__ for event in events} == {"Message", "ProcessFailed"}


def test_a_process_whose_clock_stops_as_it_joins_does_not_wait_to_be_heard(
    tmp_path: Path,
) -> None:
    """Its wish to join is lost, and by its clock the time to repeat it never comes.

    No switch knows it, so none fences it: its own host must find that out.
    """
    shown: list[int] = []

    class Unheard(UdpSocket):
        """Stops the clock of its host as it is to send something, and loses that."""

        def send(self, packets: Iterable[Sending]) -> None:
            if [*packets] and not shown:
                shown.append(monotonic_ns())

    def raw_clock() -> int:
        return shown[0] if shown else monotonic_ns()

    async def join(url: str) -> None:
        async with Member(url, "a", None, PATIENCE_SECONDS, Unheard, raw_clock):
            raise AssertionError("nobody has heard it")

    with loopback(tmp_path) as network:
        with pytest.raises(Fenced, match="clock of this host has stood still"):
            asyncio.run(join(network.url))
        assert shown
