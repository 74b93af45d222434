"""A running reader has read at home what a set that is promoted then does not have: it is told so,
however far the partition has grown by the time when it asks again.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from weir.cli.doctor.promotions import judge_promotion
from weir.client.client import Client
from weir.errors import OffsetOutOfRange, WeirError
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.testing.worlds import World

HOME, AWAY = 1, 2
LOOK, SECONDS = 0.2, 60.0
#: How many messages both sets have, and how many home has alone.
BOTH, ALONE = 20, 8


class Split:
    """Two sets of two nodes: home is cut off with a reader and a publisher of its own, and the
    other one is promoted meanwhile. The topic has one partition.
    """

    def __init__(
        self,
        order: Literal["partition", "total"],
        read_from: Literal["leader", "any"],
        alone: int = ALONE,
    ) -> None:
        self.world = World(7, 4, False, sets=[HOME, HOME, AWAY, AWAY])
        self.order, self.read_from, self.alone = order, read_from, alone
        self.is_cut = False
        #: By offset, what the reader at home was given; and why it ended.
        self.given: dict[int, bytes] = {}
        self.error: WeirError | None = None
        self.again: list[bytes] = []

    async def settle(self, w: Client) -> None:
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

    async def _read(self, w: Client) -> None:
        reader = w.reader("t", start="earliest", order=self.order, read_from=self.read_from)
        try:
            async with reader:
                async for message in reader:
                    self.given[message.offset] = bytes(message.value)
        except OffsetOutOfRange as error:
            self.error = error
            # The same reader is told again, until it is given another position.
            with pytest.raises(OffsetOutOfRange):
                await anext(reader)
            async with w.reader("t", start={0: error.detail}, follow=False) as rest:
                self.again = [bytes(message.value) async for message in rest]

    async def at_home(self) -> None:
        async with self.world.connect() as w:
            reading = asyncio.create_task(self._read(w))
            while not self.is_cut:
                await asyncio.sleep(LOOK)
            for number in range(self.alone):
                await w.publish("t", b"gone %d" % number, partition=0)
            await reading

    async def until(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.given) < count:
                await asyncio.sleep(LOOK)

    async def divide(self, w: Client) -> None:
        """Let both sets have the first messages, and home alone the next ones."""
        await self.settle(w)
        await w.create_topic("t", partitions=1, order=self.order)
        await self.settle(w)
        self.world.start(self.at_home, "at home")
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
        async def scenario(world: World) -> None:
            async with world.connect() as w:
                await self.divide(w)
            await self.promote(count)
            world.faults.rejoin()
            await asyncio.sleep(40.0)

        self.world.run(scenario)


@pytest.mark.parametrize(
    ("order", "read_from", "count"),
    [
        ("partition", "leader", ALONE - 3),
        ("partition", "leader", ALONE),
        ("partition", "leader", 2 * ALONE),
        ("partition", "any", 2 * ALONE),
        ("total", "leader", 2 * ALONE),
    ],
)
def test_a_running_reader_is_told_of_what_it_has_read_in_vain(
    order: Literal["partition", "total"], read_from: Literal["leader", "any"], count: int
) -> None:
    """The partition ends before its position, at it, or behind it when it asks again."""
    split = Split(order, read_from)
    split.play(count)
    assert list(split.given) == list(range(BOTH + ALONE))
    assert split.given[BOTH + ALONE - 1] == b"gone %d" % (ALONE - 1), "nothing behind it was given"
    assert split.error is not None
    assert split.error.detail == BOTH
    assert "when a core set was promoted" in str(split.error)
    assert split.again == [b"new %d" % number for number in range(count)]


def test_a_reader_that_has_read_what_both_have_goes_on() -> None:
    split = Split("partition", "leader", alone=0)
    split.play(ALONE)
    assert split.error is None
    assert list(split.given) == list(range(BOTH + ALONE))
    assert split.given[BOTH] == b"new 0"
