"""One process of the network, without I/O: packets and time in, packets and events out.

    endpoint = Endpoint(process, epoch=1, now=now)
    endpoint.receive(now, burst)
    ticket = endpoint.send(now, Service.RELIABLE, [(to, b"payload")])
    for data in endpoint.take_packets(): ...   # one FIFO link to the switch of the rack
    for event in endpoint.take_events(): ...

The host reads all packets that have come before it calls `receive`, so that one ACK answers them
all, and calls `tick` at `deadline`. All packets go to the switch of the rack, and come from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weir_toc import packet as wire
from weir_toc.controller.entries import Decisions
from weir_toc.controller.lag import LinkReading
from weir_toc.controller.promises import Wait
from weir_toc.endpoint.events import (
    Admitted,
    Counters,
    Delivered,
    EndpointConfig,
    Event,
    EventRun,
    Excluded,
    LeftAlike,
    Service,
)
from weir_toc.endpoint.making import Scatterings
from weir_toc.endpoint.outbox import Outbox
from weir_toc.endpoint.receiving import Receiver
from weir_toc.endpoint.sending import Sender
from weir_toc.errors import Fenced, PacketError
from weir_toc.packet import NEIGHBOUR, Packet

#: A commit barrier that moved is told at once, at most so often in an interval.
MOVES_PER_INTERVAL = 4


class Endpoint:
    """A process: it joins, sends, and delivers. Times are synchronised nanoseconds."""

    def __init__(
        self, process: int, epoch: int, now: int, config: EndpointConfig | None = None
    ) -> None:
        self.process = process
        self.epoch = epoch
        self.config = config or EndpointConfig()
        self.counters = Counters()
        self._events: list[EventRun] = []
        #: It joins until the switch answers. Nothing is sent before but that wish.
        self._joined: tuple[Sender, Receiver, Outbox] | None = None
        self._packets: list[tuple[bytearray, int]] = []
        self._excluded = False
        self._next_beacon = now
        #: What the beacons of the switch hold beside their barriers, once one of them was checked.
        self._beacon = b""
        #: When `tick` is due.
        self.deadline = now

    @property
    def is_admitted(self) -> bool:
        """Whether this process may send and delivers."""
        return self._joined is not None and not self._excluded

    @property
    def barriers(self) -> tuple[int, int]:
        """The barriers that were used for delivery; zeros before it has joined."""
        return (self._joined[1].barrier, self._joined[1].commit) if self._joined else (0, 0)

    @property
    def promised(self) -> int:
        """The last commit barrier that this process sent; 0 before it has joined."""
        return self._joined[2].stamps.commit_sent if self._joined else 0

    @property
    def holds(self) -> tuple[Wait, int]:
        """What that barrier waits for, and for which process; 0 without one."""
        return self._joined[2].holds if self._joined else (Wait.NOTHING, 0)

    @property
    def granted(self) -> int:
        """The sum of the windows that others may use to send here, in bytes."""
        return self._joined[1].granted if self._joined else 0

    # -- calls ---------------------------------------------------------------------------------

    def send(self, now: int, service: Service, parts: Sequence[tuple[int, bytes]]) -> int:
        """Queue a scattering, one payload for each receiver; return its ticket.

        Raises InvalidScattering, SendBufferFull, or Fenced if this process may not send.
        """
        if self._joined is None or self._excluded:
            raise Fenced("this process is no part of the network now: join, or join again")
        ticket = self._joined[0].send(now, service, parts)
        self._finish(now)
        return ticket

    def send_many(self, now: int, service: Service, scatterings: Scatterings) -> range:
        """Queue scatterings in this order; return their tickets. All or none are queued.

        Raises as `send` does.
        """
        if self._joined is None or self._excluded:
            raise Fenced("this process is no part of the network now: join, or join again")
        tickets = self._joined[0].send_many(now, service, scatterings)
        self._finish(now)
        return tickets

    def process_failed(self, now: int, process: int, stamp: int) -> None:
        """The controller says that a process failed, and above which stamp nothing counts.

        `Settled` follows when all that was under way to it is recalled.
        """
        if self._joined is not None:
            sender, receiver, _ = self._joined
            receiver.process_failed(process, stamp)
            sender.process_failed(now, process)
            self._finish(now)

    def recalls_noted(self, now: int, process: int) -> None:
        """The controller has noted what `Undeliverable` told of a failed process."""
        if self._joined is not None:
            self._joined[0].recalls_noted(now, process)
            self._finish(now)

    def exclude(self) -> None:
        """The controller says that this process has failed: it takes and sends nothing any more."""
        self._excluded = True

    @property
    def held(self) -> tuple[int, frozenset[int]] | None:
        """The highest stamp of reliable messages that wait, and their senders; None without any."""
        return self._joined[1].held if self._joined is not None else None

    def settle(self, now: int, decisions: Decisions) -> None:
        """Deliver and discard what is held as others have; this process has been excluded."""
        if self._joined is not None:
            self._joined[1].settle(self.process, decisions)
            self._finish(now)

    def taken(self, now: int, service: Service, count: int) -> None:
        """The program has taken the next `count` messages that were delivered by a service.

        Until then they count in the windows of their senders, if `EndpointConfig.program_takes`.
        """
        if self._joined is not None:
            self._joined[1].taken(service, count)
            self._joined[1].acknowledge(now)
            self._finish(now)

    def receive(self, now: int, burst: Iterable[bytes | bytearray]) -> None:
        """Take packets in the order in which they came from the switch."""
        self.receive_runs(now, ((data, len(data)) for data in burst))

    def receive_runs(self, now: int, burst: Iterable[tuple[bytes | bytearray, int]]) -> None:
        """Take packets that came in pieces: each of a size, the last of a piece perhaps shorter."""
        if self._excluded:
            return  # what is not acknowledged by now is recalled
        for data, size in burst:
            if len(data) > size and self._take_run(now, data, size):
                continue
            for one in wire.split(data, size) if len(data) > size else (data,):
                beacon = self._beacon
                if beacon and one[18:] == beacon and one[:6] == wire.NO_STAMP:
                    self._advance(*wire.barriers_of(one, now))
                    continue
                try:
                    packet = wire.decode(one, now)
                    self._take(now, packet)
                except PacketError:
                    self.counters.damaged += 1
                    continue
                if packet.opcode == wire.BEACON:
                    self._beacon = wire.constant_of(one)
        if self._joined is not None:
            self._joined[1].acknowledge(now)
        self._finish(now)

    def forwarded(self, now: int, source: int, packets: Iterable[bytes | bytearray]) -> None:
        """Take packets of a process that the controller has brought, as a path is cut.

        Their barriers do not count, as they did not come in line behind what these promise.
        """
        if self._joined is None or self._excluded:
            return
        for data in packets:
            try:
                packet = wire.decode(data, now)
                if (packet.source, packet.to) != (source, self.process):
                    raise PacketError("a packet of others was forwarded")
                self._take_forwarded(now, packet)
            except PacketError:
                self.counters.damaged += 1
        self._joined[1].acknowledge(now)
        self._finish(now)

    def tick(self, now: int) -> None:
        """Let time pass: beacons, repetitions, and what is given up."""
        interval = self.config.interval
        if self._joined is None:
            if now >= self.deadline and not self._excluded:
                join = Packet(wire.JOIN, self.process, epoch=self.epoch)
                self._packets.append((data := wire.encode(join), len(data)))
                self.deadline = now + interval
            return
        sender, receiver, outbox = self._joined
        sender.tick(now)
        receiver.tick(now)
        if now >= self._next_beacon:
            outbox.beacon(now)  # all processes do so at once, busy or not
            self._next_beacon = (now // interval + 1) * interval
        self._finish(now)

    def read_link(self, switch: int) -> LinkReading:
        """Return what is read of the link to the switch of the rack.

        If barriers are in beacons only, the switch counts beacons only.
        """
        if self._joined is None:
            return LinkReading(switch)
        outbox = self._joined[2]
        sent = outbox.sent if self.config.barriers_in_data else outbox.beacons
        return LinkReading(switch, sent=sent)

    def take_packets(self) -> list[bytearray]:
        """Return the packets to send to the switch of the rack, in this order."""
        return [bytearray(one) for data, size in self.take_runs() for one in wire.split(data, size)]

    def take_runs(self) -> list[tuple[bytearray, int]]:
        """Return the same packets, those that were made together in one piece, of a size each."""
        if self._excluded:
            return []
        if self._joined is not None and not self._packets:
            return self._joined[2].take()
        found, self._packets = self._packets, []
        if self._joined is not None:
            found += self._joined[2].take()
        return found

    def take_forwards(self) -> list[tuple[int, list[bytearray]]]:
        """Return what the controller is to forward, by receiver, requests and answers apart.

        Each may be lost: it is returned again until it is answered.
        """
        if self._joined is None or self._excluded or not self._joined[2].forwards:
            return []
        return self._joined[2].take_forwards()

    def take_events(self) -> list[Event]:
        """Return what happened since the last call. Deliveries of a service are in its order."""
        found: list[Event] = []
        if not self._events:
            return found
        for one in self.take_event_runs():
            if isinstance(one, Delivered):
                found += one.messages()
            elif isinstance(one, LeftAlike):
                found += one.each()
            else:
                found.append(one)
        return found

    def take_event_runs(self) -> list[EventRun]:
        """Return the same, those that are alike in one piece."""
        found, self._events = self._events, []
        return found

    def describe(self) -> Mapping[str, int]:
        """How much waits to be sent, acknowledged and delivered.

        `uncommitted` is 1 while the commit barrier of the network has not passed all that this
        process sent by the reliable service: if it fails now, nobody may deliver the rest.
        """
        if self._joined is None:
            return {}
        sender, receiver, outbox = self._joined
        return {
            **sender.describe(), "reordering": receiver.buffered, "granted": self.granted,
            "uncommitted": int(receiver.commit < outbox.reliable),
        }  # fmt: skip

    # -- packets -------------------------------------------------------------------------------

    def _take(self, now: int, packet: Packet) -> None:
        if packet.to == NEIGHBOUR or packet.opcode == wire.JOINED:
            self._take_of_switch(now, packet)
        elif packet.to != self.process:
            self.counters.damaged += 1  # a switch took a wrong turn
        elif self._joined is not None:
            self._take_of_process(now, packet, self._joined[0], self._joined[1])
        carries = packet.opcode == wire.BEACON or self.config.barriers_in_data
        if packet.opcode != wire.FENCED and carries:
            # Behind the packet that carries it: it may be the last one below.
            self._advance(packet.barrier, packet.commit)

    def _take_run(self, now: int, data: bytes | bytearray, size: int) -> bool:
        """Take a piece as one, if its packets are whole new messages; return whether they were.

        Barriers rise within it, so the last one counts, if data carry any.
        """
        if self._joined is None:
            return False
        receiver = self._joined[1]
        run = wire.decode_run(data, size, now)
        if run is None or run.to != self.process or not receiver.run(run):
            return False
        if self.config.barriers_in_data:
            self._advance(run.barrier, run.commit)
        return True

    def _take_of_switch(self, now: int, packet: Packet) -> None:
        if packet.opcode == wire.JOINED and self._joined is None and packet.epoch == self.epoch:
            floors = wire.decode_floors(packet.payload)
            outbox = Outbox(self.process, self.epoch, max(floors))
            sender = Sender(self.config, outbox, self.counters)
            receiver = Receiver(self.config, outbox, self.counters, (packet.barrier, packet.commit))
            self._joined = sender, receiver, outbox
            outbox.beacon(now)
            self._events.append(Admitted())
        elif packet.opcode == wire.FENCED and self._joined is not None and not self._excluded:
            self._excluded = True
            self._events.append(Excluded())

    def _take_of_process(
        self, now: int, packet: Packet, sender: Sender, receiver: Receiver
    ) -> None:
        opcode = packet.opcode
        if opcode in (wire.DATA_BE, wire.DATA_R):
            receiver.data(now, packet)
        elif opcode == wire.ACK:
            sender.acknowledged(now, packet, wire.decode_ack(packet.payload))
        elif opcode == wire.NAK:
            sender.refused(packet)
        elif opcode == wire.CONNECT:
            receiver.connect(now, packet, wire.decode_count(packet.payload))
        elif opcode == wire.RECALL:
            receiver.recall(now, packet, wire.decode_count(packet.payload))
        elif opcode == wire.RECALL_ACK:
            sender.recall_acknowledged(now, packet)

    def _take_forwarded(self, now: int, packet: Packet) -> None:
        assert self._joined is not None
        sender, receiver, outbox = self._joined
        if packet.opcode == wire.ACK:
            ack = wire.decode_ack(packet.payload)
            sender.acknowledged(now, packet, ack, is_forwarded=True)
        elif packet.opcode == wire.RECALL_ACK:
            sender.recall_acknowledged(now, packet)
        elif packet.opcode in wire.FORWARDED:
            self._take_of_process(now, packet, sender, receiver)
            receiver.forwarded(now, packet.source)
            if packet.opcode == wire.RECALL:
                outbox.forward(Packet(wire.RECALL_ACK, 0, packet.source, packet.stamp))
        else:
            raise PacketError(f"opcode {packet.opcode} is not forwarded")

    def _advance(self, barrier: int, commit: int) -> None:
        """Use the barriers of a packet, unless they are above what this process has promised."""
        if self._joined is None:
            return
        _, receiver, outbox = self._joined
        stamps = outbox.stamps
        if barrier > stamps.barrier_sent or commit > stamps.commit_sent:
            self.counters.corrupt_barriers += 1
        elif barrier > receiver.barrier or commit > receiver.commit:
            receiver.advance(barrier, commit)

    # -- after each call -----------------------------------------------------------------------

    def _finish(self, now: int) -> None:
        """Tell a commit barrier that moved, collect events, and set the next deadline."""
        if self._joined is None:
            return
        sender, receiver, outbox = self._joined
        interval = self.config.interval
        self.deadline = self._next_beacon
        if outbox.commit_moved:
            due = outbox.beaconed_at + interval // MOVES_PER_INTERVAL
            if due <= now:
                outbox.beacon(now)
            else:
                self.deadline = min(self.deadline, due)
        for events in (sender.events, receiver.events):
            if events:
                self._events += events
                events.clear()
