"""When the leader decides, and whom it no longer waits for. It is given the time.

A leader collects reports for a pause before it decides, so that all neighbours of one failure have
reported it. A node that is commanded, or is known to the controller, and does not answer in time,
has failed itself: else barriers would stand still for ever.
"""

from __future__ import annotations

from weir_toc.controller.away import Away
from weir_toc.controller.entries import Command, Decide, Freeze, NodeSilent
from weir_toc.controller.failures import Port
from weir_toc.controller.lag import Lagging
from weir_toc.controller.paths import CutPaths
from weir_toc.controller.promises import Alarms, Held
from weir_toc.controller.records import Lapsed, Record
from weir_toc.controller.state import ControllerState
from weir_toc.topology import Topology, rack_of

#: How long reports are collected, and how long an answer is waited for, in intervals and at least.
COLLECT_INTERVALS, COLLECT_NS_MIN = 4, 20_000_000
ANSWER_INTERVALS, ANSWER_NS_MIN = 60, 1_500_000_000


class Pacing:
    """Timers of one leadership. Times are nanoseconds of any clock that does not go back."""

    def __init__(self, interval: int, alarms: Alarms | None = None) -> None:
        self._collect = max(COLLECT_NS_MIN, COLLECT_INTERVALS * interval)
        self._answer = max(ANSWER_NS_MIN, ANSWER_INTERVALS * interval)
        self._decide_at = 0
        #: When the register of each port must be frozen, and each failure be carried out.
        self._freezes: dict[Port, int] = {}
        self._failures: dict[int, int] = {}
        self._interval = interval
        #: The pairs for which this leader forwards.
        self.paths = CutPaths(self._answer)
        #: When `due` was first called; 0 before.
        self.began = 0
        self._alarms = alarms
        #: Since when each switch has not been connected to this leader.
        self._missing: dict[int, int] = {}
        #: And since when each process that has not joined yet.
        self._unjoined: dict[int, int] = {}
        #: Who is not connected, and what the others tell of their commit barriers.
        self.away = Away(self._answer)

    def alarms(self, topology: Topology) -> Alarms:
        """Return the alarms of this leadership, which the readings of nodes are given."""
        if self._alarms is None:
            self._alarms = Alarms(topology, self._interval)
        return self._alarms

    def expire(self, now: int) -> list[Lagging | Held]:
        """Return the alarms that are over by `now`."""
        return self._alarms.expire(now) if self._alarms is not None else []

    def forget(self) -> list[Lagging | Held]:
        """Forget what nodes told; return the alarms that are over so."""
        return self._alarms.forget() if self._alarms is not None else []

    def renewed(self) -> Pacing:
        """Return timers that begin now, in the same leadership: its alarms are counted on."""
        return Pacing(self._interval, self._alarms)

    def commanded(self, now: int, command: Command) -> None:
        """Note a command that is sent."""
        if isinstance(command, Freeze):
            port = command.switch, command.neighbour
            self._freezes.setdefault(port, now + self._answer)

    def due(self, now: int, state: ControllerState, connected: frozenset[int]) -> list[Record]:
        """Return the records to propose by now. `connected` are the nodes with a connection."""
        failures = state.failures
        self.began = self.began or now
        if failures is None:
            return []
        found: list[Record] = []
        if not failures.is_undecided:
            self._freezes.clear()  # no decision waits for them any more
        for port, due in [*self._freezes.items()]:
            if not failures.awaits(Freeze(*port)):
                del self._freezes[port]
            elif due <= now:
                del self._freezes[port]
                found.append(NodeSilent(port[0]))
        for number in [one for one in self._failures if one not in failures.failures]:
            del self._failures[number]
        for number, failure in failures.failures.items():
            if self._failures.setdefault(number, now + self._answer) <= now:
                self._failures[number] = now + self._answer
                found += [NodeSilent(process) for process in sorted(failure.waiting)]
        unreachable = self.paths.unreachable(now, failures.processes)
        found += [NodeSilent(process) for process in sorted(unreachable)]
        found += self._silent_switches(now, state, connected)
        found += self._lapsed(now, state, connected)
        found += [NodeSilent(process) for process in self.away.silent(now, failures, connected)]
        if not failures.is_undecided:
            self._decide_at = 0
        elif not self._decide_at:
            self._decide_at = now + self._collect
        elif self._decide_at <= now:
            self._decide_at = now + self._answer  # again, if registers must be frozen first
            found.append(Decide())
        return found

    def reported(self, now: int) -> None:
        """A register was frozen: what waits for it is decided on soon."""
        if self._decide_at:
            self._decide_at = min(self._decide_at, now + self._collect)

    def _silent_switches(
        self, now: int, state: ControllerState, connected: frozenset[int]
    ) -> list[Record]:
        """Switches that have processes and have not been connected for the time of an answer."""
        assert state.failures is not None
        racks = {rack_of(process) for process in state.failures.processes}
        found: list[Record] = []
        for switch in state.switches:
            if switch in connected or not racks & state.racks_at(switch):
                self._missing.pop(switch, None)
            elif self._missing.setdefault(switch, now + self._answer) <= now:
                del self._missing[switch]
                found.append(NodeSilent(switch))
        return found

    def _lapsed(
        self, now: int, state: ControllerState, connected: frozenset[int]
    ) -> list[Record]:  # fmt: skip
        """Names whose processes have not joined, and have not been connected for as long."""
        away = state.unjoined - connected
        for process in [one for one in self._unjoined if one not in away]:
            del self._unjoined[process]
        due = [one for one in away if self._unjoined.setdefault(one, now + self._answer) <= now]
        for process in due:
            self._unjoined[process] = now + self._answer
        return [Lapsed(process) for process in sorted(due)]
