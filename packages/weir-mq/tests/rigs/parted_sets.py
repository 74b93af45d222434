"""Two core sets, of which home is cut off with a client that reads there, and the other one is
promoted meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Literal

from weir.cli.doctor.promotions import judge_promotion
from weir.client.client import Client
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.testing.worlds import World

HOME, AWAY = 1, 2
LOOK, SECONDS = 0.2, 60.0
#: How many messages both sets have, and how many home has alone.
BOTH, ALONE = 20, 8


class PartedSets(ABC):
    """Two sets of two nodes: home is cut off with a client and a publisher of its own, and the
    other one is promoted meanwhile. The topic "t" has one partition.
    """

    def __init__(self, order: Literal["partition", "total"], alone: int = ALONE) -> None:
        """Home is to take so many messages alone."""
        self.world = World(7, 4, False, sets=[HOME, HOME, AWAY, AWAY])
        self.order, self.alone = order, alone
        self.is_cut = self.is_mended = False
        #: By offset, what the client at home was given.
        self.given: dict[int, bytes] = {}
        self._reading: asyncio.Task[None] | None = None

    @property
    def reached(self) -> int:
        """The offset behind what the client has read, or is to read next."""
        return len(self.given)

    @abstractmethod
    async def read(self, w: Client) -> None:
        """Read into `given`: at home until the sets are parted, and behind that."""

    async def settle(self, w: Client) -> None:
        """Wait until each set holds copies of all."""
        async with asyncio.timeout(SECONDS):
            while (await w.nodes.raise_level()).level < FORMAT_LEVEL_TOPOLOGY:
                await asyncio.sleep(LOOK)
            while True:
                sets, status = await w.nodes.sets(), await w.nodes.status()
                away = [one for one in status.nodes if one.id > 2]
                held = all(one.held >= one.replicas for one in away)
                if sets.rule == "home" and status.settled and held:
                    return
                await asyncio.sleep(LOOK)

    async def _at_home(self) -> None:
        async with self.world.connect() as w:
            reading = self._reading = asyncio.create_task(self.read(w))
            while not self.is_cut:
                await asyncio.sleep(LOOK)
            for number in range(self.alone):
                await w.publish("t", b"gone %d" % number, partition=0)
            await reading

    async def until(self, count: int) -> None:
        """Wait until the client has got to an offset. Raises what `read` raised."""
        async with asyncio.timeout(SECONDS):
            while self.reached < count:
                if self._reading is not None and self._reading.done():
                    self._reading.result()
                await asyncio.sleep(LOOK)

    async def divide(self, w: Client) -> None:
        """Let both sets have the first messages, and home alone the next ones."""
        await self.settle(w)
        await w.create_topic("t", partitions=1, order=self.order)
        await self.settle(w)
        self.world.start(self._at_home, "at home")
        for number in range(BOTH):
            await w.publish("t", b"both %d" % number, partition=0)
        await self.until(BOTH)
        await asyncio.sleep(3.0)
        self.world.faults.divide(1, 2)
        self.is_cut = True
        await self.until(BOTH + self.alone)

    async def promote(self, count: int) -> None:
        """Let the other set go on, with so many messages of its own."""
        async with self.world.connect() as w:
            while True:
                try:
                    plan = await w.topology.plan_promotion(str(AWAY), wait=5.0)
                    assert await w.topology.promote(plan) == []
                    break
                except WeirError:
                    await asyncio.sleep(LOOK)
            for number in range(count):
                await w.publish("t", b"new %d" % number, partition=0)
            found = judge_promotion(await w.topology.describe_copies(), await w.topology.describe())
            assert (found.state, "1 partition here in a later lineage" in found.found) == (
                "ok",
                True,
            )

    def play(self, count: int) -> None:
        """Part the sets, promote the other one, let it take `count` messages, and mend all."""

        async def scenario(world: World) -> None:
            async with world.connect() as w:
                await self.divide(w)
            await self.promote(count)
            world.faults.rejoin()
            self.is_mended = True
            await asyncio.sleep(40.0)

        self.world.run(scenario)
