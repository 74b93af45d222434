"""A query writes its result to a topic by the client as it ships: driver and tasks in one process.

Its batches are as Spark's: what one holds never changes, and one that was begun is run again until
it is known to be published, even if processes were killed meanwhile.
"""

from __future__ import annotations

from contextlib import suppress

from weir.client.client import Client
from weir.client.sinks import StagedPart
from weir.errors import (
    Disconnected,
    LevelTooLow,
    Refused,
    StagedRunGone,
    TopicExists,
    WeirError,
)
from weir_lab.sim.observations import Sunk
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

SUNK = "sunk"
_PARTITIONS = 3
#: How often a task is run again, though what it has staged is there.
_AGAIN = 0.25
#: How often the driver is killed, so to speak, after it has published, and before it notes that.
_FORGETS = 0.25
#: How many bytes a reader asks for at once: less than a batch, and all there is.
_READ_BYTES = (1, 400, 1 << 20)


class ShippedSink(Shipped):
    """Writes so many batches; in the end it reads the topic several times."""

    def __init__(self, scene: Scene, name: str, batches: int, sunk: Sunk) -> None:
        """Note in `sunk` what it does and finds."""
        super().__init__(scene, name)
        self._batches = batches
        #: The batch that is being run, as its checkpoint says.
        self._batch = 0
        self._sunk = sunk

    async def work(self, client: Client) -> None:
        """Run one batch after the other."""
        with suppress(TopicExists):
            await client.create_topic(SUNK, _PARTITIONS, order="total")
        while self._batch < self._batches and not self._ending:
            rows = self._rows(self._batch)
            with self.operation("write a batch"), suppress(Disconnected):
                if await self._run(client, rows) and not self.world.chance(_FORGETS):
                    self._batch += 1
            await self.rest()
        await self.told_to_end()
        for size in _READ_BYTES:
            await self._read(client, size)

    def _rows(self, batch: int) -> list[list[bytes]]:
        """Return what each task of a batch writes: always the same."""
        key = f"{self.name}/{batch}"
        known = self._sunk.rows.get(key)
        if known is None:
            dice = self.world.dice
            tasks = [dice.randint(1, 30) for _ in range(dice.randint(1, 3))]
            known = [
                [b"%s/%d/%d" % (key.encode(), task, row) for row in range(count)]
                for task, count in enumerate(tasks)
            ]
            self._sunk.rows[key] = known
        return known

    async def _run(self, client: Client, tasks: list[list[bytes]]) -> bool:
        """Stage and publish a batch; return whether it is known to be published."""
        sink = client.sink(self.name)
        try:
            staged: list[StagedPart] = []
            for rows in tasks:
                staged += await self._task(client, rows)
                if self.world.chance(_AGAIN):
                    await self._task(client, rows)  # nobody chooses it
            published = await sink.publish(self._batch, staged)
        except LevelTooLow:
            with suppress(Refused):  # a node that supports less has just come
                await client.nodes.raise_level()
            return False
        except StagedRunGone:
            return False
        except WeirError as error:
            if isinstance(error, Disconnected):
                raise
            self.expect(error, "SunkOnce", "a batch was refused")
            return False
        if not published.duplicate:
            self._sunk.stamps.setdefault(f"{self.name}/{self._batch}", set()).add(published.stamp)
        self._sunk.published.add(f"{self.name}/{self._batch}")
        return True

    async def _task(self, client: Client, rows: list[bytes]) -> list[StagedPart]:
        import pyarrow as pa

        writer = client.sink(self.name).writer(self._batch)
        cut = self.world.dice.randrange(len(rows) + 1)
        for some in (rows[:cut], rows[cut:]):
            if some:
                partitions = pa.array([hash_of(value) for value in some], pa.int32())
                values = pa.array(some, pa.binary())
                batch = pa.RecordBatch.from_pydict({"value": values})
                await writer.write(SUNK, batch, partition=partitions)
        return await writer.finish()

    async def _read(self, client: Client, size: int) -> None:
        published, found = set(self._sunk.published), []
        async with client.reader(SUNK, order="total", follow=False, max_bytes=size) as reader:
            async for message in reader:
                found.append((message.stamp, message.partition, message.offset, message.value))
        self._sunk.readings.append((published, found))


def hash_of(value: bytes) -> int:
    """Return the partition of a value: as a key would choose it, always the same."""
    return sum(value) % _PARTITIONS
