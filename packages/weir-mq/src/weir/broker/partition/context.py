"""What each partition of a shard is given when it is opened, and what partitions tell their shard.

What they tell is data: the shard's turn looks at it, and acts on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from weir.broker.produce.appender import Admission, VisibleConfirm
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.scattering.participant import ParticipantReports
from weir.order.clock import HighestStamp, Time


class Promises(Protocol):
    """Knows what voters have promised."""

    def fenced(self, group: int) -> int:
        """Return the highest stamp that the voters of a group led here promised to stand by."""


class TopicSizes(Protocol):
    """Knows how large topics were made."""

    def founded_with(self, group: int) -> int:
        """Return how many partitions the topic of a group was made with."""


class WaitingPartition(Protocol):
    """A partition in which somebody may wait."""

    #: The monotonic time before which time brings nothing, unless somebody begins to wait.
    rests_until: int

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for something to come, or for a deadline."""

    def check_deadlines(self) -> None:
        """Let waits end that are over."""

    def answer_fetches(self) -> None:
        """Answer the fetches that wait for messages that are there by now."""


class DeviceProducer:
    """The producer that a shard writes its devices' messages as; its id is 0 until the registry has
    granted one.
    """

    __slots__ = ("id",)

    def __init__(self) -> None:
        """Wait for the registry."""
        self.id = 0

    def granted(self, id: int) -> None:
        """Write with this id from now on."""
        self.id = id


class PartitionEvents:
    """What the partitions of a shard tell it, until its turn looks."""

    __slots__ = ("entries_applied", "leads_changed", "readable", "visible", "waiting")

    def __init__(self) -> None:
        """Nothing has happened yet."""
        #: What is to be confirmed once it is visible, and nobody has looked whether it is.
        self.visible = deque[VisibleConfirm]()
        #: How often a leadership of a partition here began or ended, or its topic was deleted.
        self.leads_changed = 0
        #: How many entries were applied to partitions here.
        self.entries_applied = 0
        #: By group, the partitions in which somebody may wait: no other is told that time passes.
        self.waiting: dict[int, WaitingPartition] = {}
        #: By group, the partitions with new messages for which a fetch waits.
        self.readable: dict[int, WaitingPartition] = {}

    def answer_fetches(self) -> None:
        """Answer who waits for what was applied: together, for an answer holds all there is."""
        readable, self.readable = self.readable, {}
        for partition in readable.values():
            partition.answer_fetches()

    def check_deadlines(self, now_ms: int) -> None:
        """Let waits end that are over, and forget the partitions in which nobody waits."""
        for group in sorted(self.waiting):
            partition = self.waiting[group]
            if now_ms < partition.rests_until:
                continue  # a hundred idle partitions with a reader each cost nothing
            if partition.waiting:
                partition.check_deadlines()
            if not partition.waiting:
                del self.waiting[group]


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What the partitions of a shard share."""

    outbox: Outbox
    reads: Reads
    budget: Budget
    time: Time
    highest: HighestStamp
    admission: Admission
    promises: Promises
    topics: TopicSizes
    device_producer: DeviceProducer
    #: Answers of participants in scatterings, and what nobody has finished.
    reports: ParticipantReports
    events: PartitionEvents
