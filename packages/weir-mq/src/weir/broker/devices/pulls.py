"""Pulls of devices: what is granted or left of a grant, as much of it as one reply takes.

Devices cannot open columns: this is the one place that takes values out of batches for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir.broker.devices.subscriptions import (
    GrantRemainder,
    PendingExpiry,
    PendingFetch,
    PendingOpen,
    PendingPull,
    Receiver,
    Subscription,
)
from weir.broker.devices.watches import PartitionRequests, Watches, is_retryable
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.reads import batches_in
from weir.codec.fields import Buffer
from weir.errors import BadBatch, MissingLibrary, OffsetOutOfRange, UnknownTopic
from weir.model.chunks import References
from weir.model.header import Columns
from weir.model.limits import DEVICE_BODY_BYTES_MAX
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.device.codec import DeviceOpcode, encode_code, encode_delivery
from weir.protocol.device.deliveries import (
    PULL_BYTES_MIN,
    Delivery,
    DeviceExtend,
    DevicePull,
    message_bytes,
)

_U32_MAX = 0xFFFFFFFF


@dataclass(slots=True)
class Taken:
    """Values and their offsets; with `too_large` one offset, whose value has so many bytes.

    Messages below `passed` that are not among them cannot be opened here, or have expired: those
    are in the runs `expired`.
    """

    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    too_large: int = 0
    passed: int = 0
    expired: list[tuple[int, int]] = field(default_factory=list)

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
            fetch = m.Fetch(address, remainder.next, _room(wanted))
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
