"""Two leaders who never hear of each other, by turns: Figure 3.7 of the Raft dissertation, played.

    1. A leads, and writes an entry that nobody else gets. It dies.
    2. B leads, and writes the entry that opens its term, at the same place. It dies.
    3. A leads again, and C gets the older entry, but nothing of A's new term. A dies.
    4. B leads again, and C gets what B wrote.

Random faults hardly ever come in this order, and what is committed in 3 by mistake is lost in 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir import raft
from weir.model.ids import group_of
from weir.sim.host import Host
from weir.sim.storm import Storm
from weir.sim.witness import groups_of
from weir.sim.world import MS, SECOND

_LOOK = 500
_FIRST = 3 * SECOND
_NEXT = (100 * MS, 1 * SECOND)
#: Slow enough for what was sent to be stopped on its way.
_SLOW = 20
#: How long anything is waited for: elections take their time.
_PATIENCE = 4 * SECOND
#: How long a leader has to hear an answer.
_HEARD = 200 * MS

#: What is to come about before a duel goes on.
Step = Callable[[], bool]


class Duel(Storm):
    """Lets two of three nodes lead in turn, over and over."""

    def start(self) -> None:
        """Begin when there are messages."""
        self._again_at, self._until = _FIRST, 0
        self._duel: Iterator[Step] = iter(())
        self._waits_for: Step | None = None
        self._look()

    def _look(self) -> None:
        if self._stopped:
            return
        self._world.after(_LOOK, self._look)
        now = self._world.now
        if self._waits_for is None:
            if now < self._again_at:
                return
            self._duel = self._fight(group_of(1, self._world.dice.randrange(2)))
        elif not self._waits_for():
            if now < self._until:
                return
            self._duel = iter(())  # it came otherwise
        self._waits_for, self._until = next(self._duel, None), now + _PATIENCE
        if self._waits_for is None:
            self._brokers.net.heal()
            for host in self._brokers.all:
                host.start()
            self._again_at = now + self._world.between(*_NEXT)

    def _fight(self, group: int) -> Iterator[Step]:
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
        heard = self._world.now + _HEARD
        yield lambda: self._world.now >= heard
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

    def _silence(self, host: Host) -> None:
        """Let no other node hear one, which goes on to hear them."""
        self.faults += 1
        for other in self._brokers.hosts:
            if other != host.node:
                self._brokers.net.close(host.node, other)

    # -- what is seen --------------------------------------------------------------------------

    @staticmethod
    def _nodes(host: Host, group: int) -> list[raft.Node]:
        found = (one for process in host.running for one in groups_of(process))
        return [one.node for one in found if one.id == group and one.damage is None]

    def _leader(self, group: int, since: int, among: list[Host]) -> Host | None:
        """Return who of some leads, in a term above `since`."""
        for host in among:
            for node in self._nodes(host, group):
                if node.role is raft.Role.LEADER and node.term > since:
                    return host
        return None

    def _last(self, host: Host, group: int) -> int:
        return max((node.last_index for node in self._nodes(host, group)), default=0)

    def _durable(self, host: Host, group: int) -> int:
        return max((node.durable_index for node in self._nodes(host, group)), default=0)

    def _term(self, host: Host, group: int, index: int) -> int:
        """Return the term of an entry; 0 where there is none."""
        for node in self._nodes(host, group):
            if node.first_index <= index <= node.last_index:
                return node.term_at(index)
        return 0
