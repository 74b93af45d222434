"""A switch whose packets the kernel handles: what `SwitchNode` decides, on registers of the kernel.

The registers and minima in this process are copies. Before each decision they are read, and what it
has changed is then given to the data path in one command, which that obeys between two packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, sub
from typing import NamedTuple, Protocol

from weir_toc import packet as wire
from weir_toc.controller.lag import LinkReading
from weir_toc.errors import XdpError
from weir_toc.node import (
    SILENT_INTERVALS,
    Effect,
    Output,
    SwitchConfig,
    SwitchNode,
)
from weir_toc.registers import Half, Input
from weir_toc.topology import Routes, Switch, Topology
from weir_toc.xdp import layout as at
from weir_toc.xdp.layout import Change, word


class NextHop(NamedTuple):
    """Where a neighbour is reached: the port, the addresses of both ends, its UDP address."""

    ifindex: int
    own_mac: bytes
    mac: bytes
    ip: bytes
    port: int


#: In intervals: so seldom does time pass for a process whose data path sends beacons.
#: It tells the controller of links at every other of these times.
PAUSE_INTERVALS = 5
_age_of = attrgetter("age")


class DataPath(Protocol):
    """The program in the kernel."""

    @property
    def words(self) -> memoryview:
        """The state, as 64-bit words that it changes meanwhile."""

    def execute(self, now: int, changes: Sequence[Change]) -> None:
        """Change the state soon, behind all earlier changes."""

    def settle(self) -> None:
        """Wait until all changes are done."""

    def beacon(self, blanks: bytes | bytearray) -> None:
        """Inject blank beacons, which lie behind each other."""

    def name(self, neighbour: int, slot: int | None) -> None:
        """Say which slot a neighbour has, or that it has none any more."""

    def lead(self, ifindex: int, behind: int, leader: int | None) -> None:
        """Say what lies behind a port, and which slot gets the beacons for all ports there."""

    def route(self, rack: int, down: int, up: int) -> None:
        """Say which slots lead to the processes of a rack: a bit for each."""


class _Slot:
    """One slot: its number, where its neighbour is, and what the data path has been told of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.hop: NextHop | None = None
        #: Values of words that this process sets, by field.
        self.told: dict[int, int] = {}


class _Hearing:
    """When inputs that count were last heard, and when barriers of processes last rose."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        #: Neighbours whose inputs count, and their slots.
        self.neighbours: list[tuple[int, int]] = []
        #: Whether an input is behind its half.
        self.has_behind = False
        #: Processes among them, how high their barriers were when each had last risen enough, and
        #: when all had: then `Input` does not know it yet.
        self._processes: list[tuple[Input, int]] = []
        self._risen: list[int] = []
        self._risen_at: int | None = None

    def set(self, neighbours: list[tuple[int, int]], processes: list[tuple[Input, int]]) -> None:
        """Take which inputs count, with their slots, and which of them are of processes."""
        self.neighbours, self._processes = neighbours, processes
        self._risen = [one.risen for one, _ in processes]

    def since(self, now: int, words: memoryview) -> int:
        """Return since when the input is silent that has been so for the longest time.

        That of a process counts as silent, too, whose barrier stands still.
        """
        if not self.neighbours:
            return now
        heard = _of_slots(words, at.HEARD_AT)
        since = min([heard[slot] for _, slot in self.neighbours])
        return min(since, self._rise(now, words)) if self._processes else since

    def _rise(self, now: int, words: memoryview) -> int:
        """Return when each barrier of a process was last seen to have risen enough.

        Mostly all have. Then they are compared at once, and each `Input` is told later.
        """
        found = _of_slots(words, at.BARRIER)
        barriers = [found[slot] for _, slot in self._processes]
        if min(map(sub, barriers, self._risen)) >= self._interval:
            self._risen, self._risen_at = barriers, now
            return now
        self.tell()
        risen_at = [
            one.rise(barrier, self._interval, now)
            for (one, _), barrier in zip(self._processes, barriers, strict=True)
        ]
        self._risen = [one.risen for one, _ in self._processes]
        return min(risen_at)

    def tell(self) -> None:
        """Tell inputs how high their barriers were when all had risen."""
        if self._risen_at is not None:
            for (one, _), barrier in zip(self._processes, self._risen, strict=True):
                one.risen, one.risen_at = barrier, self._risen_at
            self._risen_at = None


class XdpNode(SwitchNode):
    """One switch with its packets in the kernel; what has no next hop yet is not heard."""

    def __init__(
        self,
        switch: Switch,
        topology: Topology,
        now: int,
        config: SwitchConfig,
        path: DataPath,
    ) -> None:
        if len(switch.lower) + len(switch.upper) > at.SLOTS:
            raise XdpError(
                f"{switch.name} has {len(switch.lower) + len(switch.upper)} neighbours, and a "
                f"switch in the kernel at most {at.SLOTS}: found the network with fewer racks and "
                "spines, or with --place host"
            )
        super().__init__(switch, topology, now, config)
        self._path = path
        self._topology = topology
        self._hops: dict[int, NextHop] = {}
        self._slots = {id: _Slot(n) for n, id in enumerate((*switch.lower, *switch.upper))}
        self._free = [*range(at.SLOTS - 1, len(self._slots) - 1, -1)]
        self._blanks = bytearray()
        #: Blank beacons for all outputs; empty if anything was decided since.
        self._round = bytearray()
        #: What lies behind each port, and the slot that gets the beacons for all ports there.
        self._ports: dict[int, tuple[int, int | None]] = {}
        self._live = 0
        self._hearing = _Hearing(config.interval)
        path.execute(now, [
            Change(at.NOW, now), Change(at.SOURCE, _as_in_packet(switch.id)),
            Change(at.DRAIN_RATE, config.drain_rate), Change(at.MARK_ABOVE, config.mark_above),
            Change(at.UP_BARRIER, self.up.barrier), Change(at.UP_COMMIT, self.up.commit),
            Change(at.DOWN_BARRIER, self.down.barrier), Change(at.DOWN_COMMIT, self.down.commit),
        ])  # fmt: skip
        self._now = now
        self._push()
        self.set_routes(self._routes)
        # Nothing is promised before, since a half without inputs promises its own time.
        path.execute(now, [Change(at.INTERVAL, config.interval)])

    # -- events --------------------------------------------------------------------------------

    def receive(self, now: int, neighbour: int, data: bytearray) -> list[Effect]:
        """Take a packet that the data path does not handle: joins, and what it has refused."""
        if len(data) < wire.OVERHEAD_BYTES:  # the program passes it on, since it has no opcode
            self.counters.damaged += 1
            return []
        is_new = data[22] == wire.JOIN and neighbour not in self._slots
        if is_new and not (self._free and neighbour in self._hops):
            self.counters.unroutable += 1
            return []  # it asks again
        if self._is_over(neighbour, data):
            return super().receive(now, neighbour, data)
        self._begin(now)
        return self._finish(super().receive(now, neighbour, data))

    def _is_over(self, neighbour: int, data: bytearray) -> bool:
        """Whether an input has ended, so that no register matters to the answer.

        Many links may end at once. Each says so until it is told.
        """
        one = self._half_of(neighbour).inputs.get(neighbour)
        if one is None or data[22] == wire.FENCED:
            return False
        is_switch = neighbour in self.switch.lower or neighbour in self.switch.upper
        epoch = int.from_bytes(data[32:36], "big")
        return not one.live and (not is_switch or epoch <= one.epoch)

    def receive_run(self, now: int, neighbour: int, data: bytearray, size: int) -> list[Effect]:
        """Take packets as `receive` does, one by one."""
        effects: list[Effect] = []
        for one in wire.split(data, size):
            effects += self.receive(now, neighbour, bytearray(one))
        return effects

    def tick(self, now: int) -> list[Effect]:
        """Let time pass, as in `SwitchNode`.

        The data path sends a beacon that comes to all ports. While it does, and no barrier is old,
        time passes for this process in each fifth interval only. Otherwise, while a link is
        behind, and for neighbours that share a port, it injects blank ones in each interval.
        """
        self._now = now
        self._path.settle()
        interval = self.config.interval
        silent_at = self._hearing.since(now, self._path.words) + SILENT_INTERVALS * interval
        is_quiet = not self._hearing.has_behind and not self._slept(now)
        if self._next_beacon <= now <= silent_at and is_quiet:
            blanks, self._next_beacon = self._blank_round(now), self._after(now)
            if abs(now - self._path.words[at.TURNED_AT]) < 3 * interval // 2:
                del blanks[: wire.OVERHEAD_BYTES]
            if blanks:
                self._path.beacon(blanks)
            elif self.oldest_age(now) <= 2 * interval:
                pause = (PAUSE_INTERVALS - 1) * interval
                self._next_beacon = min(self._next_beacon + pause, self._after(silent_at))
            # A pause that it wishes is no leap.
            self._ticked_at = now + self._next_beacon - self._after(now)
            effects: list[Effect] = []
        else:
            # What waits for the data path was not silent: a busy machine may have kept that from
            # its turn. This command is obeyed behind it.
            self._path.execute(now, [])
            self._pull()
            effects = self._finish(super().tick(now))
        self.deadline = self._next_beacon
        return effects

    def freeze(self, now: int, neighbour: int) -> list[Effect]:
        """Fence an input, as in `SwitchNode`."""
        self._begin(now)
        return self._finish(super().freeze(now, neighbour))

    def remove(
        self, now: int, neighbour: int, epoch: int, holds: bool = False
    ) -> list[Effect]:  # fmt: skip
        """Take a frozen register out of the minimum, as in `SwitchNode`."""
        self._begin(now)
        return self._finish(super().remove(now, neighbour, epoch, holds))

    def set_routes(self, routes: Routes) -> None:
        """Take to which racks each neighbour leads now."""
        super().set_routes(routes)
        for rack in sorted(self._topology.racks):
            if not self.switch.lower and rack in self.switch.racks:
                self._path.route(rack, at.HERE, 0)
            else:
                down, up = (
                    sum(1 << self._slots[id].number for id in ids if rack in routes[id])
                    for ids in (self.switch.lower, self.switch.upper)
                )
                self._path.route(rack, down, up)

    def oldest_age(self, now: int) -> int:
        """Return how far the older minimum is behind in the data path."""
        words = self._path.words
        return now - min(words[at.UP_BARRIER], words[at.DOWN_BARRIER])

    def read_links(self, now: int) -> list[LinkReading]:
        """Return what is read of all links whose inputs count, the oldest barrier first.

        Nothing is decided by it: registers are read where they lie, and not copied.
        """
        self._path.settle()
        barriers, heard, sent = (
            _of_slots(self._path.words, field)
            for field in (at.BARRIER, at.PACKETS_IN, at.PACKETS_OUT)
        )
        found = [LinkReading(neighbour, now - barriers[slot], heard[slot], sent[slot])
                 for neighbour, slot in self._hearing.neighbours]  # fmt: skip
        found.sort(key=_age_of, reverse=True)
        return found

    def set_next_hop(self, now: int, neighbour: int, hop: NextHop) -> None:
        """Say where a neighbour is reached. A process cannot join before."""
        if self._hops.get(neighbour) == hop:
            return
        self._hops[neighbour] = hop
        slot = self._slots.get(neighbour)
        if slot is not None:
            self._begin(now)
            self._push()

    # -- what SwitchNode decides -----------------------------------------------------------------

    def _fence(self, half: Half, neighbour: int, one: Input) -> None:
        one.live, one.frozen = False, True
        self._push()  # from here on its commit register stands still: only then it is reported
        self._pull()
        super()._fence(half, neighbour, one)

    def _admit(self, now: int, neighbour: int, epoch: int) -> None:
        super()._admit(now, neighbour, epoch)
        self._slots[neighbour] = _Slot(self._free.pop())
        self._push()  # from here on the minima stand still: only then they are told as floors
        self._pull()

    def _beacon(self, now: int, neighbour: int, output: Output) -> None:
        self._blanks += self._blank(now, neighbour, output)
        self._note(now, output)

    def _blank(self, now: int, neighbour: int, output: Output) -> bytearray:
        """Return a blank beacon: the data path reads time and slot, and puts barriers there."""
        return wire.encode_beacon(self.switch.id, output.epoch, now, self._slots[neighbour].number)

    def _blank_round(self, now: int) -> bytearray:
        """Return blank beacons for all outputs. Mostly the time alone has changed.

        The first one is for all ports, and each other one for a neighbour that shares its port.
        """
        if self._round:
            at.set_time(self._round, now)
        else:
            leaders = {leader for _, leader in self._ports.values()}
            blanks = [wire.encode_beacon(self.switch.id, 0, now, at.EVERY_PORT)]
            blanks += [self._blank(now, id, one) for id, one in self._outputs.items()
                       if self._slots[id].number not in leaders]  # fmt: skip
            self._round = bytearray(b"".join(blanks))
        return self._round[:]

    def _forward(self, now: int, half: Half, data: bytearray, to: int) -> None:
        """Drop what the data path has refused and would not refuse any more: it is out of turn."""
        self.counters.fenced += 1

    # -- the data path -----------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        self._now = now
        self._pull()

    def _finish(self, effects: list[Effect]) -> list[Effect]:
        self._round = bytearray()
        self._push()
        self._inject()
        self._hearing.has_behind = any(
            one.is_behind for half in (self.up, self.down) for one in half.inputs.values()
        )
        return effects

    def _inject(self) -> None:
        if self._blanks:
            self._path.beacon(self._blanks)
            self._blanks = bytearray()

    def _pull(self) -> None:
        """Read minima, registers and counters, once all is done that was decided before.

        Minima come first: the registers are no older than they.
        """
        self._path.settle()
        self._hearing.tell()
        words = self._path.words
        before = (self.up.barrier, self.up.commit, self.down.barrier, self.down.commit)
        minima = words[at.UP_BARRIER : at.DOWN_COMMIT + 1].tolist()
        self.up.barrier, self.up.commit, self.down.barrier, self.down.commit = minima
        self._virtual.barrier, self._virtual.commit = minima[:2]
        if tuple(minima) != before:
            self._moved = True
        for neighbour, slot in self._slots.items():
            first = word(slot.number, 0)
            values = words[first : first + at.SLOT_WORDS].tolist()
            one = self._half_of(neighbour).inputs.get(neighbour)
            if one is None:
                continue
            one.barrier, one.commit, one.heard_at, one.packets = values[
                at.BARRIER : at.PACKETS_IN + 1
            ]
            output = self._outputs.get(neighbour)
            if output is not None:  # a process that has failed is sent nothing
                output.barrier, output.commit, output.packets = values[
                    at.TOLD_BARRIER : at.PACKETS_OUT + 1
                ]
                output.sent_at = 0  # each output has a beacon each interval
            for field in (at.BARRIER, at.COMMIT, at.HEARD_AT, at.PACKETS_IN):
                slot.told[field] = values[field]

    def _push(self) -> None:
        """Give the data path what was decided: epochs, flags, registers, slots and next hops."""
        pieces: list[list[Change]] = []
        for neighbour in [id for id in self._slots if id not in self._half_of(id).inputs]:
            slot = self._slots.pop(neighbour)
            self._path.name(neighbour, None)
            pieces.append([Change(word(slot.number, n), 0) for n in range(at.SLOT_WORDS)])
            self._hops.pop(neighbour, None)
            self._free.append(slot.number)
        live = 0
        for neighbour, slot in self._slots.items():
            one = self._half_of(neighbour).inputs[neighbour]
            live |= one.live << slot.number
            pieces.append([*self._changes(neighbour, slot, one)])
        if live != self._live:
            pieces.append([Change(at.LIVE_SLOTS, live)])
            self._live = live
        changes: list[Change] = []
        for piece in pieces:  # all of a slot in one command
            if len(changes) + len(piece) > at.CHANGES_MAX:
                self._path.execute(self._now, changes)
                changes = []
            changes += piece
        if changes:
            self._path.execute(self._now, changes)
        for neighbour, slot in self._slots.items():
            hop = self._hops.get(neighbour)
            if hop is not None and hop != slot.hop:
                self._path.name(neighbour, slot.number)
                slot.hop = hop
        self._push_ports()
        inputs = {id: self._half_of(id).inputs[id] for id in self._slots}
        live_slots = [(id, self._slots[id].number) for id, one in inputs.items() if one.live]
        # The lower neighbours of a switch that has none below it are processes.
        processes = [] if self.switch.lower else [
            (inputs[id], slot) for id, slot in live_slots if id not in self.switch.upper
        ]  # fmt: skip
        self._hearing.set(live_slots, processes)

    def _push_ports(self) -> None:
        """Tell the data path what lies behind each port."""
        ports: dict[int, tuple[int, int | None]] = dict.fromkeys(self._ports, (at.HOSTS, None))
        for neighbour, slot in self._slots.items():
            if slot.hop is None:
                continue
            behind, leader = ports.get(slot.hop.ifindex, (at.HOSTS, None))
            if neighbour in self.switch.lower or neighbour in self.switch.upper:
                behind = at.BEHIND + slot.number
            if leader is None and neighbour in self._outputs:
                leader = slot.number
            ports[slot.hop.ifindex] = behind, leader
        for ifindex, port in ports.items():
            if self._ports.get(ifindex) != port:
                self._path.lead(ifindex, *port)
        self._ports = ports

    def _changes(self, neighbour: int, slot: _Slot, one: Input) -> Iterable[Change]:
        """Yield what the data path has not been told yet of an input."""
        is_lower = neighbour not in self.switch.upper
        is_switch = neighbour in self.switch.lower or neighbour in self.switch.upper
        flags = (
            at.LOWER * is_lower | at.LIVE * one.live | at.FROZEN * one.frozen
            | at.REMOVED * one.removed | at.SWITCH * is_switch
        )  # fmt: skip
        wanted = {at.ID: neighbour, at.FLAGS: flags, at.EPOCH: one.epoch}
        hop = self._hops.get(neighbour)
        if hop is not None and not is_switch and not one.live:
            wanted[at.IFINDEX] = 0
        elif hop is not None:
            wanted |= {
                at.IFINDEX: hop.ifindex, at.MAC: int.from_bytes(hop.mac, "little"),
                at.OWN_MAC: int.from_bytes(hop.own_mac, "little"),
                at.NEIGHBOUR_IP: int.from_bytes(hop.ip, "little"),
                at.NEIGHBOUR_PORT: int.from_bytes(hop.port.to_bytes(2, "big"), "little"),
            }  # fmt: skip
        output = self._outputs.get(neighbour)
        if output is not None:
            blank = wire.encode_beacon(self.switch.id, output.epoch, 0, 0)
            wanted[at.BEACON] = int.from_bytes(blank[at.BEACON_AT :], "little")
        told = slot.told
        counted = {at.BARRIER: one.barrier, at.COMMIT: one.commit, at.HEARD_AT: one.heard_at,
                   at.PACKETS_IN: one.packets}  # fmt: skip
        for field, value in counted.items():
            known = told.get(field, 0)
            if value != known:
                told[field] = value
                # It has risen meanwhile, perhaps; only an input that begins anew goes back.
                yield Change(word(slot.number, field), value, raises=value > known)
        for field, value in wanted.items():
            if told.get(field) != value:
                told[field] = value
                yield Change(word(slot.number, field), value)


def _of_slots(words: memoryview, field: int) -> list[int]:
    """Return one word of each slot."""
    found: list[int] = words[word(0, field) :: at.SLOT_WORDS].tolist()
    return found


def _as_in_packet(id: int) -> int:
    """Return a word that holds an id as it lies in a packet."""
    return int.from_bytes(id.to_bytes(4, "big"), "little")
