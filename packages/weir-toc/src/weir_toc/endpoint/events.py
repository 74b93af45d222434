"""What an endpoint tells its host, and how it is set up. Times are unwrapped nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from weir_toc import packet as wire


class Service(Enum):
    """The two services, which order their messages independently of each other."""

    #: Nothing is sent again. What is late or lost is reported to its sender.
    BEST_EFFORT = wire.DATA_BE
    #: All receivers deliver a scattering, or none does.
    RELIABLE = wire.DATA_R

    #: By identity: that of `Enum` is a function in Python, and each packet looks services up.
    __hash__ = object.__hash__


class Message(NamedTuple):
    """A message that is delivered: above all that was delivered before by its service."""

    service: Service
    stamp: int
    source: int
    payload: bytes


#: Stamp, sender, one more than the PSN of its last packet, payload.
Row = tuple[int, int, int, bytes]


class Delivered(NamedTuple):
    """Messages of one service that are delivered at once, in their order: what is cheap to hand on.

    `Endpoint.take_events` gives them one by one.
    """

    service: Service
    rows: Sequence[Row]

    def messages(self) -> Iterator[Message]:
        """Yield them one by one."""
        for stamp, source, _, payload in self.rows:
            yield Message(self.service, stamp, source, payload)


class Left(NamedTuple):
    """A scattering got its stamp and left the send buffer."""

    ticket: int
    stamp: int


class LeftAlike(NamedTuple):
    """Several have, with stamps that follow each other; `Endpoint.take_events` has each `Left`."""

    tickets: Sequence[int]
    #: That of the first one.
    stamp: int

    def each(self) -> Iterator[Left]:
        """Yield them one by one."""
        return map(Left, self.tickets, range(self.stamp, self.stamp + len(self.tickets)))


class Reason(Enum):
    """Why a part was not delivered, as far as its sender knows."""

    #: The receiver had delivered what comes behind it.
    LATE = "late"
    #: Nothing was heard of it: it, or all of its ACKs, were lost.
    LOST = "lost"
    #: A receiver of the scattering failed, or could not be reached.
    PROCESS_FAILED = "process failed"
    UNREACHABLE = "unreachable"
    #: It answers, and has granted all of its memory to other senders.
    NO_MEMORY = "no memory at the receiver"


class SendFailed(NamedTuple):
    """A part of a scattering, or a whole reliable one, was not delivered.

    `to` is the receiver that a best effort part missed; of a reliable scattering it is the one that
    failed, and no receiver delivers any part. `stamp` is 0 if the scattering never left: else this
    comes behind its `Left`.
    """

    ticket: int
    stamp: int
    to: int
    reason: Reason
    service: Service


class ProcessFailed(NamedTuple):
    """A process failed: nothing of it above `stamp` is delivered to anybody.

    It comes in the order of the reliable service, behind all that is at or below its stamp.
    """

    process: int
    stamp: int


class Settled(NamedTuple):
    """All that this process had under way to a failed one is recalled: the controller waits."""

    process: int


class Undeliverable(NamedTuple):
    """This process recalls what it sent, and failed receivers cannot be told: the controller is to
    note it. `Endpoint.recalls_noted` says that it has; until then the commit barrier stays below.
    """

    #: The process whose failure is the reason.
    process: int
    #: Of each failed receiver the first and last stamps, in rising order.
    recalled: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


class Admitted(NamedTuple):
    """The switch of the rack counts this process as an input: it may send."""


class Excluded(NamedTuple):
    """The switch of the rack has fenced this process: it must join again as another."""


Event = Message | Left | SendFailed | ProcessFailed | Settled | Undeliverable | Admitted | Excluded
#: The same, several that are alike in one piece.
EventRun = Event | Delivered | LeftAlike


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Limits of one process; sizes in bytes, times in nanoseconds.

    What is in memory counts by `packet.cost_of`; `part_max` is a length.
    """

    interval: int = 1_000_000
    #: Messages that wait for their turn, of all senders and both services together.
    reorder_budget: int = 3_500_000
    #: The largest part of a scattering.
    part_max: int = 32_768
    #: What is under way to one receiver: sent, and not acknowledged.
    under_way_max: int = 3_500_000
    #: What `send` took and did not send yet.
    send_buffer: int = 8_000_000
    #: Whether all packets carry aggregated barriers, or beacons only.
    barriers_in_data: bool = True
    #: Whether a delivered message counts as memory until the host calls `Endpoint.taken` for it.
    program_takes: bool = False
    #: A best effort part without an ACK is given up after so many intervals.
    lost_after: int = 20
    #: A scattering waits for so many intervals for a receiver that grants no window, or that has
    #: answered nothing for as long.
    unreachable_after: int = 1_000
    #: The number of the first packet, and of the first ACK, between two processes. All processes of
    #: a network have the same: tests and simulated worlds begin near the wrap at 2^32.
    first_psn: int = 0

    @property
    def window_min(self) -> int:
        """The least window of a sender: a part of the largest size fits in it."""
        return wire.cost_of(self.part_max)


@dataclass(slots=True)
class Counters:
    """What an endpoint saw; all begin at zero."""

    sent: int = 0
    delivered: int = 0
    resent: int = 0
    #: Packets that the controller was given to forward, as the path to their receiver was cut.
    forwarded: int = 0
    #: Best effort messages that came below a barrier already used, and were answered with a NAK.
    late: int = 0
    naks: int = 0
    duplicates: int = 0
    #: Packets that were damaged, or that no process of this protocol sends.
    damaged: int = 0
    #: Barriers above what this process has sent itself: no minimum holds such a value.
    corrupt_barriers: int = 0
    #: Packets for which no window was granted.
    over_budget: int = 0
    #: Messages of which a part was thrown away because the rest did not come in time.
    incomplete: int = 0
    #: Runs of packets that were taken at once.
    runs: int = 0
    #: Packets sent from here that switches have marked, as their receivers say.
    marked: int = 0
    buffered_max: int = 0
