"""What all members of the controller agree on: the network, names, addresses, failures.

`apply` is deterministic, and a state that is dumped and loaded goes on in the same way. Every
command is kept until the node that it is for is known to have obeyed it, so a new leader sends it
again.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Fail,
    NodeSilent,
    ProcessJoined,
    Recalled,
    Remove,
    SetRoutes,
)
from weir_toc.controller.failures import FailureState, Port
from weir_toc.controller.records import (
    Founded,
    Lapsed,
    Record,
    Registered,
    Removed,
    Report,
    Reported,
    Returned,
    SwitchStarted,
)
from weir_toc.errors import ControlError
from weir_toc.places import place_named
from weir_toc.topology import PROCESSES_PER_RACK_MAX, Topology, process_id, rack_of

#: So many processes may have a name at once.
PROCESSES_MAX = 4_096


class Named(NamedTuple):
    """The process that has a name, and the request that gave it."""

    process: int
    nonce: int


class SwitchAt(NamedTuple):
    """Where the aggregator of a switch takes packets."""

    incarnation: int
    host: str
    port: int


class ControllerState:
    """The state machine of the controller's log."""

    def __init__(self) -> None:
        self.network: Founded | None = None
        #: None until the network is founded.
        self.failures: FailureState | None = None
        #: Processes that go on, or that have registered and not joined yet.
        self.names: dict[str, Named] = {}
        #: Those that have not joined yet.
        self.unjoined: set[int] = set()
        self.switches: dict[int, SwitchAt] = {}
        #: Registers to remove; their switches have not said that they did.
        self.removals: dict[Port, Remove] = {}
        #: The last serial given out in each rack.
        self._serials: dict[int, int] = {}
        #: Of each node the incarnation and the number of its last report that was applied.
        self._reported: dict[int, tuple[int, int]] = {}

    # -- records -------------------------------------------------------------------------------

    def apply(self, record: Record) -> list[Command]:
        """Take one record; return what to command because of it."""
        if isinstance(record, Founded):
            if self.network is None:
                self.network = record
                topology = Topology.tree(record.racks, record.spines, record.cores)
                self.failures = FailureState(topology)
            return []
        failures = self.failures
        if failures is None:
            return []  # the first leader founds the network before it takes anything else
        if isinstance(record, Registered):
            self._register(record, failures)
            return []
        if isinstance(record, SwitchStarted):
            return self._switch_started(record, failures)
        if isinstance(record, Reported):
            return self._report(record, failures)
        if isinstance(record, NodeSilent):
            return self._node_silent(record.node, failures)
        if isinstance(record, Lapsed):
            if record.process in self.unjoined:
                self.unjoined.discard(record.process)
                del self.names[self.name_of(record.process)]
            return []
        assert isinstance(record, Decide)
        return self._kept(failures, failures.apply(record))

    def refusal(self, name: str, rack: int) -> str:
        """Why a process would get no id under this name; empty if it would."""
        if self.failures is None or self.network is None:
            return "the network is not founded yet: try again"
        if rack not in {one for switch in self.switches for one in self.racks_at(switch)}:
            return f"no aggregator runs for rack {rack}: start one, then join"
        if self.failures.is_cut_off(rack):
            return f"rack {rack} is cut off: mend its cables or switches, or take another rack"
        held = self.names.get(name)
        if held is not None and held.process in self.failures.processes:
            return f"a process named {name!r} is here already: take another name, or end that one"
        if held is None and len(self.names) >= PROCESSES_MAX:
            return f"{PROCESSES_MAX} processes have joined: more are not possible"
        if self._serials.get(rack, 0) >= PROCESSES_PER_RACK_MAX:
            return f"rack {rack} has given out all of its ids: take another rack"
        most = place_named(self.network.place).processes_max(self.failures.topology, rack)
        if most is not None and self._links(rack, name) >= most:
            return (
                f"{most} processes are linked to the switch of rack {rack}, which has no place for "
                "more with --place xdp: end one, or take another rack"
            )
        return ""

    def _links(self, rack: int, name: str) -> int:
        """Count the processes of a rack but that of a name, and those that its switch still has."""
        linked = {one.process for other, one in self.names.items() if other != name}
        linked |= {neighbour for _, neighbour in self.removals}
        return sum(rack_of(one) == rack for one in linked)

    def emptiest_rack(self) -> int:
        """Return the rack of an aggregator in which fewest processes have a name; 0 if none.

        Racks that are cut off are taken if there are no others.
        """
        racks = sorted(one for switch in self.switches for one in self.racks_at(switch))
        if self.failures is not None:
            cut_off = self.failures.racks_cut_off()
            racks = [one for one in racks if one not in cut_off] or racks
        count = Counter(rack_of(named.process) for named in self.names.values())
        return min(racks, key=lambda rack: (count[rack], rack), default=0)

    def racks_at(self, switch: int) -> frozenset[int]:
        """Return the racks whose processes are linked to a switch: one, or none."""
        assert self.failures is not None
        one = self.failures.topology.switches[switch]
        return frozenset() if one.lower else one.racks

    def name_of(self, process: int) -> str:
        """Return the name of a process, empty if it has none."""
        return next((name for name, one in self.names.items() if one.process == process), "")

    def rack_switch(self, process: int) -> int:
        """Return the switch of the rack in which a process is."""
        assert self.failures is not None
        return self.failures.topology.switch_of_rack(rack_of(process)).id

    def pending(self, node: int) -> list[Command]:
        """Return what a node must be told when it has connected."""
        failures = self.failures
        if failures is None:
            return []
        if node not in failures.topology.switches:
            return [one for one in failures.pending() if isinstance(one, Fail) and one.to == node]
        routes: list[Command] = [SetRoutes(node, failures.current_routes(node))]
        routes += failures.freezes(node)
        return routes + [one for port, one in self.removals.items() if port[0] == node]

    # -- what they do --------------------------------------------------------------------------

    def _register(self, record: Registered, failures: FailureState) -> None:
        held = self.names.get(record.name)
        if self.refusal(record.name, record.rack) or (held and held.nonce == record.nonce):
            return
        serial = self._serials[record.rack] = self._serials.get(record.rack, 0) + 1
        process = process_id(record.rack, serial)
        if held is not None:
            self.unjoined.discard(held.process)
        self.names[record.name] = Named(process, record.nonce)
        self.unjoined.add(process)

    def _switch_started(self, record: SwitchStarted, failures: FailureState) -> list[Command]:
        switch = record.switch
        if switch not in failures.topology.switches:
            return []
        known = self.switches.get(switch)
        if known is not None and known.incarnation != record.incarnation:
            # Its registers are gone: what was behind the former one has failed first.
            if any(rack_of(one) in self.racks_at(switch) for one in failures.processes):
                return self._node_silent(switch, failures)
            if failures.is_undecided or failures.failures:
                return []
        self.switches[switch] = SwitchAt(record.incarnation, record.host, record.port)
        if known is not None and known.incarnation == record.incarnation:
            return []  # its answer was lost
        for port in [port for port in self.removals if port[0] == switch]:
            del self.removals[port]
        return self._kept(failures, failures.switch_started(switch))

    def _report(self, record: Reported, failures: FailureState) -> list[Command]:
        if record.node in failures.failed:
            return []
        incarnation, number = self._reported.get(record.node, (0, 0))
        if record.incarnation == incarnation and record.number <= number:
            return []  # its answer was lost
        if record.node in failures.topology.switches:
            known = self.switches.get(record.node)
            if known is None or known.incarnation != record.incarnation:
                return []  # of one that was replaced
            failures.switch_answers(record.node)
        self._reported[record.node] = record.incarnation, record.number
        report = record.report
        if isinstance(report, Removed):
            port = report.switch, report.neighbour
            if self.removals.get(port) == Remove(*port, report.epoch, report.holds):
                del self.removals[port]
            return []
        if isinstance(report, Returned) or _is_of_another(record.node, report):
            return []  # the answer to the first tells what all records before it decided
        if isinstance(report, ProcessJoined):
            self.unjoined.discard(report.process)
        if isinstance(report, ProcessJoined) and failures.is_cut_off(rack_of(report.process)):
            # Barriers elsewhere do not wait for it: what lies above any stamp that it could fail at
            # may have been delivered.
            failures.exclude(report.process)
            return self._kept(failures, [])
        if isinstance(report, ProcessJoined) and not self.name_of(report.process):
            # Its name went to another one, which asked later: nobody knows this one.
            failures.apply(report)
            return self._kept(failures, failures.apply(NodeSilent(report.process)))
        return self._kept(failures, failures.apply(report))

    def _node_silent(self, node: int, failures: FailureState) -> list[Command]:
        commands = failures.apply(NodeSilent(node))
        if node in failures.topology.switches:
            racks = self.racks_at(node)
            for process in sorted(failures.processes):
                if rack_of(process) in racks:
                    commands += failures.apply(NodeSilent(process))
        return self._kept(failures, commands)

    def _kept(self, failures: FailureState, commands: list[Command]) -> list[Command]:
        """Keep what must be obeyed, and forget the names of those that have failed."""
        for command in commands:
            if isinstance(command, Remove) and command.switch in self.switches:
                self.removals[command.switch, command.neighbour] = command
        gone = [name for name, one in self.names.items() if one.process in failures.failed]
        for name in gone:
            process = self.names.pop(name).process
            self._reported.pop(process, None)
            self.unjoined.discard(process)
        return commands

    # -- snapshots -----------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Return all of this state as bytes, for a snapshot."""
        network, failures = self.network, self.failures
        state: dict[str, Any] = {"version": 1}
        if network is not None and failures is not None:
            state |= {
                "network": [network.racks, network.spines, network.cores, network.interval,
                            network.place, network.drain_rate, network.mark_above],
                "failures": failures.dump(),
                "names": [[name, *one] for name, one in self.names.items()],
                "switches": [[switch, *one] for switch, one in self.switches.items()],
                "removals": [[one.switch, one.neighbour, one.epoch, one.holds]
                             for one in self.removals.values()],
                "serials": [[rack, serial] for rack, serial in self._serials.items()],
                "reported": [[node, *one] for node, one in self._reported.items()],
            }  # fmt: skip
        return json.dumps(state, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> ControllerState:
        """Return the state that was dumped. Raises ControlError for what is none."""
        made = cls()
        try:
            state = json.loads(data)
            if state["version"] != 1:
                raise ControlError(f"a snapshot of version {state['version']}: 1 is known")
            if "network" not in state:
                return made
            made.apply(Founded(*state["network"]))
            assert made.failures is not None
            made.failures.load(state["failures"])
            made.names = {name: Named(*one) for name, *one in state["names"]}
            ids = {one.process for one in made.names.values()}
            made.unjoined = ids - made.failures.processes
            made.switches = {switch: SwitchAt(*one) for switch, *one in state["switches"]}
            made.removals = {(one[0], one[1]): Remove(*one) for one in state["removals"]}
            made._serials = dict(state["serials"])
            made._reported = {node: (first, last) for node, first, last in state["reported"]}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ControlError(f"a snapshot of the controller that is none: {error!r}") from error
        return made


def _is_of_another(node: int, report: Report) -> bool:
    """Whether a node reports what only another process can."""
    if isinstance(report, Completed):
        return report.process != node
    return isinstance(report, Recalled) and report.source != node
