"""What the devices of a connection have subscribed to, and what they wait for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from weir.errors import UnknownTopic
from weir.model.ids import Address, topic_of
from weir.model.limits import KIB, RETRY_AFTER_MS, RETRY_AFTER_MS_MAX
from weir.model.topic import Topic
from weir.protocol.client import messages as m
from weir.protocol.device.deliveries import ALL_PARTITIONS, BY_HUB, DevicePull, DeviceSubscribe

Then = Callable[[m.Reply], None]

#: What a subscription takes in memory, about, each watch of it, and each message in hand but one.
SUBSCRIPTION_BYTES = KIB // 2
WATCH_BYTES = KIB + KIB // 2
IN_HAND_BYTES = 128


@dataclass(slots=True)
class Rest:
    """What is left of a grant that one reply did not take: the next pulls get it first, until
    monotonic time `until_ms`. Of [next, behind) the `runs` are granted, and what had not expired
    by `granted_ms` is handed out. The lease ends at `lease_ends_ms`, or just before.
    """

    partition: int
    fence: int
    attempts: int
    next: int
    behind: int
    until_ms: int
    granted_ms: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    lease_ends_ms: int = 0

    @property
    def run(self) -> tuple[int, int]:
        """What is handed out next: a device acks what lies together."""
        for first, behind in self.runs:
            if behind > self.next:
                return max(first, self.next), behind
        return self.next, self.behind


class InHand:
    """The messages that a device holds: handed out, and neither settled nor past their lease.

    There are at most `limit` of them: a pull beyond it brings nothing.
    """

    __slots__ = ("_grants", "limit")

    def __init__(self, limit: int) -> None:
        """Begin with none."""
        self.limit = limit
        #: By partition and fence: the offsets, and when the lease ends.
        self._grants: dict[tuple[int, int], tuple[set[int], int]] = {}

    def room(self, now_ms: int) -> int:
        """Return how many messages may be handed out now."""
        over = [grant for grant, (_, ends_ms) in self._grants.items() if ends_ms <= now_ms]
        for grant in over:
            del self._grants[grant]
        return self.limit - sum(len(offsets) for offsets, _ in self._grants.values())

    @property
    def next_end_ms(self) -> int:
        """When the first lease ends. Some message must be in hand."""
        return min(ends_ms for _, ends_ms in self._grants.values())

    def take(self, partition: int, fence: int, offsets: Iterable[int], ends_ms: int) -> None:
        """Hold messages of a grant whose lease ends at `ends_ms`."""
        held, known_ms = self._grants.get((partition, fence), (set(), 0))
        held.update(offsets)
        self._grants[partition, fence] = held, max(known_ms, ends_ms)

    def settle(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Hold messages [first, behind) of a grant no more."""
        held, _ = self._grants.get((partition, fence), (set(), 0))
        if behind - first > len(held):
            held.difference_update([one for one in held if first <= one < behind])
        else:
            held.difference_update(range(first, behind))
        if not held:
            self._grants.pop((partition, fence), None)

    def extend(self, partition: int, fence: int, ends_ms: int) -> None:
        """The lease of a grant ends at `ends_ms`, unless it lasts longer already."""
        if (partition, fence) in self._grants:
            self.take(partition, fence, (), ends_ms)

    def drop(self, partition: int, fence: int) -> None:
        """The lease of a grant is over."""
        self._grants.pop((partition, fence), None)


@dataclass(slots=True)
class Subscription:
    """One device of a connection in one cluster.

    A partition is watched (the broker will say when it has something), `ready` (it has), `quiet`
    (it could not be watched: tried again after a pause), or `lost`: never to be watched again.
    """

    request: DeviceSubscribe
    addresses: dict[int, Address]
    in_hand: InHand
    ready: dict[int, None] = field(default_factory=dict)
    quiet: dict[int, None] = field(default_factory=dict)
    lost: int = 0
    rest: Rest | None = None
    pull: DevicePull | None = None
    told: bool = False
    #: Whether a pull was refused, so that no notify makes it come again before the pause is over.
    hushed: bool = False
    #: Whether it is among those that `Resting` knows.
    rests: bool = False
    pause_ms: int = 0
    #: Whether it is among those that are told of messages when a lease ends.
    full: bool = False
    #: Whether partition 0 has said that its cluster is of the mode that devices have.
    is_open: bool = False
    #: Whether it is no subscription any more: replies may still come for it.
    over: bool = False

    @property
    def id(self) -> int:
        """The id of its topic."""
        return topic_of(next(iter(self.addresses.values())).group)

    @property
    def memory(self) -> int:
        """What it is charged to the budget, in bytes."""
        held = IN_HAND_BYTES * (self.in_hand.limit - 1)
        return SUBSCRIPTION_BYTES + held + WATCH_BYTES * len(self.addresses)


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


class Resting:
    """Subscriptions that were refused something: each has a pause, twice as long every time."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        """Begin with none."""
        self._due: list[tuple[int, int, int]] = []

    def add(self, session: int, subscription: Subscription, now_ms: int) -> None:
        """Let a subscription rest, unless it does."""
        if not subscription.rests:
            subscription.rests = True
            longer = max(2 * subscription.pause_ms, RETRY_AFTER_MS)
            subscription.pause_ms = min(longer, RETRY_AFTER_MS_MAX)
            due_ms = now_ms + subscription.pause_ms
            heapq.heappush(self._due, (due_ms, session, subscription.request.sn))

    def over(self, now_ms: int) -> list[tuple[int, int]]:
        """Return session and `sn` of those whose pause is over."""
        found = []
        while self._due and self._due[0][0] <= now_ms:
            _, session, sn = heapq.heappop(self._due)
            found.append((session, sn))
        return found


def partitions_of(topic: Topic, asked: int, hub: int) -> list[int]:
    """Return the partitions that a device asks for. Raises `UnknownTopic`."""
    if asked == ALL_PARTITIONS:
        return list(range(topic.partitions))
    if asked == BY_HUB:
        return topic.places_of_hub(hub)
    if asked >= topic.partitions:
        raise UnknownTopic(f"topic {topic.full_name} has no partition {asked}")
    return [asked]
