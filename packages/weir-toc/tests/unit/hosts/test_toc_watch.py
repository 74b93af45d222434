"""What a switch tells the controller of its links: how old each was at most, each ten intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from rigs.one_rack import OneRack, T
from weir_toc.controller.lag import LAG_INTERVALS, READ_INTERVALS, LinkReading
from weir_toc.controller.promises import Wait
from weir_toc.hosts.alarm import READINGS_MAX, Alarm
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.udp import UdpSocket


class Link:
    """The connection to a controller that is told."""

    def __init__(self, rack: OneRack) -> None:
        self.rack = rack
        self.said: list[dict[str, Any]] = []

    def now(self) -> int:
        return self.rack.now

    def say(self, frame: dict[str, Any]) -> None:
        self.said.append(frame)


@dataclass
class Socket:
    """The socket of the switch, as far as it is asked."""

    kernel_drops: int = 0


class Watched:
    """A rack of three processes whose switch looks at its links after each interval."""

    def __init__(self) -> None:
        self.rack = OneRack(3)
        self.link = Link(self.rack)
        self.alarm = Alarm(cast(ControlLink, self.link), lambda: None)
        self.socket = Socket()
        self.reads = 0
        read_links = self.rack.switch.read_links

        def counted(now: int) -> list[LinkReading]:
            self.reads += 1
            return read_links(now)

        self.rack.switch.read_links = counted  # type: ignore[method-assign]
        self.rack.run(3)
        self.until_said()  # at once
        self.until_said()
        self.reads = 0
        self.link.said.clear()

    def run(self, intervals: int) -> None:
        for _ in range(intervals):
            self.rack.run(1)
            socket = cast(UdpSocket, self.socket)
            self.alarm.watch(self.rack.switch, self.rack.now, socket)

    def until_said(self) -> dict[int, int]:
        """Go on until the controller is told; return the ages by neighbour."""
        before = len(self.link.said)
        while len(self.link.said) == before:
            self.run(1)
        return {neighbour: age for neighbour, age, *_ in self.link.said[-1]["links"]}

    def lose(self, process: int, intervals: int) -> None:
        """Lose all that a process sends for a while."""
        self.rack.loses = lambda source, _: source == process
        self.run(intervals)
        self.rack.loses = lambda _source, _data: False


def test_links_are_told_of_each_ten_intervals_and_not_looked_at_in_between() -> None:
    watched = Watched()
    for _ in range(5):
        at = watched.rack.now
        ages = watched.until_said()
        assert watched.rack.now - at == READ_INTERVALS * T
        assert max(ages.values()) < 3 * T
    assert watched.reads == len(watched.link.said)


@pytest.mark.parametrize("lost", [LAG_INTERVALS + 3, LAG_INTERVALS - 1])
def test_an_input_that_was_old_between_two_readings_is_told_so(lost: int) -> None:
    watched = Watched()
    watched.lose(2, lost)
    assert watched.link.said == []
    ages = watched.until_said()
    assert (ages[2] > LAG_INTERVALS * T) == (lost > LAG_INTERVALS)
    assert max(ages[1], ages[3]) < 3 * T
    assert max(watched.until_said().values()) < 3 * T  # that was before


def test_nodes_read_in_different_intervals() -> None:
    begun = set()
    for _ in range(60):
        watched = Watched()
        begun.add(watched.rack.now // T % READ_INTERVALS)
    assert len(begun) > READ_INTERVALS / 2


def test_a_reading_has_a_limit_and_the_oldest_come_first() -> None:
    watched = Watched()
    many = [LinkReading(number, number) for number in range(READINGS_MAX + 5)]
    watched.rack.switch.read_links = lambda _: many  # type: ignore[method-assign]
    watched.until_said()
    (said, *_) = watched.link.said
    assert len(said["links"]) == READINGS_MAX
    assert [*said["links"][0]] == [READINGS_MAX + 4, READINGS_MAX + 4, 0, 0]


def test_a_reading_tells_what_the_kernel_has_dropped() -> None:
    watched = Watched()
    for drops in (0, 3, 7):
        watched.socket.kernel_drops = drops
        watched.until_said()
        assert watched.link.said[-1]["drops"] == drops


def test_the_age_of_a_promise_is_the_least_since_the_reading_before() -> None:
    watched = Watched()
    alarm, now = watched.alarm, watched.rack.now
    for age in (3 * T, T, 8 * T):
        alarm.note_promise(now, now - age)
    alarm.read([], 0, 5, (Wait.ACK, 2))
    assert watched.link.said[-1]["promise"] == [now - 8 * T, T, 1, 2]
    alarm.note_promise(now, now - 9 * T)
    alarm.read([], 0, 5, (Wait.NOTHING, 0))
    assert watched.link.said[-1]["promise"] == [now - 9 * T, 9 * T, 0, 0]
    alarm.note_promise(now, now + T)  # it has given out later stamps
    alarm.read([], 0, 5, (Wait.NOTHING, 0))
    assert watched.link.said[-1]["promise"] == [now + T, 0, 0, 0]


def test_a_switch_promises_nothing() -> None:
    watched = Watched()
    watched.until_said()
    assert "promise" not in watched.link.said[-1]
