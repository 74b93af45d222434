"""What every partition of a shard shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.scattering.participant import ParticipantReports
from weir.order.clock import Highest, Time
from weir.protocol.client.messages import Confirm


class VisibleConfirm(NamedTuple):
    """A batch of a group is committed, and its caller is told once it is visible: when nothing can
    come before it any more in its topic's order.
    """

    group: int
    caller: Caller
    confirm: Confirm


class Resident(Protocol):
    """A partition, as far as its surroundings know it."""

    #: The monotonic time before which time brings nothing, unless somebody begins to wait.
    rests_until: int

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for something to come, or for a deadline."""

    def tick(self) -> None:
        """Let waits end that are over."""


@dataclass(slots=True)
class Surroundings:
    """Given to each partition as it is opened."""

    outbox: Outbox
    reads: Reads
    budget: Budget
    time: Time
    highest: Highest
    #: Raises `Unavailable` once the shard takes no more publishes to a group, `Overloaded` while
    #: disks are full; 0 stands for no group but its own disks.
    admit: Callable[[int], None]
    #: The highest stamp that the voters of a group led here have promised to stand by.
    fenced: Callable[[int], int]
    #: How many partitions the topic of a group was made with.
    founded_with: Callable[[int], int]
    #: Answers of participants in scatterings, and what nobody has finished.
    reports: ParticipantReports
    #: The producer id that the shard itself writes device messages with; 0 until it is granted.
    fan_in_producer: int = 0
    #: What is to be confirmed once it is visible, and nobody has looked whether it is.
    visible: deque[VisibleConfirm] = field(default_factory=deque)
    #: How often a leadership of a partition here began or ended, or its topic was deleted.
    leads_changed: int = 0
    #: How many entries were applied to partitions here.
    entries_applied: int = 0
    #: By group, the partitions in which somebody may wait: no other is told that time passes.
    waiting: dict[int, Resident] = field(default_factory=dict)
    #: By group whose new messages are applied, what tells those who wait for them.
    woken: dict[int, Callable[[], None]] = field(default_factory=dict)

    def take_producer(self, producer: int) -> None:
        """Write device messages with a producer id that was granted."""
        self.fan_in_producer = producer

    def advance(self) -> None:
        """Tell who waits of all that was applied: together, for an answer holds all there is."""
        woken, self.woken = self.woken, {}
        for tell in woken.values():
            tell()

    def tick(self) -> None:
        """Let waits end that are over, and forget the partitions in which nobody waits."""
        now = self.time.monotonic_ms()
        for group in sorted(self.waiting):
            partition = self.waiting[group]
            if now < partition.rests_until:
                continue  # a hundred idle partitions with a reader each cost nothing
            if partition.waiting:
                partition.tick()
            if not partition.waiting:
                del self.waiting[group]
