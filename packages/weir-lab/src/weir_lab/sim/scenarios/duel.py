"""Two leaders who never hear of each other, by turns: Figure 3.7 of the Raft dissertation, played.

    1. A leads, and writes an entry that nobody else gets. It dies.
    2. B leads, and writes the entry that opens its term, at the same place. It dies.
    3. A leads again, and C gets the older entry, but nothing of A's new term. A dies.
    4. B leads again, and C gets what B wrote.

Random faults hardly ever come in this order, and what is committed in 3 by mistake is lost in 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from weir.testing.simulator.world import MS
from weir_lab.sim.scenarios.plots import Plot, Step

#: Slow enough for what was sent to be stopped on its way.
_SLOW = 20
#: How long a leader has to hear an answer.
_HEARD = 200 * MS


class Duel(Plot):
    """Lets two of three nodes lead in turn, over and over."""

    def _steps(self, group: int) -> Iterator[Step]:
        hosts = self._brokers.all
        a = self._leader(group, 0, hosts)
        if a is None or not all(host.up for host in hosts):
            return
        rest = [host for host in hosts if host is not a]
        self._let_speak()
        self._silence(a)
        yield lambda: self._durable(a, group) > max(self._last(host, group) for host in rest)
        place = 1 + max(self._last(host, group) for host in rest)
        older = self._term(a, group, place)
        a.die(power=False)
        self._let_speak()
        yield lambda: self._leader(group, older, rest) is not None
        b, c = rest if self._leader(group, older, rest) is rest[0] else reversed(rest)
        self._silence(b)
        yield lambda: self._durable(b, group) >= place
        newer = self._term(b, group, place)
        b.die(power=False)
        self._let_speak()
        a.start()
        yield lambda: self._leader(group, newer, [a]) is a
        yield lambda: self._term(c, group, place) == older
        self._silence(a)
        yield self._passed(_HEARD)
        a.die(power=False)
        self._let_speak()
        b.start()
        yield lambda: self._term(c, group, place) == newer
        self._world.note("fought", group, place, older, newer)

    def _let_speak(self) -> None:
        """Open every way between nodes, and make it slow."""
        self.faults += 1
        for source in self._brokers.hosts:
            for target in self._brokers.hosts:
                way = self._brokers.net.way(source, target)
                way.slow = _SLOW
                way.reopen()
