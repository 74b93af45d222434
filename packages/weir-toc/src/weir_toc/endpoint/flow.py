"""What a sender knows of one receiver: credits, packets under way, and when to send again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from weir_toc.congestion import CongestionWindow, RoundTrips
from weir_toc.endpoint.events import EndpointConfig, Service
from weir_toc.packet import (
    PACKET_COST,
    PAYLOAD_BYTES_MAX,
    Acknowledgement,
    cost_of,
    packets_of,
    unwrap_psn,
)

#: A packet is sent again when one that was sent so much later is acknowledged.
REORDERED_PACKETS = 3


class Part:
    """The message of a scattering to one receiver. One is made for each message: it is plain."""

    __slots__ = ("first_psn", "holds_credit", "packets", "payload", "size", "to", "unacked")

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
        #: Whether its bytes count in the window of its flow.
        self.holds_credit = False


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
    #: The receivers that must still acknowledge its recall, and when each was last asked:
    #: -1 before that.
    recalls: dict[int, int] = field(default_factory=dict)
    #: The process whose failure aborted it; 0 while it goes on.
    aborted_by: int = 0


@dataclass(slots=True)
class Sent:
    """One packet under way."""

    scattering: Scattering
    part: Part
    index: int
    sent_at: int
    #: How often it was sent; a round trip is measured of packets that were sent once.
    times: int = 1


class Flow:
    """One receiver as its sender sees it."""

    def __init__(self, to: int, now: int, config: EndpointConfig) -> None:
        interval = config.interval
        self.to = to
        #: What the receiver granted; 0 until it has answered. The number of the ACK that said so.
        self.window = 0
        self.ack_number = 0
        #: The bytes of parts that hold credits.
        self.used = 0
        self.congestion = CongestionWindow(config.window_min, config.reorder_budget)
        self.trips = RoundTrips(4 * interval, 2 * interval, 64 * interval)
        #: Parts that wait for credits, in the order in which they were queued.
        self.queue: deque[tuple[Scattering, Part]] = deque()
        self.next_psn = dict.fromkeys(Service, 0)
        #: Packets that are not acknowledged, by PSN, in the order of PSN.
        self.sent: dict[Service, dict[int, Sent]] = {service: {} for service in Service}
        #: Parts that hold credits until the receiver has released them.
        self.unreleased: dict[Service, deque[Part]] = {service: deque() for service in Service}
        #: Aborted scatterings to recall, and how many recalls wait for their answers.
        self.recalls: deque[Scattering] = deque()
        self.recalling = 0
        #: The highest PSN that was acknowledged.
        self.acked_top = dict.fromkeys(Service, -1)
        #: When to ask for a window, or to send again what is not acknowledged.
        self.retry_at = now
        #: Whether the receiver waits to hear that a smaller window is kept.
        self.owes_window = False

    def fits(self, size: int) -> bool:
        """Whether a part of so many bytes may leave now. One alone may, whatever the marks."""
        if self.used + size > self.window:
            return False
        return not self.used or self.used + size <= self.congestion.bytes

    def release(self, part: Part) -> None:
        """Give back the credit of a part, once."""
        if part.holds_credit:
            part.holds_credit = False
            self.used -= part.size

    def released(self, service: Service, low: int) -> None:
        """All packets below `low` are out of the receiver's memory."""
        below = unwrap_psn(low, self.next_psn[service])
        parts = self.unreleased[service]
        while parts and parts[0].first_psn + parts[0].packets <= below:
            self.release(parts.popleft())

    def acknowledge(self, now: int, service: Service, ack: Acknowledgement) -> Iterator[Sent]:
        """Yield the packets that this ACK acknowledges for the first time."""
        sent = self.sent[service]
        near = self.next_psn[service]
        ranges = [(unwrap_psn(first, near), count) for first, count in ack.ranges]
        if service is Service.RELIABLE:
            ranges.insert(0, (0, unwrap_psn(ack.through, near)))
        found = [*_inside(sent, ranges)]
        newest = None
        for psn in found:
            one = sent.pop(psn)
            if one.times == 1:
                newest = one
            yield one
        if newest is not None:
            self.trips.measured(now - newest.sent_at)
        if found:
            self.acked_top[service] = max(self.acked_top[service], found[-1])
            size = (PAYLOAD_BYTES_MAX + PACKET_COST) * len(found)
            self.congestion.acknowledged(size, max(ack.packets, ack.marked), ack.marked)
            self.retry_at = now + self.trips.timeout

    def overtaken(self, now: int, service: Service) -> Iterator[tuple[int, Sent]]:
        """Yield packets that are lost by all appearances: later ones were acknowledged."""
        sent = self.sent[service]
        top = self.acked_top[service]
        limit = now - self.trips.smoothed
        for psn, one in sent.items():
            if psn + REORDERED_PACKETS > top or one.sent_at > limit:
                return
            yield psn, one


def _inside(sent: Iterable[int], ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the numbers of `sent` that are in one of the ranges; both are sorted."""
    rest = iter(ranges)
    first, count = next(rest, (0, 0))
    for psn in sent:
        while psn >= first + count:
            following = next(rest, None)
            if following is None:
                return
            first, count = following
        if psn >= first:
            yield psn
