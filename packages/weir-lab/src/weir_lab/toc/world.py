"""A world of the transport: switches, processes with clocks of their own, and what all of them do.

A process of a world is an `Endpoint`, a switch a `SwitchNode`: the code that ships. The world gives
each its time, carries its packets, and writes down what it does for the checkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from weir_lab.toc.clocks import HostClock, SwitchHosts
from weir_lab.toc.control import ANSWER, COLLECT, CONTROL_NS, CONTROL_SLOW, ControlPath
from weir_lab.toc.network import ENDS_SHORTER, Deliver, Faults, Network, Sent, gathered
from weir_lab.toc.watch import Watch
from weir_toc import packet as wire
from weir_toc.controller.away import passed
from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Entry,
    Fail,
    Freeze,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Recalled,
    Remove,
)
from weir_toc.controller.failures import FailureState
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import (
    EndpointConfig,
    Event,
    Left,
    Message,
    ProcessFailed,
    SendFailed,
    Service,
    Settled,
    Undeliverable,
)
from weir_toc.errors import Fenced, SendBufferFull
from weir_toc.node import SILENT_INTERVALS, Effect, Send, Silent, SwitchConfig, SwitchNode
from weir_toc.topology import Topology, process_id, rack_of

#: The interval of all worlds.
T = 1_000_000
#: Nodes tell their commit barriers so often, in intervals.
_TOLD = 10
#: Half of all packets repeat the barriers of their link, which tells the watch nothing. It looks at
#: those of these opcodes all the same: of processes, and of switches.
_LOOKED_AT, _LOOKED_AT_SWITCHES = {wire.DATA_BE, wire.DATA_R}, {wire.JOINED}


@dataclass(slots=True)
class Delivery:
    """One message as one process delivered it."""

    message: Message
    #: The barriers that the process used.
    barriers: tuple[int, int]
    #: How many scatterings of this process had a stamp by then.
    left_before: int
    #: What its clock showed; 0 if it was told what others have delivered, by their clocks.
    now: int


@dataclass(slots=True)
class Sending:
    """One scattering as its sender knows it."""

    source: int
    service: Service
    parts: tuple[tuple[int, bytes], ...]
    called_at: int
    stamp: int = 0
    failed: list[SendFailed] = field(default_factory=list)


@dataclass(slots=True)
class Host:
    """A process, its clock, and what it has done."""

    endpoint: Endpoint
    #: The switch of its rack.
    switch: int
    clock: HostClock
    alive: bool = True
    #: Failures that it is told of, with their stamps: it was here when they were decided.
    due_failures: dict[int, int] = field(default_factory=dict)
    paused_until: int = 0
    inbox: list[tuple[bytearray, int]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    sendings: dict[int, Sending] = field(default_factory=dict)
    #: The tickets of scatterings that have left, in that order.
    left: list[int] = field(default_factory=list)
    #: Failures that it was told of, with how many messages it had delivered by then.
    told_failed: list[tuple[ProcessFailed, int]] = field(default_factory=list)
    #: Failed processes with which it has nothing under way any more, and decisions to answer.
    settled: set[int] = field(default_factory=set)
    to_complete: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Failures that it was told of before it had joined: it answers them once it has.
    held: list[Fail] = field(default_factory=list)
    #: Whether it was excluded and asks what became of what it holds, and whether it was told.
    is_returning: bool = False
    has_recovered: bool = False

    @property
    def has_joined(self) -> bool:
        """Whether it was admitted once: before that, its barriers are 0 and it delivers nothing."""
        return self.endpoint.barriers != (0, 0)

    def now(self, true: int) -> int:
        """The time that this host reads."""
        return self.clock.now(true)

    def fail(self, command: Fail, now: int) -> None:
        """Tell it which processes have failed, when its clock shows `now`."""
        for process, stamp in command.processes:
            self.endpoint.process_failed(now, process, stamp)
        self.to_complete[command.failure] = tuple(one for one, _ in command.processes)

    def note(self, event: Event, now: int) -> None:
        """Write down what happened to it when its clock showed `now`."""
        if isinstance(event, Message):
            shown = 0 if self.is_returning else now
            self.deliveries.append(Delivery(event, self.endpoint.barriers, len(self.left), shown))
        elif isinstance(event, Left):
            self.sendings[event.ticket].stamp = event.stamp
            self.left.append(event.ticket)
        elif isinstance(event, SendFailed):
            self.sendings[event.ticket].failed.append(event)
        elif isinstance(event, ProcessFailed):
            self.told_failed.append((event, len(self.deliveries)))
        elif isinstance(event, Settled):
            self.settled.add(event.process)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a world is, and how well its parts work."""

    racks: int = 2
    spines: int = 1
    cores: int = 0
    processes: int = 4
    faults: Faults = field(default_factory=Faults)
    #: Clocks are wrong by up to so many nanoseconds, and drift by so many parts per million.
    skew: int = 0
    drift: int = 0
    rewrites: bool = True
    start: int = (1 << 48) - 20 * T
    reorder_budget: int = 3_500_000
    part_max: int = 32_768
    #: The number of the first packet between two processes.
    first_psn: int = 0
    #: Whether all links are FIFO and carry everything, and clocks are right.
    is_calm: bool = False
    #: Whether processes send many scatterings at once, and links carry packets in pieces.
    runs: bool = False
    #: Whether clocks of switches are as wrong as those of processes.
    skews_switches: bool = False
    #: For so many nanoseconds at most a switch leaves in its socket what comes, and reads all at
    #: once then.
    reads_late: int = 0


class World:
    """One network with its processes, played by the dice of one seed."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.random = Random(seed)
        self.shape = shape
        self._has_runs = shape.runs
        self.network = Network(self.random, shape.start, shape.faults)
        self.topology = Topology.tree(shape.racks, shape.spines, shape.cores)
        self.hosts: dict[int, Host] = {}
        #: What was broken in the moment in which it happened; `checkers` looks at the rest.
        self.watch = Watch(self.topology, shape.rewrites, T)
        self.controller = FailureState(self.topology)
        #: When the registers must be frozen that a decision waits for.
        self._freezes: dict[Freeze, int] = {}
        self.control = ControlPath(Random(f"control {seed}"), Random(f"exclusions {seed}"), T)
        config = SwitchConfig(interval=T, rewrites=shape.rewrites)
        self._switch_hosts = SwitchHosts(
            seed, self.topology.switches, shape.start,
            *((shape.skew, shape.drift) if shape.skews_switches else (0, 0)),
        )  # fmt: skip
        self.switches = {
            id: SwitchNode(switch, self.topology, self.clock_of(id).now(shape.start), config)
            for id, switch in self.topology.switches.items()
        }
        self.dead: set[int] = set()
        for id in self.switches:
            self.network.attach(id, self._at_switch(id))
        for id in self.switches:
            self._wake_switch(id)
        if shape.is_calm:
            self._look_at_lags()
        self._serials = [0] * shape.racks
        for number in range(shape.processes):
            self.join(number % shape.racks)

    # -- what a scenario does ------------------------------------------------------------------

    def join(self, rack: int) -> int:
        """Start a process in a rack; return its id."""
        self._serials[rack] += 1
        process = process_id(rack, self._serials[rack])
        shape, now = self.shape, self.network.now
        clock = HostClock(self.random, now, shape.skew, shape.drift)
        # Where memory is small the network takes little, too: both limits are reached.
        config = EndpointConfig(
            interval=T, reorder_budget=shape.reorder_budget, part_max=shape.part_max,
            under_way_max=shape.reorder_budget,
            barriers_in_data=shape.rewrites, first_psn=shape.first_psn,
        )  # fmt: skip
        endpoint = Endpoint(process, self._serials[rack], clock.now(now), config)
        switch = self.topology.switch_of_rack(rack).id
        self.hosts[process] = Host(endpoint, switch, clock)
        self.network.attach(process, self._at_host(process))
        self._wake_host(process)
        return process

    def send(self, process: int, service: Service, parts: list[tuple[int, bytes]]) -> None:
        """Let a process send a scattering, if it may."""
        self.send_many(process, service, [parts])

    def send_many(
        self, process: int, service: Service, scatterings: Sequence[list[tuple[int, bytes]]]
    ) -> None:
        """Let a process send scatterings at once, if it may."""
        host = self.hosts[process]
        if not host.alive or host.paused_until > self.network.now:
            return
        now = host.now(self.network.now)
        try:
            tickets = host.endpoint.send_many(now, service, scatterings)
        except (Fenced, SendBufferFull):
            return
        for ticket, parts in zip(tickets, scatterings, strict=True):
            host.sendings[ticket] = Sending(process, service, tuple(parts), now)
        self._carry_out(process, host, now)

    def crash(self, node: int) -> None:
        """Stop a process or a switch for good."""
        if node in self.hosts:
            self.hosts[node].alive = False
        else:
            self.dead.add(node)

    def pause(self, process: int, time: int) -> None:
        """Stop a process for a while, as SIGSTOP does: what comes meanwhile waits.

        One that sleeps already sleeps until the later end: it would else take what comes from then
        on before what has waited.
        """
        host = self.hosts[process]
        host.paused_until = max(host.paused_until, self.network.now + time)

    def set_clock(self, node: int, step: int) -> None:
        """Set the raw clock of a process or of a switch forward or back."""
        self.clock_of(node).set(step)

    def clock_of(self, node: int) -> HostClock:
        """Return the clock of a process or of a switch."""
        return self.hosts[node].clock if node in self.hosts else self._switch_hosts.clocks[node]

    def unreach(self, process: int) -> None:
        """Let the controller and a process not reach each other."""
        self.control.unreached.add(process)
        self._look_at_unreached()

    def replace_leader(self, late: int) -> None:
        """Let another member of the controller lead. What stood still comes `late` after that."""
        due = self.network.now + late
        for term, command in self.control.replace_leader():
            self.network.at(due, self._arrived, term, command)
        self._lead()

    def stop_clock(self, node: int) -> None:
        """Stop the raw clock of a process or of a switch for good.

        The host of a switch sees it by its timers, and ends. So does that of a process which the
        switch of its rack may not see: it joins, or waits until its clock has come to its floor.
        Another one goes on here until the switch sees it.
        """
        now = self.network.now
        self.clock_of(node).stop(now)
        ends = _end_unseen if node in self.hosts else World.crash
        self.network.at(now + SILENT_INTERVALS * T, ends, self, node)

    def run(self, time: int) -> None:
        """Let true time pass."""
        self.network.run(self.network.now + time)

    # -- hosts ---------------------------------------------------------------------------------

    def _wake_host(self, process: int) -> None:
        """Call a process when its deadline has come by its own clock."""
        host = self.hosts[process]
        true = self.network.now
        if not host.alive:
            return
        if host.paused_until > true:
            self.network.at(host.paused_until, self._wake_host, process)
            return
        now = host.now(true)
        endpoint, is_due = host.endpoint, False
        if host.inbox:
            burst, host.inbox = host.inbox, []
            endpoint.receive_runs(now, burst)
            is_due = True
        if now >= endpoint.deadline:
            endpoint.tick(now)
            is_due = True
        if is_due:  # else its deadline has moved meanwhile
            self._carry_out(process, host, now)
        wait = host.clock.wait(now, endpoint.deadline)
        self.network.at(true + wait, self._wake_host, process)

    def _carry_out(self, process: int, host: Host, now: int) -> None:
        endpoint = host.endpoint
        if self.controller.failures or endpoint.granted > endpoint.config.reorder_budget:
            self.watch.used(process, endpoint, host.due_failures, self.controller)
        if runs := endpoint.take_runs():
            self._send_runs(process, host, runs)
        for to, packets in endpoint.take_forwards():
            self._forward(process, to, packets)
        for event in endpoint.take_events():
            if isinstance(event, Undeliverable):
                self._tell_recalled(process, event)
            else:
                host.note(event, now)
        if host.held and host.has_joined:
            self.network.at(self.network.now, self._obey, host.held.pop(0))
        if host.to_complete:
            self._complete(process, host)

    def _tell_recalled(self, process: int, event: Undeliverable) -> None:
        for receiver, ranges in event.recalled:
            self._tell_controller(Recalled(process, receiver, ranges))
        due = self.network.now + 2 * CONTROL_NS
        self.network.at(due, self._recalls_noted, process, event.process)

    def _send_runs(self, process: int, host: Host, runs: Iterable[tuple[bytearray, int]]) -> None:
        switch, severed = host.switch, self.network.severed
        sent = [(switch, data, size) for data, size in runs]
        if severed:
            sent = [one for one in sent if (process, wire.receiver_of(one[1])) not in severed]
        self._send_all(process, sent)

    def _forward(self, process: int, to: int, packets: Sequence[bytearray]) -> None:
        """Let the controller forward packets of a process to one that goes on."""
        now = self.network.now
        if {process, to} <= self.controller.processes:
            for due in self.control.forward(now, process, to, packets):
                self.network.at(due, self._forwarded, process, to, packets)
            self.network.at(now + ANSWER * T, self._look_at_paths)

    def _forwarded(self, source: int, process: int, packets: Sequence[bytearray]) -> None:
        host = self.hosts[process]
        if host.paused_until > self.network.now:
            self.network.at(host.paused_until, self._forwarded, source, process, packets)
        elif host.alive:
            now = host.now(self.network.now)
            host.endpoint.forwarded(now, source, packets)
            self._carry_out(process, host, now)

    def _look_at_lags(self) -> None:
        """See how late barriers are where nothing goes wrong, at moments between two events."""
        now, faults = self.network.now, self.shape.faults
        slowest = faults.delay + faults.jitter + max(self.network.late.values(), default=0)
        endpoints = {one: host.endpoint for one, host in self.hosts.items()}
        self.watch.lags(now, endpoints, slowest)
        self.network.at(now + T // 8, self._look_at_lags)

    def _look_at_paths(self) -> None:
        """Who does not answer what the controller forwards has failed."""
        found = self.control.paths.unreachable(self.network.now, self.controller.processes)
        for process in sorted(found):
            self._control(NodeSilent(process))

    def _look_at_unreached(self) -> None:
        """Who is not connected has failed once the commit barriers of the others have stood."""
        goes_on, hosts = self.controller.processes, self.hosts
        commits = {one: hosts[one].endpoint.barriers[1] for one in goes_on if hosts[one].alive}
        for process in self.control.silent(self.network.now, self.controller, commits):
            self._control(NodeSilent(process))
        if self.control.unreached:
            self.network.at(self.network.now + _TOLD * T, self._look_at_unreached)

    # -- the controller, which every node reaches by another way --------------------------------

    def _tell_controller(self, entry: Entry) -> None:
        self.network.at(self.network.now + CONTROL_NS, self._control, entry)

    def _control(self, entry: Entry) -> None:
        for command in self.controller.apply(entry):
            if isinstance(command, Fail):
                self.hosts[command.to].due_failures |= dict(command.processes)
            self._command(command)
            if isinstance(command, Freeze) and command not in self._freezes:
                self._freezes[command] = due = self.network.now + ANSWER * T
                self.network.at(due, self._unanswered, command)
        for command in [*self._freezes]:  # one that is answered may be commanded again later
            if not self.controller.is_undecided or not self.controller.awaits(command):
                del self._freezes[command]
        if self.controller.is_undecided and not self.control.is_deciding:
            self.control.is_deciding = True
            self.network.at(self.network.now + COLLECT * T, self._decide)

    def _decide(self) -> None:
        self.control.is_deciding = False
        before = {*self.controller.failures}
        self._control(Decide())
        cut_off = self.controller.racks_cut_off()
        for process in self.controller.processes & self.hosts.keys():
            host = self.hosts[process]
            self.watch.used(process, host.endpoint, host.due_failures, self.controller)
        for number in self.controller.failures.keys() - before:
            self.network.at(self.network.now + ANSWER * T, self._overdue, number)
            for process, _ in self.controller.failures[number].processes:
                due = self.network.now + self.control.exclusions.randrange(CONTROL_SLOW * T)
                is_cut_off = rack_of(process) in cut_off
                self.control.to_exclude.add(process)
                self.network.at(due, self._exclude, process, is_cut_off)

    def _exclude(self, process: int, is_cut_off: bool) -> None:
        """Tell a process that others go on without it. It settles what it holds, and ends.

        To a rack that is cut off in one direction, barriers may come that pass what its processes
        sent above their failure stamps. What they have delivered by then is not judged.
        """
        host = self.hosts[process]
        if not host.alive:
            self.control.to_exclude.discard(process)
            return
        if host.paused_until > self.network.now:
            self.network.at(host.paused_until, self._exclude, process, is_cut_off)
            return
        host.endpoint.exclude()
        self.control.to_exclude.discard(process)
        if is_cut_off:
            self.crash(process)
            return
        held = host.endpoint.held
        if held is None:
            self._recovered(process)
        else:
            host.is_returning = True
            self._settle(process, *held)

    def _settle(self, process: int, through: int, senders: Iterable[int]) -> None:
        """Let a process settle what it holds, once the controller knows what became of it."""
        if not self.correct:  # nobody has delivered any of it, or will
            self.hosts[process].is_returning = False
            self.crash(process)
            return
        commits = {one: self.hosts[one].endpoint.barriers[1] for one in self.controller.processes}
        if passed(commits, commits) < through:
            self.network.at(self.network.now + T, self._settle, process, through, senders)
            return
        host = self.hosts[process]
        decisions = self.controller.decisions(process, senders)
        assert decisions is not None
        now = host.now(self.network.now)
        host.endpoint.settle(now, decisions)
        self._carry_out(process, host, now)
        self._recovered(process)

    def _recovered(self, process: int) -> None:
        host = self.hosts[process]
        host.is_returning, host.has_recovered = False, True
        self.crash(process)

    def _unanswered(self, command: Freeze) -> None:
        if self._freezes.get(command) == self.network.now:
            del self._freezes[command]
            self._control(NodeSilent(command.switch))

    def _overdue(self, number: int) -> None:
        """Who has not answered the controller in time has failed."""
        failure = self.controller.failures.get(number)
        for process in sorted(failure.waiting) if failure else ():
            self._control(NodeSilent(process))

    def _command(self, command: Command) -> None:
        """Send a command. Those to one node arrive in order, after any delay."""
        due = self.control.arrival(self.network.now, command)
        if due is not None:
            self.network.at(due, self._arrived, self.control.term, command)

    def _arrived(self, term: int, command: Command) -> None:
        if self.control.arrived(term, command):
            self._obey(command)

    def _lead(self) -> None:
        """Let a new leader tell all nodes its term, and what they may have missed."""
        now, control = self.network.now, self.control
        for node in (*self.switches, *self.hosts):
            self.network.at(now + CONTROL_NS, control.follows, node, control.term)
        for command in control.missed(self.controller, self.switches):
            self._command(command)

    def _obey(self, command: Command) -> None:
        now = self.network.now
        if isinstance(command, Fail):
            host = self.hosts[command.to]
            if host.paused_until > now:
                self.network.at(host.paused_until, self._obey, command)
            elif host.alive and not host.has_joined:
                host.held.append(command)
            elif host.alive:
                host.fail(command, host.now(now))
                self._carry_out(command.to, host, host.now(now))
            return
        if command.switch in self.dead:
            return
        node = self.switches[command.switch]
        now = self.clock_of(command.switch).now(now)
        if isinstance(command, Freeze):
            self._effects(command.switch, node.freeze(now, command.neighbour))
        elif isinstance(command, Remove):
            removed = command.neighbour, command.epoch, command.holds
            self._effects(command.switch, node.remove(now, *removed))
        else:
            node.set_routes(command.routes)

    def _recalls_noted(self, process: int, failed: int) -> None:
        host = self.hosts[process]
        if host.paused_until > self.network.now:
            self.network.at(host.paused_until, self._recalls_noted, process, failed)
        elif host.alive:
            now = host.now(self.network.now)
            host.endpoint.recalls_noted(now, failed)
            self._carry_out(process, host, now)

    def _complete(self, process: int, host: Host) -> None:
        for number, failed in [*host.to_complete.items()]:
            if host.settled.issuperset(failed):
                del host.to_complete[number]
                self._tell_controller(Completed(number, process))

    # -- switches ------------------------------------------------------------------------------

    def _at_switch(self, id: int) -> Deliver:
        node, network, dead, clock = self.switches[id], self.network, self.dead, self.clock_of(id)

        def arrive(source: int, data: bytearray, size: int) -> None:
            if id in dead:
                return
            now = clock.now(network.now)
            if len(data) > size:
                effects = node.receive_run(now, source, data, size)
            else:
                effects = node.receive(now, source, data)
            if effects:
                self._effects(id, effects)

        dice, unread = self._switch_hosts.dice, self._switch_hosts.unread[id]

        def wait(source: int, data: bytearray, size: int) -> None:
            if not unread:
                due = network.now + dice.randrange(self.shape.reads_late)
                network.at(due, self._read_switch, id)
            unread.append((source, data, size))

        return wait if self.shape.reads_late else arrive

    def _read_switch(self, id: int) -> None:
        """Let a switch take all that has come."""
        burst = self._switch_hosts.read(id)
        if id in self.dead:
            return
        now = self.clock_of(id).now(self.network.now)
        self._effects(id, self._switch_hosts.take(now, self.switches[id], burst))

    def _at_host(self, process: int) -> Deliver:
        host, network = self.hosts[process], self.network
        clock, endpoint = host.clock, host.endpoint

        def arrive(_source: int, data: bytearray, size: int) -> None:
            if not host.alive:
                return
            if host.paused_until > network.now:
                host.inbox.append((data, size))
                return
            now = clock.now(network.now)
            endpoint.receive_runs(now, ((data, size),))
            self._carry_out(process, host, now)

        return arrive

    def _wake_switch(self, id: int) -> None:
        if id in self.dead:
            return
        node, clock = self.switches[id], self.clock_of(id)
        now = clock.now(self.network.now)
        if self._switch_hosts.unread[id]:
            self._read_switch(id)
        if now >= node.deadline:
            self._effects(id, node.tick(now))
        self.network.at(self.network.now + clock.wait(now, node.deadline), self._wake_switch, id)

    def _effects(self, id: int, effects: Iterable[Effect]) -> None:
        sent: list[Sent] = []
        for effect in effects:
            if isinstance(effect, Send):
                sent.append(effect)
            elif isinstance(effect, Silent):
                report = InputSilent(id, effect.neighbour, effect.epoch, effect.commit)
                self._tell_controller(report)
            elif effect.neighbour in self.switches:
                self._tell_controller(LinkJoined(id, effect.neighbour, effect.is_behind))
            else:
                self._tell_controller(ProcessJoined(effect.neighbour))
        if sent:
            self._send_all(id, sent)

    def _send_all(self, source: int, sent: Sequence[Sent]) -> None:
        """Give packets to links: in pieces if this world has runs, or one by one."""
        if self._has_runs and len(sent) > 1:
            sent = [*gathered(sent, self.random.random() < ENDS_SHORTER)]
        network, given, now = self.network, self.watch.given, self.network.now
        links = network.links[source]
        looked_at = _LOOKED_AT_SWITCHES if source in self.switches else _LOOKED_AT
        for to, data, size in sent:
            link = links.get(to) or network.link(source, to)
            if link is None:
                continue
            if not size or len(data) <= size:
                if data[22] in looked_at or data[6:18] != link.told:
                    given(now, link, data)
                network.send(link, data)
                continue
            packets = [bytearray(one) for one in wire.split(data, size)]
            for packet in packets:
                given(now, link, packet)
            if self._has_runs:
                network.send_piece(link, data, size)
                continue
            for packet in packets:
                network.send(link, packet)

    @property
    def correct(self) -> dict[int, Host]:
        """The processes that neither crashed nor were declared to have failed.

        One that tries to join at a dead switch, or by a cable that is cut, is nobody's yet.
        """
        return {one: host for one, host in self.hosts.items() if _is_correct(self, one, host)}

    @property
    def judged(self) -> set[int]:
        """The processes that deliver all or none of a reliable scattering: those that are correct,
        and those that were excluded and told what became of what they held.
        """
        return self.correct.keys() | {one for one, host in self.hosts.items() if host.has_recovered}

    def cut(self, one: int, other: int, both: bool = True) -> None:
        """Cut a cable, both ways or from `one` to `other`, until it heals."""
        self.network.cut |= {(one, other), (other, one)} if both else {(one, other)}

    def heal(self, one: int, other: int) -> None:
        """Let a cable carry packets again."""
        self.network.cut -= {(one, other), (other, one)}


def _is_correct(world: World, process: int, host: Host) -> bool:
    if not host.alive or process in world.controller.failed or host.switch in world.dead:
        return False
    return host.has_joined or (process, host.switch) not in world.network.cut


def _end_unseen(world: World, process: int) -> None:
    """The host of a process, if that runs, finds that its clock stands where no switch does.

    One that nobody may have heard of is gone. One that has joined sends and takes nothing any more,
    and settles what it holds once it has failed.
    """
    host = world.hosts[process]
    if host.paused_until > world.network.now:
        world.network.at(host.paused_until, _end_unseen, world, process)
    elif not host.has_joined:
        world.crash(process)
    else:
        one = world.switches[host.switch].registers().get(process)
        if one is not None and one.barrier - one.floor < T:
            host.endpoint.exclude()
