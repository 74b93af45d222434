"""Terminals at which `weir tail` and `weir sub` run, as they ship; judged is what they show."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64decode
from functools import partial
from typing import Any

from weir.cli.consume import Sub, Tail, for_ever
from weir.cli.output import Form
from weir.client.arguments import ConsumerMode
from weir.client.client import Client, connect
from weir.errors import Disconnected, OffsetOutOfRange, UnknownTopic, ValueLost, WeirError
from weir.model.topic import Order
from weir.testing.simulator.world import World
from weir_lab.sim.history import Reading, Seen
from weir_lab.sim.observations import UNREAD, Printed, Row, Taken
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

# Faults are what is played: nobody wants to read which acks came too late.
logging.getLogger("weir.client").addHandler(logging.NullHandler())

SUB = "sub"
#: As the command line has it, in seconds.
_TIMEOUT = 5.0
#: How long somebody looks before Ctrl-C, in seconds: in a hurry, and where programs take time.
_LOOKS = ((0.05, 0.3, 1.0), (1.0, 4.0, 15.0))
_COUNTS = (None, None, 1, 4, 12)
#: How likely the reader of the output closes it, each time that there is something to read.
_ENOUGH = 0.01
_LEASE = 30.0
_LEASES = ((0.1, 0.4), (1.0, 5.0))
#: In the end somebody looks for as long as so many flushes take at most: a command connects, joins
#: and is granted messages, and others use the disk meanwhile.
_FLUSHES = 8
#: Of a partition that nobody knows where it was begun to be read: behind all that there is.
_NOWHERE = 1 << 62
#: More than there ever are, those that join among them.
_PARTITIONS = 16


class Screen:
    """What a command has written: only what was flushed is there if it is killed."""

    def __init__(self, loop_is_mine: Any, has_enough: Any, world: World) -> None:
        """Return whether the process still lives, and whether the reader of its output has closed
        it.
        """
        self.lines: list[bytes] = []
        #: When each of them was flushed, in virtual µs.
        self.times: list[int] = []
        self._world = world
        self._waiting: list[bytes] = []
        self._lives = loop_is_mine
        self._has_enough = has_enough

    def write(self, data: bytes, /) -> int:
        """Keep a line until it is flushed."""
        self._waiting.append(data)
        return len(data)

    def flush(self) -> None:
        """Show what was written. Raises `BrokenPipeError` where nobody reads any more."""
        if not self._lives():
            return  # what a killed process does on its way out reaches nobody
        if self._has_enough():
            raise BrokenPipeError(32, "Broken pipe")
        waiting, self._waiting = self._waiting, []
        self.lines += waiting
        self.times += [self._world.now] * len(waiting)


class _Terminal(Shipped):
    """Runs one command after the other."""

    async def work(self, client: Client) -> None:
        """Wait for the end; commands have connections of their own."""
        await self.told_to_end()

    def _screen(self) -> Screen:
        mine = self._loop
        return Screen(lambda: mine is self._loop, self._has_enough, self.world)

    def _has_enough(self) -> bool:
        return not self._ending and self.world.chance(_ENOUGH)

    async def _command(self, run: Any, seconds: float | None) -> bool:
        """Run a command until it ends, or Ctrl-C after so many seconds; return whether it ended by
        itself, and well. Once it is connected, it waits for ever for brokers that go.
        """
        connected = False

        async def begun(client: Client) -> None:
            nonlocal connected
            connected = True
            await run(client)

        try:
            async with asyncio.timeout(seconds):
                async with connect(self.url, name="weir-cli", request_timeout=_TIMEOUT) as client:
                    await for_ever(client, begun, partial(self.world.note, self.name, "away"))
        except TimeoutError:
            self.world.note(self.name, "Ctrl-C")
        except BrokenPipeError:
            self.world.note(self.name, "nobody reads")
        except Disconnected as error:
            self.world.note(self.name, "reaches nobody", str(error))
            if connected:
                self.complain("Live", f"it was connected, and waited no longer: {error!r}")
        except WeirError as error:
            self._met(error)
        else:
            return True
        return False

    def _met(self, error: WeirError) -> None:
        """Complain of an error that nothing explains."""
        self.world.note(self.name, "failed", type(error).__name__, str(error))
        past = bool(self.history.retention_bytes)
        if isinstance(error, ValueLost):
            past = past or self.history.values_expire
        elif not isinstance(error, OffsetOutOfRange):
            past = isinstance(error, UnknownTopic)
        if not past:
            self.expect(error, "Live", "a command failed")

    def _row(self, line: bytes) -> Row:
        """Read a line of JSON, and note what was seen."""
        found = json.loads(line)
        value = UNREAD
        if "value_base64" in found:
            value = b64decode(found["value_base64"])
        elif found["value"] is not None:
            value = found["value"].encode()
        partition, offset = found["partition"], found["offset"]
        value = self.history.packed.get((partition, value), value)
        row = Row(found["stamp"], partition, offset, value)
        if value != UNREAD:
            self.history.seen.append(Seen(partition, offset, (value,), row.stamp))
        return row


class ShippedTail(_Terminal):
    """Looks at the topic by `weir tail`, live or to today's end; in the end at all of it."""

    async def _once(self) -> None:
        dice = self.world.dice
        ends = self._ending
        follow = not ends and self.world.chance(0.7)
        start = "earliest" if ends or not follow or self.world.chance(0.5) else "latest"
        count = None if ends else dice.choice(_COUNTS)
        orders: tuple[Order | None, ...] = (None, "total", "partition")
        order = None if self.scene.order == "total" else dice.choice(orders)
        tail = Tail(TOPIC, start, follow, count, order=order, form=Form.json)
        seconds = None if ends else dice.choice(_LOOKS[self.scene.brokers.far])
        screen, since = self._screen(), self.world.now
        try:
            well = await self._command(lambda client: tail.show(client, screen), seconds)
        finally:
            rows = [self._row(line) for line in screen.lines]
            self.world.note(self.name, "showed", len(rows))
            total = (order or self.scene.order) == "total"
            readings = self._readings(rows, start, total)
        if well and count is not None and len(rows) > count:
            self.complain("ReadWhole", f"it was to show {count}, and showed {len(rows)}")
        if well and follow and len(rows) != count:
            self.complain("ReadWhole", f"it ended by itself, with {len(rows)} of {count}")
        if well and count is None:
            for reading in readings:
                reading.cut = since
            self.finished = ends
        if not self.finished:
            await self.rest()

    def _readings(self, rows: list[Row], start: str, total: bool) -> list[Reading]:
        """Note what was shown: of all partitions, or of each by itself."""
        partitions = range(_PARTITIONS)
        first = dict.fromkeys(partitions, _NOWHERE)
        for row in reversed(rows):
            first[row.partition] = row.offset
        if start == "earliest":
            first = dict.fromkeys([*partitions, *first], 0)
        if total:
            found = [Reading(self.name, first, rows, skips=True)]
        else:
            found = [Reading(self.name, {p: at}, partition=p) for p, at in first.items()]
            for reading in found:
                reading.rows = [row for row in rows if row.partition == reading.partition]
        self.history.readings += found
        return found


class ShippedSub(_Terminal):
    """Takes messages by `weir sub`, until nothing is left that is not done."""

    def __init__(self, scene: Scene, name: str, mode: ConsumerMode, printed: Printed) -> None:
        """Note in `printed` what is printed."""
        super().__init__(scene, name)
        self._mode = mode
        self._printed = printed
        self._lease = scene.world.dice.choice(_LEASES[scene.brokers.far])

    async def _once(self) -> None:
        dice = self.world.dice
        if self._ending and await self._is_done():
            self._printed.drained = self.finished = True
            return
        count = dice.choice(_COUNTS[2:] if self._ending else _COUNTS)
        # Once all is calm no lease ends before what it was for is acked.
        lease = _LEASE if self._ending else self._lease
        # The second one takes it by a prefix, which nothing else matches.
        topic = f"{TOPIC}*" if self.name.endswith("1") else TOPIC
        sub = Sub(topic, SUB, self._mode, count, Form.json, lease)
        screen = self._screen()
        taken = Taken(f"{self.name}.{self.life}.{len(self._printed.runs)}", count or 0)
        self._printed.runs.append(taken)
        calm = self._ending
        try:
            looks = _LOOKS[self.scene.brokers.far]
            seconds = dice.choice(looks[:2] if self._ending else looks)
            if self._ending:
                slowest_us = self.scene.brokers.machine.flush[1]
                seconds = max(seconds, _FLUSHES * slowest_us / 1_000_000)
            if await self._command(lambda client: sub.take(client, screen), seconds):
                taken.ended_at = self.world.now
        finally:
            rows = [self._row(line) for line in screen.lines]
            taken.places = [(row.partition, row.offset) for row in rows]
            taken.times = screen.times
            taken.calm = calm
            self.world.note(taken.name, "printed", len(rows), taken.ended_at >= 0)
        if not self._ending:
            await self.rest()

    async def _is_done(self) -> bool:
        """Whether nothing is left to be taken."""
        try:
            async with connect(self.url, name=self.name, request_timeout=_TIMEOUT) as client:
                begun = sum(len(one.shares) for one in await client.clusters(TOPIC, SUB))
                partitions = len((await client.describe(TOPIC)).addresses)
                return begun >= partitions and await self.is_drained(client, SUB)
        except WeirError as error:
            self.expect(error, "Live", "a cluster was refused")
            return False
