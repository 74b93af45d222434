"""Devices that receive: subscribe, then notify, pull, ack (SmartDep §2.1.3; DESIGN §4).

A subscription is a consumer of a cluster like any other: what it asks are the pulls, fetches and
acks of the client dialect, and their replies come back through `Outbox.kept`. For devices alone the
broker takes values out of batches.
"""

from __future__ import annotations

from weir.broker.api.settings import AccessControl
from weir.broker.devices.pulls import Pulls
from weir.broker.devices.subscriptions import (
    InHand,
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
    partitions_of,
)
from weir.broker.devices.watches import PartitionRequests, Watches, is_retryable
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.topics import Topics
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import Session
from weir.errors import (
    BadRequest,
    NoHello,
    NotSubscribed,
    Overloaded,
    Refused,
    StaleGrant,
    UnknownOpcode,
)
from weir.model.ids import Address, group_of
from weir.model.limits import (
    DEVICE_IN_HAND_MAX,
    DEVICE_WATCHES_MAX,
    GRANT_MS_MAX,
)
from weir.model.topic import Topic, check_name
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device.codec import (
    DeviceOpcode,
    encode_change_reply,
    encode_code,
    subscribe_opcode,
)
from weir.protocol.device.deliveries import (
    ALL_PARTITIONS,
    PULL_BYTES_MIN,
    DeviceAck,
    DeviceExtend,
    DeviceGrantChange,
    DeviceNack,
    DevicePull,
    DeviceSubscribe,
)


class Receivers:
    """All connections of devices that receive."""

    __slots__ = ("_access", "_in_hand", "_memory", "_of", "_outbox", "_pulls", "_requests",
                 "_topics", "_watches")  # fmt: skip

    def __init__(
        self,
        topics: Topics,
        outbox: Outbox,
        access: AccessControl,
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
        self._access = access
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
        self._access.check(session.principal, "consume", topic.full_name)
        check_name(request.cluster, "cluster")
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
