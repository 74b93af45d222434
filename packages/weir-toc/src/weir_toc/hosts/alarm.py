"""The timer of a host: it rings at a deadline of synchronised time, and knows how late it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic

from weir_toc.controller.codec import promise_to
from weir_toc.controller.lag import LAG_INTERVALS, READ_INTERVALS, LinkReading
from weir_toc.controller.promises import Promise, Wait
from weir_toc.errors import ClockStopped
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.udp import UdpSocket
from weir_toc.node import SILENT_INTERVALS, SwitchNode

#: So many links are told of, the oldest barriers first: a frame has a limit.
READINGS_MAX = 1_000
#: Longer than anything was.
_NEVER = (1 << 63) - 1
_age_of = attrgetter("age")


class Alarm:
    """One timer, which rings once for each time that it is set."""

    def __init__(
        self, link: ControlLink, ring: Callable[[], None], timer: Callable[[], float] = monotonic
    ) -> None:
        """Call `ring` at deadlines of the clock of `link`; `timer` tells for how long, in s."""
        self._link = link
        self._timer = timer
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0
        #: What the clock and the timer showed when the clock was last seen to go on.
        self._went_on: tuple[int, float] | None = None
        #: How late it has rung at most, in nanoseconds: as long this process did not run.
        self.late_max = 0
        #: The same since the last reading, and when that was.
        self._late = self._read_at = 0
        #: Nodes do not all read in the same interval.
        self._phase = random.randrange(READ_INTERVALS)
        #: How old the barriers of inputs were at most since then, by neighbour, and when that was
        #: last looked at.
        self._oldest: dict[int, int] = {}
        self._looked_at = 0
        #: The commit barrier that a process sent, and how old it was at least since the reading.
        self._promise = 0, _NEVER

    def set(self, due: int) -> None:
        """Ring at `due`, in place of any other time."""
        if self._handle is not None:
            if self._due == due:
                return
            self._handle.cancel()
        self._due = due
        wait = max(0.0, (due - self._link.now()) / 1e9)
        self._handle = asyncio.get_running_loop().call_later(wait, self._rings)

    def ring_if_due(self) -> bool:
        """Ring at once if it is time, without another turn of the event loop; return whether."""
        if self._handle is None or self._link.now() < self._due:
            return False
        self._handle.cancel()
        self._rings()
        return True

    def check(self, interval: int) -> None:
        """Compare the clock with the timer: it may slew, and after a leap it goes on.

        Raises ClockStopped if it has shown less than one interval in ten: a switch would look at no
        input and send no beacon, and who hears it alone would wait for ever.
        """
        now, timer = self._link.now(), self._timer()
        if self._went_on is None or not 0 <= now - self._went_on[0] < interval:
            self._went_on = now, timer
        elif (stood := timer - self._went_on[1]) * 1e9 > SILENT_INTERVALS * interval:
            raise ClockStopped(
                f"the clock of this host has stood still for {stood * 1e3:.0f} ms, or nearly so: "
                "repair it, then start this again"
            )

    def is_reading_due(self, interval: int) -> bool:
        """Whether the controller is to be told how the links are: each ten intervals."""
        return self._is_due(self._link.now(), interval)

    def _is_due(self, now: int, interval: int) -> bool:
        phase = self._phase
        return (now // interval + phase) // READ_INTERVALS > (
            self._read_at // interval + phase
        ) // READ_INTERVALS

    def watch(self, node: SwitchNode, now: int, socket: UdpSocket) -> None:
        """Look at the inputs of a switch, in each of its intervals; tell of them when that is due.

        The age of an input goes up and down where its sender pauses, or most packets are lost. What
        counts is how old it was at most, so inputs are looked at in between while any may be old.
        """
        interval = node.config.interval
        is_due = self._is_due(now, interval)
        is_soon = now - self._looked_at < interval // 2
        if not is_due and (is_soon or node.oldest_age(now) <= LAG_INTERVALS * interval):
            return
        self._looked_at = now
        oldest, links = self._oldest, node.read_links(now)
        if oldest:
            links = [
                one._replace(age=age) if (age := oldest.get(one.neighbour, 0)) > one.age else one
                for one in links
            ]
        if is_due:
            self.read(sorted(links, key=_age_of, reverse=True), socket.kernel_drops)
            links = []
        self._oldest = {one.neighbour: one.age for one in links}

    def note_promise(self, now: int, commit: int) -> None:
        """Note the commit barrier that a process sends: in each of its intervals."""
        self._promise = commit, max(0, min(self._promise[1], now - commit))

    def read(
        self, links: Sequence[LinkReading], drops: int, commit: int = 0,
        holds: tuple[Wait, int] | None = None,
    ) -> None:  # fmt: skip
        """Tell the controller how the links are now, and how late this process ran since.

        `drops` is how often its kernel had no room for what came. Only a process has a commit
        barrier that it has used, `commit`, and what its own waits for, `holds`.
        """
        self._read_at = self._link.now()
        rows = links[:READINGS_MAX]
        self._link.say({
            "op": "links", "clock": self._read_at, "late": self._late, "links": rows,
            "commit": commit, "drops": drops,
            **({} if holds is None else {"promise": promise_to(Promise(*self._promise, *holds))}),
        })  # fmt: skip
        self._late = 0
        self._promise = self._promise[0], _NEVER

    def cancel(self) -> None:
        """Ring no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        late = self._link.now() - self._due
        self.late_max, self._late = max(self.late_max, late), max(self._late, late)
        self._ring()
