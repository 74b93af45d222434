"""Scatterings of the shipped client, with and without acks of what made it publish them."""

from __future__ import annotations

import asyncio

from weir.client.client import Client
from weir.client.consumer.consumer import LeasedBatch
from weir.errors import Disconnected, PartitionEnded, StaleGrant, WeirError
from weir.model.topic import Mode
from weir_lab.sim.history import Ack, Confirmed, Publish, Scattering
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.consumers import ShippedConsumer

_PARTS_MAX = 4
_COUNTS = (1, 1, 2)
_SIZES = ((8,), (0, 30, 200))
#: How likely a scattering acks a grant, and how long it waits for one, in seconds.
_ACKS = 0.5
_WAITS = 0.3
#: What a batch of a scattering has beside its values, at most.
_HEADER = 300


class ShippedScatterer(ShippedConsumer):
    """Scatters so often over some partitions, now and then for a grant of a cluster."""

    def __init__(self, scene: Scene, name: str, times: int, cluster: str) -> None:
        """Scatter `times` times."""
        super().__init__(scene, name, cluster, Mode.SHARED)
        self._left = times
        self._serial = 0
        self._sizes = scene.world.dice.choice(_SIZES)
        #: Partitions that have ended.
        self._closed: set[int] = set()

    async def work(self, client: Client) -> None:
        """Scatter until nothing is left, then wait for the end."""
        while self._left and not self._ending:
            self._left -= 1
            if self.world.chance(_ACKS):
                await self._for_a_grant(client)
            else:
                await self._scatter(client)
            await self.rest()
        await self.told_to_end()

    async def _for_a_grant(self, client: Client) -> None:
        self._opened += 1
        self._began = self.world.now
        size = self.world.dice.choice((1, 3))
        consumer = client.consumer(
            TOPIC, cluster=self._cluster, max_messages=size, lease=self._lease,
            on_stale=lambda stale: None,
        )  # fmt: skip
        try:
            async with consumer:
                async with asyncio.timeout(_WAITS):
                    grant = await anext(consumer.batches())
                self._hand(grant, self._rows(grant))
                await self.rest()
                await self._scatter(client, grant)
        except TimeoutError:
            return
        except Disconnected:
            return
        except WeirError as error:
            self.expect(error, "Honest", "a consumer was refused")

    async def _scatter(self, client: Client, grant: LeasedBatch | None = None) -> None:
        scattering, publishes = self._compose()
        acks: list[Ack] = []
        with self.operation("scatter"):
            try:
                async with client.scatter() as s:
                    for publish in publishes:
                        s.publish(TOPIC, publish.values[0], partition=publish.partition)
                    if grant is not None:
                        acks = self.acks_of(grant)
                        if len(acks) == 1:
                            scattering.acks = acks[0]
                        s.ack(grant)
            except (StaleGrant, PartitionEnded) as error:
                self._refused(scattering, acks, error)
                return
            except WeirError as error:
                self.world.note(self.name, "in doubt", type(error).__name__)
                self.expect(error, "AllOrNone", "a scattering was refused for good")
                return
        receipts = s.receipts
        scattering.stamp = receipts[0].stamp
        self.world.note(self.name, "scattered", scattering.stamp)
        self.seen = max(self.seen, scattering.stamp)
        for publish, receipt in zip(publishes, receipts, strict=True):
            confirmed = Confirmed(self.world.now, receipt.offset, receipt.stamp)
            publish.confirms.append(confirmed)
            if (receipt.partition, receipt.stamp) != (publish.partition, scattering.stamp):
                self.complain("AllOrNone", f"{publish.values} has {receipt}")
        for ack in acks:
            ack.confirmed = self.world.now

    def _compose(self) -> tuple[Scattering, list[Publish]]:
        """Return what is scattered, in the order in which it is published, and note it."""
        dice = self.world.dice
        taking = [p for p in range(self.scene.partitions) if p not in self._closed]
        chosen = dice.sample(taking, dice.randint(1, min(len(taking), _PARTS_MAX)))
        publishes = []
        for partition in chosen:
            for _ in range(dice.choice(_COUNTS)):
                self._serial += 1
                name = f"{self.name}.{self.life}.{self._serial}.{partition}".encode()
                value = name.ljust(dice.choice(self._sizes), b".")
                publish = Publish(
                    partition, ("shipped", self.name, self.life), self._serial, (value,),
                    self.world.now, scattered=True, after=self.seen, sends=1,
                )  # fmt: skip
                publishes.append(publish)
        self.history.publishes += publishes
        pairs = tuple((one.partition, one.values[0]) for one in publishes)
        size = sum(len(value) + _HEADER for _, value in pairs)
        scattering = Scattering(pairs, size=size)
        self.history.scatterings.append(scattering)
        return scattering, publishes

    def _refused(self, scattering: Scattering, acks: list[Ack], error: WeirError) -> None:
        """It will never be, as the client says."""
        self.world.note(self.name, "refused", type(error).__name__)
        scattering.refused = True
        if isinstance(error, PartitionEnded):
            self._closed.add(getattr(error, "detail", 0))
        elif not acks:
            self.complain("AllOrNone", f"a scattering was refused for good: {error!r}")
