"""Plots against barriers: executions that broke earlier wordings of the rule (DESIGN §5, ADR 0021).

Each needs one part of the rule to do no harm, and does harm without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import weir_raft as raft
from weir.model.ids import REGISTRY_GROUP, group_of, node_of
from weir.testing.simulator.host import Host
from weir.testing.simulator.world import MS
from weir_lab.sim.scenarios.plots import Plot, Step

HOUR_MS = 3_600_000
#: Two clocks that differ by so much are both gone by.
_APART_MS = 950
#: So slow that nothing of what is written now is on a disk soon.
_STUCK = 1_000
#: How long readers have to be told a barrier.
_TOLD = 120 * MS
#: How long producers have to publish behind it.
_GOES_ON = 600 * MS
_FOUNDED = (group_of(1, 0), group_of(1, 1))


class OrderPlot(Plot):
    """Sets clocks, which are right again in the end."""

    def _mend(self) -> None:
        super()._mend()
        self._set_clocks(self._brokers.all, 0)
        for host in self._brokers.all:
            host.hardware.faults.slow = 1

    def _set_clocks(self, hosts: Iterable[Host], ahead_ms: int) -> None:
        self.faults += 1
        for host in hosts:
            host.hardware.time.skew_ms = ahead_ms


class Unsettled(OrderPlot):
    """A promise before an entry of the own term is committed (counterexample 1).

    A writes an entry that nobody else gets, and dies. C leads, is promised a stamp, and dies before
    the entry that opens its term is on B's disk. A leads again, and commits what it had written.
    """

    def _steps(self, group: int) -> Iterator[Step]:
        hosts = self._brokers.all
        a = self._leader(group, 0, hosts)
        if a is None or not all(host.up for host in hosts):
            return
        rest = [host for host in hosts if host is not a]
        self._silence(a)
        yield lambda: self._durable(a, group) > max(self._last(host, group) for host in rest)
        place = self._durable(a, group)
        term = self._term(a, group, place)
        a.die(power=False)
        self._brokers.net.heal()
        yield lambda: self._leader(group, term, rest) is not None
        c = self._leader(group, term, rest)
        assert c is not None  # it was waited for
        (b,) = (host for host in rest if host is not c)
        b.hardware.faults.slow = _STUCK
        yield self._passed(_TOLD)
        c.die(power=False)
        b.die(power=True)
        b.hardware.faults.slow = 1
        a.start()
        b.start()
        yield lambda: self._leader(group, term + 1, [a, b]) is not None
        yield self._passed(_GOES_ON)
        self._world.note("unsettled", group, place, term)


class Forgetful(OrderPlot):
    """A promise that is forgotten when a voter starts again (counterexample 2).

    While nobody publishes all promise what the clocks say. Then the power fails, and with it the
    clocks: they say what they said an hour ago.
    """

    def _steps(self, group: int) -> Iterator[Step]:
        hosts = self._brokers.all
        a = self._leader(group, 0, hosts)
        if a is None or not all(host.up for host in hosts):
            return
        yield self._passed(self._world.between(10 * MS, _TOLD))
        for host in hosts:
            host.die(power=True)
        self._set_clocks(hosts, -HOUR_MS)
        for host in hosts:
            if host is not a or self._world.chance(0.5):
                host.start()
        yield lambda: self._leader(group, 0, hosts) is not None
        yield self._passed(_GOES_ON)
        self._world.note("forgotten", group)


class Eviction(OrderPlot):
    """Those who promised are voted out, and the others know nothing of it (counterexample 3).

    A leads, and its clock and B's are ahead; C and D, whose clocks are behind, cannot promise as
    much. D comes in the place of B. As soon as that is committed, A dies.
    """

    def _steps(self, group: int) -> Iterator[Step]:
        hosts = self._brokers.all
        yield lambda: self._changing(group) is not None
        found = self._changing(group)
        assert found is not None  # it was waited for
        a, b = found
        self._set_clocks((a, b), _APART_MS)
        yield lambda: b.node not in self._voters(a, group)
        a.die(power=False)
        rest = [host for host in hosts if host not in (a, b)]
        yield lambda: self._leader(group, 0, rest) is not None
        yield self._passed(_GOES_ON)
        self._world.note("evicted", group, a.node, b.node)

    def _changing(self, group: int) -> tuple[Host, Host] | None:
        """Return the leader of a group that somebody learns, and who is to go for that."""
        a = self._leader(group, 0, self._brokers.all)
        if a is None or not self._configuration(a, group).learners:
            return None
        for process in a.running:
            wanted = process.shard.topics.catalog.nodes.voters(group) if process.shard else ()
            gone = [v for v in self._configuration(a, group).voters if v not in wanted]
            if wanted and gone and node_of(gone[0]) != a.node:
                return a, self._brokers.hosts[node_of(gone[0])]
        return None

    def _configuration(self, host: Host, group: int) -> raft.Configuration:
        return self._nodes(host, group)[0].configuration

    def _voters(self, host: Host, group: int) -> list[int]:
        """Return the nodes that vote by what is committed; all while that is not known."""
        found = [one.covered() for one in self._groups(host, group)]
        now = found[0].configuration if found and found[0] else None
        if now is None:
            return list(self._brokers.hosts)
        return [node_of(voter) for voter in (*now.voters, *now.outgoing)]


class Latecomer(OrderPlot):
    """A partition that joins stamps below an earlier barrier of the order (counterexample 6).

    The topic grows. The leader of partition 0 does not hear of that, and lets readers continue,
    while the new partition is led by a node whose clock is behind.
    """

    first: ClassVar[int] = 100 * MS

    def _steps(self, group: int) -> Iterator[Step]:
        hosts, joined = self._brokers.all, group_of(1, 2)
        yield lambda: all(self._leader(one, 0, hosts) for one in (REGISTRY_GROUP, *_FOUNDED))
        a, registry = (self._leader(one, 0, hosts) for one in (_FOUNDED[0], REGISTRY_GROUP))
        if a is registry or self._leader(joined, 0, hosts):
            return
        assert a is not None
        assert registry is not None
        self._brokers.net.close(a.node, registry.node)
        self._brokers.net.close(registry.node, a.node)
        yield lambda: self._leader(joined, 0, hosts) is not None
        late = self._leader(joined, 0, hosts)
        self._set_clocks((host for host in hosts if host is not late), _APART_MS)
        yield self._passed(2 * _GOES_ON)
        self._brokers.net.heal()
        yield self._passed(_GOES_ON)
        self._world.note("joined", a.node)
