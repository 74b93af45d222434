"""What the devices of a connection have subscribed to, and what is asked of partitions for them.

A partition is asked here or in another shard. It is watched, notified of, and tried again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.topics import BY_PARTITION, Topics
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import TO_DEVICE, Caller, Outbox
from weir.errors import BY_CODE, Overloaded, Refused, UnknownTopic
from weir.model.ids import Address, group_of, topic_of
from weir.model.limits import (
    KIB,
    REQUESTS_PENDING_MAX,
    RETRY_AFTER_MS,
    RETRY_AFTER_MS_MAX,
    WAIT_MS_MAX,
)
from weir.model.topic import Mode, Topic
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device import (
    ALL_PARTITIONS,
    BY_HUB,
    DeviceGrantChange,
    DeviceOpcode,
    DevicePull,
    DeviceSubscribe,
    encode_code,
)

#: What a subscription takes in memory, about, each watch of it, and each message in hand but one.
SUBSCRIPTION_BYTES = KIB // 2
WATCH_BYTES = KIB + KIB // 2
IN_HAND_BYTES = 128
#: Of the budget, all subscriptions of a shard together: they are held for as long as they last.
_SHARE = 4
Request = m.OpenCluster | m.Pull | m.Fetch | m.Ack | m.Nack | m.Extend


class GrantRemainder(msgspec.Struct):
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


class Subscription(msgspec.Struct):
    """One device of a connection in one cluster.

    A partition is watched (the broker will say when it has something), `ready` (it has), or
    `unwatched` (it could not be watched: tried again after a backoff). So many are `lost`: never to
    be watched again.
    """

    request: DeviceSubscribe
    addresses: dict[int, Address]
    in_hand: InHand
    ready: dict[int, None] = msgspec.field(default_factory=dict)
    unwatched: dict[int, None] = msgspec.field(default_factory=dict)
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


class PendingWatch(msgspec.Struct, frozen=True):
    """A subscription waits until a partition has something."""

    subscription: Subscription
    partition: int


class PendingOpen(msgspec.Struct, frozen=True):
    """A cluster is being opened: then `partitions` are watched, or the pull under way goes on."""

    subscription: Subscription
    partitions: tuple[int, ...] = ()
    is_for_pull: bool = False


class PendingPull(msgspec.Struct, frozen=True):
    """The pull under way waits for a grant, of which a part may be handed out until `until_ms`."""

    subscription: Subscription
    partition: int
    until_ms: int


class PendingFetch(msgspec.Struct, frozen=True):
    """The pull under way waits for messages of the remainder of a grant."""

    subscription: Subscription


class PendingExpiry(msgspec.Struct, frozen=True):
    """Expired messages are acked; should that fail, they come again and are acked then."""

    subscription: Subscription


class PendingChange(msgspec.Struct, frozen=True):
    """A device waits to hear that its ack, its nack or its extension is committed."""

    subscription: Subscription
    request: DeviceGrantChange


#: What a reply of a partition is for.
Pending = PendingWatch | PendingOpen | PendingPull | PendingFetch | PendingExpiry | PendingChange


class Receiver(msgspec.Struct):
    """A connection with subscriptions, one for each `sn`, and by correlation what they wait for."""

    session: int
    subscriptions: dict[int, Subscription] = msgspec.field(default_factory=dict)
    pending: dict[int, Pending] = msgspec.field(default_factory=dict)
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


class PartitionRequests:
    """Asks partitions as a client of the connection would; replies come by `Outbox.kept`."""

    __slots__ = ("_forwarder", "_outbox", "_topics")

    def __init__(self, topics: Topics, outbox: Outbox, forwarder: Forwarder) -> None:
        """Ask what `topics` serves here, and by way of `forwarder` what lies in other shards."""
        self._topics = topics
        self._outbox = outbox
        self._forwarder = forwarder

    def ask(self, receiver: Receiver, request: Request, pending: Pending) -> None:
        """Ask a partition; `pending` says what the reply is for, a refusal if it is one."""
        receiver.correlation += 1
        caller = Caller(receiver.session, TO_DEVICE, receiver.correlation)
        is_full = len(receiver.pending) >= REQUESTS_PENDING_MAX
        receiver.pending[caller.correlation] = pending
        try:
            if is_full:
                raise Overloaded(f"{REQUESTS_PENDING_MAX} requests wait", RETRY_AFTER_MS)
            self._send(caller, request)
        except Refused as error:
            self._outbox.refuse(caller, error)

    def _send(self, caller: Caller, request: Request) -> None:
        place = self._forwarder.routes.toward(request.address.group)
        if place != self._forwarder.shard:
            self._forwarder.ask(caller, request, place)
            return
        _, partition = self._topics.partition(request.address.group)
        BY_PARTITION[type(request)](partition, caller, request)


class Watches:
    """Watches partitions for subscriptions, and notifies."""

    __slots__ = ("_full", "_memory", "_outbox", "_requests", "_retries", "_time")

    def __init__(
        self, requests: PartitionRequests, outbox: Outbox, time: Time, memory: SubscriptionMemory
    ) -> None:
        """Begin with none; `memory` gets back what subscriptions had that come to their end."""
        self._requests = requests
        self._outbox = outbox
        self._time = time
        self._memory = memory
        self._retries = RetryQueue()
        #: Subscriptions that hold as much as they may, by the time that a lease of theirs ends.
        self._full: list[tuple[int, int, int]] = []

    def retry_due(self, receivers: dict[int, Receiver]) -> None:
        """Try again what was refused, where its backoff is over; notify where a lease is over."""
        now_ms, due = self._time.monotonic_ms(), []
        while self._full and self._full[0][0] <= now_ms:
            due.append(heapq.heappop(self._full))
        for _, session, sn in due:
            receiver = receivers.get(session)
            if receiver is not None and (waiting := receiver.subscriptions.get(sn)) is not None:
                waiting.awaits_room = False
                self.notify(receiver, waiting)
        for session, sn in self._retries.pop_due(now_ms):
            receiver = receivers.get(session)
            subscription = receiver.subscriptions.get(sn) if receiver is not None else None
            if receiver is None or subscription is None or not subscription.awaits_retry:
                continue
            subscription.awaits_retry = subscription.is_muted = False
            partitions, subscription.unwatched = subscription.unwatched, {}
            self.watch(receiver, subscription, *partitions)
            self.notify(receiver, subscription)

    def watch(self, receiver: Receiver, subscription: Subscription, *partitions: int) -> None:
        """Ask to be told when there is something to pull, once the cluster is open."""
        if not subscription.is_open:
            self.open(receiver, PendingOpen(subscription, partitions))
            return
        request = subscription.request
        for partition in partitions:
            address = subscription.addresses[partition]
            pull = m.Pull(address, request.cluster, 0, 0, WAIT_MS_MAX, request.lease_ms)
            self._requests.ask(receiver, pull, PendingWatch(subscription, partition))

    def open(self, receiver: Receiver, pending: PendingOpen) -> None:
        """Ask partition 0 to open the cluster."""
        subscription = pending.subscription
        home = Address(0, 0, group_of(subscription.id, 0))
        opens = m.OpenCluster(home, subscription.request.cluster, Mode.SHARED)
        self._requests.ask(receiver, opens, pending)

    def watched(self, receiver: Receiver, pending: PendingWatch, reply: m.Reply) -> None:
        """Notify of what a partition has, or watch it again."""
        subscription, partition = pending.subscription, pending.partition
        if isinstance(reply, m.Refusal):
            if is_retryable(reply.code):
                self.retry_later(receiver, subscription, partition)
                return
            subscription.lost += 1
            if reply.code == UnknownTopic.code or subscription.lost == len(subscription.addresses):
                self.end(receiver, subscription, reply.code)
            return
        assert isinstance(reply, m.Granted)
        if reply.next_offset > reply.offset:
            subscription.ready[partition] = None
            self.notify(receiver, subscription)
        else:
            self.watch(receiver, subscription, partition)

    def retry_later(self, receiver: Receiver, subscription: Subscription, *partitions: int) -> None:
        """Watch these again after a backoff."""
        subscription.unwatched.update(dict.fromkeys(partitions))
        self._retries.add(receiver.session, subscription, self._time.monotonic_ms())

    def notify(self, receiver: Receiver, subscription: Subscription) -> None:
        """Say that there is something, once, until the device pulls; not before it may have it."""
        something = subscription.ready or subscription.remainder is not None
        silent = subscription.is_notified or subscription.is_muted or subscription.is_over
        if not something or silent or subscription.pull is not None:
            return
        sn = subscription.request.sn
        if subscription.in_hand.room(self._time.monotonic_ms()) <= 0:
            if not subscription.awaits_room:
                subscription.awaits_room = True
                ends_ms = subscription.in_hand.next_end_ms
                heapq.heappush(self._full, (ends_ms, receiver.session, sn))
            return
        subscription.is_notified = True
        self._outbox.send(receiver.session, encode_code(DeviceOpcode.NOTIFY, sn, 0))

    def end(self, receiver: Receiver, subscription: Subscription, code: int) -> None:
        """There is nothing to receive any more, and never will be: say so, and forget it."""
        subscription.is_over = True
        del receiver.subscriptions[subscription.request.sn]
        self._memory.release(subscription)
        opcode = DeviceOpcode.NOTIFY if subscription.pull is None else DeviceOpcode.PULL
        told = encode_code(opcode, subscription.request.sn, code)
        self._outbox.send(receiver.session, told)


def is_retryable(code: int) -> bool:
    """Return whether what was refused with a code may be asked again."""
    kind = BY_CODE.get(code)
    return kind is not None and kind.retryable
