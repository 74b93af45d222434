"""Readers of the shipped client: of each partition in its own order, and of all in one order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from weir.client.client import Client
from weir.client.reader.reader import Reader
from weir.errors import Disconnected, OffsetOutOfRange, ValueLost, WeirError
from weir.model.limits import MIB
from weir.model.message import Message
from weir.model.topic import Order
from weir_lab.sim.history import Confirmed as ConfirmedAt
from weir_lab.sim.history import Operation, Publish, Reading, Seen
from weir_lab.sim.observations import UNREAD, Row
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

_BYTES = (1, 600, 100_000)
#: How long a reader goes on before it is left for another one, in seconds.
_GOES_ON = (0.05, 0.5, 3.0)
#: How likely one that begins does so where an earlier one was; and ends at what is there.
_RESUMES = 0.6
_CUTS = 0.4
#: How long nothing comes any more to one that follows to the end, in seconds.
_QUIET = 5.0
#: How likely a reader tells of what it has read, by a message of its own.
_TELLS = 0.15
#: Where to go on, as an error says it.
_GO_ON = re.compile(r"start=\{(\d+): (\d+)\}")
#: How likely one takes its time over a message.
_DWELLS = 0.15


class ShippedReader(Shipped):
    """Reads the whole topic again and again, live or to a cut, from leaders or any replica."""

    def __init__(
        self, scene: Scene, name: str, order: Order, stays: bool = False,
        relays: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Read in one order of all partitions ("total"), or in that of each ("partition"). One that
        `stays` has one live reader to the end, and nothing befalls its process: it is there when
        partitions join. By `relays`, if there are any, it tells of nothing: they take no messages.
        """
        super().__init__(scene, name, relays=relays)
        self._stays = self.spared = stays
        self._order = order
        #: By partition, all below was read, as the last reader said itself; and as it was seen.
        self._positions: dict[int, int] = {}
        self._read_to: dict[int, int] = {}
        self._resumed = False
        #: Whether it has been told to go on behind something, which lies behind the beginning.
        self._passes = False
        self._serial = 0
        #: Whether it is to tell of nothing any more; and how many it tells of just now.
        self.quiet = bool(relays)
        self.telling = 0
        #: What the last one has read, in total order.
        self._reading = Reading(name, {})
        #: Whether it wants the values that lie in chunks.
        self._loads = True

    async def work(self, client: Client) -> None:
        """Read until it is to end; then once more, all that is there."""
        while self._stays and not await self._stay(client):
            await self.rest()
        while not self._ending:
            await self._read(client, follow=not self.world.chance(_CUTS))
            await self.rest()
        while not await self._read(client, follow=False):
            await self.rest()

    async def _read(self, client: Client, follow: bool) -> bool:
        """Read for a while, or to the end; return whether that was reached."""
        dice = self.world.dice
        resumes = self._ending or self.world.chance(_RESUMES)
        start = dict(self._positions) if resumes else {}
        self._resumed = bool(start)
        reader = client.reader(
            TOPIC,
            start=start or "earliest",
            order=self._order,
            follow=follow,
            max_bytes=100_000 if self._ending else dice.choice(_BYTES),
            read_from=dice.choice(("leader", "any")),
            value_bytes_max=MIB if self._loads else 0,
        )
        what = f"read {self._order}, {'live' if follow else 'to the end'}"
        try:
            # A reader that follows waits for new messages, if there will be any.
            with self.operation(what if not follow else f"open to {what}") as operation:
                since = self.world.now
                await reader.open()
                if not follow:
                    # What comes by a relay is what has come there, but for one order of all.
                    whole = self._order == "total" or not self._relays
                    await self._take(client, reader, operation, since if whole else -1)
            if follow:
                async with asyncio.timeout(dice.choice(_GOES_ON)):
                    await self._take(client, reader, operation, -1)
        except TimeoutError:
            pass
        except ValueLost as error:
            self._lost(error)
        except OffsetOutOfRange as error:
            self._moved_up(start, error)
        except Disconnected as error:
            self.world.note(self.name, "reads no more", str(error))
        except WeirError as error:
            self.expect(error, "Durable", f"a reader from {start} was refused")
        else:
            return not follow
        finally:
            await reader.close()
        return False

    async def _stay(self, client: Client) -> bool:
        """Follow the topic from its beginning, or behind what it cannot pass, until it is to end
        and nothing comes any more. Return whether it came to that.
        """
        start = dict(self._positions) if self._passes else {}
        self._resumed = bool(start)
        reader = client.reader(
            TOPIC,
            start=start or "earliest",
            order=self._order,
            read_from=self.world.dice.choice(("leader", "any")),
            value_bytes_max=MIB if self._loads else 0,
        )
        try:
            with self.operation(f"open to follow {self._order}") as operation:
                await reader.open()
            taking = asyncio.create_task(self._take(client, reader, operation, -1))
            try:
                since = await self._followed(taking)
            finally:
                taking.cancel()
                await asyncio.wait([taking])
            if since < 0:
                taking.result()
        except ValueLost as error:
            self._lost(error)
        except OffsetOutOfRange as error:
            self._moved_up(start, error)
        except Disconnected as error:
            self.world.note(self.name, "reads no more", str(error))
        except WeirError as error:
            self.expect(error, "Durable", "a reader that stays was refused")
        else:
            self._reading.cut = since
            return True
        finally:
            await reader.close()
        return False

    async def _followed(self, taking: asyncio.Task[None]) -> int:
        """Wait until it is to end and nothing comes for a while; return when that began, or -1 if
        reading has ended before.
        """
        told = asyncio.create_task(self.told_to_end())
        await asyncio.wait([taking, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        # What a wrong clock has stamped is in nobody's order before that time has come.
        while not taking.done() and self.world.now < self.history.healed:
            await asyncio.wait([taking], timeout=_QUIET)
        since, rows = self.world.now, -1
        while not taking.done():
            if rows == (rows := len(self._reading.rows)):
                return since
            await asyncio.wait([taking], timeout=_QUIET)
        return -1

    async def _take(self, client: Client, reader: Reader, operation: Operation, since: int) -> None:
        """Take messages as they come, to a cut begun at `since` if there is one. What the reader
        does with them, and publishes meanwhile, takes none of the `operation`'s time.
        """
        # A reader that is given what an earlier one said goes on where that one was seen to end.
        seen = self._read_to if self._resumed else {}
        start = {p: seen.get(p, position) for p, position in reader.positions.items()}
        readings, self._read_to = self._begun(start), dict(start)
        self._positions = reader.positions
        async for message in reader:
            row = self._note(readings, start, message)
            before = self.world.now
            # In total order a barrier has passed what is read, whatever its publish says.
            if not self.quiet and self.world.chance(_TELLS):
                await self._tell(client, row.stamp)
            elif not self._ending and self.world.chance(_DWELLS):
                await self.rest()  # it may be left in the middle of a batch
            operation.began += self.world.now - before
        if since >= 0:
            for reading in readings.values():
                reading.cut = since

    def _note(
        self, readings: dict[int, Reading], start: Mapping[int, int], message: Message
    ) -> Row:
        """Note a message that was read, and where it lies."""
        value = message.value if message.loaded else UNREAD
        value = self.history.packed.get((message.partition, value), value)
        row = Row(message.stamp, message.partition, message.offset, value)
        if self._order == "total":
            readings[-1].rows.append(row)
        else:
            self._of_one(readings, message.partition, start).rows.append(row)
        self._saw(row)
        return row

    def _begun(self, start: Mapping[int, int]) -> dict[int, Reading]:
        if self._order != "total":
            readings: dict[int, Reading] = {}
            for partition in sorted(start):
                self._of_one(readings, partition, start)
            return readings
        reading = self._reading = Reading(self.name, dict(start), skips=True)
        self.history.readings.append(reading)
        return {-1: reading}

    def _of_one(
        self, readings: dict[int, Reading], partition: int, start: Mapping[int, int]
    ) -> Reading:
        """Return what was read of a partition by itself."""
        if partition not in readings:
            first = {partition: start.get(partition, 0)}
            readings[partition] = Reading(self.name, first, partition=partition)
            self.history.readings.append(readings[partition])
        return readings[partition]

    def _saw(self, row: Row) -> None:
        self.world.note(self.name, "read", row.partition, row.offset, row.stamp)
        if row.value != UNREAD:
            self.history.seen.append(Seen(row.partition, row.offset, (row.value,), row.stamp))
        self.seen = max(self.seen, row.stamp)
        self._read_to[row.partition] = row.offset + 1

    def _lost(self, error: ValueLost) -> None:
        """The chunks of a value went past retention before it: read on without such values."""
        if not (self.history.retention_bytes or self.history.values_expire):
            self.complain("Durable", f"a value is lost: {error!r}")
        self._loads = False

    def _moved_up(self, start: Mapping[int, int], error: OffsetOutOfRange) -> None:
        """What was asked for is past retention: go on at the beginning, or where the error says. A
        relay may keep what lies in front of that: from its beginning one comes here again.
        """
        if not self.history.retention_bytes:
            self.complain("Durable", f"a reader from {start} was refused: {error!r}")
        told = _GO_ON.search(str(error)) if self._relays and self._positions else None
        if told is None:
            self._positions = {}
            return
        self._passes = True
        partition, offset = map(int, told.groups())
        self._positions = {**self._positions, partition: offset}
        self._read_to[partition] = offset

    async def _tell(self, client: Client, stamp: int) -> None:
        """Publish something that is ordered behind what was read."""
        self._serial += 1
        value = f"{self.name}.{self.life}.{self._serial}".encode()
        publish = Publish(
            -1, ("shipped", self.name, self.life), self._serial, (value,), self.world.now,
            after=max(self.seen, stamp), sends=1,
        )  # fmt: skip
        self.history.publishes.append(publish)
        self.telling += 1
        with self.operation("tell"):
            try:
                # Not by the client's own producer, which would try on once this has failed.
                async with client.producer(TOPIC, linger=0) as producer:
                    receipt = await producer.publish(value)
            except WeirError as error:
                self.expect(error, "OneOffset", "a message was refused for good")
            else:
                publish.partition = receipt.partition
                confirmed = ConfirmedAt(self.world.now, receipt.offset, receipt.stamp)
                publish.confirms.append(confirmed)
            finally:
                self.telling -= 1
