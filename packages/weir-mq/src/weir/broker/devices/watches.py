"""What is asked of partitions for devices, and which partitions the devices of a connection wait
for.

A partition is asked here or in another shard. It is watched, notified of, and tried again.
"""

from __future__ import annotations

import heapq

from weir.broker.devices.subscriptions import (
    Pending,
    PendingOpen,
    PendingWatch,
    Receiver,
    RetryQueue,
    Subscription,
    SubscriptionMemory,
)
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.requests import BY_PARTITION
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import TO_DEVICE, Caller, Outbox
from weir.errors import BY_CODE, Overloaded, Refused, UnknownTopic
from weir.model.clusters import Mode
from weir.model.ids import Address, group_of
from weir.model.limits import REQUESTS_PENDING_MAX, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device.codec import DeviceOpcode, encode_code

Request = m.OpenCluster | m.Pull | m.Fetch | m.Ack | m.Nack | m.Extend


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
