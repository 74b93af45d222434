"""Two core sets, of which home is lost or cut off under load, the other one is promoted, and home
comes back: what was confirmed is there, or was told as a possible loss, and home serves nothing.

While home is cut off it may go on with clients of its own. The promotion is asked for more than
once, by operators who are stopped in the middle, while nodes of the set are killed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from weir.client.client import Client
from weir.client.nodes import SetStatus
from weir.client.promotion import PromotionPlan
from weir.client.reader.reader import Reader
from weir.errors import OffsetOutOfRange, WeirError
from weir.order.clock import milliseconds_of
from weir.testing.simulator.witness import led_by
from weir.testing.worlds import World
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.scenarios.lost_sets import SetWorld
from weir_lab.sim.shape import Shape

_HOME, _AWAY = 1, 2
_NODES_MOST = 3
_TOPIC, _PARTITIONS = "stream", 3
_PROMOTED_WITHIN, _TRIED_FOR = 60.0, (0.05, 8.0)
_READ_WITHIN = 60.0
_PUBLISHED_WITHIN, _BETWEEN = 30.0, (0.001, 0.2)
#: Home is back for so long before it is looked at: links are dialled anew within 5 s.
_BACK = 20.0
#: Nodes of home that are killed start again so long after; most sets are promoted in 30 s.
_DOWN = 70.0
#: By how much messages to the other set are late in some worlds, so that its copies lag.
_SLOW = 300
_FOLLOWED_FOR = 5.0
_LOOK = 0.2


class Said(NamedTuple):
    """What was confirmed, and when, in virtual seconds."""

    value: bytes
    partition: int
    offset: int
    stamp: int
    at: float


class Follower:
    """A reader that runs all the time: it is given what is there in the end, or is told."""

    def __init__(self, world: World, name: str) -> None:
        """Be one of the processes of a world."""
        self.name = f"follower {name}"
        self.is_over = False
        #: By partition and offset, what it was given; whether it was told that some is not there.
        self.given: dict[tuple[int, int], bytes] = {}
        self.is_told = False
        self._world = world

    async def follow(self) -> None:
        """Read until all is over, or it is told of a fork."""
        async with self._world.connect() as w:
            reader = w.reader(_TOPIC, start="earliest", order="partition")
            while not self.is_over and not self.is_told:
                try:
                    await self._read(reader)
                except OffsetOutOfRange:
                    self.is_told = True
                except WeirError:
                    await asyncio.sleep(_LOOK)
            await reader.close()

    async def _read(self, reader: Reader) -> None:
        """Read for a while. The same reader goes on where it was."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FOLLOWED_FOR):
                async for message in reader:
                    self.given[message.partition, message.offset] = bytes(message.value)

    def wrong(self, there: Mapping[tuple[int, int], bytes]) -> str:
        """Return what was given in vain, or left out, without a word, or said in vain; else ""."""
        vain = [place for place, value in self.given.items() if there.get(place) != value]
        if self.is_told:
            return "" if vain else "was told that something is not there, and all is there"
        if vain:
            return f"was given {self.given[vain[0]]!r} at {vain[0]}, which is not there"
        ends = dict(sorted(self.given))
        for (partition, offset), value in there.items():
            if offset <= ends.get(partition, -1) and (partition, offset) not in self.given:
                return f"was not given {value!r} at {partition}/{offset}, and went on behind it"
        return ""


class Promotions(SetWorld):
    """One world."""

    def __init__(self, seed: int, *, followed: bool = False) -> None:
        """Draw how many nodes the sets have, how home is lost, and the world. If it is `followed`,
        readers run all the time, one at each set.
        """
        dice = self._dice = random.Random(f"promotions {seed}")
        home, away = dice.randint(1, _NODES_MOST), dice.randint(1, _NODES_MOST)
        # With a voter away for each at home no majority would be lost with home.
        super().__init__(seed, [_HOME] * max(home, 2) + [_AWAY] * away)
        self.confirmed: list[Said] = []
        self.plan: PromotionPlan | None = None
        #: When the plan was made that was carried out first, and when all was done.
        self.lost_at = self.promoted_at = 0.0
        self.is_cut_off = dice.random() < 0.6
        #: How many confirmed messages are gone, as was told.
        self.gone = 0
        self.followers = [Follower(self.world, name) for name in ("there", "here") if followed]
        self._over = False

    @property
    def _home(self) -> list[int]:
        return [node for node, one in enumerate(self.sets, 1) if one == _HOME]

    async def _scenario(self, world: World) -> None:
        async with world.connect() as w:
            await self._settle(w)
            if self.found:
                return
            await w.create_topic(_TOPIC, partitions=_PARTITIONS, order="total")
            await self._settle(w)
        for name in ("far", "near"):  # every second process is where home is
            world.start(self._publisher(name), name)
        for follower in self.followers:
            world.start(follower.follow, follower.name)
        await asyncio.sleep(self._dice.uniform(0.5, 4.0))
        if self._dice.random() < 0.5:
            self._slow_down()
            await asyncio.sleep(self._dice.uniform(0.5, 3.0))
        self._lose_home()
        await asyncio.sleep(self._dice.uniform(0.0, 8.0))
        if not await self._promote():
            return
        await asyncio.sleep(self._dice.uniform(1.0, 5.0))
        if not self.is_cut_off:
            await asyncio.sleep(max(self.lost_at + _DOWN - self.world.time, 0.0))
        self.world.faults.rejoin()
        await asyncio.sleep(_BACK)
        self._check_fence()
        self._over = True
        for follower in self.followers:
            follower.is_over = True
        await asyncio.sleep(2 * _LOOK)
        await self._compare()

    async def _settle(self, w: Client) -> None:
        """Wait until all voters are at home, and all learners have what there is."""

        def is_whole(status: SetStatus) -> bool:
            return all(one.held >= one.replicas for one in status.nodes if one.id > 3)

        await self._settled(w, "home", is_whole)

    def _slow_down(self) -> None:
        """Let copies away from home lag."""
        net = self.world.brokers.net
        for node in self._home:
            for other in set(range(1, len(self.sets) + 1)) - set(self._home):
                net.way(node, other).slow = net.way(other, node).slow = _SLOW

    def _lose_home(self) -> None:
        self.lost_at = self.world.time
        if self.is_cut_off:
            self.world.faults.divide(*self._home)
            return
        for node in self._home:
            self.world.faults.kill(node, down=_DOWN)

    async def _promote(self) -> bool:
        """Let operators promote the set until one has seen it done; False if none did."""
        until, error = self.world.time + _PROMOTED_WITHIN, ""
        while self.world.time < until:
            # A node that starts knows only what its last checkpoint has of the registry: where
            # all did that, nobody would know the set.
            if self.sets[-2] == _AWAY and self._dice.random() < 0.3:
                self.world.faults.kill(len(self.sets), down=self._dice.uniform(0.5, 3.0))
            try:
                async with (
                    asyncio.timeout(self._dice.uniform(*_TRIED_FOR)),
                    self.world.connect(request_timeout=5.0) as w,
                ):
                    plan = await w.topology.plan_promotion(str(_AWAY))
                    if not plan.is_done and (self.plan is None or plan.lineage > 0):
                        self.plan = plan
                    if not await w.topology.promote(plan):
                        self.promoted_at = self.world.time
                        return True
                    error = "groups have no leader"
            except (WeirError, TimeoutError) as raised:
                error = repr(raised)
            await asyncio.sleep(self._dice.uniform(0.1, 2.0))
        self.found.append(("Live", f"the set was not promoted: {error}"))
        return False

    def _publisher(self, name: str) -> Callable[[], Awaitable[object]]:
        dice, count = random.Random(f"{self.world.seed} {name}"), 0

        async def publish() -> None:
            nonlocal count
            async with self.world.connect() as w:
                while not self._over:
                    partition, count = count % _PARTITIONS, count + 1
                    value = f"{name}.{count}".encode()
                    try:
                        async with asyncio.timeout(_PUBLISHED_WITHIN):
                            told = await w.publish(_TOPIC, value, partition=partition)
                    except (WeirError, TimeoutError):
                        continue  # nobody said what became of it
                    at = self.world.time
                    self.confirmed.append(Said(value, partition, told.offset, told.stamp, at))
                    await asyncio.sleep(dice.uniform(*_BETWEEN))

        return publish

    def _check_fence(self) -> None:
        """No node of the old home leads any group, and each of the set knows where its log forks
        from theirs.
        """
        assert self.plan is not None
        brokers = self.world.brokers
        for node in set(brokers.hosts) - set(self._home):
            for process in brokers.hosts[node].running:
                shard = process.shard
                for one in shard.topics.partitions() if shard is not None else ():
                    if one.state.membership.lineage != self.plan.lineage:
                        text = f"{one.group.id} at node {node} is of {one.state.membership.forks}"
                        self.found.append(("Lineage", text))
        for node in self._home:
            for process in brokers.hosts[node].running:
                if led := led_by(process):
                    self.found.append(("Fenced", f"node {node} of the old home leads {led}"))

    async def _compare(self) -> None:
        """Both readers give one order, with all that was confirmed and not told as lost."""
        assert self.plan is not None
        orders = [await self._read(), await self._read()]
        if orders[0] != orders[1]:
            self.found.append(("SameView", f"two readers give {orders[0]} and {orders[1]}"))
        there = {(partition, offset): value for partition, offset, value in orders[0]}
        for follower in self.followers:
            if wrong := follower.wrong(there):
                self.found.append(("ToldFork", f"the reader {follower.name} {wrong}"))
        values = [value for *_, value in orders[0]]
        if len({*values}) < len(values):
            twice = [one for one in sorted({*values}) if values.count(one) > 1]
            self.found.append(("ExactlyOnce", f"{twice[:5]} are there twice"))
        losses = {one.partition: one for one in self.plan.losses}
        for said in self.confirmed:
            if there.get((said.partition, said.offset)) == said.value:
                continue
            self.gone += 1
            loss = losses.get(said.partition)
            is_told = loss is not None and not loss.is_whole and said.offset >= loss.offset
            if not is_told or milliseconds_of(said.stamp) < losses[said.partition].stamp_ms:
                self.found.append(("ToldLoss", f"{said} is gone, and was not told: {loss}"))
                return
            if self.promoted_at and said.at > self.promoted_at + _BACK:
                self.found.append(("Durable", f"{said} was confirmed long after, and is gone"))
                return

    async def _read(self) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        async with (
            self.world.connect() as w,
            asyncio.timeout(_READ_WITHIN),
            w.reader(_TOPIC, order="total", follow=False) as reader,
        ):
            async for message in reader:
                found.append((message.partition, message.offset, bytes(message.value)))
        return found


def play_promotion(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, game = time.perf_counter(), Promotions(seed)
    violations, played = game.play(), game.world
    how = "cut off" if game.is_cut_off else "killed"
    return Outcome(
        seed, shape, f"nodes of sets {game.sets}, home {how}, {game.gone} gone",
        played.faults.count, len(game.confirmed), violations, played.trace_hash,
        time.perf_counter() - began, played.time,
        promises=frozenset(
            {"Live", "SameView", "ExactlyOnce", "ToldLoss", "Fenced", "Durable", "Lineage"}
        ),
    )  # fmt: skip
