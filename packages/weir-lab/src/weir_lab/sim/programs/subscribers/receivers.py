"""A simulated device that receives: it subscribes, is notified, pulls and acks."""

from __future__ import annotations

from weir.errors import BY_CODE, NotSubscribed, StaleGrant
from weir.protocol import device as d
from weir.protocol.device import Delivery, DeviceAck
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Ack, Grant, Operation, Seen
from weir_lab.sim.programs.program import TOPIC, Program
from weir_lab.sim.programs.scene import Scene

_SN = 5
_LEASES_MS = (40, 100, 250)
_MOST = (1, 3, 10)
_AGAIN = (1 * MS, 20 * MS)
_ROOMS = (0, 60, 2_000)
#: Messages in hand at most, as a subscription asks; 0: the broker's default, which is 1.
_IN_HAND = (0, 2, 20)
#: How an ack may be refused that comes late, or on a new connection before the subscription.
_LATE_CODES = (StaleGrant.code, NotSubscribed.code)
#: How long there was nothing new when all is over: what is there may be heard of late, and of
#: several nodes as late as a new leader is found, or the old one keeps what it tried to hand over.
_QUIET = 300 * MS
_QUIET_FAR = 3_000 * MS
_LULL = (10 * MS, 100 * MS)
_FORGET = 0.1
_LATE = 0.1
_DIE = 0.05


class Receiver(Program):
    """One device of a cluster: forgets messages, acks late, and loses its connection."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        hub: int,
        partition: int,
        cluster: str,
    ) -> None:
        """Work for `cluster`."""
        super().__init__(scene, name)
        self.cluster = cluster
        #: Since when this device ends; all leases are over some time later.
        self.ending_since = 0
        self._hub = hub
        self._partition = partition
        self._lease_ms = scene.world.dice.choice(_LEASES_MS)
        self._in_hand = scene.world.dice.choice(_IN_HAND)
        #: What the device holds: each grant, and when its lease is over at the latest.
        self._held: list[tuple[Grant, int]] = []
        #: By fence: when a lease is over at the latest.
        self._leases: dict[int, int] = {}
        self._replies = d.DeviceReplies()
        self._pull: Operation | None = None
        self._pulled = 0
        self._acks: list[tuple[Ack, Operation]] = []
        self._drained = False
        self._news = 0

    @property
    def finished(self) -> bool:
        """Whether a pull brought nothing after all leases were over, and nothing is under way."""
        return self._drained and self._pull is None and not self._acks

    def opened(self) -> None:
        """Name the hub; the subscription comes behind."""
        self._replies = d.DeviceReplies()
        self.ending_since = max(self.ending_since, self.world.now)
        self._news = 0
        self._send(d.hello(self._hub, 1, TOPIC, self._partition))
        self.expect(lambda: not self._news)

    def closed(self) -> None:
        """What was under way may or may not have happened."""
        for operation in (self._pull, *(operation for _, operation in self._acks)):
            if operation is not None:
                operation.ended = self.world.now
        self._pull = None
        self._acks.clear()
        self._held.clear()
        self._leases.clear()

    def end(self) -> None:
        """Work off what is left."""
        self.ending, self.ending_since, self._drained = True, self.world.now, False
        self._ask()

    def received(self, link: Link, data: bytes) -> None:
        """Take replies, and the notify."""
        for reply in self._replies.receive(data):
            if link is not self.link:
                return
            self.world.note(self.name, reply.opcode, reply.code)
            match reply.opcode:
                case d.DeviceOpcode.HELLO if reply.code:  # the topic is not there yet
                    self.soon(link.cut)
                case d.DeviceOpcode.HELLO:
                    self._send(
                        d.subscribe(
                            _SN, self.cluster, TOPIC, self._partition, self._lease_ms, self._in_hand
                        )
                    )
                case d.DeviceOpcode.SUBSCRIBE | d.DeviceOpcode.SUBSCRIBE_LIMITED if reply.code:
                    self.soon(link.cut)
                case (
                    d.DeviceOpcode.SUBSCRIBE
                    | d.DeviceOpcode.SUBSCRIBE_LIMITED
                    | d.DeviceOpcode.NOTIFY
                ):
                    self._news, self._drained = self.world.now, False
                    self._ask()
                case d.DeviceOpcode.PULL:
                    self._took(link, reply)
                case d.DeviceOpcode.ACK:
                    self._acked(reply)

    # -- pulls ---------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self.link is None or self._pull is not None or self._drained:
            return
        dice = self.world.dice
        self._pulled = self.world.now
        pull = self._pull = self.history.begin(f"{self.name}: pull", self.world.now)
        self.expect(lambda: pull.ended < 0)
        self._send(d.pull(_SN, dice.choice(_MOST), dice.choice(_ROOMS)))
        if not self.ending and self.world.chance(_DIE):
            self.link.cut(self)

    def _took(self, link: Link, reply: d.DeviceReply) -> None:
        if self._pull is not None:
            self._pull.ended = self.world.now
            self._pull = None
        delivery = reply.content
        if not isinstance(delivery, Delivery):
            kind = BY_CODE.get(reply.code)
            if kind is None or not kind.retryable:
                self.soon(link.cut)  # it is to subscribe anew
            self.world.after(self.rhythm(_AGAIN), self._ask)
        elif delivery.offsets:
            self._news = self.world.now
            self._granted(delivery)
            self.world.after(self.rhythm(_AGAIN), self._ask)
        elif self.ending:
            over_ms = max(_LEASES_MS) + 100 + self.scene.ahead_ms
            over = self.ending_since + over_ms * MS
            quiet = _QUIET_FAR if self.scene.brokers.far else _QUIET
            self._drained = self._pulled > max(over, self._news + quiet)
            self.world.after(self.world.between(*_LULL), self._ask)
        # Else it waits to be notified.

    def _granted(self, delivery: Delivery) -> None:
        first, behind = delivery.offsets[0], delivery.offsets[-1] + 1
        if delivery.offsets != [*range(first, behind)] or delivery.partition != self._partition:
            text = f"{self.name}: {delivery.offsets} of {delivery.partition} came"
            self.history.complaints.append(("Honest", text))
            return
        if not delivery.too_large:
            seen = Seen(self._partition, first, tuple(delivery.values), 0)
            self.history.seen.append(seen)
        grant = Grant(
            self._partition,
            self.cluster,
            delivery.fence,
            first,
            behind,
            delivery.attempts,
            self._pulled,
            self.world.now,
        )
        self.history.grants.append(grant)
        # The lease began when the broker granted, which was not before the first pull was sent,
        # also where the first reply had only a message that was too large, and none to hold.
        over = self._leases.setdefault(grant.fence, self._pulled + self._lease_ms * MS)
        if not delivery.too_large:
            self._hold(grant, over)
        if self.ending:
            self._ack(grant)
        elif self.world.chance(_FORGET):
            return
        elif self.world.chance(_LATE):
            delay = self.world.dice.randrange(2 * max(_LEASES_MS) * MS)
            self.world.after(delay, self._ack, grant)
        else:
            self.soon(self._ack, grant)

    def _hold(self, grant: Grant, over: int) -> None:
        """Complain if more is in hand than was asked for, by what the device knows for certain."""
        now = self.world.now
        self._held = [(one, ends) for one, ends in self._held if ends > now]
        self._held.append((grant, over))
        count = sum(one.behind - one.first for one, _ in self._held)
        if count > max(self._in_hand, 1):
            text = f"{self.name}: {count} messages in hand, {max(self._in_hand, 1)} asked for"
            self.history.complaints.append(("Honest", text))

    # -- acks ----------------------------------------------------------------------------------

    def _ack(self, grant: Grant) -> None:
        if self.link is None:
            return
        ack = Ack(
            grant.partition, grant.cluster, grant.fence, grant.first, grant.behind, self.world.now
        )
        self.history.acks.append(ack)
        operation = self.history.begin(f"{self.name}: ack", self.world.now)
        self._acks.append((ack, operation))
        self.expect(lambda: operation.ended < 0)
        self._drained = False
        self._send(d.ack(_SN, ack.partition, ack.fence, ack.first, ack.behind))

    def _acked(self, reply: d.DeviceReply) -> None:
        content = reply.content
        if not isinstance(content, DeviceAck):
            return
        for pending in self._acks:
            ack, operation = pending
            if (ack.fence, ack.first, ack.behind) == (content.fence, content.first, content.next):
                self._acks.remove(pending)
                settled = (content.partition, content.fence, content.first, content.next)
                self._held = [
                    (one, over)
                    for one, over in self._held
                    if (one.partition, one.fence, one.first, one.behind) != settled
                ]
                operation.ended = self.world.now
                if not reply.code:
                    ack.confirmed = self.world.now
                elif not (BY_CODE[reply.code].retryable or reply.code in _LATE_CODES):
                    text = f"{self.name}: an ack was refused: {reply.code}"
                    self.history.complaints.append(("AckedOnce", text))
                break
        if self.ending:
            self._ask()

    def _send(self, data: bytes) -> None:
        if self.link is not None:
            self.link.to_host(data)
