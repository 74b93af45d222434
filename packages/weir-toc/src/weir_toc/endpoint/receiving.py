"""The receiving half of an endpoint: messages wait for the barrier, and are delivered in order.

Best effort messages are delivered strictly below the barrier: later ones may have its value.
Reliable ones are delivered at or below the commit barrier: no others will be sent there. Ties of
stamps are broken by the id of the sender.

What waits takes memory, which is granted beforehand: the windows of all senders together never
exceed one budget. When a sender joins, the others get smaller windows, and it gets what they have
confirmed to have given up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import cast

from weir_toc import packet as wire
from weir_toc.controller.entries import Decisions
from weir_toc.endpoint.events import (
    Counters,
    Delivered,
    EndpointConfig,
    EventRun,
    ProcessFailed,
    Row,
    Service,
)
from weir_toc.endpoint.outbox import Outbox
from weir_toc.endpoint.streams import Assembly, Source, Stream
from weir_toc.packet import Acknowledgement, Packet, Run, unwrap_psn

#: Above the number of every process, also of one that has failed.
_LAST = 1 << 33
#: At its stamp, the failure of a process comes behind the messages of all processes.
_BEHIND_ALL = 1 << 32
#: How many intervals of best effort packets are remembered, to tell repeated ones from late ones.
_REMEMBERED = wire.RANGES_MAX
#: An ACK of best effort tells of so many newest packets: its sender unwraps their numbers near the
#: one that it sends next, which is possible within 2^31. No window holds as many.
_TOLD_PACKETS = 1 << 30
#: So many messages are handed on in one piece at most: a program gives back their memory at once.
DELIVERED_MAX = 512
#: A sender that has not confirmed a smaller window is asked again after so many intervals.
_ASK_AGAIN = 10
#: Each time it was asked so often it is asked through the controller, too: its path may be cut, and
#: if it has nothing to send, it does not find that out.
_ASKED_BY_NETWORK = 5
#: ACKs to a sender go through the controller, too, until it has forwarded nothing for so many
#: intervals: how many are needed until the path is mended, nobody knows.
_FORWARDS_LAST = 200


#: Of a `Row`; without a function of Python for each message.
_sender: Callable[[Row], int] = itemgetter(1)
_payload: Callable[[Row], bytes] = itemgetter(3)
#: As `Row`; a failure has no packets.
_Waiting = tuple[int, int, int, bytes | ProcessFailed]


class Receiver:
    """Messages to one process, from the first packet to their delivery."""

    def __init__(
        self, config: EndpointConfig, outbox: Outbox, counters: Counters, floors: tuple[int, int]
    ) -> None:
        """`floors` are the barriers below which this process, being new, delivers nothing."""
        self.config = config
        self.counters = counters
        self.events: list[EventRun] = []
        #: The barriers that were used for delivery: nothing below is delivered any more.
        self.barrier, self.commit = floors
        self.buffered = 0
        self._outbox = outbox
        self._sources: dict[int, Source] = {}
        #: Delivered messages that the program has not taken yet, in the pieces that it was given.
        self._untaken: dict[Service, deque[Sequence[Row]]] = {one: deque() for one in Service}
        #: What waits for its barrier, in the order of delivery.
        self._waiting: dict[Service, list[_Waiting]] = {service: [] for service in Service}
        #: Failed processes, and above which stamp nothing of them counts.
        self._failed: dict[int, int] = {}
        #: Bytes in memory of failed senders: they have no windows any more.
        self._of_failed = 0
        #: No window has room for more packets than these, so no reliable one is so far ahead.
        self._packets_max = config.reorder_budget // wire.PACKET_COST
        #: Whether all senders have the same share of the budget, and have confirmed it.
        self._is_divided = True

    @property
    def granted(self) -> int:
        """The sum of all windows that senders may use, never above the budget."""
        granted = 0
        for source in self._sources.values():
            granted += source.granted
        return granted

    # -- packets -------------------------------------------------------------------------------

    def data(self, now: int, packet: Packet) -> None:
        """Take a packet of a message."""
        source = self._sources.get(packet.source)
        if source is None or packet.source in self._failed:
            return  # it asks for a window again, or is dead
        is_reliable = packet.opcode == wire.DATA_R
        service = Service.RELIABLE if is_reliable else Service.BEST_EFFORT
        stream = source.reliable if is_reliable else source.best_effort
        top = stream.seen.top
        psn = unwrap_psn(packet.psn, max(top, stream.released))
        stream.packets += 1
        stream.marked += bool(packet.flags & wire.ECN)
        if psn < top and psn in stream.seen:
            self.counters.duplicates += 1
            stream.ack_now = True
            return
        if not is_reliable and packet.stamp < self.barrier:
            self.counters.late += 1
            nak = Packet(wire.NAK, 0, packet.source, packet.stamp, psn=packet.psn)
            self._outbox.queue(now, nak)
            return
        if is_reliable and packet.stamp <= self.commit:
            # No process of this protocol sends it, unless a false barrier was used here. Then it
            # comes too late, and its sender must not hear that it has arrived.
            self.counters.damaged += 1
            return
        is_whole = packet.flags & wire.WHOLE == wire.WHOLE
        # Nearly all packets are whole messages above all that came before.
        is_next = is_whole and packet.stamp > stream.newest and psn >= 0
        if not is_next and self._refuses(service, stream, packet, psn):
            return
        size = len(packet.payload) + wire.PACKET_COST
        is_ahead = is_reliable and stream.is_ahead(psn, 1, self._packets_max)
        if is_ahead or source.buffered + size > source.granted:
            self.counters.over_budget += 1
            return
        if packet.stamp > stream.newest:
            stream.newest = packet.stamp
        stream.seen.add(psn)
        if not is_reliable:
            stream.seen.forget(_REMEMBERED)
        stream.ack_now = True
        source.buffered += size
        self.buffered += size
        self.counters.buffered_max = max(self.counters.buffered_max, self.buffered)
        payload, end = packet.payload, psn + 1
        if not is_whole:
            whole = _assembled(stream, packet, psn)
            if whole is None:
                return
            payload, end = whole
        insort(self._waiting[service], (packet.stamp, packet.source, end, payload))

    def _refuses(self, service: Service, stream: Stream, packet: Packet, psn: int) -> bool:
        """Whether a packet does not fit to what came of its sender; it is counted then.

        Best effort may have forgotten that it came before.
        """
        assembly, found = stream.assemblies.get(packet.stamp), None
        if assembly is None and packet.stamp <= stream.newest:
            waiting, key = self._waiting[service], (packet.stamp, packet.source)
            place = bisect_left(waiting, key)
            if place < len(waiting) and waiting[place][:2] == key:
                found = waiting[place]
        if found is None and stream.takes(packet, psn):
            return False
        is_repeated = assembly is not None and psn in assembly.fragments
        if found is not None and isinstance(found[3], bytes):
            is_repeated = 0 < found[2] - psn <= wire.packets_of(len(found[3]))
        if is_repeated:
            self.counters.duplicates += 1
        else:
            self.counters.damaged += 1
        return True

    def run(self, run: Run) -> bool:
        """Take whole messages of one sender that follow each other, if nothing is odd about them.

        If this returns False nothing was taken: each of their packets is to be given to `data`.
        """
        source = self._sources.get(run.source)
        if source is None or run.source in self._failed:
            return False
        service = Service(run.opcode)
        stream = source.stream(service)
        count = len(run.stamps)
        top = max(stream.seen.top, stream.released)
        psn = unwrap_psn(run.psn, top)
        size = count * wire.cost_of(len(run.payloads[0]))
        is_reliable = service is Service.RELIABLE
        limit = max(stream.newest, self.commit if is_reliable else self.barrier - 1)
        if psn < top or run.stamps[0] <= limit or source.buffered + size > source.granted:
            return False
        if is_reliable and stream.is_ahead(psn, count, self._packets_max):
            return False
        self.counters.runs += 1
        stream.packets += count
        stream.newest = run.stamps[-1]
        stream.seen.add(psn, count)
        if not is_reliable:
            stream.seen.forget(_REMEMBERED)
        stream.ack_now = True
        source.buffered += size
        self.buffered += size
        self.counters.buffered_max = max(self.counters.buffered_max, self.buffered)
        ends = range(psn + 1, psn + 1 + count)
        self._wait(
            service, [*zip(run.stamps, repeat(run.source), ends, run.payloads, strict=False)]
        )
        return True

    def connect(self, now: int, packet: Packet, window: int) -> None:
        """A sender asks for a window, or confirms the one that it keeps."""
        if packet.source in self._failed:
            return
        source = self._sources.get(packet.source)
        if source is None:
            source = Source.beginning(packet.source, self.config.first_psn)
            self._sources[packet.source] = source
        # A confirmation that was overtaken may be of the same window at another time.
        number = wire.unwrap_psn(packet.psn, source.acks)
        if source.told and window == source.told and number >= source.told_since:
            source.granted = source.told
            source.asked = 0
        self._divide(now)
        source.best_effort.ack_now = source.reliable.ack_now = True

    def recall(self, now: int, packet: Packet, count: int) -> None:
        """A sender aborts a message: discard it, whether it is here, in part, or not at all."""
        source = self._sources.get(packet.source)
        if source is not None:
            stream = source.reliable
            first = unwrap_psn(packet.psn, max(stream.seen.top, stream.released))
            if first < 0 or not count or stream.is_ahead(first, count, self._packets_max):
                self.counters.damaged += 1
                return
            self._discard(source, packet.stamp)
            stream.seen.add(first, count)
            stream.gone[first] = first + count
            self._advance(source, stream, stream.released)
        self._outbox.queue(now, Packet(wire.RECALL_ACK, 0, packet.source, packet.stamp))

    def forwarded(self, now: int, process: int) -> None:
        """The controller has brought packets of a process, which waits for answers by it."""
        source = self._sources.get(process)
        if source is not None:
            self._use_controller(now, source)

    # -- order ---------------------------------------------------------------------------------

    def advance(self, barrier: int, commit: int) -> None:
        """Take barriers, which cover all that came before, and deliver what they allow."""
        if barrier > self.barrier:
            self.barrier = barrier
            # Strictly below: another message may still come with the barrier as its stamp.
            self._deliver(Service.BEST_EFFORT, barrier - 1)
            self._drop_incomplete(Service.BEST_EFFORT, self.barrier - 1)
        if commit > self.commit:
            self.commit = commit
            self._deliver(Service.RELIABLE, commit)
            self._drop_incomplete(Service.RELIABLE, self.commit)

    def process_failed(self, process: int, stamp: int) -> None:
        """Discard what a failed process sent above `stamp`; tell of it at its place."""
        if process in self._failed:
            return
        self._failed[process] = stamp
        source = self._sources.pop(process, None)
        self._is_divided = False
        waiting = self._waiting[Service.RELIABLE]
        waiting[:] = [one for one in waiting if one[1] != process or one[0] <= stamp]
        insort(waiting, (stamp, _BEHIND_ALL + process, 0, ProcessFailed(process, stamp)))
        if source is not None:
            # What is kept of it still counts as memory, and is counted down by its delivery.
            of_it = [one for rest in self._waiting.values() for one in rest if one[1] == process]
            held = sum(wire.cost_of(len(one[3])) for one in of_it if isinstance(one[3], bytes))
            for untaken in self._untaken.values():
                rows = [one for piece in untaken for one in piece if one[1] == process]
                held += sum(wire.cost_of(len(one[3])) for one in rows)
            self.buffered -= source.buffered - held
            self._of_failed += held
        if stamp <= self.commit:
            self._deliver(Service.RELIABLE, self.commit)

    @property
    def held(self) -> tuple[int, frozenset[int]] | None:
        """The highest stamp of reliable messages that wait, and their senders; None without any."""
        rows = [one for one in self._waiting[Service.RELIABLE] if isinstance(one[3], bytes)]
        return (rows[-1][0], frozenset(one[1] for one in rows)) if rows else None

    def settle(self, process: int, decisions: Decisions) -> None:
        """Deliver and discard what waits by the reliable service as others have: this `process` has
        failed, and what became of all messages that it holds is decided.
        """
        held = self.held
        if held is None:
            return
        failed = dict(decisions.failed)
        last = failed.pop(process, 0)
        for one, stamp in failed.items():
            self.process_failed(one, stamp)
        waiting = self._waiting[Service.RELIABLE]
        waiting[:] = [one for one in waiting if one[1] != process or one[0] <= last]
        for sender, low, high in decisions.recalled:
            begin, end = bisect_left(waiting, (low,)), bisect_right(waiting, (high, _LAST))
            waiting[begin:end] = [one for one in waiting[begin:end] if one[1] != sender]
        self.commit = max(self.commit, held[0])
        self._drop_incomplete(Service.RELIABLE, self.commit)
        self._deliver(Service.RELIABLE, self.commit)

    # -- acknowledgement -----------------------------------------------------------------------

    def acknowledge(self, now: int, is_tick: bool = False) -> None:
        """Queue the ACKs that are due: one for all packets of a burst from one sender."""
        for source in self._sources.values():
            stream = source.best_effort
            if stream.ack_now or (is_tick and stream.ack_soon):
                self._acknowledge(now, source, Service.BEST_EFFORT, stream)
            stream = source.reliable
            if stream.ack_now or (is_tick and stream.ack_soon):
                self._acknowledge(now, source, Service.RELIABLE, stream)

    def tick(self, now: int) -> None:
        """Ask senders again that have not confirmed a smaller window."""
        pause = _ASK_AGAIN * self.config.interval
        for source in self._sources.values():
            if source.told < source.granted and now - source.asked_at >= pause:
                source.asked_at = now
                source.asked += 1
                source.best_effort.ack_now = True
                if not source.asked % _ASKED_BY_NETWORK and source.buffered <= source.told:
                    self._use_controller(now, source)
        if not self._is_divided:
            self._divide(now)
        self.acknowledge(now, is_tick=True)

    def _acknowledge(self, now: int, source: Source, service: Service, stream: Stream) -> None:
        seen = stream.seen
        if service is Service.RELIABLE:
            opcode, ranges = wire.DATA_R, seen.oldest(wire.RANGES_MAX)
        else:
            opcode = wire.DATA_BE
            ranges = seen.newest(wire.RANGES_MAX, _TOLD_PACKETS)
        ack = Acknowledgement(opcode, source.told, stream.released, seen.through,
                              stream.packets, stream.marked, ranges)  # fmt: skip
        # It cannot confirm before what it sent is out of memory here: that takes its time.
        flags = wire.CONFIRM if source.buffered <= source.told < source.granted else 0
        source.acks += 1
        packet = Packet(wire.ACK, 0, source.process, psn=source.acks, flags=flags,
                        payload=wire.encode_ack(ack))  # fmt: skip
        self._outbox.queue(now, packet)
        if source.forwarded_at:
            self._answer(now, source, stream, packet)
        stream.packets = stream.marked = 0
        stream.ack_now = stream.ack_soon = False
        source.unreported = 0

    def _use_controller(self, now: int, source: Source) -> None:
        """Send ACKs of both services through the controller, too, at once and for a while."""
        source.forwarded_at = now
        for stream in (source.best_effort, source.reliable):
            stream.answered_at = 0
            stream.ack_now = True

    def _answer(self, now: int, source: Source, stream: Stream, ack: Packet) -> None:
        """Send an ACK through the controller, too: one in an interval beside those it waits for.

        Each service has its own, as only its own ACK tells what of it was released.
        """
        interval = self.config.interval
        if now - source.forwarded_at > _FORWARDS_LAST * interval:
            source.forwarded_at = 0
        elif now - stream.answered_at >= interval:
            stream.answered_at = now
            self._outbox.forward(ack)

    # -- memory --------------------------------------------------------------------------------

    def _divide(self, now: int) -> None:
        """Share the budget evenly; nobody gets what another sender may still use."""
        sources = self._sources.values()
        floor, budget = self.config.window_min, self.config.reorder_budget
        share = max(floor, budget // max(1, len(self._sources)))
        free = budget - self.granted - self._of_failed
        for source in sources:
            if source.told > share:
                source.told = share
                source.told_since = source.acks + 1
                source.asked_at = now
                source.best_effort.ack_now = True
        for source in sources:
            more = min(share - source.told, free)
            # A window below the floor could hold no part of the largest size. None grows while a
            # smaller one is not confirmed: the two could not be told apart.
            if source.told == source.granted and source.told + more >= floor and more > 0:
                source.told += more
                source.told_since = source.acks + 1
                source.granted = source.told
                free -= more
                source.best_effort.ack_now = True
        self._is_divided = all(one.told == one.granted == share for one in sources)

    def _wait(self, service: Service, run: Sequence[_Waiting]) -> None:
        """Let messages wait, which are in order themselves."""
        waiting = self._waiting[service]
        # What lies above the first one was sent at the same time: it is little of all that waits.
        place = bisect_left(waiting, run[0])
        above = waiting[place:]
        waiting[place:] = sorted([*above, *run]) if above else run

    def _deliver(self, service: Service, through: int) -> None:
        """Deliver all that waits at or below a stamp."""
        waiting = self._waiting[service]
        if not waiting or waiting[0][0] > through:
            return
        count = bisect_right(waiting, (through, _LAST))
        ready = waiting[:count]
        del waiting[:count]
        rows = cast("list[Row]", ready)
        first = 0
        if self._failed:
            for at, (_, _, _, payload) in enumerate(ready):
                if isinstance(payload, ProcessFailed):
                    self._hand_out(service, rows[first:at])
                    self.events.append(payload)
                    first = at + 1
        self._hand_out(service, rows[first:])

    def _hand_out(self, service: Service, rows: Sequence[Row]) -> None:
        """Hand on messages, in pieces."""
        self.counters.delivered += len(rows)
        for at in range(0, len(rows), DELIVERED_MAX):
            piece = rows if len(rows) <= DELIVERED_MAX else rows[at : at + DELIVERED_MAX]
            self.events.append(Delivered(service, piece))
            if self.config.program_takes:
                self._untaken[service].append(piece)
            else:
                self._release(service, piece)

    def taken(self, service: Service, count: int) -> None:
        """The program has taken so many messages that were delivered: their memory is free."""
        untaken = self._untaken[service]
        while count:
            piece = untaken.popleft()
            if len(piece) > count:
                untaken.appendleft(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            self._release(service, piece)

    def _release(self, service: Service, rows: Sequence[Row]) -> None:
        """These messages are out of memory."""
        processes = {*map(_sender, rows)}
        for process in processes:
            of_it = rows if len(processes) == 1 else [row for row in rows if row[1] == process]
            # Of one sender and service, stamps and PSNs rise together.
            end = of_it[-1][2]
            lengths = [*map(len, map(_payload, of_it))]
            if max(lengths) <= wire.PAYLOAD_BYTES_MAX:
                size = sum(lengths) + len(lengths) * wire.PACKET_COST
            else:
                size = sum(map(wire.cost_of, lengths))
            self._release_of(service, process, end, size)

    def _release_of(self, service: Service, process: int, end: int, size: int) -> None:
        self.buffered -= size
        source = self._sources.get(process)
        if source is None:
            self._of_failed -= size
        else:
            source.buffered -= size
            source.unreported += size
            stream = source.stream(service)
            self._advance(source, stream, end)

    def _advance(self, source: Source, stream: Stream, end: int) -> None:
        """All packets below `end` are out of memory, and those recalled right behind."""
        stream.released = max(stream.released, end)
        while stream.gone:
            first = min(stream.gone)
            if first > stream.released:
                break
            stream.released = max(stream.released, stream.gone.pop(first))
        stream.ack_soon = True
        if source.unreported * 4 > source.told:
            stream.ack_now = True

    def _discard(self, source: Source, stamp: int) -> None:
        """Take a recalled message out of memory."""
        waiting = self._waiting[Service.RELIABLE]
        for at in range(bisect_right(waiting, (stamp,)), len(waiting)):
            one = waiting[at]
            if one[0] != stamp:
                break
            if one[1] == source.process and isinstance(one[3], bytes):
                del waiting[at]
                self._forget(source, wire.cost_of(len(one[3])))
                return
        assembly = source.reliable.assemblies.pop(stamp, None)
        if assembly is not None:
            self._forget(source, assembly.cost)

    def _drop_incomplete(self, service: Service, through: int) -> None:
        """The rest of these messages would come too late.

        Of the reliable service there are none but of a sender that breaks the rules.
        """
        for source in self._sources.values():
            stream = source.stream(service)
            if not stream.assemblies:  # nearly always
                continue
            for stamp in [stamp for stamp in stream.assemblies if stamp <= through]:
                assembly = stream.assemblies.pop(stamp)
                self.counters.incomplete += 1
                self._forget(source, assembly.cost)
                self._advance(source, stream, assembly.high + 1)

    def _forget(self, source: Source, size: int) -> None:
        source.buffered -= size
        self.buffered -= size


def _assembled(stream: Stream, packet: Packet, psn: int) -> tuple[bytes, int] | None:
    """Take a fragment; return its message and one more than the PSN of the last one, if whole."""
    assembly = stream.assemblies.get(packet.stamp)
    if assembly is None:
        assembly = stream.assemblies[packet.stamp] = Assembly()
    assembly.add(psn, packet.flags, packet.payload)
    if not assembly.is_whole:
        return None
    del stream.assemblies[packet.stamp]
    fragments = assembly.fragments
    return b"".join(fragments[one] for one in sorted(fragments)), assembly.high + 1
