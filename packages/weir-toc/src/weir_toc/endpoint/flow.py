"""What a sender knows of one receiver: credits, packets under way, and when to send again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, takewhile
from typing import cast

from weir_toc.congestion import CongestionWindow, RoundTrips
from weir_toc.endpoint.events import EndpointConfig, Reason, SendFailed, Service
from weir_toc.packet import (
    OVERHEAD_BYTES,
    PACKET_COST,
    PAYLOAD_BYTES_MAX,
    Acknowledgement,
    cost_of,
    packets_of,
    unwrap_psn,
)

#: A piece has so many packets at most, and so many bytes: what leaves in one call is encoded in one
#: piece.
RUN_PACKETS_MAX, RUN_BYTES_MAX = 64, 65_000
#: A packet is sent again when one that was sent so much later is acknowledged.
REORDERED_PACKETS = 3
#: The path to a receiver is cut once the oldest thing that it owes is not answered after so many
#: timeouts in a row. What is forwarded and not answered is forwarded again after so many intervals.
CUT_TIMEOUTS, FORWARD_AGAIN = 5, 20
#: What a receiver owes: the ACK of a packet, a window, or one that asks for no confirmation.
_PACKET, _WINDOW, _CONFIRMED = 0, 1, 2


class Confirmation(Enum):
    """Whether a receiver that has made its window smaller is told that nothing exceeds it."""

    NONE = "none"
    #: It waits for that.
    DUE = "due"
    #: It was told, and no ACK has shown that it knows.
    SENT = "sent"


class Part:
    """The message of a scattering to one receiver. One is made for each message: it is plain."""

    __slots__ = ("first_psn", "holds_credit", "is_under_way", "packets", "payload", "size", "to",
                 "unacked")  # fmt: skip

    def __init__(self, to: int, payload: bytes) -> None:
        self.to = to
        self.payload = payload
        #: The bytes that it takes of a window.
        self.size = cost_of(len(payload))
        #: The number of its fragments.
        self.packets = packets_of(len(payload))
        self.first_psn = 0
        #: How many of its packets are not acknowledged.
        self.unacked = 0
        #: Whether its bytes count in the window that the receiver granted, and in that of the
        #: network: there it counts until it is acknowledged.
        self.holds_credit = self.is_under_way = False


@dataclass(slots=True, eq=False)
class Scattering:
    """Messages to several receivers under one stamp."""

    ticket: int
    service: Service
    parts: tuple[Part, ...]
    queued_at: int
    #: How many parts wait for credits.
    waiting: int
    #: 0 until it leaves.
    stamp: int = 0
    #: How many parts are not wholly acknowledged.
    unacked: int = 0
    #: The receivers that must still acknowledge its recall.
    recalls: set[int] = field(default_factory=set)
    #: So many notes of the controller it waits for, that failed receivers cannot be told.
    notes: int = 0
    #: The process whose failure aborted it; 0 while it goes on.
    aborted_by: int = 0
    #: Receivers that it has lost before it left, as best effort may, and why.
    dropped: tuple[tuple[int, Reason], ...] = ()

    def drop(self, to: int, reason: Reason) -> SendFailed | None:
        """Go on without a receiver; return what its sender is told if that cannot be.

        A reliable one leaves as a whole or not at all, and none leaves without any receiver.
        """
        rest = tuple(part for part in self.parts if part.to != to)
        if self.service is Service.RELIABLE or not rest:
            return SendFailed(self.ticket, 0, to, reason, self.service)
        self.parts = rest
        self.dropped += ((to, reason),)
        return None

    def told(self) -> Iterator[SendFailed]:
        """Yield what its sender is told of the receivers without which it has left."""
        for to, reason in self.dropped:
            yield SendFailed(self.ticket, self.stamp, to, reason, self.service)

    def is_owed_by(self, receiver: int) -> bool:
        """Whether a receiver has not acknowledged all of its part."""
        return any(part.to == receiver and part.unacked for part in self.parts)


class Batch:
    """Scatterings of one part and one packet each: of one service, to one receiver, of one size.

    While the same happens to all of them they stay in one piece: one object, and not three for
    each. What happens to some of them is done to `singles`.
    """

    __slots__ = ("cost", "first_psn", "is_acked", "payloads", "queued_at", "released", "sent_at",
                 "service", "stamp", "tickets", "to")  # fmt: skip

    def __init__(
        self, to: int, service: Service, tickets: Sequence[int], payloads: Sequence[bytes], now: int
    ) -> None:
        self.to = to
        self.service = service
        self.tickets = tickets
        self.payloads = payloads
        #: The bytes that each takes of a window.
        self.cost = cost_of(len(payloads[0]))
        self.queued_at = now
        #: The stamp and the PSN of the first one; 0 until it leaves. The others follow.
        self.stamp = self.first_psn = self.sent_at = 0
        #: How many have given back their credits, and whether all are acknowledged.
        self.released = 0
        self.is_acked = False

    def __len__(self) -> int:
        return len(self.payloads)

    def piece(self, first: int, end: int) -> Batch:
        """Return a part of one that has not left."""
        return Batch(self.to, self.service, self.tickets[first:end], self.payloads[first:end],
                     self.queued_at)  # fmt: skip

    def left(self, stamp: int, psn: int, now: int) -> list[Batch]:
        """Return the pieces in which it leaves, with stamps and PSNs from these on."""
        size = OVERHEAD_BYTES + len(self.payloads[0])
        each = max(1, min(RUN_PACKETS_MAX, RUN_BYTES_MAX // size))
        pieces = []
        for at in range(0, len(self), each):
            piece = self.piece(at, min(at + each, len(self)))
            piece.stamp, piece.first_psn, piece.sent_at = stamp + at, psn + at, now
            pieces.append(piece)
        return pieces

    def singles(self) -> list[tuple[Scattering, Part]]:
        """Return the scatterings of which it is made."""
        made = []
        for at, (ticket, payload) in enumerate(zip(self.tickets, self.payloads, strict=True)):
            part = Part(self.to, payload)
            scattering = Scattering(ticket, self.service, (part,), self.queued_at, 1)
            if self.stamp:
                scattering.stamp = self.stamp + at
                scattering.waiting = 0
                scattering.unacked = part.unacked = 1
                part.first_psn = self.first_psn + at
                part.holds_credit = part.is_under_way = at >= self.released
            made.append((scattering, part))
        return made


@dataclass(slots=True)
class Sent:
    """One packet under way."""

    scattering: Scattering
    part: Part
    index: int
    sent_at: int
    #: How often it was sent; a round trip is measured of packets that were sent once.
    times: int = 1
    #: Whether the controller was given it: its ACK tells nothing about the path.
    is_forwarded: bool = False


class Path:
    """Whether packets reach a receiver and come back, as far as its sender knows."""

    def __init__(self, now: int, interval: int) -> None:
        #: Whether the controller forwards packets, and when it was last given some that are not
        #: answered; 0 if there are none.
        self.is_cut = False
        self.forwarded_at = 0
        #: When an ACK came last; None before the first one.
        self.answered_at: int | None = None
        self._interval = interval
        #: The oldest thing that the receiver has not answered, and since when it is that.
        self._owed: tuple[int, int] | None = None
        self._owed_since = now

    def watch(self, now: int, owed: tuple[int, int] | None, patience: int) -> bool:
        """Note what the receiver owes; return whether the controller is to forward now.

        The path is cut once that is the same for longer than `patience`.
        """
        if owed != self._owed:
            self._owed, self._owed_since = owed, now
        elif owed is not None and now - self._owed_since >= patience:
            self.is_cut = True
        return self.is_cut and now - self.forwarded_at >= FORWARD_AGAIN * self._interval

    @property
    def is_whole(self) -> bool:
        """Whether the receiver owed nothing when this was asked last, and is reached."""
        return self._owed is None and not self.is_cut


class Flow:
    """One receiver as its sender sees it."""

    def __init__(self, to: int, now: int, config: EndpointConfig) -> None:
        interval = config.interval
        self.to = to
        #: What the receiver granted; 0 until it has answered. The number of the ACK that said so.
        self.window = 0
        self.ack_number = config.first_psn
        #: The bytes of parts that hold credits: what the receiver's program has not taken counts.
        self.used = 0
        # Whatever memory this process has for what others send to it.
        self.congestion = CongestionWindow(config.window_min, config.under_way_max)
        self.trips = RoundTrips(4 * interval, 2 * interval, 64 * interval)
        #: Parts that wait for credits, in the order in which they were queued.
        self.queue: deque[tuple[Scattering, Part] | Batch] = deque()
        self.next_psn = dict.fromkeys(Service, config.first_psn)
        #: Packets that are not acknowledged, by PSN, in the order of PSN.
        self.sent: dict[Service, dict[int, Sent | Batch]] = {service: {} for service in Service}
        #: Parts that hold credits until the receiver has released them.
        self.unreleased: dict[Service, deque[Part | Batch]] = {
            service: deque() for service in Service
        }
        #: Best effort parts that were given up as lost, and the last ACK before: later ones tell
        #: what the receiver may have of them.
        self.lost: list[tuple[int, Part]] = []
        #: The highest PSN that was acknowledged.
        self.acked_top = dict.fromkeys(Service, config.first_psn - 1)
        #: When to ask for a window, or to send again what is not acknowledged.
        self.retry_at = now
        self.confirmation = Confirmation.NONE
        self.path = Path(now, interval)

    @property
    def owed(self) -> tuple[int, int] | None:
        """The oldest thing that is not answered, but for recalls; None if there is none.

        What waits for credits asks for an ACK again and again, and each one has another number.
        """
        sent = self.sent[Service.RELIABLE]
        if sent:
            return _PACKET, next(iter(sent))
        if self.confirmation is Confirmation.SENT:
            return _CONFIRMED, 0
        return (_WINDOW, self.ack_number) if self.queue else None

    def reason(self, now: int, limit: int) -> Reason | None:
        """Return why what has waited for `limit` is given up; None if it goes on waiting.

        A receiver that grants no window is away if it has not answered for as long as makes a path
        count as cut. One that has granted a window is away after `limit`: what waits behind credits
        of lost messages waits for answers alone, which give them back.
        """
        since = self.path.answered_at
        patience = limit if self.window else self.trips.lasting(CUT_TIMEOUTS)
        if since is None or now - since > patience:
            return Reason.UNREACHABLE
        return None if self.window else Reason.NO_MEMORY

    def fits(self, size: int) -> bool:
        """Whether a part of so many bytes may leave now. One alone may, whatever the marks.

        What has arrived is no load on the network, also if it is not released yet.
        """
        if self.used + size > self.window:
            return False
        return self.congestion.free >= size or not self.congestion.under_way

    def fit(self, size: int) -> int:
        """How many parts of so many bytes each may leave now."""
        if not self.fits(size):
            return 0
        return max(1, min(self.window - self.used, self.congestion.free) // size)

    def grant(self, part: Part) -> None:
        """Let a part that fits take its credit."""
        part.holds_credit = part.is_under_way = True
        self.used += part.size
        self.congestion.under_way += part.size

    def grant_alike(self, batch: Batch, count: int) -> None:
        """Let the first `count` of a batch take their credits."""
        self.used += count * batch.cost
        self.congestion.under_way += count * batch.cost

    def resize(self, number: int, window: int, is_asked: bool) -> bool:
        """Take the window that an ACK tells, which has a number, and may ask for a confirmation.

        Return whether the window shrank below the credits that are given.
        """
        # An ACK that was overtaken may tell an older, larger window. What exceeds that of now would
        # be refused, and its hole keep all behind it in the receiver's memory.
        if number < self.ack_number:
            return False
        shrank = window < self.window
        self.ack_number, self.window = number, window
        if shrank or is_asked:
            self.confirmation = Confirmation.DUE
        elif self.confirmation is Confirmation.SENT:
            self.confirmation = Confirmation.NONE
        return shrank and self.used > window

    def take_back(self, queued: Iterable[Scattering]) -> None:
        """Take all credits back from what has not left: the oldest gets them again, as they fit.

        They were granted before all that waits here now, so what loses them comes first.
        """
        for scattering in sorted(queued, key=lambda one: one.ticket, reverse=True):
            for part in scattering.parts:
                if part.to == self.to and part.holds_credit:
                    self.release(part)
                    self.queue.appendleft((scattering, part))
                    scattering.waiting += 1

    def waiting(self) -> list[tuple[Scattering, Part]]:
        """Return what waits for credits, all of it apart from now on."""
        if any(isinstance(one, Batch) for one in self.queue):
            pieces = [one.singles() if isinstance(one, Batch) else [one] for one in self.queue]
            self.queue = deque(chain.from_iterable(pieces))
        return cast("list[tuple[Scattering, Part]]", [*self.queue])

    def stale(self, since: int) -> list[Sent | Batch]:
        """Return what was sent by best effort at `since` at the latest."""
        sent = self.sent[Service.BEST_EFFORT]
        return [*takewhile(lambda one: one.sent_at <= since, sent.values())]

    def batches(self, service: Service) -> list[Batch]:
        """Return the batches that are under way."""
        return [one for one in self.sent[service].values() if isinstance(one, Batch)]

    def separate(self, service: Service, batches: Iterable[Batch]) -> list[list[Scattering]]:
        """Take batches apart that are under way; return the scatterings of each."""
        apart = {id(one): one.singles() for one in batches}
        sent: dict[int, Sent | Batch] = {}
        for psn, one in self.sent[service].items():
            if isinstance(one, Batch) and id(one) in apart:
                for scattering, part in apart[id(one)]:
                    sent[part.first_psn] = Sent(scattering, part, 0, one.sent_at)
            else:
                sent[psn] = one
        self.sent[service] = sent
        unreleased: deque[Part | Batch] = deque()
        for held in self.unreleased[service]:
            if isinstance(held, Batch) and id(held) in apart:
                unreleased += [part for _, part in apart[id(held)] if part.holds_credit]
            else:
                unreleased.append(held)
        self.unreleased[service] = unreleased
        return [[scattering for scattering, _ in singles] for singles in apart.values()]

    def release(self, part: Part) -> None:
        """Give back the credit of a part, once."""
        if part.holds_credit:
            part.holds_credit = False
            self.used -= part.size
        self.arrived(part)

    def arrived(self, part: Part) -> None:
        """A part is acknowledged, or will never be: it has left the network, once."""
        if part.is_under_way:
            part.is_under_way = False
            self.congestion.under_way -= part.size

    def give_up(self, part: Part, is_lost: bool) -> None:
        """A best effort part was not delivered, and is forgotten, as it is lost or came too late.

        What came of a lost one, or came without its ACK, is in the receiver's memory until that is
        released: it keeps its credit.
        """
        for psn in range(part.first_psn, part.first_psn + part.packets):
            self.sent[Service.BEST_EFFORT].pop(psn, None)
        if is_lost and part.holds_credit:
            self.arrived(part)
            self.lost.append((self.ack_number, part))
        else:
            self.release(part)

    def find_lost(self, service: Service, number: int, ack: Acknowledgement) -> None:
        """Take back the credits of what nothing came of, by a later ACK of best effort.

        All below the highest packet that came is released in the end, but nothing above.
        """
        if service is Service.RELIABLE or not self.lost:
            return
        near = self.next_psn[Service.BEST_EFFORT]
        top = max([unwrap_psn(first, near) + count for first, count in ack.ranges], default=0)
        for since, part in self.lost:
            if number > since:
                part.packets = min(part.packets, max(0, top - part.first_psn))
                if not part.packets:
                    self.release(part)
        self.lost = [one for one in self.lost if number <= one[0]]

    def arrived_alike(self, batch: Batch) -> None:
        """A whole batch is acknowledged."""
        batch.is_acked = True
        self.congestion.under_way -= (len(batch) - batch.released) * batch.cost

    def released(self, service: Service, low: int) -> None:
        """All packets below `low` are out of the receiver's memory."""
        below = unwrap_psn(low, self.next_psn[service])
        parts = self.unreleased[service]
        while parts:
            one = parts[0]
            if isinstance(one, Batch):
                count = min(len(one), below - one.first_psn)
                if count > one.released:
                    size = (count - one.released) * one.cost
                    self.used -= size
                    self.congestion.under_way -= 0 if one.is_acked else size
                    one.released = count
                if count < len(one):
                    break
            elif one.first_psn + one.packets > below:
                break
            else:
                self.release(one)
            parts.popleft()

    def covered(self, service: Service, ack: Acknowledgement) -> tuple[list[int], list[Batch]]:
        """Return which of `sent` an ACK covers, and the batches that it covers in part."""
        if not self.sent[service]:
            return [], []
        near = self.next_psn[service]
        ranges = [(unwrap_psn(first, near), count) for first, count in ack.ranges]
        if service is Service.RELIABLE:
            ranges.insert(0, (0, unwrap_psn(ack.through, near)))
        return _inside(self.sent[service], ranges)

    def acknowledge(
        self,
        now: int,
        service: Service,
        ack: Acknowledgement,
        found: Sequence[int],
        is_forwarded: bool = False,
    ) -> Iterator[Sent | Batch]:
        """Yield what this ACK acknowledges for the first time: `found` of `sent`.

        If the controller brought it, it tells nothing of how long the network takes.
        """
        sent = self.sent[service]
        newest = None
        top = packets = 0
        for psn in found:
            one = sent.pop(psn)
            count = len(one) if isinstance(one, Batch) else 1
            packets += count
            top = psn + count - 1
            if isinstance(one, Batch) or one.times == 1:
                newest = one
            yield one
        if newest is not None and not is_forwarded:
            self.trips.measured(now - newest.sent_at)
        if found:
            self.trips.answered()
            self.acked_top[service] = max(self.acked_top[service], top)
            size = (PAYLOAD_BYTES_MAX + PACKET_COST) * packets
            self.congestion.acknowledged(size, max(ack.packets, ack.marked), ack.marked)
            self.retry_at = now + self.trips.timeout

    def overtaken(self, now: int, service: Service) -> Iterator[tuple[int, Sent | Batch]]:
        """Yield what is lost by all appearances: later packets were acknowledged."""
        sent = self.sent[service]
        top = self.acked_top[service]
        limit = now - self.trips.smoothed
        for psn, one in sent.items():
            if psn + REORDERED_PACKETS > top or one.sent_at > limit:
                return
            yield psn, one


def _inside(
    sent: Mapping[int, Sent | Batch], ranges: Iterable[tuple[int, int]]
) -> tuple[list[int], list[Batch]]:
    """Return the keys of what lies in one of the ranges, and the batches that lie there in part.

    Both `sent` and the ranges are sorted.
    """
    whole: list[int] = []
    touched: list[Batch] = []
    rest = iter(ranges)
    first, count = next(rest, (0, 0))
    for psn, one in sent.items():
        while psn >= first + count:
            following = next(rest, None)
            if following is None:
                return whole, touched
            first, count = following
        if isinstance(one, Batch):
            if psn + len(one) <= first:
                continue
            if psn < first or psn + len(one) > first + count:
                touched.append(one)
            else:
                whole.append(psn)
        elif psn >= first:
            whole.append(psn)
    return whole, touched
