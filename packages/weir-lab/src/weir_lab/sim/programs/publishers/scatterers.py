"""Simulated clients that scatter: to several partitions at once, and what made them do so is acked
with it. Now and then one asks again, through whichever node, or dies in the middle.
"""

from __future__ import annotations

from weir.broker.partition.partition import Partition
from weir.errors import PartitionEnded, Refused, StaleGrant, StampTooFar
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Address, acks_part, batch_part
from weir.model.topic import DEFAULT_NAMESPACE
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part
from weir.testing.simulator.witness import groups_of
from weir_lab.sim.history import Ack, Grant, Publish, Scattering
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.publishers.atomic import AtomicPublisher, PublishAttempt, Seat
from weir_lab.sim.programs.scene import Scene

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


class Scatterer(AtomicPublisher[PublishAttempt]):
    """Scatters so often, one after the other, always with the same bytes until it knows."""

    def __init__(self, scene: Scene, name: str, times: int, partition: int, cluster: str) -> None:
        """Take messages from a cluster of a partition; half of the time, of nobody."""
        super().__init__(scene, name, _SIZES)
        self._left = times
        self._partition = partition
        self._cluster = cluster

    def _next(self) -> None:
        """Look for something to ack, or scatter without."""
        if not self._left:
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
        self._endanger(held, die=_DIE, hang_up=_HANG_UP)

    def _compose(self, seat: Seat, grant: Grant | None) -> PublishAttempt:
        dice, now = self.world.dice, self.world.now
        chosen = self._choose(_PARTS_MAX)
        parts = [batch_part(self.addresses[partition].group) for partition in chosen]
        ack = None
        if grant is not None:
            parts.append(acks_part(self.addresses[grant.partition].group))
            ack = Ack(
                grant.partition, grant.cluster, grant.fence, grant.first, grant.behind, now
            )  # fmt: skip
            self.history.acks.append(ack)
        scattered = Scattered(seat.number, tuple(sorted(parts)))
        publishes: dict[int, list[Publish]] = {}
        batches: list[Part] = []
        pairs: list[tuple[int, bytes]] = []
        for partition in chosen:
            values = [self._value(partition) for _ in range(dice.choice(_COUNTS))]
            address, sequence = self.addresses[partition], seat.sequences[partition]
            data = _batch(seat, address, sequence, values, scattered)
            batches.append(Part(address, data))
            publish = Publish(
                partition, ("producer", seat.grant.producer, seat.grant.epoch), sequence,
                tuple(values), now, scattered=True, after=self._seen,
            )  # fmt: skip
            publishes[address.group] = [publish]
            self.history.publishes.append(publish)
            pairs += ((partition, value) for value in values)
        size = max(len(part.batch) for part in batches)
        scattering = Scattering(tuple(pairs), acks=ack, size=size)
        self.history.scatterings.append(scattering)
        if grant is not None:
            acks = [(grant.cluster, [(grant.fence, grant.first, grant.behind)])]
            batches.append(Part(self.addresses[grant.partition], acks=acks))
        producer, epoch = seat.grant.producer, seat.grant.epoch
        request = m.Scatter(producer, epoch, seat.number, self._seen, batches)
        operation = self.history.begin(f"{self.name}: scattering {seat.number}", now)
        return PublishAttempt(
            request=request, scattering=scattering, operation=operation, publishes=publishes
        )

    def _go_on(self, held: PublishAttempt) -> None:
        self._send(held)

    def _refused(self, held: PublishAttempt, error: Refused) -> None:
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
    seat: Seat, address: Address, sequence: int, values: list[bytes], scattered: Scattered
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


def highest_given(scene: Scene) -> int:
    """Return the highest stamp that clocks of shards gave or promised, or were told of when they
    began to lead: no partition may have a message at it.
    """
    clocks = [machine.context.highest for _, machine in _partitions(scene)]
    return max((max(one.stamp, one.promised) for one in clocks), default=0)


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
