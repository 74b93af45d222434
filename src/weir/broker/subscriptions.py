"""What the devices of a connection have subscribed to, and what they wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from weir.codec.fields import U64
from weir.errors import UnknownTopic
from weir.model.ids import Address
from weir.model.topic import Topic, partition_for
from weir.wire import messages as m
from weir.wire.deliveries import ALL_PARTITIONS, BY_HUB, DevicePull, DeviceSubscribe

Then = Callable[[m.Reply], None]


@dataclass(slots=True)
class Rest:
    """What is left of a grant that one reply did not take: the next pulls get it first."""

    partition: int
    fence: int
    attempts: int
    next: int
    behind: int
    until_ms: int


@dataclass(slots=True)
class Subscription:
    """One device of a connection in one cluster.

    A partition is watched (the broker will say when it has something), `ready` (it has), or `quiet`
    (it could not be watched: tried again at the next tick).
    """

    request: DeviceSubscribe
    addresses: dict[int, Address]
    ready: deque[int] = field(default_factory=deque)
    quiet: set[int] = field(default_factory=set)
    rest: Rest | None = None
    pull: DevicePull | None = None
    told: bool = False


@dataclass(slots=True)
class Receiver:
    """A connection with subscriptions, one for each `sn`, and what they wait for."""

    session: int
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    asked: dict[int, Then] = field(default_factory=dict)
    correlation: int = 0

    @property
    def watches(self) -> int:
        """How many partitions all subscriptions watch together."""
        return sum(len(s.addresses) for s in self.subscriptions.values())


def partitions_of(topic: Topic, asked: int, hub: int) -> list[int]:
    """Return the partitions that a device asks for. Raises `UnknownTopic`."""
    if asked == ALL_PARTITIONS:
        return list(range(topic.partitions))
    if asked == BY_HUB:
        return [partition_for(U64.pack(hub), topic.partitions)]
    if asked >= topic.partitions:
        raise UnknownTopic(f"topic {topic.full_name} has no partition {asked}")
    return [asked]
