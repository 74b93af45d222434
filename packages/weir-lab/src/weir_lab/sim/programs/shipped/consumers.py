"""Consumers of the shipped client, of clusters in every mode: shared, keyed, ordered, and in turns.

What they are handed, and what they are told of their acks, is all that is known of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weir.client.arguments import consumer_mode
from weir.client.client import Client
from weir.client.consumer.consumer import Consumer, LeasedBatch
from weir.client.consumer.delivery import AckResult
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, UnknownCluster, WeirError
from weir.model.topic import AckOutcome, Mode
from weir_lab.sim.history import Ack, Handled, Return, Seen
from weir_lab.sim.history import Grant as GrantSeen
from weir_lab.sim.observations import UNREAD, Row
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

#: In seconds: in a hurry, and where programs take their time.
_LEASES = ((0.04, 0.1, 0.25), (0.4, 2.0, 8.0))
#: Once all is calm: no lease ends before a slow disk has what was granted, and its ack.
_LAST_LEASE = 30.0
_SIZES = (1, 3, 10)
_BYTES = (1, 500, 4_000)
#: How long it waits for a grant before it looks whether it is to end.
_WAITS = 0.4
#: What it does with a grant, by how likely that is: forgets it, gives it back, works for longer
#: than its lease, has it extended; and that it leaves, for another one to come.
_FORGET = 0.05
_NACK = 0.1
_LATE = 0.1
_EXTEND = 0.1
_LEAVE = 0.06
#: How likely work is done within a block.
_IN_BLOCK = 0.3
#: How likely a process has one consumer for all of its life.
_STAYS = 0.3
_RETRY = Backoff(first=0.02, most=0.3)
_DELAYS = (0.0, 0.0, 0.03, 0.3)


class ShippedConsumer(Shipped):
    """Does one grant after the other, until nothing is left that is not done."""

    def __init__(
        self, scene: Scene, name: str, cluster: str, mode: Mode, relays: Sequence[str] = ()
    ) -> None:
        """Work for `cluster`, whose mode it is, by `relays` if there are any."""
        super().__init__(scene, name, relays=relays)
        self._cluster = cluster
        self._mode = mode
        self._turns = mode is Mode.ORDERED and scene.order == "total"
        self._lease = scene.world.dice.choice(_LEASES[scene.brokers.far])
        #: Whether it goes on as one consumer for as long as there is something to do.
        self._stays = scene.world.chance(_STAYS)
        #: Grants that it never settles, and has until its consumer is closed.
        self._forgotten: list[LeasedBatch] = []
        self._opened = 0
        self._began = 0
        #: Whether its consumer was opened to do what is left.
        self._is_last = False

    async def work(self, client: Client) -> None:
        """Consume, as one consumer after the other."""
        while True:
            await self._consume(client)
            if self._ending and await self.is_drained(client, self._cluster):
                return
            await self.rest()

    async def _consume(self, client: Client) -> None:
        dice = self.world.dice
        self._opened += 1
        self._began, self._is_last = self.world.now, self._ending
        consumer = client.consumer(
            TOPIC,
            cluster=self._cluster,
            max_messages=100 if self._ending else dice.choice(_SIZES),
            max_bytes=100_000 if self._ending else dice.choice(_BYTES),
            lease=_LAST_LEASE if self._is_last else self._lease,
            ack_within=dice.choice((0, 0.005, 0.05)),
            on_stale=lambda stale: None,
            retry=_RETRY,
            mode=consumer_mode(self._mode.name.lower()),
            max_work=None if self.world.chance(_EXTEND) else 0,
        )
        try:
            async with consumer:
                await self._take(client, consumer)
            self._forgotten.clear()
        except Disconnected as error:
            self.world.note(self.name, "consumes no more", str(error))
        except WeirError as error:
            if not (isinstance(error, UnknownCluster) and self._was_deleted()):
                self.expect(error, "Honest", "a consumer was refused")

    def _was_deleted(self) -> bool:
        """Whether an operator may have deleted its cluster since this consumer began."""
        return any(
            seek.cluster == self._cluster and not 0 < seek.settled < self._began
            for seek in self.history.seeks
        )

    async def _take(self, client: Client, consumer: Consumer) -> None:
        """Take grants until there are none for a while and it is to end, or by chance."""
        grants = consumer.batches()
        while True:
            try:
                async with asyncio.timeout(_WAITS):
                    grant = await anext(grants)
            except TimeoutError:
                if await self._leaves(client):
                    return
                grants = consumer.batches()
                continue
            await self._handle(consumer, grant)
            if self._ending and not self._is_last:
                return
            if not (self._ending or self._stays) and self.world.chance(_LEAVE):
                return

    async def _leaves(self, client: Client) -> bool:
        """Whether it is to go, since nothing came for a while."""
        if self._ending and not self._is_last:
            return True
        if self._stays:
            return self._ending and await self.is_drained(client, self._cluster)
        return self._ending or self.world.chance(_LEAVE)

    async def _handle(self, consumer: Consumer, grant: LeasedBatch) -> None:
        """Do what consumers do with a grant."""
        rows = self._rows(grant)
        handled = self._hand(grant, rows)
        if self._ending:
            await self.acknowledge(consumer, grant, handled)
        elif self._forgets and self.world.chance(_FORGET):
            # Nobody may have worked on it, so perhaps it had no attempt.
            self.history.returns += self._returns(grant, 0.0, untried=True)
            self._forgotten.append(grant)
        elif self.world.chance(_NACK):
            await self._nack(consumer, grant, handled)
        else:
            if self.world.chance(_LATE):
                await asyncio.sleep(self._lease * (1 + self.world.dice.random()))
            await self.rest()
            await self.acknowledge(consumer, grant, handled)

    @property
    def _forgets(self) -> bool:
        """Whether it may leave a grant alone: one that stays would keep it from all for good."""
        return self._mode is not Mode.ORDERED and not self._stays

    def _rows(self, grant: LeasedBatch) -> tuple[Row, ...]:
        rows = []
        for message in grant.messages():
            place = message.partition, message.offset
            # Of a large value whose chunks are gone, nothing is known but that it is there.
            value = message.value if message.loaded else UNREAD
            value = self.history.packed.get((message.partition, value), value)
            rows.append(Row(message.stamp, *place, value))
            self.world.note(self.name, "handed", *place, grant.fence)
            if message.loaded:
                self.history.seen.append(Seen(*place, (value,), message.stamp))
            self.seen = max(self.seen, message.stamp)
        return tuple(rows)

    def _hand(self, grant: LeasedBatch, rows: tuple[Row, ...]) -> Handled:
        holder = f"{self.name}.{self.life}#{self._opened}"
        handled = Handled(self._cluster, grant.fence, rows, self.world.now, holder)
        if self._turns:
            self.history.handled.append(handled)
            return handled
        if self._mode is not Mode.SHARED:
            self.history.modes[grant.partition, self._cluster] = self._mode
        came = {row.offset for row in rows}
        came.update(offset for run in grant.expired for offset in range(*run))
        for first, behind in grant.leased:
            seen = GrantSeen(
                grant.partition, self._cluster, grant.fence, first, behind, grant.attempts,
                self._began, self.world.now, holder=holder, tells=True,
                lacks=frozenset(range(first, behind)) - came,
            )  # fmt: skip
            self.history.grants.append(seen)
        return handled

    async def acknowledge(self, consumer: Consumer, grant: LeasedBatch, handled: Handled) -> None:
        """Ack a grant, and note what was said of it."""
        acks = self.acks_of(grant)
        with self.operation("ack"):
            try:
                result = await self._ack(grant)
            except WeirError as error:
                if not (isinstance(error, UnknownCluster) and self._was_deleted()):
                    self.expect(error, "AckedOnce", "an ack was refused")
                return
        self.world.note(self.name, "acked", grant.partition, grant.fence, bool(result))
        if result:
            handled.acked = self.world.now
        for ack in acks:
            self._answered(ack, result)

    async def _ack(self, grant: LeasedBatch) -> AckResult:
        """Say that a grant is done, in one of the ways to say it, and wait for what that did."""
        if self.world.chance(_IN_BLOCK):
            async with grant:
                await self.rest()
        return await grant.ack(confirmed=True)

    def acks_of(self, grant: LeasedBatch) -> list[Ack]:
        """Note that a grant is about to be acked."""
        acks = [
            Ack(grant.partition, self._cluster, grant.fence, first, behind, self.world.now)
            for first, behind in grant.leased
        ]
        if not self._turns:
            self.history.acks += acks
        return acks

    def _answered(self, ack: Ack, result: AckResult) -> None:
        late = {
            offset: outcome
            for first, behind, outcome in result.late
            for offset in range(first, behind)
            if ack.first <= offset < ack.behind
        }
        ack.late = frozenset(late)
        if any(outcome != AckOutcome.DONE_ELSEWHERE for outcome in late.values()):
            ack.stale = self.world.now
        else:
            ack.confirmed = self.world.now

    async def _nack(self, consumer: Consumer, grant: LeasedBatch, handled: Handled) -> None:
        delay = self.world.dice.choice(_DELAYS)
        returns = self._returns(grant, delay, untried=False)
        handled.back = True
        if not self._turns:
            self.history.returns += returns
        with self.operation("nack"):
            try:
                in_time = await grant.nack(delay, confirmed=True)
            except WeirError as error:
                if not isinstance(error, UnknownCluster):
                    self.expect(error, "AckedOnce", "a nack was refused")
                return
        for one in returns:
            one.confirmed = self.world.now if in_time else -1

    def _returns(self, grant: LeasedBatch, delay: float, untried: bool) -> list[Return]:
        return [
            Return(
                grant.partition, self._cluster, grant.fence, first, behind, round(delay * 1_000),
                untried, self.world.now,
            )
            for first, behind in grant.leased
        ]  # fmt: skip
