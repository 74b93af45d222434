"""Devices that receive: subscribe, then notify, pull, ack (SmartDep §2.1.3; DESIGN §4).

A subscription is a consumer of a cluster like any other: what it asks are the pulls, fetches and
acks of the client dialect, and their replies come back through `Outbox.kept`.

Devices cannot open columns: this is the one place that takes values out of batches for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from weir.broker.access.authorizer import Authorizer
from weir.broker.devices.subscriptions import (
    GrantRemainder,
    InHand,
    PartitionRequests,
    Pending,
    PendingChange,
    PendingExpiry,
    PendingFetch,
    PendingOpen,
    PendingPull,
    PendingWatch,
    Receiver,
    Subscription,
    SubscriptionMemory,
    Watches,
    is_retryable,
    partitions_of,
)
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.topics import Topics
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import batches_in
from weir.broker.runtime.session import Session
from weir.codec import Buffer
from weir.errors import (
    BadBatch,
    BadRequest,
    MissingLibrary,
    NoHello,
    NotSubscribed,
    OffsetOutOfRange,
    Overloaded,
    Refused,
    StaleGrant,
    UnknownOpcode,
    UnknownTopic,
)
from weir.model.batch import Columns
from weir.model.columns import References
from weir.model.ids import Address, group_of
from weir.model.limits import (
    DEVICE_BODY_BYTES_MAX,
    DEVICE_IN_HAND_MAX,
    DEVICE_WATCHES_MAX,
    GRANT_MS_MAX,
)
from weir.model.topic import Topic, check_name
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device import (
    ALL_PARTITIONS,
    PULL_BYTES_MIN,
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceGrantChange,
    DeviceNack,
    DeviceOpcode,
    DevicePull,
    DeviceSubscribe,
    encode_change_reply,
    encode_code,
    encode_delivery,
    message_bytes,
    subscribe_opcode,
)

_U32_MAX = 0xFFFFFFFF


class Taken(msgspec.Struct):
    """Values and their offsets; with `too_large` one offset, whose value has so many bytes.

    Messages below `passed` that are not among them cannot be opened here, or have expired: those
    are in the runs `expired`.
    """

    offsets: list[int] = msgspec.field(default_factory=list)
    values: list[bytes] = msgspec.field(default_factory=list)
    too_large: int = 0
    passed: int = 0
    expired: list[tuple[int, int]] = msgspec.field(default_factory=list)

    def leave_out(self, offset: int) -> None:
        """A message has expired."""
        self.passed = offset + 1
        if self.expired and self.expired[-1][1] == offset:
            self.expired[-1] = (self.expired[-1][0], offset + 1)
        else:
            self.expired.append((offset, offset + 1))


def take(
    payloads: Sequence[Buffer], first: int, behind: int, most: int, room: int, now_us: int = 0
) -> Taken:
    """Return the values of up to `most` messages from [first, behind) that have not expired by
    `now_us`, in microseconds since 1970.

    `room` bytes are for the values, and for the heads of all messages but one. A value that lies in
    chunks is too large whatever the room. A batch that cannot be opened ends what is returned, or
    is passed by where nothing comes before it. Raises `BadBatch` for bytes that are none.
    """
    taken = Taken()
    room += message_bytes(b"")
    for batch in batches_in(payloads):
        begin = batch.header.first_offset
        rows = range(max(first, begin), min(behind, batch.header.next_offset))
        if not rows:
            continue  # not worth inflating
        try:
            column, expires = batch.value_column, batch.numbers(Columns.EXPIRES)
        except (BadBatch, MissingLibrary):
            if taken.offsets:
                return taken
            taken.passed = batch.header.next_offset
            continue
        for offset in rows:
            if expires is not None and 0 < expires[offset - begin] <= now_us:
                taken.leave_out(offset)
                continue
            value = column.at(offset - begin)
            if batch.header.columns & Columns.REFERENCES:
                return taken if taken.offsets else _too_large(taken, offset, _size_of(value))
            room -= message_bytes(value)
            if room < 0:
                return taken if taken.offsets else _too_large(taken, offset, len(value))
            taken.offsets.append(offset)
            taken.values.append(value)
            if len(taken.offsets) == most:
                return taken
    return taken


def _size_of(references: bytes) -> int:
    return min(References.unpack(references).size, _U32_MAX)


def _too_large(taken: Taken, offset: int, size: int) -> Taken:
    return Taken([offset], [b""], size, taken.passed, taken.expired)


class Pulls:
    """Answers pulls, one of a subscription at a time: `Subscription.pull` is the one under way."""

    __slots__ = ("_outbox", "_requests", "_time", "_watches")

    def __init__(
        self, requests: PartitionRequests, watches: Watches, outbox: Outbox, time: Time
    ) -> None:
        """Pull by `requests`; what was pulled is watched again."""
        self._requests = requests
        self._watches = watches
        self._outbox = outbox
        self._time = time

    def pull(self, receiver: Receiver, subscription: Subscription) -> None:
        """Go on with the pull under way: what is left of a grant, what is ready, or nothing."""
        wanted, request, remainder = subscription.pull, subscription.request, subscription.remainder
        assert wanted is not None
        now_ms = self._time.monotonic_ms()
        most = self._most(subscription)
        if most <= 0:
            self._deliver(receiver, subscription, Delivery())
            return
        if remainder is not None and remainder.until_ms > now_ms:
            address = subscription.addresses[remainder.partition]
            fetch = m.Fetch(address, remainder.next, _room(wanted), equal_stamps=True)
            self._requests.ask(receiver, fetch, PendingFetch(subscription))
            return
        subscription.remainder = None
        # What is not watched may have something: nobody says that it has not.
        partitions = subscription.ready or subscription.unwatched
        if not partitions:
            self._deliver(receiver, subscription, Delivery())
            return
        if not subscription.is_open:
            self._watches.open(receiver, PendingOpen(subscription, is_for_pull=True))
            return
        partition = next(iter(partitions))
        del partitions[partition]
        pull = m.Pull(
            subscription.addresses[partition], request.cluster, most,
            _room(wanted), 0, request.lease_ms,
        )  # fmt: skip
        # Counted from here, the lease ends before the leader says so. What one reply does not take
        # is handed out while half of it is left: a device needs time for what it pulled.
        until_ms = now_ms + request.lease_ms // 2
        self._requests.ask(receiver, pull, PendingPull(subscription, partition, until_ms))

    def extended(self, subscription: Subscription, request: DeviceExtend) -> None:
        """A grant goes on: what is left of it may be handed out for longer."""
        remainder, now_ms = subscription.remainder, self._time.monotonic_ms()
        ends_ms = now_ms + request.lease_ms
        subscription.in_hand.extend(request.partition, request.fence, ends_ms)
        place = request.partition, request.fence
        if remainder is not None and (remainder.partition, remainder.fence) == place:
            remainder.until_ms = max(remainder.until_ms, now_ms + request.lease_ms // 2)
            remainder.lease_ends_ms = max(remainder.lease_ends_ms, ends_ms)

    def _most(self, subscription: Subscription) -> int:
        """Return how many messages the reply to the pull under way may have."""
        assert subscription.pull is not None
        room = subscription.in_hand.room(self._time.monotonic_ms())
        return min(subscription.pull.max_messages, room)

    def granted(self, receiver: Receiver, pending: PendingPull, reply: m.Reply) -> None:
        """Hand out of a grant what one reply takes; go on where it holds nothing."""
        subscription, partition = pending.subscription, pending.partition
        if isinstance(reply, m.Refusal):
            if reply.code == UnknownTopic.code:
                self._watches.end(receiver, subscription, reply.code)
                return
            self._watches.retry_later(receiver, subscription, partition)
            self.refuse(receiver, subscription, reply.code)
            return
        assert isinstance(reply, m.Granted)
        subscription.backoff_ms = 0
        if reply.next_offset > reply.offset:
            subscription.remainder = GrantRemainder(
                partition, reply.fence, reply.attempts, reply.offset, reply.next_offset,
                pending.until_ms, reply.granted_ms, reply.runs,
                self._time.monotonic_ms() + subscription.request.lease_ms,
            )  # fmt: skip
            self._hand_out(receiver, subscription, subscription.remainder, reply.batches)
        else:
            self.pull(receiver, subscription)
        self._watches.watch(receiver, subscription, partition)

    def fetched(self, receiver: Receiver, subscription: Subscription, reply: m.Reply) -> None:
        """Hand out messages of the remainder of a grant, or go on without it."""
        remainder = subscription.remainder
        if isinstance(reply, m.Refusal) and is_retryable(reply.code):
            self.refuse(receiver, subscription, reply.code)
        elif remainder is not None and isinstance(reply, m.Fetched) and reply.batches:
            self._hand_out(receiver, subscription, remainder, reply.batches)
        else:
            nearest = 0
            if isinstance(reply, m.Refusal) and reply.code == OffsetOutOfRange.code:
                nearest = reply.detail
            self._pass_by(subscription, nearest)
            self.pull(receiver, subscription)

    @staticmethod
    def _pass_by(subscription: Subscription, offset: int) -> None:
        """Go on with what is left of a grant from `offset` on, if that is within it; what is passed
        by comes again after the lease, unless it is gone.
        """
        remainder = subscription.remainder
        if remainder is not None and remainder.next < offset < remainder.behind:
            remainder.next = offset
        else:
            subscription.remainder = None

    def _hand_out(
        self,
        receiver: Receiver,
        subscription: Subscription,
        remainder: GrantRemainder,
        batches: tuple[Buffer, ...],
    ) -> None:
        wanted = subscription.pull
        assert wanted is not None
        try:
            room = _room(wanted) - PULL_BYTES_MIN
            now_us = remainder.granted_ms * 1000
            taken = take(batches, *remainder.run, self._most(subscription), room, now_us)
        except BadBatch:
            taken = Taken()
        if taken.expired:
            self._ack_expired(receiver, subscription, remainder, taken.expired)
        if not taken.offsets:
            self._pass_by(subscription, taken.passed)
            self.pull(receiver, subscription)
            return
        partition, fence = remainder.partition, remainder.fence
        if taken.values:
            counts = self._outbox.counts.partition(subscription.addresses[partition].group)
            counts.gave(len(taken.values), sum(map(len, taken.values)))
        if not taken.too_large:  # what has no value is not in the device's hand
            lease_ends_ms = remainder.lease_ends_ms
            subscription.in_hand.take(partition, fence, taken.offsets, lease_ends_ms)
        remainder.next = max(taken.offsets[-1] + 1, taken.passed)
        subscription.remainder = remainder if remainder.next < remainder.behind else None
        delivery = Delivery(
            partition, fence, remainder.attempts, taken.offsets, taken.values, taken.too_large
        )
        self._deliver(receiver, subscription, delivery)

    def _ack_expired(
        self,
        receiver: Receiver,
        subscription: Subscription,
        remainder: GrantRemainder,
        runs: list[tuple[int, int]],
    ) -> None:
        """Messages that have expired are done."""
        ranges = [(remainder.fence, first, behind) for first, behind in runs]
        address, cluster = subscription.addresses[remainder.partition], subscription.request.cluster
        self._requests.ask(receiver, m.Ack(address, cluster, ranges), PendingExpiry(subscription))

    def _deliver(self, receiver: Receiver, subscription: Subscription, delivery: Delivery) -> None:
        subscription.pull, subscription.is_muted = None, False
        reply = encode_delivery(subscription.request.sn, delivery)
        self._outbox.send_messages(receiver.session, reply)
        self._watches.notify(receiver, subscription)

    def refuse(self, receiver: Receiver, subscription: Subscription, code: int) -> None:
        """Answer a pull with a number; a notify follows after a pause, if it is worth one."""
        subscription.pull, subscription.is_muted = None, True
        sn = subscription.request.sn
        self._outbox.send(receiver.session, encode_code(DeviceOpcode.PULL, sn, code))
        self._watches.retry_later(receiver, subscription)


def _room(wanted: DevicePull) -> int:
    """Return how many bytes the body of a pull's reply may have."""
    return min(wanted.max_bytes or DEVICE_BODY_BYTES_MAX, DEVICE_BODY_BYTES_MAX)


class Receivers:
    """All connections of devices that receive."""

    __slots__ = ("_authorizer", "_in_hand", "_memory", "_of", "_outbox", "_pulls", "_requests",
                 "_topics", "_watches")  # fmt: skip

    def __init__(
        self,
        topics: Topics,
        outbox: Outbox,
        authorizer: Authorizer,
        time: Time,
        forwarder: Forwarder,
        budget: Budget,
        in_hand: int,
    ) -> None:
        """Begin with none. What lies in other shards is asked by way of `forwarder`; subscriptions
        are charged to `budget`. A device that sets no limit holds `in_hand` messages at most.
        """
        self._in_hand = in_hand
        self._topics = topics
        self._outbox = outbox
        self._authorizer = authorizer
        self._memory = SubscriptionMemory(budget)
        self._requests = PartitionRequests(topics, outbox, forwarder)
        self._of: dict[int, Receiver] = {}
        self._watches = Watches(self._requests, outbox, time, self._memory)
        self._pulls = Pulls(self._requests, self._watches, outbox, time)

    # -- requests ----------------------------------------------------------------------------

    def subscribe(self, session: Session, request: DeviceSubscribe) -> None:
        """Join a cluster, and watch its partitions; the same again is confirmed again."""
        code, fresh = 0, None
        try:
            known = self._of.get(session.id)
            old = known.subscriptions.get(request.sn) if known else None
            if old is None:
                fresh = self._joined(session, request, known)
                self._memory.charge(fresh)
            elif old.request != request:
                raise BadRequest(f"device {request.sn} is subscribed: connect again to change it")
        except Refused as error:
            code, fresh = error.code, None
        self._outbox.send(session.id, encode_code(subscribe_opcode(request), request.sn, code))
        if fresh is not None:
            receiver = self._of.setdefault(session.id, Receiver(session.id))
            receiver.subscriptions[request.sn] = fresh
            self._watches.watch(receiver, fresh, *fresh.addresses)
            self.take_replies()  # what was refused at once is known to the pull that follows

    def _joined(
        self, session: Session, request: DeviceSubscribe, known: Receiver | None
    ) -> Subscription:
        if not session.greeted:
            raise NoHello("say hello first")
        topic = self._topics.named(request.topic)
        check_name(request.cluster, "cluster")
        self._authorizer.check_cluster(session, topic, request.cluster)
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a lease lasts 1 to {GRANT_MS_MAX:,} ms")
        if request.in_hand > DEVICE_IN_HAND_MAX:
            raise BadRequest(f"a device holds at most {DEVICE_IN_HAND_MAX:,} messages")
        partitions = partitions_of(topic, request.partition, session.hub)
        if len(partitions) + (known.watches if known else 0) > DEVICE_WATCHES_MAX:
            raise BadRequest(f"a connection watches at most {DEVICE_WATCHES_MAX} partitions")
        # The group names the partition; where it lies is for `Topics` to know.
        addresses = {p: Address(0, 0, group_of(topic.id, p)) for p in partitions}
        return Subscription(request, addresses, InHand(request.in_hand or self._in_hand))

    def grown(self, topic: Topic) -> None:
        """Watch the partitions that a topic got, for those who subscribed to all it has.

        A subscription that cannot have them ends: it would miss messages, and not know it.
        """
        for receiver in self._of.values():
            for subscription in list(receiver.subscriptions.values()):
                known = subscription.addresses
                if subscription.request.partition != ALL_PARTITIONS or subscription.id != topic.id:
                    continue
                added = range(len(known), topic.partitions)
                fits = receiver.watches + len(added) <= DEVICE_WATCHES_MAX
                if not fits or not self._memory.fits(len(added)):
                    self._watches.end(receiver, subscription, Overloaded.code)
                    continue
                known.update((p, Address(0, 0, group_of(topic.id, p))) for p in added)
                self._memory.take(len(added))
                self._watches.watch(receiver, subscription, *added)

    def pull(self, session: Session, request: DevicePull) -> None:
        """Hand out messages; nothing where there is nothing."""
        try:
            receiver, subscription = self._subscribed(session.id, request.sn)
            if subscription.pull is not None:
                raise BadRequest("one pull at a time: wait for the reply")
            if request.max_messages < 1 or 0 < request.max_bytes < PULL_BYTES_MIN:
                raise BadRequest(f"pull 1 or more messages into {PULL_BYTES_MIN} or more bytes")
        except Refused as error:
            code = encode_code(DeviceOpcode.PULL, request.sn, error.code)
            self._outbox.send(session.id, code)
            return
        subscription.pull, subscription.is_notified = request, False
        self._pulls.pull(receiver, subscription)
        self.take_replies()

    def change_grant(self, session: Session, request: DeviceGrantChange) -> None:
        """Ack messages, give them back, or keep them longer; confirmed once that is committed."""
        try:
            receiver, subscription = self._subscribed(session.id, request.sn)
            address = subscription.addresses.get(request.partition)
            if address is None:
                raise BadRequest(f"partition {request.partition} is not subscribed")
        except Refused as error:
            self._outbox.send(session.id, encode_change_reply(error.code, request))
            return
        asked = _asked(address, subscription.request.cluster, request)
        self._requests.ask(receiver, asked, PendingChange(subscription, request))
        self.take_replies()

    # -- time and replies --------------------------------------------------------------------

    def take_replies(self) -> None:
        """Go on with whatever was answered."""
        replies = self._outbox.kept
        while replies:
            caller, reply = replies.popleft()
            receiver = self._of.get(caller.session)
            if receiver is not None:
                self._answered(receiver, receiver.pending.pop(caller.correlation), reply)

    def _answered(self, receiver: Receiver, pending: Pending, reply: m.Reply) -> None:
        if isinstance(pending, PendingChange):  # a device hears of it, whatever has ended
            self._grant_changed(receiver, pending, reply)
        if pending.subscription.is_over:
            return
        match pending:
            case PendingWatch():
                self._watches.watched(receiver, pending, reply)
            case PendingOpen():
                self._opened(receiver, pending, reply)
            case PendingPull():
                self._pulls.granted(receiver, pending, reply)
            case PendingFetch(subscription):
                self._pulls.fetched(receiver, subscription, reply)
            case PendingExpiry() | PendingChange():
                return

    def _opened(self, receiver: Receiver, pending: PendingOpen, reply: m.Reply) -> None:
        """Go on with what waits for an open cluster; where it never can be, end a subscription."""
        subscription = pending.subscription
        # A node of an earlier release does not know the question.
        if not isinstance(reply, m.Refusal) or reply.code == UnknownOpcode.code:
            subscription.is_open = True
            if pending.is_for_pull:
                self._pulls.pull(receiver, subscription)
            self._watches.watch(receiver, subscription, *pending.partitions)
        elif not is_retryable(reply.code):
            self._watches.end(receiver, subscription, reply.code)
        elif pending.is_for_pull:
            self._pulls.refuse(receiver, subscription, reply.code)
        else:
            self._watches.retry_later(receiver, subscription, *pending.partitions)

    def _grant_changed(self, receiver: Receiver, pending: PendingChange, reply: m.Reply) -> None:
        """Answer a device, and count what it still holds: after a `StaleGrant`, nothing of what it
        asked for.
        """
        subscription, request = pending.subscription, pending.request
        code = reply.code if isinstance(reply, m.Refusal) else 0
        if isinstance(reply, m.Acked) and reply.late:
            code = StaleGrant.code
        self._outbox.send(receiver.session, encode_change_reply(code, request))
        if code not in (0, StaleGrant.code):
            return
        match request:
            case DeviceExtend(_, partition, fence, _) if code:
                subscription.in_hand.end_lease(partition, fence)
            case DeviceExtend():
                self._pulls.extended(subscription, request)
            case DeviceAck() | DeviceNack():
                subscription.in_hand.discard(
                    request.partition, request.fence, request.first, request.next
                )
        self._watches.notify(receiver, subscription)

    def retry_due(self) -> None:
        """Try again what was refused, where its backoff is over."""
        self._watches.retry_due(self._of)

    def closed(self, session: int) -> None:
        """A connection is gone; what it was granted is released by the partitions."""
        receiver = self._of.pop(session, None)
        if receiver is not None:
            for subscription in receiver.subscriptions.values():
                self._memory.release(subscription)

    def _subscribed(self, session: int, sn: int) -> tuple[Receiver, Subscription]:
        receiver = self._of.get(session)
        if receiver is None or sn not in receiver.subscriptions:
            raise NotSubscribed(f"device {sn} must subscribe first")
        return receiver, receiver.subscriptions[sn]


def _asked(address: Address, cluster: str, request: DeviceGrantChange) -> m.Ack | m.Nack | m.Extend:
    """Return a device's request as a client of the cluster would say it."""
    match request:
        case DeviceAck(_, _, fence, first, behind):
            return m.Ack(address, cluster, [(fence, first, behind)], exact=True)
        case DeviceNack(_, _, fence, first, behind, delay_ms):
            return m.Nack(address, cluster, fence, [(first, behind)], delay_ms)
        case DeviceExtend(_, _, fence, lease_ms):
            return m.Extend(address, cluster, [fence], lease_ms)
