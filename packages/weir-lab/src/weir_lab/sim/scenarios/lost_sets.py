"""Three core sets of one or two nodes each, of which a whole one is cut off or killed, again and
again: everything is confirmed meanwhile, and readers on both sides give one order.

The first nodes, which found the registry, may all be of one set; groups lie anywhere until all
nodes have said of which set they are.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from weir.client.client import Client
from weir.client.nodes import SetStatus
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL_TOPOLOGY
from weir.protocol.client.nodes import SetList
from weir.testing.worlds import World
from weir_lab.sim.outcome import CRASH, Outcome
from weir_lab.sim.shape import Shape

_SETS = (1, 2, 3)
_NODES_MOST = 2
_TOPIC, _PARTITIONS = "stream", 3
_ROUNDS, _EACH = 3, 4
#: How long groups have to get to where they are wanted, in virtual seconds.
_SETTLED_WITHIN = 90.0
#: How long a message waits for its confirm while a set is away: an election or two, and less than
#: nodes are down that are killed.
_CONFIRMED_WITHIN, _DOWN = 10.0, 15.0
_READ_WITHIN = 60.0
_WITHIN = 900.0
_LOOK = 0.2


class SetWorld(ABC):
    """A world of core sets: `sets` says of which each node is, and `found` are the broken promises,
    as (promise, sentence).
    """

    def __init__(self, seed: int, sets: list[int]) -> None:
        """Let nodes be of these sets."""
        self.sets = sets
        self.world = World(seed, len(sets), False, sets=sets)
        self.found: list[tuple[str, str]] = []

    def play(self) -> list[tuple[str, str]]:
        """Let all of it happen; return the broken promises."""
        try:
            self.world.run(self._scenario, _WITHIN)
        except TimeoutError as error:
            self.found.append(("Live", f"it did not come to its end: {error}"))
        except AssertionError as error:
            self.found.append((CRASH, str(error)))
        except WeirError as error:
            if not self.found:  # what was not confirmed is tried until the client gives it up
                self.found.append(("Live", f"a client ended: {error!r}"))
        return self.found

    @abstractmethod
    async def _scenario(self, world: World) -> None:
        """Let all of it happen."""

    async def _settled(
        self, w: Client, rule: str, is_whole: Callable[[SetStatus], bool] = lambda _: True
    ) -> SetList | None:
        """Wait until groups are where the sets want them, by a rule, and the status `is_whole`;
        return what the sets have, or None and a broken promise.
        """
        text = ""
        try:
            async with asyncio.timeout(_SETTLED_WITHIN):
                # It rises as soon as all nodes have said that they support it.
                while (await w.nodes.raise_level()).level < FORMAT_LEVEL_TOPOLOGY:
                    await asyncio.sleep(_LOOK)
                while True:
                    sets, status = await w.nodes.sets(), await w.nodes.status()
                    left = [one.id for one in status.nodes if one.leaving]
                    text = f"{sets}, {left} are still needed, {status}"
                    is_settled = sets.rule == rule and status.settled and not left
                    if is_settled and is_whole(status):
                        return sets
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            self.found.append(("Live", f"groups do not get to where sets want them: {text}"))
        return None


class LostSets(SetWorld):
    """One world."""

    def __init__(self, seed: int, rounds: int = _ROUNDS) -> None:
        """Draw how many nodes each set has, in which order nodes are numbered, and the world, in
        which so many sets are lost, one after the other.
        """
        self._rounds = rounds
        self._dice = random.Random(f"lost sets {seed}")
        members = [one for one in _SETS for _ in range(self._dice.randint(1, _NODES_MOST))]
        if self._dice.random() < 0.5:
            self._dice.shuffle(members)
        super().__init__(seed, members)
        #: What was confirmed, in the order in which it was asked for.
        self.confirmed: list[bytes] = []
        self._seen: dict[str, list[bytes]] = {"near": [], "far": []}

    async def _scenario(self, world: World) -> None:
        async with world.connect() as w:
            await self._settle(w)
            if self.found:
                return
            await w.create_topic(_TOPIC, partitions=_PARTITIONS, order="total")
            for name in self._seen:
                world.start(self._reader(name), name)
            for number in range(self._rounds):
                await self._round(w, number)
                if self.found:
                    return
            await self._compare()

    async def _settle(self, w: Client) -> None:
        """Wait until groups are where the sets want them."""
        sets = await self._settled(w, "apart")
        if sets is not None and (crowded := [one for one in sets.sets if one.majorities]):
            self.found.append(("Spread", f"a set holds a majority: {crowded}"))

    async def _round(self, w: Client, number: int) -> None:
        """Lose a set, publish to all partitions, and get the set back."""
        faults, away = self.world.faults, self._dice.choice(_SETS)
        nodes = [node for node, one in enumerate(self.sets, 1) if one == away]
        is_killed = self._dice.random() < 0.5
        if is_killed:
            for node in nodes:
                faults.kill(node, down=_DOWN)
        else:
            faults.isolate(*nodes)
        for message in range(_EACH):
            value = b"%d.%d" % (number, message)
            try:
                async with asyncio.timeout(_CONFIRMED_WITHIN):
                    await w.publish(_TOPIC, value, partition=message % _PARTITIONS)
            except (WeirError, TimeoutError) as error:
                what = "killed" if is_killed else "cut off"
                self.found.append(
                    ("Live", f"set {away} was {what}, and {value!r} was not confirmed: {error!r}")
                )
                return
            self.confirmed.append(value)
        faults.rejoin()
        await asyncio.sleep(_LOOK)
        await self._settle(w)

    def _reader(self, name: str) -> Callable[[], Awaitable[object]]:
        async def read() -> None:
            seen = self._seen[name]
            async with (
                self.world.connect() as w,
                w.reader(_TOPIC, order="total") as reader,
            ):
                async for message in reader:
                    seen.append(bytes(message.value))

        return read

    async def _compare(self) -> None:
        """Every reader gives what was confirmed, once, and in the one order."""
        until = self.world.time + _READ_WITHIN
        expected = len(self.confirmed)
        while self.world.time < until and any(len(s) < expected for s in self._seen.values()):
            await asyncio.sleep(_LOOK)
        for name, seen in self._seen.items():
            # One publisher, which waits for each confirm: the order of the stamps is its own.
            if seen != self.confirmed:
                text = f"{name} gives {seen}, and {self.confirmed} were confirmed"
                self.found.append(("OneOrder", text))


def play_lost_sets(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, game = time.perf_counter(), LostSets(seed)
    violations, played = game.play(), game.world
    return Outcome(
        seed, shape, f"nodes of sets {game.sets}", played.faults.count, len(game.confirmed),
        violations, played.trace_hash, time.perf_counter() - began, played.time,
        promises=frozenset({"Live", "OneOrder", "Spread"}),
    )  # fmt: skip
