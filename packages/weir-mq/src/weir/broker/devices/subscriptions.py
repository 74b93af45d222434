"""What the devices of a connection have subscribed to, and what they wait for."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from weir.broker.runtime.budget import Budget
from weir.errors import Overloaded, UnknownTopic
from weir.model.ids import Address, topic_of
from weir.model.limits import KIB, RETRY_AFTER_MS, RETRY_AFTER_MS_MAX
from weir.model.topic import Topic
from weir.protocol.device.deliveries import (
    ALL_PARTITIONS,
    BY_HUB,
    DeviceGrantChange,
    DevicePull,
    DeviceSubscribe,
)

#: What a subscription takes in memory, about, each watch of it, and each message in hand but one.
SUBSCRIPTION_BYTES = KIB // 2
WATCH_BYTES = KIB + KIB // 2
IN_HAND_BYTES = 128
#: Of the budget, all subscriptions of a shard together: they are held for as long as they last.
_SHARE = 4


@dataclass(slots=True)
class GrantRemainder:
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
    """The messages that a device holds: not acked or given back, in a lease that runs.

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

    def discard(self, partition: int, fence: int, first: int, behind: int) -> None:
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

    def end_lease(self, partition: int, fence: int) -> None:
        """The lease of a grant is over."""
        self._grants.pop((partition, fence), None)


@dataclass(slots=True)
class Subscription:
    """One device of a connection in one cluster.

    A partition is watched (the broker will say when it has something), `ready` (it has), or
    `unwatched` (it could not be watched: tried again after a backoff). So many are `lost`: never to
    be watched again.
    """

    request: DeviceSubscribe
    addresses: dict[int, Address]
    in_hand: InHand
    ready: dict[int, None] = field(default_factory=dict)
    unwatched: dict[int, None] = field(default_factory=dict)
    lost: int = 0
    remainder: GrantRemainder | None = None
    #: The pull under way.
    pull: DevicePull | None = None
    #: Whether a notify was sent that no pull has followed yet.
    is_notified: bool = False
    #: Whether a pull was refused, so that no notify makes it come again before the backoff is over.
    is_muted: bool = False
    #: Whether the `RetryQueue` holds it.
    awaits_retry: bool = False
    backoff_ms: int = 0
    #: Whether it is among those that are notified of messages when a lease ends.
    awaits_room: bool = False
    #: Whether partition 0 has said that its cluster is of the mode that devices have.
    is_open: bool = False
    #: Whether it is no subscription any more: replies may still come for it.
    is_over: bool = False

    @property
    def id(self) -> int:
        """The id of its topic."""
        return topic_of(next(iter(self.addresses.values())).group)

    @property
    def memory(self) -> int:
        """What it is charged to the budget, in bytes."""
        held = IN_HAND_BYTES * (self.in_hand.limit - 1)
        return SUBSCRIPTION_BYTES + held + WATCH_BYTES * len(self.addresses)


@dataclass(frozen=True, slots=True)
class PendingWatch:
    """A subscription waits until a partition has something."""

    subscription: Subscription
    partition: int


@dataclass(frozen=True, slots=True)
class PendingOpen:
    """A cluster is being opened: then `partitions` are watched, or the pull under way goes on."""

    subscription: Subscription
    partitions: tuple[int, ...] = ()
    is_for_pull: bool = False


@dataclass(frozen=True, slots=True)
class PendingPull:
    """The pull under way waits for a grant, of which a part may be handed out until `until_ms`."""

    subscription: Subscription
    partition: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class PendingFetch:
    """The pull under way waits for messages of the remainder of a grant."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class PendingExpiry:
    """Expired messages are acked; should that fail, they come again and are acked then."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A device waits to hear that its ack, its nack or its extension is committed."""

    subscription: Subscription
    request: DeviceGrantChange


#: What a reply of a partition is for.
Pending = PendingWatch | PendingOpen | PendingPull | PendingFetch | PendingExpiry | PendingChange


@dataclass(slots=True)
class Receiver:
    """A connection with subscriptions, one for each `sn`, and by correlation what they wait for."""

    session: int
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    correlation: int = 0

    @property
    def watches(self) -> int:
        """How many partitions all subscriptions watch together."""
        return sum(len(s.addresses) for s in self.subscriptions.values())


class SubscriptionMemory:
    """What all subscriptions of a shard are charged to the budget: at most a share of it."""

    __slots__ = ("_budget", "_charged")

    def __init__(self, budget: Budget) -> None:
        """Begin with nothing charged."""
        self._budget = budget
        self._charged = 0

    @property
    def _limit(self) -> int:
        return self._budget.limit // _SHARE

    def charge(self, subscription: Subscription) -> None:
        """Charge a new subscription. Raises `Overloaded` beyond the share, or the budget."""
        size, limit = subscription.memory, self._limit
        if self._charged + size > limit:
            text = f"the devices of this shard hold {self._charged:,} of {limit:,} bytes"
            raise Overloaded(f"{text}: connect to another, or raise memory.budget", RETRY_AFTER_MS)
        self._budget.charge(size)
        self._charged += size

    def fits(self, watches: int) -> bool:
        """Return whether the share has room for so many watches more."""
        return self._charged + WATCH_BYTES * watches <= self._limit

    def take(self, watches: int) -> None:
        """Charge so many watches more, whatever else the budget holds."""
        self._budget.take(WATCH_BYTES * watches)
        self._charged += WATCH_BYTES * watches

    def release(self, subscription: Subscription) -> None:
        """Give back what a subscription was charged, with all its watches."""
        self._charged -= subscription.memory
        self._budget.release(subscription.memory)


class RetryQueue:
    """Subscriptions that were refused something: each waits twice as long every time."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        """Begin with none."""
        self._due: list[tuple[int, int, int]] = []

    def add(self, session: int, subscription: Subscription, now_ms: int) -> None:
        """Let a subscription wait, unless it does."""
        if not subscription.awaits_retry:
            subscription.awaits_retry = True
            longer = max(2 * subscription.backoff_ms, RETRY_AFTER_MS)
            subscription.backoff_ms = min(longer, RETRY_AFTER_MS_MAX)
            due_ms = now_ms + subscription.backoff_ms
            heapq.heappush(self._due, (due_ms, session, subscription.request.sn))

    def pop_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Take out session and `sn` of those whose backoff is over."""
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
