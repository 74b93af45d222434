"""What is asked of partitions for devices, and which partitions the devices of a connection wait
for.

A partition is asked here or in another shard. It is watched, told of, and tried again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from weir.broker.devices.subscriptions import Receiver, Resting, Subscription, Then
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import TO_DEVICE, Caller, Outbox
from weir.errors import BY_CODE, Overloaded, Refused, UnknownOpcode, UnknownTopic
from weir.model.clusters import Mode
from weir.model.ids import Address, group_of
from weir.model.limits import REQUESTS_PENDING_MAX, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device.codec import DeviceOpcode, encode_code

Asked = m.OpenCluster | m.Pull | m.Fetch | m.Ack | m.Nack | m.Extend


class Asking:
    """Asks as a client of the connection's would; replies come back by `Outbox.kept`."""

    __slots__ = ("_outbox", "_passing", "_topics")

    def __init__(self, topics: Topics, outbox: Outbox, passing: Forwarder) -> None:
        """Ask what `topics` serves here, and by way of `passing` what lies in other shards."""
        self._topics = topics
        self._outbox = outbox
        self._passing = passing

    def ask(self, receiver: Receiver, request: Asked, then: Then) -> None:
        """Ask a partition; `then` gets the reply, a refusal at once if it is one."""
        receiver.correlation += 1
        caller = Caller(receiver.session, TO_DEVICE, receiver.correlation)
        try:
            if len(receiver.asked) >= REQUESTS_PENDING_MAX:
                raise Overloaded(f"{REQUESTS_PENDING_MAX} requests wait", RETRY_AFTER_MS)
            receiver.asked[caller.correlation] = then
            self._send(caller, request)
        except Refused as error:
            receiver.asked.pop(caller.correlation, None)
            then(m.Refusal(error.code, str(error), error.detail))

    def _send(self, caller: Caller, request: Asked) -> None:
        place = self._passing.routes.toward(request.address.group)
        if place != self._passing.shard:
            self._passing.ask(caller, request, place)
            return
        _, partition = self._topics.partition(request.address.group)
        match request:
            case m.OpenCluster():
                partition.open_cluster(caller, request)
            case m.Pull():
                partition.pull(caller, request)
            case m.Fetch():
                partition.fetch(caller, request)
            case m.Ack() | m.Nack() | m.Extend():
                partition.settle(caller, request)

    def advance(self, receivers: dict[int, Receiver]) -> None:
        """Hand over whatever was answered."""
        kept = self._outbox.kept
        while kept:
            caller, reply = kept.popleft()
            receiver = receivers.get(caller.session)
            if receiver is not None:
                receiver.asked.pop(caller.correlation)(reply)


class Watching:
    """Watches partitions for subscriptions, and notifies."""

    __slots__ = ("_asking", "_forget", "_full", "_outbox", "_resting", "_time")

    def __init__(
        self, asking: Asking, outbox: Outbox, time: Time, forget: Callable[[Subscription], None]
    ) -> None:
        """Tell `forget` of subscriptions that have come to their end."""
        self._asking = asking
        self._outbox = outbox
        self._time = time
        self._forget = forget
        self._resting = Resting()
        #: Subscriptions that hold as much as they may, by the time that a lease of theirs ends.
        self._full: list[tuple[int, int, int]] = []

    def tick(self, receivers: dict[int, Receiver]) -> None:
        """Try again what was refused, where its pause is over; notify where a lease is over."""
        now_ms, due = self._time.monotonic_ms(), []
        while self._full and self._full[0][0] <= now_ms:
            due.append(heapq.heappop(self._full))
        for _, session, sn in due:
            receiver = receivers.get(session)
            if receiver is not None and (waiting := receiver.subscriptions.get(sn)) is not None:
                waiting.full = False
                self.notify(receiver, waiting)
        for session, sn in self._resting.over(now_ms):
            receiver = receivers.get(session)
            subscription = receiver.subscriptions.get(sn) if receiver is not None else None
            if receiver is None or subscription is None or not subscription.rests:
                continue
            subscription.rests = subscription.hushed = False
            quiet, subscription.quiet = subscription.quiet, {}
            self.watch(receiver, subscription, *quiet)
            self.notify(receiver, subscription)

    def watch(self, receiver: Receiver, subscription: Subscription, *partitions: int) -> None:
        """Ask to be told when there is something to pull, once the cluster is open."""
        if not subscription.is_open:
            again = partial(self.watch, receiver, subscription, *partitions)
            rest = partial(self.rest, receiver, subscription, *partitions)
            self.open(receiver, subscription, again, lambda _: rest())
            return
        request = subscription.request
        for partition in partitions:
            if subscription.over:
                return
            address = subscription.addresses[partition]
            pull = m.Pull(address, request.cluster, 0, 0, WAIT_MS_MAX, request.lease_ms)
            then = partial(self._watched, receiver, subscription, partition)
            self._asking.ask(receiver, pull, then)

    def open(
        self,
        receiver: Receiver,
        subscription: Subscription,
        then: Callable[[], None],
        refused: Callable[[int], None],
    ) -> None:
        """Ask partition 0 to open the cluster, and go on with `then`. `refused` is told why that
        cannot be yet; where it never can be, the subscription ends.
        """

        def opened(reply: m.Reply) -> None:
            if subscription.over:
                return
            # A node of an earlier release does not know the question.
            if not isinstance(reply, m.Refusal) or reply.code == UnknownOpcode.code:
                subscription.is_open = True
                then()
            elif may_come_right(reply.code):
                refused(reply.code)
            else:
                self.end(receiver, subscription, reply.code)

        home = Address(0, 0, group_of(subscription.id, 0))
        opens = m.OpenCluster(home, subscription.request.cluster, Mode.SHARED)
        self._asking.ask(receiver, opens, opened)

    def _watched(
        self, receiver: Receiver, subscription: Subscription, partition: int, reply: m.Reply
    ) -> None:
        if subscription.over:
            return
        if isinstance(reply, m.Refusal):
            if may_come_right(reply.code):
                self.rest(receiver, subscription, partition)
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

    def rest(self, receiver: Receiver, subscription: Subscription, *partitions: int) -> None:
        """Watch these again after a pause."""
        subscription.quiet.update(dict.fromkeys(partitions))
        self._resting.add(receiver.session, subscription, self._time.monotonic_ms())

    def notify(self, receiver: Receiver, subscription: Subscription) -> None:
        """Say that there is something, once, until the device pulls; not before it may have it."""
        something = subscription.ready or subscription.rest is not None
        silent = subscription.told or subscription.hushed or subscription.over
        if not something or silent or subscription.pull is not None:
            return
        sn = subscription.request.sn
        if subscription.in_hand.room(self._time.monotonic_ms()) <= 0:
            if not subscription.full:
                subscription.full = True
                ends_ms = subscription.in_hand.next_end_ms
                heapq.heappush(self._full, (ends_ms, receiver.session, sn))
            return
        subscription.told = True
        self._outbox.send(receiver.session, encode_code(DeviceOpcode.NOTIFY, sn, 0))

    def end(self, receiver: Receiver, subscription: Subscription, code: int) -> None:
        """There is nothing to receive any more, and never will be: say so, and forget it."""
        subscription.over = True
        del receiver.subscriptions[subscription.request.sn]
        self._forget(subscription)
        opcode = DeviceOpcode.NOTIFY if subscription.pull is None else DeviceOpcode.PULL
        told = encode_code(opcode, subscription.request.sn, code)
        self._outbox.send(receiver.session, told)


def may_come_right(code: int) -> bool:
    """Return whether what was refused with a code may be asked again."""
    kind = BY_CODE.get(code)
    return kind is not None and kind.retryable
