"""A device over a blocking socket (the frame of SmartDep; DESIGN §4 Device frame).

A lock publishes; one that receives is told, pulls, and acks what it is done with (SmartDep §2.1.3).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from types import TracebackType
from typing import NamedTuple

from weir.device.connection import DeviceConnection, DeviceSecret
from weir.device.pipeline import Pipeline, Publish
from weir.errors import (
    BadChecksum,
    BadRequest,
    Disconnected,
    NotSubscribed,
    Refused,
    TooLarge,
    UnknownTopic,
    refusal,
)
from weir.model.columns import NO_SEQUENCE
from weir.model.limits import (
    DEVICE_BODY_BYTES_MAX,
    DEVICE_IN_HAND_MAX,
    DEVICE_WINDOW,
    GRANT_MS_DEFAULT,
)
from weir.protocol import device as wire
from weir.protocol.device import (
    BY_HUB,
    Delivery,
    DeviceAck,
    DeviceExtend,
    DeviceGrantChange,
    DeviceHello,
    DeviceNack,
    DeviceOpcode,
    DeviceReply,
)
from weir.tls.dialling import SecureHost
from weir.tls.files import ClientFiles

PULL_MESSAGES = 16
SEQUENCE_BYTES = 4
_SN_MAX = 255


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


class Client:
    """A hub with its locks: `sn` is the lock behind it, and each has its own sequence.

    `boot` must rise whenever the sequences begin anew. Every call ends within `timeout` seconds, or
    raises `Disconnected`; `random` spreads the waits of many devices that lost the same broker.
    """

    def __init__(
        self,
        host: str,
        port: int,
        hub: int,
        boot: int,
        topic: str,
        partition: int = BY_HUB,
        *,
        timeout: float = 10.0,
        random: Random | None = None,
        secret: DeviceSecret | None = None,
        tls: ClientFiles | None = None,
    ) -> None:
        """Connect and say hello; a hub of a fleet proves its identity by its `secret`, and talks
        only to a broker that proves its own. Raises `Disconnected`, or what the broker refused
        hello with: `ProofNeeded` without a secret, `NotAuthenticated` with a wrong one.

        With the files of `tls` it connects by TLS, whose handshake may take 30 s of its own. If a
        certificate of this hub is among them, it identifies the hub, and there is no secret:
        `BadRequest` for both.
        """
        if secret is not None and tls is not None and tls.certificate:
            raise BadRequest("a device connects by its secret or its certificate: give one of them")
        host = host if tls is None else SecureHost(host, tls)
        hello = DeviceHello(0, hub, boot, partition, topic)
        self._connection = DeviceConnection(host, port, hello, timeout, random or Random(), secret)
        self._timeout = timeout
        #: By lock: the next sequence.
        self._next: dict[int, int] = {}
        #: What is not confirmed, in order.
        self._held: list[Publish] = []
        self._connection.connect(time.monotonic() + timeout)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def ping(self) -> None:
        """Return when the broker has answered."""
        self._connection.ask(wire.frame(DeviceOpcode.PING, 0, b""), again=True)

    def publish(self, value: bytes, sn: int = 0) -> DeviceReply:
        """Send one message without a sequence; return its confirm.

        Sent again only if the broker says that it did not take it. If the connection ends first,
        raises `Disconnected`: it may or may not have happened. `publish_sequenced` leaves no doubt.
        """
        return self._connection.ask(wire.publish(sn, value), again=False)

    def publish_sequenced(self, value: bytes, sn: int = 0) -> DeviceReply:
        """Send one message under the lock's next sequence, again until confirmed: exactly once."""
        return self.send_many([value], sn, window=1)[0]

    def send_many(
        self,
        values: Sequence[bytes],
        sn: int | Sequence[int] = 0,
        window: int = DEVICE_WINDOW,
    ) -> list[DeviceReply]:
        """Send values in order, each under its lock's next sequence; return the confirms.

        `sn` is the lock of all values, or names one for each. At most `window` of a lock are under
        way, and 8 at most: of so many values the broker can tell a repeat from another value.

        Connects and sends again as often as it takes; raises `Disconnected` after `timeout` seconds
        without any confirm. What is not confirmed then is kept and goes out, under the same
        sequences, before the values of the next call. What the broker refused for good is dropped,
        with all that is held of that lock, and raised.
        """
        sns = [sn] * len(values) if isinstance(sn, int) else sn
        most = DEVICE_BODY_BYTES_MAX - SEQUENCE_BYTES
        if len(sns) != len(values):
            raise BadRequest(f"{len(sns)} locks for {len(values)} values: give one for each")
        if any(not isinstance(value, bytes) for value in values):
            raise BadRequest("a device sends bytes: encode other values first")
        if any(not 0 <= lock <= _SN_MAX for lock in sns):
            raise BadRequest(f"sn is the number of a lock behind the hub: 0 to {_SN_MAX}", _SN_MAX)
        if any(len(value) > most for value in values):
            raise BadRequest(f"a value is over {most:,} bytes: send it in parts", most)
        if any(self._next.get(lock, 0) + n > NO_SEQUENCE for lock, n in Counter(sns).items()):
            raise BadRequest("this boot's sequences are used up: connect with a higher boot count")
        held = self._held
        publishes = held + [self._publish(lock, v) for lock, v in zip(sns, values, strict=True)]
        pipeline = Pipeline(publishes, max(1, min(window, DEVICE_WINDOW)))
        try:
            self._run(pipeline)
        except BaseException:
            self._connection.close()  # replies may be under way that nobody waits for
            raise
        finally:
            replies = zip(publishes, pipeline.replies, strict=True)
            self._held = [publish for publish, reply in replies if reply is None]
            if pipeline.refused is not None:
                self._drop(pipeline.refused)
        return [reply for reply in pipeline.replies[len(held) :] if reply is not None]

    def subscribe(
        self,
        cluster: str,
        topic: str,
        sn: int = 0,
        partition: int = BY_HUB,
        lease: float = GRANT_MS_DEFAULT / 1_000,
        in_hand: int = 0,
    ) -> Subscription:
        """Join a cluster as the lock `sn`, once; what is pulled is its own for `lease` seconds.

        `partition` may be `ALL_PARTITIONS`. At most `in_hand` messages are pulled and not acked at
        a time: 1 to 1,024, or 0 for the broker's default, which is 1 unless it is set otherwise.
        Raises what the broker refused.
        """
        if not 0 <= in_hand <= DEVICE_IN_HAND_MAX:
            raise BadRequest(f"a device holds 1 to {DEVICE_IN_HAND_MAX:,} messages, not {in_hand}")
        if self._connection.is_subscribed(sn):
            raise BadRequest(f"lock {sn} is subscribed: connect again to change it")
        frame = wire.subscribe(sn, cluster, topic, partition, round(lease * 1_000), in_hand)
        self._connection.subscribes(sn)
        self._connection.ask(frame, again=True, topic=topic)
        self._connection.subscribed(sn, frame)
        return Subscription(self._connection, sn)

    def _drop(self, sn: int) -> None:
        """Forget what is held of a lock that was refused; the others go on."""
        dropped = [publish.sequence for publish in self._held if publish.sn == sn]
        self._held = [publish for publish in self._held if publish.sn != sn]
        self._next[sn] = min(dropped, default=self._next[sn])

    def _publish(self, sn: int, value: bytes) -> Publish:
        sequence = self._next.get(sn, 0)
        self._next[sn] = sequence + 1
        return Publish(sn, sequence, value)

    def _run(self, pipeline: Pipeline) -> None:
        deadline = time.monotonic() + self._timeout
        attempt = 0
        while not pipeline.done:
            try:
                if self._turn(pipeline, deadline):
                    deadline, attempt = time.monotonic() + self._timeout, 0
                if (trouble := pipeline.rewind()) is not None:
                    attempt += 1
                    # Bytes that changed on the way go out again at once, the first time.
                    if attempt > 1 or not isinstance(trouble, BadChecksum):
                        self._connection.pause(attempt, deadline, trouble)
            except Disconnected as error:
                self._connection.close()
                pipeline.lost()
                attempt += 1
                self._connection.pause(attempt, deadline, error)

    def _turn(self, pipeline: Pipeline, deadline: float) -> bool:
        """Send what may go out, take the replies that are there; tell whether one confirmed."""
        self._connection.connect(deadline)
        frames = [wire.publish(p.sn, p.value, p.sequence) for p in pipeline.to_send()]
        if frames:
            self._connection.write(b"".join(frames), deadline)
        confirmed = False
        self._connection.fill(deadline)
        while self._connection.unread:
            reply = self._connection.unread.popleft()
            if reply.opcode == DeviceOpcode.PUBLISH_SEQUENCED:
                confirmed |= pipeline.answered(reply)
            else:
                # Its opcode changed on the way, so the broker answered another one.
                pipeline.answered(DeviceReply(reply.opcode, reply.sn, BadChecksum.code))
        return confirmed
