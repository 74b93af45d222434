"""Switches: they aggregate barriers by minimum, and forward packets.

A half of a switch keeps two registers per input, the highest barriers that came by it. Its own
barriers are the minima over the registers, and it writes them into each packet that it sends on. A
packet is stamped and queued in one step, so a link, which is FIFO, carries barriers that never
decrease, each behind the packets that it speaks of.

An input that is silent for ten intervals leaves the best effort minimum at once, and is fenced:
what comes by it is dropped until its neighbour joins again with a higher epoch. Its commit register
is frozen, and stays in the minimum until the controller removes it, after all processes have
settled what the failure left undecided.

A process whose packets come while its barrier stands still has a clock that has stopped, and counts
as silent, too. The own clock may leap, but silence is what a switch was awake for.

A half whose inputs are all gone promises its own time, as an idle process does. So a barrier is
always above what was promised before, and a process that joins is told from where to go on.

Ports are named by the neighbours behind them: the ids of processes and switches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

from weir_toc import packet as wire
from weir_toc.congestion import MARK_ABOVE, PhantomQueue
from weir_toc.controller.lag import LinkReading
from weir_toc.errors import PacketError
from weir_toc.packet import NEIGHBOUR, Packet
from weir_toc.registers import START_NS, Half, Input
from weir_toc.topology import Routes, Switch, Topology, rack_of

#: A link is dead when nothing came by it for so many intervals.
SILENT_INTERVALS = 10
#: The barrier of a process stands still if it rises by less than one interval in that time. A
#: switch that is called later than it wished by so many intervals did not run, or its clock leapt.
AWAKE_INTERVALS = 5
#: A port that falls silent within so many intervals after it has come back is held back: for so
#: many intervals, twice as many each time, but at most so many times twice.
STEADY_INTERVALS = 100
HOLD_INTERVALS, HOLD_DOUBLINGS_MAX = 10, 6
#: A minimum that moved is passed on at most so often in an interval.
MOVES_PER_INTERVAL = 4
#: A step that is smaller than this part of an interval waits for the next beacon, or for more. The
#: promises of idle processes differ by little, and the minimum takes each of them in turn.
STEPS_PER_INTERVAL = 8


class Send(NamedTuple):
    """A packet to queue behind all others for the neighbour `to`, or a run of packets."""

    to: int
    data: bytearray
    #: The bytes of each packet of a run; 0 for one packet.
    size: int = 0


#: `Send` of a tuple of its fields, without a function of Python: each packet takes one.
_send = cast("Callable[[tuple[int, bytearray, int]], Send]", partial(tuple.__new__, Send))


class Silent(NamedTuple):
    """A neighbour was not heard of in time. Its commit register is frozen at `commit`."""

    neighbour: int
    epoch: int
    commit: int


class Joined(NamedTuple):
    """A process joined, or the switch behind a fenced port came back.

    While it `is_behind`, this switch has promised more than came by it. It is told again at the end
    of that.
    """

    neighbour: int
    epoch: int
    is_behind: bool = False


Effect = Send | Silent | Joined


@dataclass(slots=True)
class Output:
    """One output: when it was last used, and what it has told."""

    half: Half
    queue: PhantomQueue
    epoch: int = 1
    sent_at: int = 0
    #: When it last told of a minimum that had moved.
    moved_at: int = 0
    packets: int = 0
    barrier: int = 0
    commit: int = 0


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """How a switch works; times in nanoseconds."""

    interval: int = 1_000_000
    #: Whether barriers are written into all packets. Otherwise only beacons carry them.
    rewrites: bool = True
    #: The phantom queue of each output: bytes per 2^20 ns, and bytes. No marks at a rate of 0.
    drain_rate: int = 0
    mark_above: int = MARK_ABOVE


@dataclass(slots=True)
class Counters:
    """What was dropped, and why."""

    damaged: int = 0
    fenced: int = 0
    unroutable: int = 0
    names: dict[str, int] = field(default_factory=dict)


class SwitchNode:
    """One switch: both halves, its ports and its beacons. Times are synchronised nanoseconds."""

    def __init__(
        self, switch: Switch, topology: Topology, now: int, config: SwitchConfig | None = None
    ) -> None:
        self.switch = switch
        self.config = config or SwitchConfig()
        self.counters = Counters()
        self.up = Half(now - START_NS)
        self.down = Half(now - START_NS)
        self._outputs: dict[int, Output] = {}
        self._routes = topology.routes(switch.id)
        #: The ports that lead to a rack from the up half, or from the down half, once asked.
        self._toward: dict[tuple[int, bool], Sequence[int]] = {}
        start = self.up.barrier
        self._virtual = Input(0, start, start, now, start, now)
        #: The virtual link: what the up half promises is an input of the down half.
        self.down.inputs[switch.id] = self._virtual
        self._refused_at: dict[int, int] = {}
        for below in switch.lower:
            self.up.add(below, 1, now)
            self._outputs[below] = self._output(self.down)
        for above in switch.upper:
            self.down.add(above, 1, now)
            self._outputs[above] = self._output(self.up)
        self._effects: list[Effect] = []
        self._next_beacon = self._after(now)
        self._ticked_at = now
        self._moved = False
        #: When `tick` is due.
        self.deadline = self._next_beacon

    # -- events --------------------------------------------------------------------------------

    def receive(self, now: int, neighbour: int, data: bytearray) -> list[Effect]:
        """Take a packet that came by the link from `neighbour`; return what to do, in order.

        The packet is forwarded as it is, in the same memory.
        """
        effects = self._effects = []
        half = self.down if neighbour in self.switch.upper else self.up
        one = half.inputs.get(neighbour)
        beacon = one.beacon if one is not None and one.live else b""
        if beacon and data[18:] == beacon and data[:6] == wire.NO_STAMP:
            # The checksum covers no more than what is known, and was checked.
            assert one is not None
            one.packets += 1
            barrier, commit = wire.barriers_of(data, now)
            if half.take(one, barrier, commit, now) and half.aggregate(now):
                self._pass_on(now, half)
            if self._moved:
                self._told(now)
            return effects
        try:
            wire.check(data)
        except PacketError:
            self.counters.damaged += 1
            return effects
        opcode = data[22]
        source, to, epoch = wire.addresses_of(data)
        if to == NEIGHBOUR and opcode in (wire.JOIN, wire.FENCED):
            take = self._join if opcode == wire.JOIN else self._refused
            take(now, neighbour, wire.decode(data, now))
            return effects
        if one is None or not self._accepts(now, neighbour, one, opcode, source, to, epoch):
            self._refuse(now, neighbour, epoch if one is None else one.epoch)
            return effects
        one.packets += 1
        if opcode == wire.BEACON:
            one.beacon = wire.constant_of(data)
        if opcode == wire.BEACON or self.config.rewrites:
            barrier, commit = wire.barriers_of(data, now)
            if half.take(one, barrier, commit, now) and half.aggregate(now):
                self._pass_on(now, half)
        else:
            one.heard_at = now
        if to != NEIGHBOUR:
            self._forward(now, half, data, to)
        if self._moved:
            self._told(now)
        return effects

    def receive_run(self, now: int, neighbour: int, data: bytearray, size: int) -> list[Effect]:
        """Take packets of `size` bytes each that came at once, in their order; as `receive`.

        Whole messages of one flow are forwarded in one piece, and their checksums are left to
        their receiver: nothing is done here that a damaged one could spoil.
        """
        if self.config.rewrites and len(data) > size and wire.is_run(data, size):
            half = self._half_of(neighbour)
            one = half.inputs.get(neighbour)
            addresses = wire.addresses_of(data)
            if one is not None and self._accepts(now, neighbour, one, data[22], *addresses):
                self._effects = []
                self._forward_run(now, half, one, data, size)
                self._told(now)
                return self._effects
        effects: list[Effect] = []
        for packet in wire.split(data, size):
            effects += self.receive(now, neighbour, bytearray(packet))
        return effects

    def receive_beacons(
        self, now: int, neighbours: Sequence[int], beacons: Sequence[bytes]
    ) -> list[Effect]:
        """Take beacons that came at once, each from the neighbour beside it, in their order.

        As `receive`, but all registers rise, and then the minima are computed and passed on once.
        Only a beacon that differs from the last one of its epoch in more than its barriers is
        checked.
        """
        effects: list[Effect] = []
        upper, up, down = self.switch.upper, self.up, self.down
        may_move = False
        for neighbour, data, (constant, barrier, commit) in zip(
            neighbours, beacons, wire.decode_beacons(beacons, now), strict=True
        ):
            half = down if neighbour in upper else up
            one = half.inputs.get(neighbour)
            if one is None or not one.live or constant != one.beacon:
                effects += self.receive(now, neighbour, bytearray(data))
                continue
            one.packets += 1
            if half.take(one, barrier, commit, now):
                may_move = True
        self._effects = effects
        if may_move:
            for half in (up, down):
                if half.aggregate(now):
                    self._pass_on(now, half)
        if self._moved:
            self._told(now)
        return effects

    def tick(self, now: int) -> list[Effect]:
        """Let time pass: beacons, and inputs that were silent for too long."""
        effects = self._effects = []
        self._skip(now)
        interval = self.config.interval
        silent_since = now - SILENT_INTERVALS * interval
        for half in (self.up, self.down):
            for neighbour, one in half.inputs.items():
                if not one.live or one is self._virtual:
                    continue
                if one.is_behind and one.commit >= half.commit:
                    one.is_behind = False
                    self._effects.append(Joined(neighbour, one.epoch))
                if one.barrier - one.risen >= interval:  # without a call: most inputs rise
                    one.risen, one.risen_at = one.barrier, now
                    is_lost = one.heard_at < silent_since
                else:
                    is_lost = one.heard_at < silent_since or self._stands(now, neighbour, one)
                if is_lost:
                    self._hold_back(now, one)
                    self._fence(half, neighbour, one)
        for half in (self.up, self.down):
            if half.aggregate(now):
                self._pass_on(now, half)
        if now >= self._next_beacon:
            idle_since = now - self.config.interval
            for neighbour, output in self._outputs.items():
                if output.sent_at <= idle_since or not self.config.rewrites:
                    self._beacon(now, neighbour, output)
            self._next_beacon = self._after(now)
        self._told(now)
        return effects

    def freeze(self, now: int, neighbour: int) -> list[Effect]:
        """Fence an input as if it were silent, as the controller says; it is reported again."""
        effects = self._effects = []
        half = self._half_of(neighbour)
        one = half.inputs.get(neighbour)
        if one is not None and not one.removed:
            one.held = True
            self._fence(half, neighbour, one)
            if half.aggregate(now):
                self._pass_on(now, half)
            self._told(now)
        return effects

    def remove(self, now: int, neighbour: int, epoch: int, holds: bool = False) -> list[Effect]:
        """Take a frozen commit register out of the minimum, as the controller says.

        A port that has joined again in a later epoch counts once more, from here on. Another one
        does not join again if this `holds` it, until it is removed again without that.
        """
        effects = self._effects = []
        half = self._half_of(neighbour)
        one = half.inputs.get(neighbour)
        if one is None or not one.frozen or one.frozen_epoch != epoch:
            return effects
        one.held = holds and one.epoch == epoch
        if one.epoch > epoch:
            one.frozen = False
        elif neighbour in self.switch.lower or neighbour in self.switch.upper:
            one.removed = True
        else:
            del half.inputs[neighbour]
        if half.aggregate(now):
            self._pass_on(now, half)
        self._told(now)
        return effects

    @property
    def routes(self) -> Routes:
        """To which racks each neighbour leads now."""
        return self._routes

    def set_routes(self, routes: Routes) -> None:
        """Take to which racks each neighbour leads now, as `Topology.routes` tells."""
        self._routes = routes
        self._toward.clear()

    def oldest_age(self, now: int) -> int:
        """Return how far the older minimum is behind: no input is older but one that joins."""
        return now - min(self.up.barrier, self.down.barrier)

    def read_links(self, now: int) -> list[LinkReading]:
        """Return what is read of all links whose inputs count, the oldest barrier first."""
        found = []
        for neighbour, one in self.registers().items():
            output = self._outputs.get(neighbour)
            if one.live:
                sent = output.packets if output is not None else 0
                found.append(LinkReading(neighbour, now - one.barrier, one.packets, sent))
        return sorted(found, key=lambda one: -one.age)

    def registers(self) -> Mapping[int, Input]:
        """The registers of all links into this switch, by neighbour."""
        own = self.switch.id
        both = (*self.up.inputs.items(), *self.down.inputs.items())
        return {neighbour: one for neighbour, one in both if neighbour != own}

    # -- inputs --------------------------------------------------------------------------------

    def _skip(self, now: int) -> None:
        """Let no input be silent in a time in which this switch did not look.

        It was stopped, or its clock leapt: what came meanwhile may be unread, or nothing could.
        """
        slept, self._ticked_at = self._slept(now), now
        if not slept:
            return
        for half in (self.up, self.down):
            for one in half.inputs.values():
                one.heard_at = min(now, one.heard_at + slept)
                one.risen_at = min(now, one.risen_at + slept)

    def _slept(self, now: int) -> int:
        """For how long this switch did not look, though it wished to; 0 if it is a little late."""
        late = now - self._ticked_at - self.config.interval
        return late if late >= AWAKE_INTERVALS * self.config.interval else 0

    def _stands(self, now: int, neighbour: int, one: Input) -> bool:
        """Whether the clock of a process has stopped: its packets come, and its barrier stands.

        Barriers of switches stand still with those of others, which are to be blamed. So do those
        of a process that has joined, until its clock has come to where it was told to begin.
        """
        is_process = neighbour not in self.switch.lower and neighbour not in self.switch.upper
        interval = self.config.interval
        return (
            is_process and now - one.rise(one.barrier, interval, now) > SILENT_INTERVALS * interval
        )

    def _fence(self, half: Half, neighbour: int, one: Input) -> None:
        one.live = False
        if neighbour not in self.switch.lower and neighbour not in self.switch.upper:
            # A process that has just joined may not have passed what it was told to begin above.
            # It has failed there, and not where its register began: others are beyond that.
            one.commit = max(one.commit, half.commit)
            # Nothing goes to it any more. It may still hear this switch, and what it has not
            # acknowledged is recalled from others while barriers rise up to its frozen register.
            self._outputs.pop(neighbour, None)
        # Before anybody is told of the value. One that had come back before its removal is frozen
        # in its new epoch: the former removal, which may still come, is not for this failure.
        one.frozen, one.frozen_epoch = True, one.epoch
        self._effects.append(Silent(neighbour, one.frozen_epoch, one.commit))

    def _hold_back(self, now: int, one: Input) -> None:
        """An input is silent. If it had just come back, it must wait before it comes back again.

        The controller decides on a port that is silent after a while. If the port always came back
        before, its frozen commit register would keep all others waiting as long as that goes on.
        """
        interval = self.config.interval
        if one.returned_at is None or now - one.returned_at >= STEADY_INTERVALS * interval:
            one.relapses = 0
            return
        doublings = min(one.relapses, HOLD_DOUBLINGS_MAX)
        one.held_until = now + (HOLD_INTERVALS * interval << doublings)
        one.relapses += 1

    def _half_of(self, neighbour: int) -> Half:
        return self.down if neighbour in self.switch.upper else self.up

    def _accepts(
        self, now: int, neighbour: int, one: Input, opcode: int, source: int, to: int, epoch: int
    ) -> bool:
        """Whether a packet of this input counts: it is live, and in its epoch."""
        if neighbour in self.switch.lower or neighbour in self.switch.upper:
            is_new = opcode == wire.BEACON and source == neighbour and epoch > one.epoch
            if is_new and not one.held and now >= one.held_until:
                self._admit_again(now, neighbour, one, epoch)
                return True
            # What a switch forwards has the epoch of the process that sent it.
            is_forwarded = opcode != wire.BEACON and to != NEIGHBOUR
            accepted = one.live and (is_forwarded or epoch == one.epoch)
        else:
            # Several processes may share a cable: each is an input, and speaks for itself alone.
            accepted = one.live and epoch == one.epoch and source == neighbour
        return accepted

    def _refuse(self, now: int, neighbour: int, epoch: int) -> None:
        """Tell a neighbour, at most once an interval, that its epoch has ended."""
        self.counters.fenced += 1
        if now - self._refused_at.get(neighbour, 0) >= self.config.interval:
            self._refused_at[neighbour] = now
            told = Packet(wire.FENCED, self.switch.id, epoch=epoch)
            self._effects.append(Send(neighbour, wire.encode(told)))

    def _admit_again(self, now: int, neighbour: int, one: Input, epoch: int) -> None:
        """The switch behind a fenced port has heard that it is fenced, and begins anew.

        If the controller has not removed its commit register, that stays frozen until it does.
        """
        one.epoch = epoch
        one.beacon = b""
        one.live = True
        one.returned_at = now
        one.barrier = one.risen = now - START_NS
        if one.removed:
            one.frozen = one.removed = False
            one.is_behind = True
            one.commit = now - START_NS
        self._effects.append(Joined(neighbour, epoch, one.is_behind))

    def _join(self, now: int, neighbour: int, join: Packet) -> None:
        """Take a process as an input, once; it is told the floors each time that it asks."""
        is_here = not self.switch.lower and rack_of(neighbour) in self.switch.racks
        if not is_here or join.source != neighbour:
            self.counters.unroutable += 1
            return
        known = self.up.inputs.get(neighbour)
        if known is None:
            self._admit(now, neighbour, join.epoch)
            self._effects.append(Joined(neighbour, join.epoch))
        elif not known.live or known.epoch != join.epoch:
            self.counters.fenced += 1  # its id is another's, until the controller removes it
            return
        known = self.up.inputs[neighbour]
        known.floor = max(known.floor, self.up.barrier, self.up.commit)
        floors = wire.encode_floors(self.up.barrier, self.up.commit)
        self._send(now, neighbour, Packet(wire.JOINED, self.switch.id, neighbour,
                                          epoch=join.epoch, payload=floors))  # fmt: skip

    def _admit(self, now: int, neighbour: int, epoch: int) -> None:
        """Take a process as an input; from here on the minima do not pass its registers."""
        self.up.add(neighbour, epoch, now)
        self._outputs[neighbour] = self._output(self.down)

    def _refused(self, now: int, neighbour: int, told: Packet) -> None:
        """The neighbour has fenced this switch: begin a new epoch on the link to it."""
        output = self._outputs.get(neighbour)
        if output is not None and told.source == neighbour and told.epoch >= output.epoch:
            output.epoch = told.epoch + 1
            self._beacon(now, neighbour, output)

    # -- outputs -------------------------------------------------------------------------------

    def _output(self, half: Half) -> Output:
        config = self.config
        return Output(half, PhantomQueue(config.drain_rate, config.mark_above))

    def _port(self, half: Half, data: bytearray, to: int) -> int:
        """Return a port that leads to the receiver of a packet, one that is not dead if any is."""
        rack = rack_of(to)
        if not self.switch.lower and rack in self.switch.racks:
            return to
        rises = half is self.up
        ports = self._toward.get((rack, rises))
        if ports is None:
            ports = self.switch.next_hops(to, self._routes, may_rise=rises)
            if ports:  # of racks that are there alone, so they are few
                self._toward[rack, rises] = ports
        if len(ports) > 1:
            # Packets of one flow take all paths: order needs FIFO links only, not FIFO paths.
            live = [port for port in ports if self._half_of(port).inputs[port].live] or ports
            return live[_spread(data[18:22], data[24:32]) % len(live)]
        return ports[0] if ports else NEIGHBOUR

    def _forward(self, now: int, half: Half, data: bytearray, to: int) -> None:
        """Queue a packet for the next hop."""
        port = self._port(half, data, to)
        output = self._outputs.get(port)
        if output is None:
            self.counters.unroutable += 1
            return
        if self.config.rewrites:
            half = output.half
            wire.rewrite(data, half.barrier, half.commit)
            output.sent_at, output.barrier, output.commit = now, half.barrier, half.commit
        if self.config.drain_rate and output.queue.add(now, len(data)):
            wire.mark(data)
        output.packets += 1
        self._effects.append(_send((port, data, 0)))

    def _forward_run(self, now: int, half: Half, one: Input, data: bytearray, size: int) -> None:
        """Forward a run as its packets would be: only the last one carries what the run promises.

        The others carry the minimum of before: later packets of the run may lie below the new one.
        """
        last = bytearray(data[-size:])
        one.packets += len(data) // size
        output = self._outputs.get(port := self._port(half, data, wire.receiver_of(data)))
        if output is not None:
            wire.rewrite_run(data, size, output.half.barrier, output.half.commit)
        if half.raise_to(one, *wire.barriers_of(last, now), now):
            self._pass_on(now, half)
        if output is None:
            self.counters.unroutable += len(data) // size
            return
        wire.rewrite(last, output.half.barrier, output.half.commit)
        self._note(now, output)
        data[-size:] = last
        wire.mark_run(data, size, output.queue.add_run(now, size, len(data) // size))
        output.packets += len(data) // size
        self._effects.append(Send(port, data, size))

    def _send(self, now: int, neighbour: int, sent: Packet) -> None:
        """Queue a packet of this switch, with the barriers of this moment."""
        output = self._outputs[neighbour]
        half = output.half
        stamped = sent._replace(barrier=half.barrier, commit=half.commit)
        self._effects.append(Send(neighbour, wire.encode(stamped)))
        output.packets += 1
        self._note(now, output)

    def _beacon(self, now: int, neighbour: int, output: Output) -> None:
        half = output.half
        told = output.epoch, half.barrier, half.commit
        if told != half.beacon_of:
            half.beacon, half.beacon_of = bytes(wire.encode_beacon(self.switch.id, *told)), told
        self._effects.append(_send((neighbour, bytearray(half.beacon), 0)))
        output.packets += 1
        output.sent_at, output.barrier, output.commit = now, half.barrier, half.commit

    def _note(self, now: int, output: Output) -> None:
        output.sent_at = now
        output.barrier, output.commit = output.half.barrier, output.half.commit

    def _pass_on(self, now: int, half: Half) -> None:
        """A minimum of this half moved. The virtual link takes no time."""
        self._moved = True
        if half is self.up:
            self.down.raise_to(self._virtual, half.barrier, half.commit, now)

    def _told(self, now: int) -> None:
        """Send beacons on outputs that have not told the minima yet, at most four an interval."""
        self.deadline = self._next_beacon
        if not self._moved:
            return
        pause = self.config.interval // MOVES_PER_INTERVAL
        least = max(1, self.config.interval // STEPS_PER_INTERVAL)
        self._moved = False
        for neighbour, output in self._outputs.items():
            half = output.half
            if half.barrier - output.barrier < least and half.commit - output.commit < least:
                continue  # the next beacon tells it
            if now - output.moved_at >= pause:
                output.moved_at = now
                self._beacon(now, neighbour, output)
            else:
                self._moved = True
                self.deadline = min(self.deadline, output.moved_at + pause)

    def _after(self, now: int) -> int:
        """The next multiple of the interval: all switches and processes beacon at once."""
        return (now // self.config.interval + 1) * self.config.interval


def _spread(psn: bytearray, flow: bytearray) -> int:
    """A number that spreads the packets of all flows evenly, and is the same at each switch."""
    low = int.from_bytes(psn, "big") * 0x9E3779B1 ^ int.from_bytes(flow, "big") * 0x85EBCA77
    return (low ^ low >> 15 ^ low >> 33) & 0xFFFF
