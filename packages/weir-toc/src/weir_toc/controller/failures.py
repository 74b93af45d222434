"""Which processes have failed, at which stamp, and when barriers may move again.

1. *Detect.* A switch fences an input that is silent, freezes its commit register, and reports it.
2. *Determine.* After a pause, in which other neighbours report the same failure, `Decide` looks at
   the cables that are left. The racks that reach each other and hold most processes go on, until
   other cables are dead. All other processes have failed, and so have those whose own link is
   silent. Around what goes on, a cut of frozen registers is made: an input from outside that is
   not silent is frozen on command. The failure stamp of a process is the highest register in that
   cut which it stands behind. All that it has committed through there was acknowledged by all
   receivers, and none of these has delivered more.
3. *Broadcast.* Each process that goes on is told.
4. *Discard*, 5. *recall* and 6. *callback* are those of the endpoint, which answers at the end.
7. *Resume.* When all have answered, the frozen registers are removed, and barriers move.

A cable that fails where all processes still reach each other is a failure of no process: it
is removed at once, unless they do so by a cable alone that came back and is behind what its switch
has promised without it. Then its registers wait for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Decisions,
    Entry,
    Fail,
    Freeze,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Recalled,
    Remove,
    SetRoutes,
)
from weir_toc.controller.sides import heaviest_side
from weir_toc.topology import Link, Routes, Topology, rack_of

#: Of so many processes that failed last it is kept what they must not deliver, if they come back,
#: and so many ranges of stamps of each. The memory that a receiver has unless a program says more
#: has no room for as many messages, and the answer to one that comes back fits in a frame.
RETURNING_MAX, RANGES_KEPT = 64, 10_000
#: Of so many it is kept that their racks were cut off.
CUT_OFF_KEPT = 4_096
#: One direction of a link: the switch that listens, and its neighbour.
Port = tuple[int, int]


@dataclass(slots=True)
class Failure:
    """One decision, and who has not carried it out yet."""

    number: int
    processes: tuple[tuple[int, int], ...]
    inputs: tuple[InputSilent, ...]
    waiting: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Returning:
    """What processes that have failed are told, if they come back."""

    #: What was recalled and could not be told to failed receivers: by receiver, the first to fail
    #: first, the sender with the first and last stamps.
    recalled: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    #: The last processes that failed because their racks were cut off.
    cut_off: list[int] = field(default_factory=list)


class FailureState:
    """All that the controller knows; `apply` is deterministic."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        #: The processes that go on.
        self.processes: set[int] = set()
        #: Processes that failed, and their failure stamps. They never come back under these ids.
        self.failed: dict[int, int] = {}
        #: Failures that are not carried out everywhere, by number.
        self.failures: dict[int, Failure] = {}
        self._numbers = 0
        #: What processes that have failed are told, if they come back.
        self._returning = _Returning()
        #: Inputs that are fenced, by port, and which of them were decided on.
        self._silent: dict[Port, InputSilent] = {}
        self._decided: set[Port] = set()
        #: Those of them whose registers were commanded to be removed, and whether they are held;
        #: and inputs that came back after that, and are behind.
        self._removed: dict[Port, bool] = {}
        self._behind: set[Port] = set()
        #: Inputs that were commanded to be frozen for a decision that waits for them.
        self._freezing: set[Port] = set()
        #: Processes that do not answer, and are not frozen yet.
        self._unanswering: set[int] = set()
        #: Switches that do not answer. One is heard of again by the links that join it.
        self._dead_switches: set[int] = set()
        #: The racks that went on at the last decision, as long as the same cables are dead.
        self._side: frozenset[int] = frozenset()
        self._side_without: frozenset[Link] = frozenset()

    @property
    def is_undecided(self) -> bool:
        """Whether `Decide` is due after a pause: something is reported that is not decided on."""
        return bool(self._silent.keys() - self._decided or self._unanswering)

    def has(self, node: int) -> bool:
        """Whether this is a switch of the network, or a process that goes on."""
        return node in self.topology.switches or node in self.processes

    def is_cut_off(self, rack: int) -> bool:
        """Whether processes of a rack do not reach those that go on, or are not reached by them."""
        return rack in self.racks_cut_off()

    def racks_cut_off(self) -> frozenset[int]:
        """Return the racks that are cut off, none if no cable is dead."""
        if not self.dead_links():  # most of the time
            return frozenset()
        return self.topology.racks - self._racks_that_go_on()

    def exclude(self, process: int) -> None:
        """Let a process fail of which no other one has heard: nobody is told."""
        self.failed[process] = 0
        self._note_cut_off([process])

    def was_cut_off(self, process: int) -> bool:
        """Whether a process has failed because its rack was cut off, as far as that is kept.

        Such a rack may hear barriers still. Its processes may have delivered what nobody else does:
        they stand on the other side of the cut that the failure stamp is made of.
        """
        return process in self._returning.cut_off

    def _note_cut_off(self, processes: Iterable[int]) -> None:
        self._returning.cut_off = [*self._returning.cut_off, *processes][-CUT_OFF_KEPT:]

    def apply(self, entry: Entry) -> list[Command]:
        """Take one entry; return what to command because of it."""
        if isinstance(entry, ProcessJoined):
            if entry.process not in self.failed:
                self.processes.add(entry.process)
            return []
        if isinstance(entry, InputSilent):
            self._silent.setdefault((entry.switch, entry.neighbour), entry)
            self._forget_side()
            return []
        if isinstance(entry, LinkJoined):
            port = entry.switch, entry.neighbour
            return self._link_joined(port, entry.is_behind) + self._resumed() + self._let_back()
        if isinstance(entry, NodeSilent):
            if entry.node in self.processes:
                self._unanswering.add(entry.node)
            elif entry.node in self.topology.switches:
                self._dead_switches.add(entry.node)
                self._forget_side()
            return []
        if isinstance(entry, Completed):
            failure = self.failures.get(entry.failure)
            if failure is None:
                return []
            failure.waiting.discard(entry.process)
            return self._resumed()
        if isinstance(entry, Recalled):
            self._note_recalled(entry)
            return []
        assert isinstance(entry, Decide)
        return self._decide()

    def _note_recalled(self, entry: Recalled) -> None:
        """Keep what a failed receiver must not deliver, unless it is too much."""
        kept = self._returning.recalled.get(entry.receiver)
        if kept is not None:
            kept += [(entry.source, first, last) for first, last in entry.ranges]
            if len(kept) > RANGES_KEPT:
                del self._returning.recalled[entry.receiver]

    def decisions(self, process: int, senders: Iterable[int]) -> Decisions | None:
        """Return what became of what a failed process holds of some senders; None if that is not
        kept any more, or the process has not failed.

        All is decided that the commit barrier has passed: a sender keeps it below what it recalls
        until that is noted here.
        """
        recalled = self._returning.recalled.get(process)
        if recalled is None:
            return None
        failed = tuple(
            (one, self.failed[one]) for one in sorted({*senders, process}) if one in self.failed
        )
        return Decisions(failed, tuple(recalled))

    def awaits(self, command: Freeze) -> bool:
        """Whether the register of this command is not frozen yet: its switch has not answered."""
        return (command.switch, command.neighbour) not in self._silent

    def pending(self) -> list[Command]:
        """Return the commands that are not known to be carried out: a new leader repeats them."""
        return [
            Fail(to, failure.number, failure.processes)
            for failure in self.failures.values()
            for to in sorted(failure.waiting)
        ]

    def freezes(self, switch: int) -> list[Command]:
        """Return which registers of a switch a decision waits for."""
        due = self._freezing - self._silent.keys() if self.is_undecided else ()
        return [Freeze(*port) for port in sorted(due) if port[0] == switch]

    def switch_started(self, switch: int) -> list[Command]:
        """A switch runs that did not answer before. No process is behind it.

        Its registers are new: what was reported of former ones holds no more.
        """
        self._dead_switches.discard(switch)
        for port in [port for port in self._silent if port[0] == switch]:
            del self._silent[port]
            self._decided.discard(port)
        for port in [port for port in self._removed if port[0] == switch]:
            del self._removed[port]
        self._behind -= {port for port in self._behind if port[0] == switch}
        self._reconsider()
        self._forget_side()
        return self._routes() + self._let_back()

    def switch_answers(self, switch: int) -> None:
        """A switch reports that was given up: it has been cut off from the controller alone."""
        self._dead_switches.discard(switch)
        self._forget_side()

    def current_routes(self, switch: int) -> Routes:
        """Return to which racks each neighbour of a switch leads now."""
        return self.topology.routes(switch, self.dead_links())

    def dump(self) -> dict[str, Any]:
        """Return all of this state but the topology, as values for JSON."""
        return {
            "processes": sorted(self.processes),
            "failed": [list(one) for one in self.failed.items()],
            "failures": [
                [one.number, one.processes, [astuple(port) for port in one.inputs],
                 sorted(one.waiting)]
                for one in self.failures.values()
            ],
            "numbers": self._numbers,
            "silent": [astuple(one) for one in self._silent.values()],
            "decided": sorted(self._decided),
            "removed": sorted(self._removed),
            "behind": sorted(self._behind),
            "held": sorted(self._held()),
            "unanswering": sorted(self._unanswering),
            "dead_switches": sorted(self._dead_switches),
            "freezing": sorted(self._freezing),
            "recalled": [[process, rows] for process, rows in self._returning.recalled.items()],
            "side": sorted(self._side),
            "cut_off": self._returning.cut_off,
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the state that `dump` returned. The topology is the same."""
        self.processes = {*state["processes"]}
        self.failed = dict(state["failed"])
        for number, processes, inputs, waiting in state["failures"]:
            pairs = tuple((process, stamp) for process, stamp in processes)
            silent = tuple(InputSilent(*one) for one in inputs)
            self.failures[number] = Failure(number, pairs, silent, {*waiting})
        self._numbers = state["numbers"]
        self._silent = {(one[0], one[1]): InputSilent(*one) for one in state["silent"]}
        self._decided = {(switch, neighbour) for switch, neighbour in state["decided"]}
        self._unanswering = {*state["unanswering"]}
        self._dead_switches = {*state["dead_switches"]}
        held = [(switch, neighbour) for switch, neighbour in state.get("held", ())]
        removed = ((switch, neighbour) for switch, neighbour in state.get("removed", ()))
        self._removed = {port: port in held for port in removed}
        self._behind = {(switch, neighbour) for switch, neighbour in state.get("behind", ())}
        # Snapshots of earlier releases do not tell: the next decision commands them again.
        self._freezing = {(switch, neighbour) for switch, neighbour in state.get("freezing", ())}
        # Nor do they tell which side went on: it is weighed again.
        self._side = frozenset(state.get("side", ()))
        self._side_without = self.dead_links()
        self._returning.cut_off = [*state.get("cut_off", ())]
        self._returning.recalled = {
            process: [(source, first, last) for source, first, last in rows]
            for process, rows in state.get("recalled", ())
        }

    # -- decisions -----------------------------------------------------------------------------

    def _decide(self) -> list[Command]:
        """Decide on all that is reported, or command the registers to be frozen that are not."""
        if not self.is_undecided:
            return []
        racks = self._racks_that_go_on()
        switches = self._switches_of(racks, self.dead_links())
        dead = {one for one in self.processes if self._is_dead(one, racks)}
        cut = [*self._cut(racks, switches, dead)]
        missing = [port for port in cut if port not in self._silent]
        self._freezing = {*missing}
        if missing:
            return [Freeze(*port) for port in missing]
        stamps = tuple((one, self._stamp_of(one, racks, cut)) for one in sorted(dead))
        inputs = [port for port in self._silent if port not in self._decided and (
            port[0] in switches
        )]  # fmt: skip
        self._side, self._side_without = racks, self.dead_links()
        self._decided |= self._silent.keys()
        self._unanswering -= dead
        self.processes -= dead
        self.failed.update(stamps)
        self._note_cut_off(one for one, _ in stamps if rack_of(one) not in racks)
        self._returning.recalled |= {process: [] for process, _ in stamps}
        for process in [*self._returning.recalled][:-RETURNING_MAX]:
            del self._returning.recalled[process]
        for failure in self.failures.values():
            failure.waiting -= dead
        self._numbers += 1
        failure = Failure(self._numbers, stamps, tuple(self._silent[port] for port in inputs))
        self.failures[failure.number] = failure
        commands: list[Command] = self._routes()
        if stamps:
            failure.waiting |= self.processes
            commands += [Fail(to, failure.number, stamps) for to in sorted(self.processes)]
        return commands + self._resumed() + self._let_back()

    def _is_dead(self, process: int, racks: frozenset[int]) -> bool:
        rack = rack_of(process)
        port = (self.topology.switch_of_rack(rack).id, process)
        return rack not in racks or port in self._silent or process in self._unanswering

    def _racks_that_go_on(self) -> frozenset[int]:
        """Return the racks of the last decision, or the heaviest set if other cables are dead."""
        return self._side or self._heaviest_side(self.dead_links())

    def _heaviest_side(self, dead: frozenset[Link]) -> frozenset[int]:
        reached = {
            rack: racks
            for rack, racks in self.topology.reached(dead).items()
            if self.topology.switch_of_rack(rack).id not in self._dead_switches
        }
        return heaviest_side(reached, Counter(rack_of(process) for process in self.processes))

    def _forget_side(self) -> None:
        """Forget which side went on once other cables are dead, or a switch of it."""
        if not self._side:
            return
        switches = {self.topology.switch_of_rack(rack).id for rack in self._side}
        if self._side_without != self.dead_links() or switches & self._dead_switches:
            self._side = frozenset()

    def _switches_of(self, racks: frozenset[int], dead: frozenset[Link]) -> set[int]:
        """Return the switches that go on: those of the racks, and what their cables lead up to."""
        found = {self.topology.switch_of_rack(rack).id for rack in racks}
        for link in self.topology.links:  # the lower ones come first
            if link.lower in found and link not in dead:
                found.add(link.upper)
        return found

    def _cut(
        self, racks: frozenset[int], switches: set[int], dead: Iterable[int]
    ) -> Iterator[Port]:  # fmt: skip
        """Yield the ports by which something comes in that does not go on."""
        cables = self.dead_links()
        for link in self.topology.links:
            for switch, neighbour in (link, link[::-1]):
                if switch in switches and (neighbour not in switches or link in cables):
                    yield switch, neighbour
        for process in dead:
            if rack_of(process) in racks:
                yield self.topology.switch_of_rack(rack_of(process)).id, process

    def _stamp_of(self, process: int, racks: frozenset[int], cut: Iterable[Port]) -> int:
        """Return the failure stamp of a process: the highest frozen register it stands behind."""
        rack = rack_of(process)
        if rack in racks:
            port = (self.topology.switch_of_rack(rack).id, process)
            return self._silent[port].commit
        return max(
            (
                self._silent[switch, neighbour].commit
                for switch, neighbour in cut
                if self._stands_behind(rack, switch, neighbour)
            ),
            default=0,  # nobody goes on who could have delivered anything of it
        )

    def _stands_behind(self, rack: int, switch: int, neighbour: int) -> bool:
        """Whether what comes from a rack may have come by this port."""
        one = self.topology.switches.get(neighbour)
        if one is None:
            return False  # the link of a process carries its own alone
        return neighbour in self.topology.switches[switch].upper or rack in one.racks

    # -- cables --------------------------------------------------------------------------------

    def dead_links(self) -> frozenset[Link]:
        """Return the cables of which one direction is silent, or one end does not answer."""
        silent, gone = self._silent, self._dead_switches
        return frozenset(
            link
            for link in self.topology.links
            if link in silent or link[::-1] in silent or not gone.isdisjoint(link)
        )

    def _routes(self) -> list[Command]:
        dead = self.dead_links()
        return [SetRoutes(id, self.topology.routes(id, dead)) for id in self.topology.switches]

    def _link_joined(self, port: Port, is_behind: bool) -> list[Command]:
        """A link is back. Its register counts from now on, or from the end of a failure."""
        self._dead_switches.discard(port[1])
        self._removed.pop(port, None)
        self._behind.discard(port)
        if is_behind:
            self._behind.add(port)
        report = self._silent.pop(port, None)
        self._forget_side()
        if report is None:
            return []
        commands = self._routes()
        if port not in self._unsettled():  # if it has been removed before, that changes nothing
            commands.append(Remove(report.switch, report.neighbour, report.epoch))
        back = self._silent.get(port[::-1])
        is_waiting = any(failure.waiting for failure in self.failures.values())
        is_due = port[::-1] in self._decided and port[::-1] not in self._unsettled()
        if back is not None and is_due and not is_waiting:
            # The cable carries packets both ways: each end has heard the other one. This end may
            # have been frozen on command, for a decision that was not made, by a switch that does
            # not go on now. Nothing else would let it come back, and the cable would be dead.
            commands.append(self._remove(back))
        for failure in self.failures.values():
            # It may have been back before, and be frozen since then in a later epoch.
            failure.inputs = tuple(
                report if (one.switch, one.neighbour) == port else one for one in failure.inputs
            )
        self._decided.discard(port)
        self._reconsider()
        return commands

    def _unsettled(self) -> set[Port]:
        """Return the ports that are removed at the end of a failure."""
        inputs = (one for failure in self.failures.values() for one in failure.inputs)
        return {(one.switch, one.neighbour) for one in inputs}

    def _reconsider(self) -> None:
        """A switch may go on now that did not: its frozen registers are to be removed, too."""
        self._decided &= self._unsettled()

    def _resumed(self) -> list[Command]:
        """Remove the frozen registers of all failures that are carried out everywhere.

        Those of a later failure wait for all earlier ones: they may be all that keeps barriers
        below the stamp of an earlier one, whose own registers lie behind.
        """
        commands: list[Command] = []
        for failure in [*self.failures.values()]:  # in the order of the decisions
            if failure.waiting:
                break
            kept = []
            for one in failure.inputs:
                if self._is_needed((one.switch, one.neighbour)):
                    kept.append(one)
                    continue
                commands.append(self._remove(one))
                if one.neighbour in self.failed:  # its id never comes back
                    self._silent.pop((one.switch, one.neighbour), None)
                    self._decided.discard((one.switch, one.neighbour))
                    self._removed.pop((one.switch, one.neighbour), None)
            failure.inputs = tuple(kept)
            if not kept:
                del self.failures[failure.number]
        return commands

    def _remove(self, one: InputSilent) -> Remove:
        port = one.switch, one.neighbour
        if port in self._silent:
            self._removed[port] = self._has_no_use(port)
        return Remove(*port, one.epoch, self._removed.get(port, False))

    def _held(self) -> set[Port]:
        """Return the inputs that were removed and may not come back yet."""
        return {port for port, is_held in self._removed.items() if is_held}

    def _let_back(self) -> list[Command]:
        """Let the inputs come back that were held and are of use now."""
        back = sorted(port for port in self._held() if not self._has_no_use(port))
        self._removed |= dict.fromkeys(back, False)
        return [Remove(*port, self._silent[port].epoch) for port in back]

    def _has_no_use(self, port: Port) -> bool:
        """Whether the switch behind an input would not go on if its cable were whole.

        Nor if those of all inputs that are held were. It would join, hold the commit minimum down
        with what it stands still at, be frozen for the next decision, and so on for ever.
        """
        switch, neighbour = port
        if neighbour not in self.topology.switches or neighbour in self._dead_switches:
            return False
        whole = {Link(*ends) for one in (port, *self._held()) for ends in (one, one[::-1])}
        dead = self.dead_links()
        if switch not in self._switches_of(self._racks_that_go_on(), dead):
            return False
        racks = self._heaviest_side(dead - whole)
        if not {rack_of(process) for process in self.processes} <= racks:
            return True  # some that go on now would not
        return neighbour not in self._switches_of(racks, dead - whole)

    def _is_needed(self, port: Port) -> bool:
        """Whether barriers must wait for a frozen register: without it, some of what comes from a
        rack to another would come by no link that holds them back.

        A link that is behind does not, also if it is silent again: its switch has promised more.
        Any other one whose register is frozen does until that is removed.
        """
        if port not in self._silent or not self._behind:
            return False
        links = {*self.topology.links}
        out = frozenset(
            Link(*ends)
            for one in sorted({*self._removed, *self._behind})
            for ends in (one, one[::-1])
            if ends in links
        )
        less = out | {Link(*ends) for ends in (port, port[::-1]) if ends in links}
        racks = self._racks_that_go_on()
        before, after = self.topology.reached(out), self.topology.reached(less)
        return any(before[rack] & racks != after[rack] & racks for rack in racks)
