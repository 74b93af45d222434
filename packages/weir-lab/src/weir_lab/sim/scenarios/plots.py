"""Faults that come in an order: each waits for what the one before it has brought about.

Some executions break a rule only if half a dozen things happen one after the other, which random
faults hardly ever do. A plot lets them happen, over and over; what comes otherwise is begun anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import weir_raft as raft
from weir.broker.replica.group import Group
from weir.model.ids import group_of
from weir.testing.simulator.host import Host
from weir.testing.simulator.nemesis import Storm
from weir.testing.simulator.witness import groups_of
from weir.testing.simulator.world import MS, SECOND

_LOOK = 500
_NEXT = (100 * MS, 1 * SECOND)
#: How long anything is waited for: elections take their time.
_PATIENCE = 4 * SECOND

#: What is to come about before a plot goes on.
Step = Callable[[], bool]


class Plot(Storm, ABC):
    """Plays one sequence of faults again and again."""

    #: When it begins: there are messages by then.
    first: ClassVar[int] = 3 * SECOND

    def start(self) -> None:
        """Begin in a while."""
        self._again_at, self._until = self.first, 0
        self._play: Iterator[Step] = iter(())
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
            self._play = self._steps(group_of(1, self._world.dice.randrange(2)))
        elif not self._waits_for():
            if now < self._until:
                return
            self._play = iter(())  # it came otherwise
        self._waits_for, self._until = next(self._play, None), now + _PATIENCE
        if self._waits_for is None:
            self._mend()
            self._again_at = now + self._world.between(*_NEXT)

    @abstractmethod
    def _steps(self, group: int) -> Iterator[Step]:
        """Break something of a group, say what is waited for, and go on when it is there."""

    def _mend(self) -> None:
        """All is over: let every node go on."""
        self._brokers.net.heal()
        for host in self._brokers.all:
            host.start()

    def _silence(self, host: Host) -> None:
        """Let no other node hear one, which goes on to hear them."""
        self.faults += 1
        for other in self._brokers.hosts:
            if other != host.node:
                self._brokers.net.close(host.node, other)

    def _passed(self, duration: int) -> Step:
        """Wait for nothing but so long."""
        until = self._world.now + duration
        return lambda: self._world.now >= until

    # -- what is seen --------------------------------------------------------------------------

    @staticmethod
    def _groups(host: Host, group: int) -> list[Group]:
        found = (one for process in host.running for one in groups_of(process))
        return [one for one in found if one.id == group and one.damage is None]

    def _nodes(self, host: Host, group: int) -> list[raft.Node]:
        return [one.node for one in self._groups(host, group)]

    def _leader(self, group: int, since: int, among: list[Host]) -> Host | None:
        """Return who of some leads, in a term above `since`."""
        for host in among:
            for node in self._nodes(host, group):
                if node.role is raft.Role.LEADER and node.term > since:
                    return host
        return None

    def _last(self, host: Host, group: int) -> int:
        return max((node.log.last_index for node in self._nodes(host, group)), default=0)

    def _durable(self, host: Host, group: int) -> int:
        return max((node.log.durable for node in self._nodes(host, group)), default=0)

    def _term(self, host: Host, group: int, index: int) -> int:
        """Return the term of an entry; 0 where there is none."""
        for node in self._nodes(host, group):
            if node.log.first_index <= index <= node.log.last_index:
                return node.log.term(index)
        return 0
