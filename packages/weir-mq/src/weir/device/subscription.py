"""A lock that receives: told, it pulls; what it is done with, it acks (SmartDep §2.1.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from weir.device.connection import DeviceConnection
from weir.errors import NotSubscribed, Refused, TooLarge, UnknownTopic, refusal
from weir.protocol.device import codec as wire
from weir.protocol.device.deliveries import (
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceGrantChange,
    DeviceNack,
)

PULL_MESSAGES = 16


class Received(NamedTuple):
    """A message as a device gets it; `attempts` counts how often it was handed out."""

    value: bytes
    partition: int
    offset: int
    attempts: int
    fence: int


class Subscription:
    """Made by `Client.subscribe`. It outlives connections; its client must not be shared meanwhile.

    What is not acked within the lease, or before the connection ends, is handed out again: to this
    device or another of the cluster. So a message may come twice, but none is lost.
    """

    def __init__(self, connection: DeviceConnection, sn: int) -> None:
        """Receive for the lock `sn` over its client's connection."""
        self._connection = connection
        self._sn = sn
        #: What the last pull raised `TooLarge` for; acked, it is skipped for the whole cluster.
        self.unfit: Received | None = None

    def pull(self, max_messages: int = PULL_MESSAGES, max_bytes: int = 0) -> list[Received]:
        """Return what there is, up to so many in a reply of so many bytes (0: 64 KiB).

        Raises `TooLarge` where the next message does not fit: see `unfit`. Raises why the broker
        ended the subscription, if it did: its topic is gone, or never serves again.
        """
        self._check()
        # What is on its way when a connection ends comes again: a pull is sent again too.
        self._connection.notified.discard(self._sn)
        frame = wire.pull(self._sn, max_messages, max_bytes)
        try:
            reply = self._connection.ask(frame, again=True, fine=(0, TooLarge.code))
        except (UnknownTopic, NotSubscribed) as error:
            self._connection.end(self._sn, self._connection.ended.get(self._sn, error.code))
            self._check()
            raise
        delivery = reply.content
        assert isinstance(delivery, Delivery)  # which DeviceReplies puts into both codes
        found = [
            Received(value, delivery.partition, offset, delivery.attempts, delivery.fence)
            for offset, value in zip(delivery.offsets, delivery.values, strict=True)
        ]
        if delivery.too_large:
            (self.unfit,) = found
            raise TooLarge(
                f"the message at offset {self.unfit.offset} has {delivery.too_large:,} bytes, more "
                "than fit: ack `unfit` to skip it, or leave it to another of the cluster",
                delivery.too_large,
            )
        return found

    def _check(self) -> None:
        if (code := self._connection.ended.get(self._sn)) is not None:
            raise refusal(
                code, f"the broker ended this subscription with code {code}: subscribe anew"
            )

    def take(self, seconds: float, max_messages: int = PULL_MESSAGES) -> list[Received]:
        """Pull, and if there is nothing wait so long for a notify; empty if none came."""
        deadline = time.monotonic() + seconds
        while not (found := self.pull(max_messages)):
            if not self._connection.listen(self._sn, deadline - time.monotonic()):
                break
        return found

    def ack(self, messages: Sequence[Received]) -> None:
        """Be done with messages; returns when that is durable.

        Raises `StaleGrant` if one went to another device meanwhile, also if that has done it; the
        rest is done.
        """
        self._change(DeviceAck(self._sn, *run) for run in _runs(messages))

    def nack(self, messages: Sequence[Received], delay: float = 0.0) -> None:
        """Give messages back, to be handed out again no sooner than in `delay` seconds.

        Raises `StaleGrant` if one went to another device meanwhile; the rest is given back.
        """
        self._change(DeviceNack(self._sn, *run, round(delay * 1000)) for run in _runs(messages))

    def extend(self, messages: Sequence[Received], seconds: float) -> None:
        """Keep messages for so long from now: those of a pull have one lease.

        Raises `StaleGrant` if it was over, and one went to another device.
        """
        grants = dict.fromkeys((one.partition, one.fence) for one in messages)
        self._change(DeviceExtend(self._sn, *grant, round(seconds * 1000)) for grant in grants)

    def _change(self, requests: Iterable[DeviceGrantChange]) -> None:
        refused: Refused | None = None
        for request in requests:
            try:
                self._connection.ask(wire.encode_change(request), again=True)
            except Refused as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def serve(self, handle: Callable[[Received], None], seconds: float) -> int:
        """Call `handle` for each message, then ack it, until none comes for so long.

        Returns how many came.
        """
        count = 0
        while found := self.take(seconds):
            for message in found:
                handle(message)
                self.ack([message])
            count += len(found)
        return count

    def __iter__(self) -> Iterator[Received]:
        """Yield messages as they come, for as long as the caller wants; `ack` each."""
        while True:
            yield from self.take(seconds=60.0)


def _runs(messages: Sequence[Received]) -> list[tuple[int, int, int, int]]:
    """Gather messages into ranges: partition, fence, first offset, offset behind the last."""
    runs: list[tuple[int, int, int, int]] = []
    for _, partition, offset, _, fence in messages:
        if runs and runs[-1][:2] == (partition, fence) and runs[-1][3] == offset:
            runs[-1] = (*runs[-1][:3], offset + 1)
        else:
            runs.append((partition, fence, offset, offset + 1))
    return runs
