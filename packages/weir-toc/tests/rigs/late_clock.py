"""A process whose clock is behind, and follows nobody."""

from __future__ import annotations

from typing import cast

from weir_toc import sync
from weir_toc.clock import Clock
from weir_toc.hosts.control_link import ControlLink


class LateClock:
    """Shows the time of another clock less `behind`, and never less than before."""

    def __init__(self, clock: Clock) -> None:
        self.behind = 0
        self._clock = clock
        self._time = 0

    def read(self, raw: int) -> int:
        self._time = max(self._time, self._clock.read(raw) - self.behind)
        return self._time

    def sample(self, sent: int, reached: int, answered: int, received: int) -> None:
        """Believe nothing."""

    def error_bound(self, raw: int) -> int | None:
        return self._clock.error_bound(raw)


def late_clock(member: sync.Member) -> LateClock:
    """Put a clock that can be held back in place of a member's."""
    link = link_of(member)
    made = LateClock(link.clock)
    link.clock = cast(Clock, made)
    return made


def link_of(member: sync.Member) -> ControlLink:
    """Return the connection of a member to the controller."""
    return member._running.process.link


def stand_still(link: ControlLink) -> None:
    """Stop the raw clock of a node."""
    shown = link._raw_clock()
    link._raw_clock = lambda: shown
