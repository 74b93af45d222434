"""The process of a switch, in one of two places. Its beacons cross the links that data cross.

The *host representative* forwards all packets. It needs no root, and any IP network will do. Where
paths differ, packets may overtake each other: best effort messages then come late and are answered
with NAKs; reliable ones are not harmed.

The *switch processor* runs in the switch, whose kernel forwards data past it. It takes beacons, and
sends them on every output, busy or not. The kernel has forwarded what came by an input before a
beacon of this input is read here, if each port is one queue.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns

from weir_toc import packet as wire
from weir_toc.controller.codec import command_from
from weir_toc.controller.entries import (
    Freeze,
    InputSilent,
    LinkJoined,
    ProcessJoined,
    Remove,
    SetRoutes,
)
from weir_toc.controller.records import Removed
from weir_toc.errors import ClockStopped, ControlError, PacketError, XdpError
from weir_toc.forwarding import Forwarding
from weir_toc.hosts.alarm import Alarm
from weir_toc.hosts.batches import Sending
from weir_toc.hosts.control_link import ControlLink, RawClock
from weir_toc.hosts.frames import Frame, number_in
from weir_toc.hosts.udp import Address, OpenSocket, UdpSocket
from weir_toc.node import Effect, Send, Silent, SwitchConfig, SwitchNode
from weir_toc.packet import split
from weir_toc.places import Place
from weir_toc.topology import Switch, Topology, name_of_switch, rack_of

#: So many processes may be linked to one switch.
LINKS_MAX = 1_024
#: Before time passes for a switch, so many bursts are read: it may have been stopped for a while.
_BURSTS_BEFORE_TICK = 16
_AGAIN_AFTER = 0.1


class Aggregator:
    """One switch of the network. `run` serves until it is cancelled."""

    def __init__(
        self,
        controller: Sequence[Address],
        switch: int,
        listen: Address,
        advertise: Address | None = None,
        open_socket: OpenSocket = UdpSocket,
        place: Place = Place.HOST,
        forwarding: Forwarding | None = None,
        raw_clock: RawClock = monotonic_ns,
    ) -> None:
        """Take packets at `listen`. Processes and other switches send them to `advertise`, which is
        the same address if it is None; its port 0 stands for the port of `listen`.

        As a *switch processor* it takes beacons alone: the kernel forwards the data of processes.
        With `forwarding` its routes are set as the controller says.
        """
        self.place = place
        #: Whether beacons that count come here. Otherwise the kernel keeps them, and here are those
        #: that it has refused, which are judged one by one.
        self._takes_beacons = place is not Place.XDP
        self._forwarding = forwarding
        self.switch = switch
        self.socket = open_socket(listen, None)
        host, port = advertise or self.socket.address
        #: Where others reach this switch, as the controller tells them.
        self.advertised: Address = (host, port or self.socket.address[1])
        incarnation = random.SystemRandom().getrandbits(62)
        self.link = ControlLink(controller, {
            "op": "hello", "kind": "node", "node": switch, "incarnation": incarnation,
        }, raw_clock)  # fmt: skip
        #: Set once the controller has admitted this switch.
        self.is_started = asyncio.Event()
        #: Packets from addresses that are not linked, and joins that were not possible.
        self.strangers = 0
        self._node: SwitchNode | None = None
        self._topology: Topology | None = None
        self._addresses: dict[int, Address] = {}
        self._neighbours: dict[Address, int] = {}
        self._alarm = Alarm(self.link, self._tick)
        #: Errors after which this switch cannot serve. The event loop would only log them.
        self._broken: asyncio.Queue[Exception] = asyncio.Queue()

    async def run(self) -> None:
        """Start at the controller, then serve.

        Raises SwitchTaken if another aggregator serves this switch, XdpError or OSError if packets
        or beacons cannot be handled any more, ClockStopped if the clock of this host has stopped.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.link.run())
                tasks.create_task(self._fail())
                self._node = await self._start()
                self.link.hello = {**self.link.hello, "started": True}
                self.is_started.set()
                loop.add_reader(self.socket.socket.fileno(), self._readable)
                self._alarm.set(self._node.deadline)
                while True:
                    frame = await self.link.frames.get()
                    self._obey(frame)
                    if self._forwarding is not None and is_of_routes(frame):
                        await self._forward(self._forwarding)
        finally:
            loop.remove_reader(self.socket.socket.fileno())
            self._alarm.cancel()
            self.socket.close()

    async def _fail(self) -> None:
        raise await self._broken.get()

    async def _start(self) -> SwitchNode:
        """Ask to be the aggregator of this switch, until its former one is settled."""
        host, port = self.advertised
        while True:
            answer = await self.link.request({"op": "start", "host": host, "port": port})
            if answer["op"] == "done":
                break
            await asyncio.sleep(_AGAIN_AFTER)
        await self.link.is_set.wait()
        if answer["place"] != self.place.value:
            raise ControlError(
                f"the network was founded with --place {answer['place']}, and this switch runs "
                f"with --place {self.place.value}"
            )
        topology = Topology.tree(*answer["shape"])
        if self.switch not in topology.switches:
            raise ControlError(
                f"the network was founded with {_shown(*answer['shape'])}: it has no "
                f"{name_of_switch(self.switch)}"
            )
        config = SwitchConfig(interval=number_in(answer, "interval"),
                              rewrites=self.place.barriers_in_data,
                              drain_rate=number_in(answer, "drain_rate"),
                              mark_above=number_in(answer, "mark_above"))  # fmt: skip
        self._topology = topology
        self._set_switches(topology.switches[self.switch].lower
                           + topology.switches[self.switch].upper, answer)  # fmt: skip
        return self._make_node(topology.switches[self.switch], topology, config)

    def _make_node(self, switch: Switch, topology: Topology, config: SwitchConfig) -> SwitchNode:
        return SwitchNode(switch, topology, self.link.now(), config)

    def _addressed(self, neighbour: int, address: Address) -> None:
        """The address of a neighbour is known, or another one than before."""

    # -- packets -------------------------------------------------------------------------------

    def _readable(self) -> None:
        # Beacons come when one's own are due: one turn of the event loop is enough for both.
        if not self._alarm.ring_if_due():
            self._attempt(self._read)

    def _attempt(self, work: Callable[[], object]) -> None:
        """Do what the event loop calls for, and set the timer whatever happens in it.

        After an error of the data path, of the socket or of the clock, `run` ends. After any other
        one, of one packet for example, which the event loop logs, time goes on in the next
        interval.
        """
        node = self._node
        assert node is not None
        due = None
        try:
            work()
            due = node.deadline
        except (ClockStopped, XdpError, OSError) as error:
            self._broken.put_nowait(error)
        finally:
            self._alarm.set(self.link.now() + node.config.interval if due is None else due)

    def _read(self) -> bool:
        """Take one burst; return whether there is more, perhaps."""
        node = self._node
        assert node is not None
        burst = self.socket.read()
        now = self.link.now()
        sends: list[Sending] = []
        neighbours: list[int] = []
        beacons: list[bytes] = []
        neighbour_at, takes_beacons = self._neighbours.get, self._takes_beacons
        for data, address, size in burst:
            neighbour = neighbour_at(address)
            if neighbour is not None and takes_beacons and wire.is_beacon(data):
                neighbours.append(neighbour)
                beacons.append(data)
                continue
            if beacons:  # they were queued before this packet
                self._carry_out(node.receive_beacons(now, neighbours, beacons), sends)
                neighbours, beacons = [], []
            if neighbour is not None and len(data) > size:
                self._carry_out(node.receive_run(now, neighbour, bytearray(data), size), sends)
            else:
                for one in split(data, size):
                    self._take(now, bytearray(one), address, sends)
        if beacons:
            self._carry_out(node.receive_beacons(now, neighbours, beacons), sends)
        if sends:
            self.socket.send(sends)
        return not self.socket.is_drained

    def _take(self, now: int, data: bytearray, address: Address, sends: list[Sending]) -> None:
        node = self._node
        assert node is not None
        neighbour = self._neighbours.get(address)
        if neighbour is not None:
            self._carry_out(node.receive(now, neighbour, data), sends)
            return
        found = self._stranger(data, now)
        if found is None:
            self.strangers += 1
            return
        if found.opcode == wire.JOIN:
            self._neighbours[address] = found.source
            self._addresses[found.source] = address
            self._addressed(found.source, address)
            self._carry_out(node.receive(now, found.source, data), sends)
            return
        # A process of a former incarnation: it is told that its epoch has ended.
        for effect in node.receive(now, found.source, data):
            if isinstance(effect, Send) and effect.to == found.source:
                sends.append((effect.data, address, len(effect.data)))

    def _stranger(self, data: bytearray, now: int) -> wire.Packet | None:
        """Return a packet from an unknown address if its sender may be linked here, or was."""
        assert self._node is not None
        try:
            packet = wire.decode(data, now)
        except PacketError:
            self._node.counters.damaged += 1
            return None
        here = self._node.switch
        if here.lower or rack_of(packet.source) not in here.racks:
            return None
        known = self._addresses.get(packet.source)
        if known is not None:
            if packet.source in self._node.registers():
                return None  # its id is another's
            del self._neighbours[known], self._addresses[packet.source]
        if packet.opcode == wire.JOIN and len(self._addresses) >= LINKS_MAX:
            return None
        return packet

    def _carry_out(self, effects: Iterable[Effect], sends: list[Sending]) -> None:
        node = self._node
        assert node is not None
        for effect in effects:
            if isinstance(effect, Send):
                address = self._addresses.get(effect.to)
                if address is not None:
                    sends.append((effect.data, address, effect.size or len(effect.data)))
            elif isinstance(effect, Silent):
                self.link.report(
                    InputSilent(self.switch, effect.neighbour, effect.epoch, effect.commit)
                )
            elif effect.neighbour in (*node.switch.lower, *node.switch.upper):
                self.link.report(LinkJoined(self.switch, effect.neighbour, effect.is_behind))
            else:
                self.link.report(ProcessJoined(effect.neighbour))

    # -- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._attempt(self._pass_time)

    def _pass_time(self) -> None:
        assert self._node is not None
        self._alarm.check(self._node.config.interval)
        # Beacons that the kernel keeps are not here: what is here is read when it comes.
        for _ in range(_BURSTS_BEFORE_TICK if self._takes_beacons else 0):
            if not self._read():
                break
        now = self.link.now()
        if now >= self._node.deadline:
            sends: list[Sending] = []
            self._carry_out(self._node.tick(now), sends)
            self.socket.send(sends)
        self._alarm.watch(self._node, now, self.socket)

    # -- the controller ------------------------------------------------------------------------

    def _obey(self, frame: Frame) -> None:
        node = self._node
        assert node is not None
        if frame["op"] == "switches":
            self._set_switches(node.switch.lower + node.switch.upper, frame)
            return
        if frame["op"] != "command":
            return
        command = command_from(frame.get("command"))
        now = self.link.now()
        sends: list[Sending] = []
        if isinstance(command, Freeze):
            self._carry_out(node.freeze(now, command.neighbour), sends)
        elif isinstance(command, Remove):
            removed = command.neighbour, command.epoch, command.holds
            self._carry_out(node.remove(now, *removed), sends)
            self.link.report(Removed(self.switch, *removed))
            if command.neighbour not in node.registers():
                address = self._addresses.pop(command.neighbour, None)
                if address is not None:
                    del self._neighbours[address]
        elif isinstance(command, SetRoutes):
            node.set_routes(command.routes)
        self.socket.send(sends)
        self._alarm.set(node.deadline)

    async def _forward(self, forwarding: Forwarding) -> None:
        """Let the kernel forward by the routes of now. Raises ControlError if it does not."""
        node, topology = self._node, self._topology
        assert node is not None
        assert topology is not None
        vias = {id: f"via {host}" for id, (host, _) in self._addresses.items()
                if id in topology.switches}  # fmt: skip
        lines = [*forwarding.lines(node.switch, topology.racks, node.routes, vias)]
        process = await asyncio.create_subprocess_exec("ip", "-batch", "-", stdin=PIPE, stderr=PIPE)
        _, errors = await process.communicate("".join(f"{one}\n" for one in lines).encode())
        if process.returncode:
            raise ControlError(f"--forward: `ip` refused routes: {errors.decode()[:500].strip()}")

    def _set_switches(self, neighbours: Sequence[int], frame: Frame) -> None:
        """Take the addresses of the neighbours that are switches."""
        for id, host, port in frame.get("switches", ()):
            if id in neighbours:
                former = self._addresses.get(id)
                if former is not None:
                    self._neighbours.pop(former, None)
                self._addresses[id] = (host, port)
                self._neighbours[host, port] = id
                self._addressed(id, (host, port))


def _shown(racks: int, spines: int, cores: int) -> str:
    """Return the shape of a network in words."""
    counts = ((racks, "rack"), (spines, "spine"), (cores, "core"))
    *most, last = [f"{count} {tier}{'s' * (count != 1)}" for count, tier in counts]
    return f"{', '.join(most)} and {last}"


def is_of_routes(frame: Frame) -> bool:
    """Whether a frame of the controller changes where neighbours are or lead."""
    command = frame.get("command")
    is_command = frame["op"] == "command" and isinstance(command, list) and command[:1] == [
        SetRoutes.__name__
    ]  # fmt: skip
    return is_command or frame["op"] == "switches"
