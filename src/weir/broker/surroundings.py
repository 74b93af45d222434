"""What every partition of a shard shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir.broker.admission import Budget
from weir.broker.outbox import Outbox
from weir.broker.reads import Reads
from weir.order.clock import Highest, Time

if TYPE_CHECKING:
    from weir.broker.partition.partition import Partition


@dataclass(slots=True)
class Surroundings:
    """Given to each partition as it is opened."""

    outbox: Outbox
    reads: Reads
    budget: Budget
    time: Time
    highest: Highest
    #: Told when something waits to be cut into an entry.
    dirty: Callable[[Partition], None]
    #: Raises `Unavailable` once the shard takes no more publishes.
    admit: Callable[[], None]
    #: The highest stamp that the voters of a group led here have promised to stand by.
    fenced: Callable[[int], int]
    #: The producer id that the shard itself writes device messages with; 0 until it is granted.
    fan_in_producer: int = 0
    #: By group, the partitions in which somebody may wait: no other is told that time passes.
    waiting: dict[int, Partition] = field(default_factory=dict)

    def tick(self) -> None:
        """Let waits end that are over, and forget the partitions in which nobody waits."""
        for group in sorted(self.waiting):
            partition = self.waiting[group]
            if partition.waiting:
                partition.tick()
            if not partition.waiting:
                del self.waiting[group]
