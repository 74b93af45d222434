"""The sending half of an endpoint: scatterings wait for credits, get a stamp, and are sent.

A scattering leaves when every part fits in the window of its receiver. Credits of a receiver are
granted in the order in which scatterings were queued, and are kept while other parts still wait. So
the scattering that has waited longest is first in all of its queues: none waits for ever, and large
ones are not overtaken again and again. When a receiver makes its window smaller, what has not left
gives back the credits that exceed it, and keeps its place: else senders would wait for ever for
receivers that wait for each other's senders.

A best effort scattering leaves without the receivers that have failed, that grant no window, or
that answer nothing, before it can. Its sender is told of these behind its stamp.

The stamp is taken as it leaves. A reliable scattering is open from then until all receivers have
acknowledged all of it, or its recall; the commit barrier stays below the oldest open one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from weir_toc import packet as wire
from weir_toc.endpoint.events import (
    Counters,
    EndpointConfig,
    EventRun,
    Left,
    LeftAlike,
    Reason,
    SendFailed,
    Service,
    Settled,
)
from weir_toc.endpoint.flow import (
    CUT_TIMEOUTS,
    Batch,
    Confirmation,
    Flow,
    Part,
    Scattering,
    Sent,
)
from weir_toc.endpoint.making import Scatterings, in_turn, made, memory_of, parts_of
from weir_toc.endpoint.outbox import Outbox
from weir_toc.endpoint.recalls import Notes, Recalls
from weir_toc.errors import InvalidScattering, SendBufferFull
from weir_toc.packet import (
    FORWARD_BYTES_MAX,
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    Acknowledgement,
    Packet,
)

#: A timeout sends so many packets again; the ACKs of these bring the next ones.
RESENT_AT_ONCE = 32


class Sender:
    """Scatterings of one process, from the call to the last acknowledgement."""

    def __init__(self, config: EndpointConfig, outbox: Outbox, counters: Counters) -> None:
        self.config = config
        self.counters = counters
        self.events: list[EventRun] = []
        self.flows: dict[int, Flow] = {}
        #: Bytes of parts that have not left.
        self.buffered = 0
        self._outbox = outbox
        self._tickets = 0
        #: Reliable scatterings that are not settled, by stamp, the oldest first.
        self._open = outbox.open
        #: Best effort scatterings by stamp, and how many of their parts are under way.
        self._best_effort: dict[int, Scattering | Batch] = {}
        self._recalls = Recalls(outbox)
        #: What waits for no credits any more since it has lost a receiver.
        self._ready: list[Scattering | Batch] = []
        self._failed: set[int] = set()
        #: Failed processes, and how many recalls each still waits for.
        self._settling: dict[int, int] = {}
        self._notes = Notes()

    # -- calls ---------------------------------------------------------------------------------

    def send(self, now: int, service: Service, parts: Sequence[tuple[int, bytes]]) -> int:
        """Queue a scattering and return its ticket, which events name.

        Raises InvalidScattering, or SendBufferFull while too much waits.
        """
        return self.send_many(now, service, (parts,)).start

    def send_many(self, now: int, service: Service, scatterings: Scatterings) -> range:
        """Queue scatterings in this order; return their tickets. Raises as `send`: none is queued.

        Those that leave at once, and have one receiver and one size, are sent in one piece.
        """
        new = made(self.config.part_max, now, service, scatterings)
        size = memory_of(new)
        if size > self.config.send_buffer:
            raise InvalidScattering(
                f"{parts_of(new)} parts take {size} bytes of memory: "
                f"{self.config.send_buffer} are possible; send fewer at once"
            )
        if self.buffered + size > self.config.send_buffer:
            raise SendBufferFull(
                f"{self.buffered} bytes wait to be sent: wait until some have left"
            )
        first = self._tickets + 1
        flows: dict[int, Flow] = {}
        for one in new:
            if isinstance(one, Batch):
                one.tickets = range(self._tickets + 1, self._tickets + 1 + len(one))
                self._tickets += len(one)
                self._queue_batch(now, one, flows)
            else:
                self._tickets += 1
                one.ticket = self._tickets
                self._queue(now, one, flows)
        self._grant(now, flows.values())
        return range(first, self._tickets + 1)

    def _queue(self, now: int, scattering: Scattering, flows: dict[int, Flow]) -> None:
        """Let a scattering wait in the flows of all its receivers, which are noted in `flows`."""
        if self._failed:
            for to in [part.to for part in scattering.parts if part.to in self._failed]:
                unsent = scattering.drop(to, Reason.PROCESS_FAILED)
                if unsent is not None:
                    self.events.append(unsent)
                    return
            scattering.waiting = len(scattering.parts)
        for part in scattering.parts:
            self.buffered += part.size
            flow = flows[part.to] = self._flow(now, part.to)
            flow.queue.append((scattering, part))

    def _queue_batch(self, now: int, batch: Batch, flows: dict[int, Flow]) -> None:
        if batch.to in self._failed:
            for scattering, _ in batch.singles():
                self._queue(now, scattering, flows)
            return
        self.buffered += len(batch) * batch.cost
        flow = flows[batch.to] = self._flow(now, batch.to)
        flow.queue.append(batch)

    def _flow(self, now: int, to: int) -> Flow:
        flow = self.flows.get(to)
        if flow is None:
            flow = self.flows[to] = Flow(to, now, self.config)
            self._connect(now, flow, 0)
            flow.retry_at = now + flow.trips.timeout
        return flow

    # -- packets -------------------------------------------------------------------------------

    def acknowledged(
        self, now: int, packet: Packet, ack: Acknowledgement, is_forwarded: bool = False
    ) -> None:
        """Take an ACK: what was received, what was released, and the window from now on.

        `is_forwarded` if the controller brought it.
        """
        flow = self.flows.get(packet.source)
        if flow is None:
            return
        flow.path.answered_at = now
        if is_forwarded:
            flow.path.forwarded_at = 0
        service = Service.RELIABLE if ack.service == wire.DATA_R else Service.BEST_EFFORT
        self.counters.marked += ack.marked
        found, touched = flow.covered(service, ack)
        if touched:
            self._separate(flow, service, touched)
            found, _ = flow.covered(service, ack)
        for each in flow.acknowledge(now, service, ack, found, is_forwarded) if found else ():
            if isinstance(each, Batch):
                del self._pending(service)[each.stamp]
                flow.arrived_alike(each)
            else:
                self._packet_acknowledged(flow, each)
            if service is Service.RELIABLE and not is_forwarded:
                # What was given to the controller, too, may have come by that way alone.
                flow.path.is_cut &= isinstance(each, Sent) and each.is_forwarded
        number = wire.unwrap_psn(packet.psn, flow.ack_number)
        flow.find_lost(service, number, ack)
        flow.released(service, ack.released)
        if flow.sent[service] and (overtaken := [*flow.overtaken(now, service)]):
            flow.congestion.lost(now, max([one.sent_at for _, one in overtaken]))
            if service is Service.RELIABLE:
                for psn, one in self._first_packets(flow, service, overtaken):
                    self._send_again(now, flow, psn, one)
        if not flow.window and ack.window:
            flow.retry_at = now + flow.trips.timeout
        if flow.resize(number, ack.window, bool(packet.flags & wire.CONFIRM)):
            flow.take_back(_queued(self.flows.values(), flow.to))
        self._confirm_window(now, flow, is_forwarded)
        self._grant(now, [flow])

    def refused(self, packet: Packet) -> None:
        """Take a NAK: a best effort message came too late at its receiver."""
        self.counters.naks += 1
        flow = self.flows.get(packet.source)
        if flow is not None:
            best_effort = flow.batches(Service.BEST_EFFORT)
            batches = [one for one in best_effort if 0 <= packet.stamp - one.stamp < len(one)]
            self._separate(flow, Service.BEST_EFFORT, batches)
        scattering = self._best_effort.get(packet.stamp)
        if isinstance(scattering, Scattering):
            for part in scattering.parts:
                if part.to == packet.source and part.unacked:
                    self._give_up(scattering, part, Reason.LATE)

    def recall_acknowledged(self, now: int, packet: Packet) -> None:
        """A receiver has discarded its part of an aborted scattering."""
        scattering = self._open.get(packet.stamp)
        if not isinstance(scattering, Scattering):
            return  # a batch is not recalled
        if self._recalls.answered(now, scattering, packet.source):
            self._close_recalled(scattering)
            self._grant(now, [self.flows[packet.source]])

    # -- time ----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Send again what is not acknowledged, and give up what will not be."""
        lost_since = now - self.config.lost_after * self.config.interval
        for flow in self.flows.values():
            if flow.sent[Service.BEST_EFFORT] and (lost := flow.stale(lost_since)):
                batches = [one for one in lost if isinstance(one, Batch)]
                self._separate(flow, Service.BEST_EFFORT, batches)
                for one in flow.stale(lost_since) if batches else lost:
                    if isinstance(one, Sent) and one.part.unacked:
                        flow.congestion.lost(now, one.sent_at)
                        self._give_up(one.scattering, one.part, Reason.LOST)
                self._connect(now, flow, 0)  # the answer tells what came of it
            if flow.retry_at <= now:
                self._retry(now, flow)
            if (owed := flow.owed or self._recalls.owed(flow.to)) or not flow.path.is_whole:
                patience = flow.trips.lasting(CUT_TIMEOUTS) if owed else 0
                if flow.path.watch(now, owed, patience):
                    self._forward(now, flow)
        if self._recalls.is_asking:
            self._recalls.tick(now, {to: flow.trips.timeout for to, flow in self.flows.items()})
        self._grant(now, self.flows.values())

    def process_failed(self, now: int, process: int) -> None:
        """Abort what a failed process has not acknowledged, and recall it everywhere else."""
        if process in self._failed:
            return
        self._failed.add(process)
        self._settling[process] = 1  # until all of its recalls have begun
        gone = self.flows.get(process)
        if gone is not None:
            for service in Service:
                self._separate(gone, service, gone.batches(service))
            gone.waiting()  # apart from now on
        for waiting in _queued(self.flows.values(), process):
            self._cancel(waiting, process, Reason.PROCESS_FAILED)
        self.flows.pop(process, None)
        self._recalls.forget(process)
        for one in _scatterings(self._best_effort):
            for part in one.parts:
                if part.to == process and part.unacked:
                    self._give_up(one, part, Reason.PROCESS_FAILED)
        self._abort_all(now, process)
        self._settle(process)
        self._grant(now, self.flows.values())

    def _abort_all(self, now: int, process: int) -> None:
        """Abort what a failed process has not acknowledged, and tell what it cannot be told."""
        for scattering in _scatterings(self._open):
            if process in scattering.recalls:
                scattering.recalls.discard(process)
                self._notes.add(process, scattering, [process])
            elif not scattering.aborted_by and scattering.is_owed_by(process):
                self._abort(now, scattering, process)
                untold = [part.to for part in scattering.parts if part.to in self._failed]
                self._notes.add(process, scattering, untold)
        self.events += self._notes.told(process)

    def recalls_noted(self, now: int, process: int) -> None:
        """The controller has noted what `Undeliverable` told of a failed process."""
        for scattering in self._notes.noted(process):
            self._close_recalled(scattering)
        self._grant(now, self.flows.values())

    # -- leaving -------------------------------------------------------------------------------

    def _grant(self, now: int, flows: Iterable[Flow]) -> None:
        """Give credits to the parts that wait longest; send what then holds all of its own."""
        leaving, self._ready = self._ready, []
        for flow in flows:
            queue = flow.queue
            while queue:
                head = queue[0]
                if isinstance(head, Batch):
                    count = min(flow.fit(head.cost), len(head))
                    if not count:
                        break
                    flow.grant_alike(head, count)
                    leaving.append(head.piece(0, count))
                    if count < len(head):
                        queue[0] = head.piece(count, len(head))
                        break
                    queue.popleft()
                    continue
                scattering, part = head
                if not flow.fits(part.size):
                    break
                queue.popleft()
                flow.grant(part)
                scattering.waiting -= 1
                if not scattering.waiting:
                    leaving.append(scattering)
        for one in in_turn(leaving) if leaving else ():
            if isinstance(one, Batch):
                self._leave_batch(now, one)
            else:
                self._leave(now, one)

    def _leave_batch(self, now: int, batch: Batch) -> None:
        """Stamp a batch and queue its packets, in pieces."""
        service, flow, count = batch.service, self.flows[batch.to], len(batch)
        stamp = self._outbox.stamps.run(now, count)
        if service is Service.RELIABLE:
            self._outbox.reliable = stamp + count - 1
        psn = flow.next_psn[service]
        flow.next_psn[service] += count
        if not flow.sent[Service.RELIABLE]:
            flow.retry_at = now + flow.trips.timeout
        self.buffered -= count * batch.cost
        self.counters.sent += count
        self.events.append(LeftAlike(batch.tickets, stamp))
        pieces = batch.left(stamp, psn, now)
        for piece in pieces:
            self._pending(service)[piece.stamp] = flow.sent[service][piece.first_psn] = piece
            flow.unreleased[service].append(piece)
        for piece in pieces:  # all are open: their commit barrier is below the first one
            self._outbox.queue_batch(now, piece)

    def _leave(self, now: int, scattering: Scattering) -> None:
        """Stamp a scattering and queue all of its packets, in one step."""
        service = scattering.service
        scattering.stamp = self._outbox.stamps.stamp(now)
        if service is Service.RELIABLE:
            self._outbox.reliable = scattering.stamp
        scattering.unacked = len(scattering.parts)
        self._pending(service)[scattering.stamp] = scattering
        for part in scattering.parts:
            self.buffered -= part.size
            flow = self.flows[part.to]
            part.first_psn = flow.next_psn[service]
            part.unacked = part.packets
            flow.next_psn[service] += part.packets
            flow.unreleased[service].append(part)
            if not flow.sent[Service.RELIABLE]:
                flow.retry_at = now + flow.trips.timeout
            for index in range(part.packets):
                psn = part.first_psn + index
                sent = flow.sent[service][psn] = Sent(scattering, part, index, now)
                self._transmit(now, part.to, psn, sent)
        self.events.append(Left(scattering.ticket, scattering.stamp))
        if scattering.dropped:
            self.events += scattering.told()

    def _transmit(self, now: int, to: int, psn: int, sent: Sent) -> None:
        self.counters.sent += 1
        self._outbox.queue(now, _packet(to, psn, sent))

    # -- batches -------------------------------------------------------------------------------

    def _pending(self, service: Service) -> dict[int, Scattering | Batch]:
        """What is under way by a service, by its (first) stamp."""
        return self._open if service is Service.RELIABLE else self._best_effort

    def _separate(self, flow: Flow, service: Service, batches: Sequence[Batch]) -> None:
        """Take batches apart that are under way in a flow: the same will not happen to all."""
        if not batches:
            return
        found = flow.separate(service, batches)
        apart = {one[0].stamp: one for one in found}
        pending = self._pending(service)
        items = [*pending.items()]
        pending.clear()  # the order is that of stamps, and others hold this very mapping
        for stamp, one in items:
            if stamp in apart:
                pending |= {single.stamp: single for single in apart[stamp]}
            else:
                pending[stamp] = one

    def _first_packets(
        self, flow: Flow, service: Service, found: Iterable[tuple[int, Sent | Batch]]
    ) -> list[tuple[int, Sent]]:
        """Return the first packets of these, which are under way: RESENT_AT_ONCE at most."""
        psns: list[int] = []
        batches = []
        for psn, one in found:
            if len(psns) >= RESENT_AT_ONCE:
                break
            if isinstance(one, Batch):
                batches.append(one)
                psns += range(psn, psn + len(one))
            else:
                psns.append(psn)
        self._separate(flow, service, batches)
        sent = flow.sent[service]
        return [(psn, cast("Sent", sent[psn])) for psn in psns[:RESENT_AT_ONCE]]

    # -- acknowledgement -----------------------------------------------------------------------

    def _packet_acknowledged(self, flow: Flow, one: Sent) -> None:
        scattering, part = one.scattering, one.part
        if not part.unacked:
            return  # given up before
        part.unacked -= 1
        if part.unacked:
            return
        flow.arrived(part)
        scattering.unacked -= 1
        if scattering.unacked or scattering.aborted_by:
            return
        del self._pending(scattering.service)[scattering.stamp]

    def _give_up(self, scattering: Scattering, part: Part, reason: Reason) -> None:
        """A best effort part was not delivered: its sender decides what to do about it."""
        if (flow := self.flows.get(part.to)) is not None:
            flow.give_up(part, reason is Reason.LOST)
        part.unacked = 0
        scattering.unacked -= 1
        if not scattering.unacked:
            del self._best_effort[scattering.stamp]
        self.events.append(
            SendFailed(scattering.ticket, scattering.stamp, part.to, reason, scattering.service)
        )

    # -- repetition ----------------------------------------------------------------------------

    def _retry(self, now: int, flow: Flow) -> None:
        """Nothing came for a whole timeout: ask for a window, or send packets again."""
        sent = flow.sent[Service.RELIABLE]
        limit = self.config.unreachable_after * self.config.interval
        if flow.queue and (reason := flow.reason(now, limit)) is not None:
            for scattering, _ in flow.waiting():
                if now - scattering.queued_at <= limit:
                    break
                self._cancel(scattering, flow.to, reason)
        if flow.confirmation is Confirmation.SENT:
            self._connect(now, flow, flow.window)
        elif flow.queue and not (sent and flow.window):
            # No answer came yet, or the ACK that released credits was lost.
            self._connect(now, flow, 0)
        if sent:
            flow.trips.expired()
            flow.congestion.lost(now, now)
            for psn, one in self._first_packets(flow, Service.RELIABLE, sent.items()):
                self._send_again(now, flow, psn, one)
        flow.retry_at = now + flow.trips.timeout

    def _send_again(self, now: int, flow: Flow, psn: int, one: Sent) -> None:
        one.sent_at = now
        one.times += 1
        self.counters.resent += 1
        self._transmit(now, flow.to, psn, one)

    def _connect(self, now: int, flow: Flow, window: int) -> None:
        """Ask for an ACK; a window that is not 0 is confirmed."""
        self._outbox.queue(now, _connect(flow, window))

    def _confirm_window(self, now: int, flow: Flow, is_forwarded: bool) -> None:
        """Tell the receiver, as it was asked, that a smaller window is kept: nothing exceeds it."""
        if flow.confirmation is Confirmation.DUE and flow.used <= flow.window:
            flow.confirmation = Confirmation.SENT
            self._connect(now, flow, flow.window)
            if flow.path.is_cut or is_forwarded:
                self._outbox.forward(_connect(flow, flow.window))

    # -- a path that is cut --------------------------------------------------------------------

    def _forward(self, now: int, flow: Flow) -> None:
        """Let the controller forward what a receiver owes longest: as much as one message takes."""
        found = flow.sent[Service.RELIABLE].items()
        owed = self._first_packets(flow, Service.RELIABLE, found)
        packets = [*_forwarded(now, flow, owed), *self._recalls.asked(flow.to)]
        if flow.confirmation is Confirmation.SENT:
            packets.append(_connect(flow, flow.window))
        elif flow.queue and not found:
            packets.append(_connect(flow, 0))
        if packets:
            flow.path.forwarded_at = now
            self.counters.forwarded += sum([self._outbox.forward(one) for one in packets])

    # -- failures ------------------------------------------------------------------------------

    def _cancel(self, scattering: Scattering, to: int, reason: Reason) -> None:
        """Take a receiver away from a scattering that has no stamp.

        If it does not go on without that one, it leaves all queues, with its credits.
        """
        gone = scattering.parts
        unsent = scattering.drop(to, reason)
        if unsent is None:
            gone = tuple(part for part in gone if part.to == to)
        else:
            self.events += [unsent, *scattering.told()]
        for part in gone:
            self.buffered -= part.size
            flow = self.flows.get(part.to)
            if flow is not None:
                flow.release(part)
                if (scattering, part) in flow.queue:
                    flow.queue.remove((scattering, part))
                    scattering.waiting -= 1
        if unsent is None and not scattering.waiting:
            self._ready.append(scattering)

    def _abort(self, now: int, scattering: Scattering, process: int) -> None:
        """Recall a scattering from all its receivers but the failed one."""
        scattering.aborted_by = process
        self._settling[process] += 1
        for part in scattering.parts:
            flow = self.flows.get(part.to)
            if flow is None:
                continue
            for psn in range(part.first_psn, part.first_psn + part.packets):
                flow.sent[Service.RELIABLE].pop(psn, None)
            flow.arrived(part)
            self._recalls.add(now, scattering, part.to)

    def _close_recalled(self, scattering: Scattering) -> None:
        """Report an aborted scattering once all of its receivers have discarded it, or will."""
        if scattering.recalls or scattering.notes:
            return
        del self._open[scattering.stamp]
        process = scattering.aborted_by
        failed = SendFailed(
            scattering.ticket, scattering.stamp, process, Reason.PROCESS_FAILED, Service.RELIABLE
        )
        self.events.append(failed)
        self._settle(process)

    def _settle(self, process: int) -> None:
        """One thing less is under way to a failed process; report when nothing is."""
        self._settling[process] -= 1
        if not self._settling[process]:
            del self._settling[process]
            self.events.append(Settled(process))

    def describe(self) -> Mapping[str, int]:
        """How much waits, is open and is under way."""
        return {
            "buffered": self.buffered,
            "open": _count(self._open.values()),
            "best_effort": _count(self._best_effort.values()),
            "flows": len(self.flows),
            "credits": sum(flow.used for flow in self.flows.values()),
            "under_way": sum(flow.congestion.under_way for flow in self.flows.values()),
            "window_least": min((one.congestion.bytes for one in self.flows.values()), default=0),
        }


def _packet(to: int, psn: int, sent: Sent) -> Packet:
    """Return one packet of a part."""
    part, scattering = sent.part, sent.scattering
    flags = (0 if sent.index else wire.BEGIN) | (wire.END if sent.index == part.packets - 1 else 0)
    begin = sent.index * PAYLOAD_BYTES_MAX
    payload = part.payload[begin : begin + PAYLOAD_BYTES_MAX]
    return Packet(scattering.service.value, 0, to, scattering.stamp, psn=psn, flags=flags,
                  payload=payload)  # fmt: skip


def _forwarded(now: int, flow: Flow, owed: Iterable[tuple[int, Sent]]) -> Iterator[Packet]:
    """Yield the packets to forward that were sent, as many as leave at once.

    What has just left may still come by the network, and tells then that the path is mended.
    """
    limit, room = now - flow.trips.lasting(1), FORWARD_BYTES_MAX
    for psn, one in owed:
        packet = _packet(flow.to, psn, one)
        room -= OVERHEAD_BYTES + len(packet.payload)
        if room < 0 or (one.sent_at > limit and one.times == 1):
            return
        one.times += 1  # its round trip is not measured
        one.is_forwarded = True
        yield packet


def _connect(flow: Flow, window: int) -> Packet:
    """Return what asks for an ACK, and confirms a window that is not 0."""
    payload = wire.encode_count(window)
    return Packet(wire.CONNECT, 0, flow.to, psn=flow.ack_number, payload=payload)


def _queued(flows: Iterable[Flow], process: int) -> Iterable[Scattering]:
    """Return the scatterings that wait for credits, and have a part for a process."""
    queued = {
        one[0].ticket: one[0]
        for flow in flows
        for one in flow.queue
        if not isinstance(one, Batch) and any(part.to == process for part in one[0].parts)
    }
    return queued.values()


def _scatterings(pending: Mapping[int, Scattering | Batch]) -> list[Scattering]:
    """Return those that are by themselves."""
    return [one for one in pending.values() if isinstance(one, Scattering)]


def _count(pending: Iterable[Scattering | Batch]) -> int:
    return sum(len(one) if isinstance(one, Batch) else 1 for one in pending)
