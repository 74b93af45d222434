"""Simulated clients that scatter: to several partitions at once, and what made them do so is acked
with it. Now and then one asks again, through whichever node, or dies in the middle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from weir.broker.partition.partition import Partition
from weir.errors import PartitionEnded, Refused, StaleGrant, StampTooFar, refusal
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Address, acks_part, batch_part
from weir.model.topic import DEFAULT_NAMESPACE
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part
from weir.testing.simulator.witness import groups_of
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Ack, Confirmed, Grant, Operation, Publish, Scattering
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 30 * MS)
#: How long after it was sent whoever sent it dies, or hangs up.
_MIDWAY = (0, 60 * MS)
_PARTS_MAX = 4
_COUNTS = (1, 1, 2, 3)
_SIZES = (0, 20, 150)
#: Not longer than consumers wait in the end before they go.
_LEASES_MS = (100, 250, 400)
_PULL_BYTES = 2_000
_ACKS = 0.5
_TWICE = 0.15
_HANG_UP = 0.15
_DIE = 0.1
_REFRESH = 0.1


@dataclass(slots=True, eq=False)
class _Sent:
    """A scattering under way, and what becomes of it is told by which request."""

    scattering: Scattering
    request: m.Scatter
    operation: Operation
    #: By group, what is published there.
    publishes: dict[int, Publish]
    #: By partition, how many messages.
    counts: dict[int, int]
    sends: int = 0
    is_over: bool = False


@dataclass(slots=True)
class _Seat:
    """A producer id, and what it has sent."""

    grant: m.ProducerGrant
    number: int = 0
    #: By partition.
    sequences: Counter[int] = field(default_factory=Counter)


class Scatterer(Client):
    """Scatters so often, one after the other, always with the same bytes until it knows."""

    def __init__(self, scene: Scene, name: str, times: int, partition: int, cluster: str) -> None:
        """Take messages from a cluster of a partition; half of the time, of nobody."""
        super().__init__(scene, name)
        dice = scene.world.dice
        self._left = times
        self._partition = partition
        self._cluster = cluster
        self._sizes = dice.choice(((8,), _SIZES))
        self.patience = dice.choice((1, 3))
        self._serial = 0
        self._seen = 0
        self._seat: _Seat | None = None
        self._opening = False
        #: Partitions that have ended.
        self._closed: set[int] = set()
        self._held: _Sent | None = None
        self._running = False

    @property
    def finished(self) -> bool:
        """Whether it knows what became of all that it sent, unless it died."""
        return self._held is None

    def ready(self) -> None:
        """Ask again for what has no answer, or go on."""
        if self._held is not None:
            self._send(self._held)
        elif self._seat is None:
            self._open()
        else:
            self._run()

    def closed(self) -> None:
        """Nobody will answer."""
        super().closed()
        self._opening = False

    def _open(self) -> None:
        if self._seat is not None:
            return  # it asked twice, for it had been refused on one connection and lost another
        if not self._opening and not self.ending and self.link is not None:
            self._opening = True
            self.ask(m.OpenProducer(), self._opened)

    def _opened(self, reply: m.Reply) -> None:
        self._opening = False
        if isinstance(reply, m.ProducerGrant):
            self._seat = _Seat(reply)
            self._run()
        else:
            self.soon(self._open)

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self.world.after(self.rhythm(_NEXT), self._next)

    def _next(self) -> None:
        """Look for something to ack, or scatter without."""
        self._running = False
        if self.link is None or self.ending or not self._left or self._held is not None:
            return
        if self.world.chance(_REFRESH):
            self.ask(m.DescribeTopic(TOPIC), self._described)
        if self.world.chance(_ACKS):
            self._pull()
        else:
            self._scatter(None)

    def _described(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)

    # -- what is acked -------------------------------------------------------------------------

    def _pull(self) -> None:
        dice, now = self.world.dice, self.world.now
        address, lease_ms = self.addresses[self._partition], dice.choice(_LEASES_MS)
        pull = m.Pull(address, self._cluster, dice.choice((1, 3)), _PULL_BYTES, 0, lease_ms)
        self.ask(pull, lambda reply: self._pulled(now, reply))

    def _pulled(self, pulled: int, reply: m.Reply) -> None:
        if not isinstance(reply, m.Granted) or not reply.fence:
            self._run()
            return
        runs = reply.runs or ((reply.offset, reply.next_offset),)
        self.check(self._partition, reply.batches, reply.offset, runs=runs)
        grants = [
            Grant(
                self._partition, self._cluster, reply.fence, first, behind, reply.attempts, pulled,
                self.world.now, stamp=reply.stamp, holder=self.name,
            )
            for first, behind in runs
        ]  # fmt: skip
        self.history.grants += grants
        self._scatter(self.world.dice.choice(grants))

    # -- scattering ----------------------------------------------------------------------------

    def _scatter(self, grant: Grant | None) -> None:
        if self.link is None or self.ending or self._seat is None or self._held is not None:
            return
        self._left -= 1
        held = self._held = self._compose(self._seat, grant)
        self._send(held)
        if self.world.chance(_TWICE):
            self._send(held)
        if self.world.chance(_DIE):
            self.world.after(self.world.between(*_MIDWAY), self._die, held)
        elif self.world.chance(_HANG_UP):
            self.world.after(self.world.between(*_MIDWAY), self._hang_up, held)

    def _compose(self, seat: _Seat, grant: Grant | None) -> _Sent:
        dice, now = self.world.dice, self.world.now
        taking = [p for p in range(len(self.addresses)) if p not in self._closed]
        most = min(len(taking), _PARTS_MAX)
        chosen = sorted(dice.sample(taking, dice.randint(1, most)))
        parts = [batch_part(self.addresses[partition].group) for partition in chosen]
        ack = None
        if grant is not None:
            parts.append(acks_part(self.addresses[grant.partition].group))
            ack = Ack(
                grant.partition, grant.cluster, grant.fence, grant.first, grant.behind, now
            )  # fmt: skip
            self.history.acks.append(ack)
        scattered = Scattered(seat.number, tuple(sorted(parts)))
        publishes: dict[int, Publish] = {}
        batches: list[Part] = []
        for partition in chosen:
            values = [self._value(partition) for _ in range(dice.choice(_COUNTS))]
            address, sequence = self.addresses[partition], seat.sequences[partition]
            data = _batch(seat, address, sequence, values, scattered)
            batches.append(Part(address, data))
            publishes[address.group] = Publish(
                partition, ("producer", seat.grant.producer, seat.grant.epoch), sequence,
                tuple(values), now, scattered=True, after=self._seen,
            )  # fmt: skip
        self.history.publishes += publishes.values()
        pairs = tuple((p.partition, value) for p in publishes.values() for value in p.values)
        size = max(len(part.batch) for part in batches)
        scattering = Scattering(pairs, acks=ack, size=size)
        self.history.scatterings.append(scattering)
        if grant is not None:
            acks = [(grant.cluster, [(grant.fence, grant.first, grant.behind)])]
            batches.append(Part(self.addresses[grant.partition], acks=acks))
        producer, epoch = seat.grant.producer, seat.grant.epoch
        request = m.Scatter(producer, epoch, seat.number, self._seen, batches)
        operation = self.history.begin(f"{self.name}: scattering {seat.number}", now)
        counts = {one.partition: len(one.values) for one in publishes.values()}
        return _Sent(scattering, request, operation, publishes, counts)

    def _value(self, partition: int) -> bytes:
        self._serial += 1
        name = f"{self.name}.{self._serial}.{partition}".encode()
        return name.ljust(self.world.dice.choice(self._sizes), b".")

    def _send(self, held: _Sent) -> None:
        """Ask for it; who asks again has the same bytes."""
        if held.is_over or self.link is None:
            return
        held.sends += 1
        for publish in held.publishes.values():
            publish.sends += 1
        send = held.sends
        self.ask(held.request, lambda reply: self._answered(held, send, reply))

    def _die(self, held: _Sent) -> None:
        """Never learn what became of it: who comes back is another producer."""
        if not held.is_over:
            self._over(held)
            self._seat = None
            self._hang_up(None)

    def _hang_up(self, held: _Sent | None) -> None:
        """Ask again elsewhere while the first may be under way."""
        if self.link is not None and (held is None or not held.is_over):
            self.link.cut(self)

    def _over(self, held: _Sent) -> None:
        held.is_over = True
        held.operation.ended = self.world.now
        self._held = None

    # -- answers -------------------------------------------------------------------------------

    def _answered(self, held: _Sent, send: int, reply: m.Reply) -> None:
        if isinstance(reply, m.ScatterConfirm):
            self._confirmed(held, reply)
        elif isinstance(reply, m.Refusal) and not held.is_over and send == held.sends:
            self._refused(held, refusal(reply.code, reply.message, reply.detail))

    def _confirmed(self, held: _Sent, reply: m.ScatterConfirm) -> None:
        one, now, offsets = held.scattering, self.world.now, dict(reply.offsets)
        if offsets.keys() != held.publishes.keys():
            self.complain("AllOrNone", f"{held.request} was confirmed as {reply}")
            return
        if one.stamp not in (0, reply.stamp):
            self.complain("AllOrNone", f"confirmed at {one.stamp}, then at {reply.stamp}")
        one.stamp = reply.stamp
        for group, publish in held.publishes.items():
            publish.confirms.append(Confirmed(now, offsets[group], reply.stamp))
        self._seen = max(self._seen, reply.stamp)
        if one.acks is not None and one.acks.confirmed < 0:
            one.acks.confirmed = now
        if not held.is_over:
            self._over(held)
            assert self._seat is not None
            self._seat.number += 1
            self._seat.sequences.update(held.counts)
            self._run()

    def _refused(self, held: _Sent, error: Refused) -> None:
        if error.retryable or isinstance(error, StampTooFar):
            self.soon(self._send, held)
            return
        if isinstance(error, PartitionEnded):
            self._closed.add(error.detail)
        elif held.scattering.acks is None or not isinstance(error, StaleGrant):
            self.complain("AllOrNone", f"a scattering was refused for good: {error!r}")
        held.scattering.refused = held.sends == 1
        self._over(held)
        if held.sends > 1:  # what was sent first may be on its way yet
            self._seat = None
        self.ready()


def _batch(
    seat: _Seat, address: Address, sequence: int, values: list[bytes], scattered: Scattered
) -> bytes:
    grant = seat.grant
    data = encode(
        values, group=address.group, producer=grant.producer, epoch=grant.epoch, sequence=sequence,
        scattered=scattered,
    )  # fmt: skip
    return bytes(data)


def highest_stamp(scene: Scene) -> int:
    """Return the highest stamp of all partitions. One that a wrong clock stamped takes no part in
    scatterings with others until their clocks come near.
    """
    return max((machine.state.last_stamp for _, machine in _partitions(scene)), default=0)


def all_decided(scene: Scene) -> bool:
    """Return whether every partition is led, and nothing in any of them is undecided."""
    parts = _partitions(scene)
    led = {id: machine.state.scatterings for id, machine in parts if machine.leads}
    # Programs beside may have made topics of theirs before this one: its id need not be 1.
    shards = [one.shard for one in scene.brokers.running if one.shard is not None]
    found = [one.topics.catalog.find(DEFAULT_NAMESPACE, TOPIC) for one in shards]
    topic = next(filter(None, found), None)
    if topic is None:
        return False
    there = {id for id, _ in parts}.union(topic.groups())
    return there == led.keys() and not any(one.batches or one.acks for one in led.values())


def _partitions(scene: Scene) -> list[tuple[int, Partition]]:
    groups = [one for process in scene.brokers.running for one in groups_of(process)]
    return [(one.id, one.machine) for one in groups if isinstance(one.machine, Partition)]
