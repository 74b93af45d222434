"""How a world's controller reaches nodes: what it commands and forwards comes late, twice or never.

Its leader may be replaced. What the former one has sent may come behind all that the next one says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from weir_toc.controller.away import Away
from weir_toc.controller.entries import Command, Fail, Remove, SetRoutes
from weir_toc.controller.failures import FailureState, Port
from weir_toc.controller.paths import CutPaths, Kind, check_forward
from weir_toc.controller.terms import Terms

#: How long a message to or from the controller takes, in nanoseconds.
CONTROL_NS = 100_000
#: How much longer some take, and how late others come; how long the controller collects reports,
#: and how long it waits for answers. All are intervals.
CONTROL_SLOW, REMOVAL_LATE = 8, 25
COLLECT, ANSWER = 4, 60
#: The controller loses so many of the packets that it forwards: another member leads, or a
#: connection ends. So many come twice.
_FORWARD_LOSS, _FORWARD_TWICE = 0.05, 0.1

#: A command with the term of its leader.
Commanded = tuple[int, Command]


def target_of(command: Command) -> int:
    """Return the node that obeys a command."""
    return command.to if isinstance(command, Fail) else command.switch


@dataclass(slots=True)
class ControlPath:
    """How commands of the controller travel: those to one node arrive in order, after any delay."""

    random: Random
    exclusions: Random
    interval: int
    #: The term of the leader, and which leaders each node obeys.
    term: int = 1
    terms: defaultdict[int, Terms] = field(default_factory=lambda: defaultdict(Terms))
    #: The share of commands to remove registers that come late: a leader was replaced.
    late_removals: float = 0.0
    under_way: int = 0
    #: Whether a decision is due.
    is_deciding: bool = False
    #: When the last command to each node arrives.
    due: dict[int, int] = field(default_factory=dict)
    #: Nodes whose connections to the leader stand still, and what it has sent them meanwhile.
    stalled: set[int] = field(default_factory=set)
    stuck: list[Commanded] = field(default_factory=list)
    #: Registers to remove, whose switches have not obeyed.
    removals: dict[Port, Remove] = field(default_factory=dict)
    #: Between whom the leader forwards, processes without a connection to it, and which of them it
    #: gives up; and those that are connected and answer nothing that is forwarded.
    paths: CutPaths = field(init=False)
    away: Away = field(init=False)
    unreached: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=set)
    #: Failed processes that are not told yet that others go on without them.
    to_exclude: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.paths, self.away = CutPaths(ANSWER * self.interval), Away(ANSWER * self.interval)

    def forward(
        self, now: int, source: int, to: int, packets: Sequence[bytearray]
    ) -> Sequence[int]:
        """Pass packets on; return when they arrive: never, once, or twice."""
        data, dice = [bytes(one) for one in packets], self.exclusions
        kind = check_forward(source, to, data)
        is_answer = kind is not Kind.REQUEST
        if source in self.unreached or (is_answer and source in self.mute):
            return ()
        if is_answer:
            self.paths.answered(to, source)
            if kind is Kind.QUESTION:
                self.away.asked(now, to)
        elif not self.paths.ask(now, source, to, sum(map(len, data))):
            return ()
        is_lost = to in self.unreached or (to in self.mute and not is_answer)
        if is_lost or dice.random() < _FORWARD_LOSS:
            return ()
        slow = dice.random() < 0.3
        due = [now + 2 * CONTROL_NS + slow * dice.randrange(CONTROL_SLOW * self.interval)]
        if dice.random() < _FORWARD_TWICE:
            due.append(due[0] + dice.randrange(REMOVAL_LATE * self.interval))
        return due

    def arrival(self, now: int, command: Command) -> int | None:
        """Send a command of the leader; return when it arrives. None if that is not known yet."""
        target = target_of(command)
        self.under_way += 1
        if isinstance(command, Remove):
            self.removals[command.switch, command.neighbour] = command
        if target in self.stalled:
            self.stuck.append((self.term, command))
            return None
        delay = CONTROL_NS + (self.random.random() < 0.3) * CONTROL_SLOW * self.interval
        if isinstance(command, Remove) and self.exclusions.random() < self.late_removals:
            delay += REMOVAL_LATE * self.interval
        due = self.due[target] = max(now + delay, self.due.get(target, 0))
        return due

    def arrived(self, term: int, command: Command) -> bool:
        """A command of a term arrives; return whether its node obeys it."""
        self.under_way -= 1
        if not self.terms[target_of(command)].obeys(term):
            return False
        if isinstance(command, Remove):
            port = command.switch, command.neighbour
            if self.removals.get(port) == command:
                del self.removals[port]
        return True

    def silent(self, now: int, failures: FailureState, commits: Mapping[int, int]) -> list[int]:
        """Return the processes without a connection to give up. `commits` are the commit barriers
        that the living ones tell, if they can.
        """
        connected = {one for one in commits if one not in self.unreached}
        for process in sorted(connected):
            self.away.told(now, process, commits[process])
        return self.away.silent(now, failures, frozenset(connected)) if self.unreached else []

    def follows(self, node: int, term: int) -> None:
        """A leader answers a node that has connected to it."""
        self.terms[node].follow(term)

    def replace_leader(self) -> list[Commanded]:
        """Let another member lead, to which all nodes connect; return what is stuck."""
        self.term += 1
        self.due.clear()
        self.stalled.clear()
        stuck, self.stuck = self.stuck, []
        return stuck

    def missed(self, failures: FailureState, switches: Iterable[int]) -> list[Command]:
        """Return all that nodes may not know, which a new leader tells them: `ControllerState`
        keeps the same.
        """
        found: list[Command] = [*failures.pending()]
        for switch in switches:
            found.append(SetRoutes(switch, failures.current_routes(switch)))
            found += failures.freezes(switch)
            found += [one for port, one in self.removals.items() if port[0] == switch]
        return found
