"""Devices that receive: subscribe, then notify, pull, ack (seed 001 §2.1.3; DESIGN §4).

A subscription is a consumer of a cluster like any other: what it asks are the pulls, fetches and
acks of the client dialect, and their replies come back through `Outbox.kept`. For devices alone the
broker takes values out of batches.
"""

from __future__ import annotations

from functools import partial

from weir.broker.admission import Authorize
from weir.broker.outbox import TO_DEVICE, Caller, Outbox
from weir.broker.passing import Passing
from weir.broker.sessions import Session
from weir.broker.subscriptions import Receiver, Rest, Subscription, Then, partitions_of
from weir.broker.topics import Topics
from weir.broker.unpacking import take
from weir.codec.fields import Buffer
from weir.errors import (
    BadBatch,
    BadRequest,
    MissingLibrary,
    NoHello,
    NotSubscribed,
    Overloaded,
    Refused,
    Unavailable,
)
from weir.model.ids import Address, group_of
from weir.model.limits import (
    DEVICE_BODY_BYTES_MAX,
    DEVICE_WATCHES_MAX,
    GRANT_MS_MAX,
    REQUESTS_PENDING_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.model.topic import check_name
from weir.order.clock import Time
from weir.wire import messages as m
from weir.wire.deliveries import (
    PULL_BYTES_MIN,
    Delivery,
    DeviceAck,
    DevicePull,
    DeviceSubscribe,
)
from weir.wire.device import DeviceOpcode, encode_acked, encode_code, encode_delivery


class Receivers:
    """All connections of devices that receive."""

    __slots__ = ("_authorize", "_of", "_outbox", "_passing", "_quiet", "_time", "_topics")

    def __init__(
        self,
        topics: Topics,
        outbox: Outbox,
        authorize: Authorize,
        time: Time,
        passing: Passing,
    ) -> None:
        """Begin with none. What lies in other shards is asked by way of `passing`."""
        self._passing = passing
        self._topics = topics
        self._outbox = outbox
        self._authorize = authorize
        self._time = time
        self._of: dict[int, Receiver] = {}
        #: Session and `sn` of those that the next tick looks after.
        self._quiet: set[tuple[int, int]] = set()

    # -- requests ----------------------------------------------------------------------------

    def subscribe(self, session: Session, request: DeviceSubscribe) -> None:
        """Join a cluster, and watch its partitions; the same again is confirmed again."""
        code, fresh = 0, None
        try:
            known = self._of.get(session.id)
            old = known.subscriptions.get(request.sn) if known else None
            if old is None:
                fresh = self._joined(session, request, known)
            elif old.request != request:
                raise BadRequest(f"device {request.sn} is subscribed: connect again to change it")
        except Refused as error:
            code = error.code
        opcode = DeviceOpcode.SUBSCRIBE
        self._outbox.send(session.id, encode_code(opcode, request.sn, code))
        if fresh is not None:
            receiver = self._of.setdefault(session.id, Receiver(session.id))
            receiver.subscriptions[request.sn] = fresh
            for partition in fresh.addresses:
                self._watch(receiver, fresh, partition)

    def _joined(
        self, session: Session, request: DeviceSubscribe, known: Receiver | None
    ) -> Subscription:
        if not session.greeted:
            raise NoHello("say hello first")
        topic = self._topics.named(request.topic)
        self._authorize(session.principal, "consume", topic.full_name)
        check_name(request.cluster, "cluster")
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a lease lasts 1 to {GRANT_MS_MAX:,} ms")
        partitions = partitions_of(topic, request.partition, session.hub)
        if len(partitions) + (known.watches if known else 0) > DEVICE_WATCHES_MAX:
            raise BadRequest(f"a connection watches at most {DEVICE_WATCHES_MAX} partitions")
        # The group names the partition; where it lies is for `Topics` to know.
        addresses = {p: Address(0, 0, group_of(topic.id, p)) for p in partitions}
        return Subscription(request, addresses)

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
        subscription.pull, subscription.told = request, False
        self._pull(receiver, subscription)

    def ack(self, session: Session, request: DeviceAck) -> None:
        """Ack messages; confirmed once that is committed."""

        def answer(reply: m.Reply) -> None:
            code = reply.code if isinstance(reply, m.Refusal) else 0
            self._outbox.send(session.id, encode_acked(code, request))

        try:
            receiver, subscription = self._subscribed(session.id, request.sn)
            address = subscription.addresses.get(request.partition)
            if address is None:
                raise BadRequest(f"partition {request.partition} is not subscribed")
            ranges = [(request.fence, request.first, request.next)]
            self._ask(receiver, m.Ack(address, subscription.request.cluster, ranges), answer)
        except Refused as error:
            self._outbox.send(session.id, encode_acked(error.code, request))

    # -- time and replies --------------------------------------------------------------------

    def advance(self) -> None:
        """Go on with whatever was answered."""
        kept = self._outbox.kept
        while kept:
            caller, reply = kept.popleft()
            receiver = self._of.get(caller.session)
            if receiver is not None:
                receiver.asked.pop(caller.correlation)(reply)

    def tick(self) -> None:
        """Try again what was refused."""
        quiet, self._quiet = self._quiet, set()
        for session, sn in quiet:
            if (receiver := self._of.get(session)) is None:
                continue
            subscription = receiver.subscriptions[sn]
            partitions, subscription.quiet = subscription.quiet, set()
            for partition in partitions:
                self._watch(receiver, subscription, partition)
            self._notify(receiver, subscription)

    def closed(self, session: int) -> None:
        """A connection is gone; what it was granted is released by the partitions."""
        self._of.pop(session, None)

    # -- inside ------------------------------------------------------------------------------

    def _subscribed(self, session: int, sn: int) -> tuple[Receiver, Subscription]:
        receiver = self._of.get(session)
        if receiver is None or sn not in receiver.subscriptions:
            raise NotSubscribed(f"device {sn} must subscribe first")
        return receiver, receiver.subscriptions[sn]

    def _ask(self, receiver: Receiver, request: m.Pull | m.Fetch | m.Ack, then: Then) -> None:
        """Ask a partition; `then` gets the reply. Raises `Refused`."""
        if len(receiver.asked) >= REQUESTS_PENDING_MAX:
            raise Overloaded(f"{REQUESTS_PENDING_MAX} requests wait", RETRY_AFTER_MS)
        receiver.correlation += 1
        caller = Caller(receiver.session, TO_DEVICE, receiver.correlation)
        owner = self._passing.shard_of(request.address.group)
        if owner != self._passing.shard:
            self._passing.ask(caller, request, owner)
            receiver.asked[caller.correlation] = then
            return
        _, partition = self._topics.partition(request.address.group)
        receiver.asked[caller.correlation] = then
        try:
            match request:
                case m.Pull():
                    partition.pull(caller, request)
                case m.Fetch():
                    partition.fetch(caller, request)
                case m.Ack():
                    partition.ack(caller, request)
        except Refused:
            del receiver.asked[caller.correlation]
            raise

    def _watch(self, receiver: Receiver, subscription: Subscription, partition: int) -> None:
        address, request = subscription.addresses[partition], subscription.request
        pull = m.Pull(address, request.cluster, 0, 0, WAIT_MS_MAX, request.lease_ms)
        try:
            self._ask(receiver, pull, partial(self._watched, receiver, subscription, partition))
        except Refused:
            self._rest_until_tick(receiver, subscription, partition)

    def _watched(
        self, receiver: Receiver, subscription: Subscription, partition: int, reply: m.Reply
    ) -> None:
        if not isinstance(reply, m.Granted):
            self._rest_until_tick(receiver, subscription, partition)
        elif reply.next_offset > reply.offset:
            subscription.ready.append(partition)
            self._notify(receiver, subscription)
        else:
            self._watch(receiver, subscription, partition)

    def _rest_until_tick(
        self, receiver: Receiver, subscription: Subscription, *partitions: int
    ) -> None:
        subscription.quiet.update(partitions)
        self._quiet.add((receiver.session, subscription.request.sn))

    def _notify(self, receiver: Receiver, subscription: Subscription) -> None:
        """Say that there is something, once, until the device pulls."""
        something = subscription.ready or subscription.rest is not None
        if something and not subscription.told and subscription.pull is None:
            subscription.told = True
            notify = encode_code(DeviceOpcode.NOTIFY, subscription.request.sn, 0)
            self._outbox.send(receiver.session, notify)

    def _pull(self, receiver: Receiver, subscription: Subscription) -> None:
        """Go on with the pull under way: what is left of a grant, what is ready, or nothing."""
        wanted, request, rest = subscription.pull, subscription.request, subscription.rest
        assert wanted is not None
        size = wanted.max_bytes or DEVICE_BODY_BYTES_MAX
        try:
            if rest is not None and rest.until_ms > self._time.monotonic_ms():
                fetch = m.Fetch(subscription.addresses[rest.partition], rest.next, size)
                self._ask(receiver, fetch, partial(self._fetched, receiver, subscription))
                return
            subscription.rest = None
            if subscription.ready or subscription.quiet:
                # What is not watched may have something: nobody says that it has not.
                ready, quiet = subscription.ready, subscription.quiet
                partition = ready.popleft() if ready else min(quiet)
                self._rest_until_tick(receiver, subscription, partition)  # if this is refused
                pull = m.Pull(
                    subscription.addresses[partition], request.cluster, wanted.max_messages, size,
                    0, request.lease_ms,
                )  # fmt: skip
                # Counted from here, this end of the lease comes before the leader's.
                until_ms = self._time.monotonic_ms() + request.lease_ms
                then = partial(self._granted, receiver, subscription, partition, until_ms)
                self._ask(receiver, pull, then)
                subscription.quiet.discard(partition)
                return
        except Refused as error:
            self._refuse(receiver, subscription, error.code)
            return
        self._deliver(receiver, subscription, Delivery())

    def _granted(
        self,
        receiver: Receiver,
        subscription: Subscription,
        partition: int,
        until_ms: int,
        reply: m.Reply,
    ) -> None:
        if isinstance(reply, m.Refusal):
            self._rest_until_tick(receiver, subscription, partition)
            self._refuse(receiver, subscription, reply.code)
            return
        assert isinstance(reply, m.Granted)
        if reply.next_offset > reply.offset:
            subscription.rest = Rest(
                partition, reply.fence, reply.attempts, reply.offset, reply.next_offset,
                until_ms,
            )  # fmt: skip
            self._hand_out(receiver, subscription, subscription.rest, reply.batches)
        else:
            self._pull(receiver, subscription)
        self._watch(receiver, subscription, partition)

    def _fetched(self, receiver: Receiver, subscription: Subscription, reply: m.Reply) -> None:
        rest = subscription.rest
        if isinstance(reply, m.Refusal):
            self._refuse(receiver, subscription, reply.code)
        elif rest is not None and isinstance(reply, m.Fetched) and reply.batches:
            self._hand_out(receiver, subscription, rest, reply.batches)
        else:
            subscription.rest = None
            self._pull(receiver, subscription)

    def _hand_out(
        self,
        receiver: Receiver,
        subscription: Subscription,
        rest: Rest,
        batches: tuple[Buffer, ...],
    ) -> None:
        wanted = subscription.pull
        assert wanted is not None
        room = min(wanted.max_bytes or DEVICE_BODY_BYTES_MAX, DEVICE_BODY_BYTES_MAX)
        try:
            most = wanted.max_messages
            taken = take(batches, rest.next, rest.behind, most, room - PULL_BYTES_MIN)
        except (BadBatch, MissingLibrary):
            self._refuse(receiver, subscription, Unavailable.code)
            return
        if not taken.offsets:
            subscription.rest = None  # void from here on
            self._pull(receiver, subscription)
            return
        if taken.values:
            counts = self._outbox.counts.partition(subscription.addresses[rest.partition].group)
            counts.gave(len(taken.values), sum(map(len, taken.values)))
        rest.next = taken.offsets[-1] + 1
        subscription.rest = rest if rest.next < rest.behind else None
        delivery = Delivery(
            rest.partition, rest.fence, rest.attempts, taken.offsets, taken.values, taken.too_large
        )
        self._deliver(receiver, subscription, delivery)

    def _deliver(self, receiver: Receiver, subscription: Subscription, delivery: Delivery) -> None:
        subscription.pull = None
        reply = encode_delivery(subscription.request.sn, delivery)
        self._outbox.send_messages(receiver.session, reply)
        self._notify(receiver, subscription)

    def _refuse(self, receiver: Receiver, subscription: Subscription, code: int) -> None:
        """Answer a pull with a number; a notify follows at the next tick, if it is worth one."""
        subscription.pull = None
        sn = subscription.request.sn
        self._outbox.send(receiver.session, encode_code(DeviceOpcode.PULL, sn, code))
        self._rest_until_tick(receiver, subscription)
