"""Relay nodes as they ship, each in a process of its own: they pull from the brokers, or from a
relay above, and serve readers and consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from weir.model.limits import KIB
from weir.relay_node.disk import RelayDisk
from weir.relay_node.folder import RelayFolder
from weir.relay_node.gate import RelayGate
from weir.relay_node.host import RelayConfig, RelayHost, find
from weir.relay_node.listener import Listener
from weir.relay_node.requests import RelayRequests
from weir.relay_node.store import RelayStore
from weir.storage.segment_files import Settings
from weir.testing.simulator.clients.process import Mishaps, Process
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.process import PORT
from weir.testing.simulator.world import MS, SECOND, World
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.programs.scene import Scene

R = TypeVar("R")

_MISHAPS = (
    Mishaps(spared=(100 * MS, 1_500 * MS), stands=(5 * MS, 300 * MS)),
    Mishaps(spared=(2 * SECOND, 12 * SECOND), stands=(100 * MS, 4 * SECOND)),
)
#: All that a world publishes fits into one entry.
_ENTRY_BYTES_MAX = 128 * KIB
_SEGMENT_BYTES = 512 * KIB
_CHECKPOINT_BYTES = (1 * KIB, 8 * KIB, 256 * KIB)
#: How long work that blocks takes: on a quick disk, and on a slow one.
_BLOCKS = ((60, 2 * MS), (1 * MS, 40 * MS))
#: How likely a kill is a power cut, which loses what was not synced; and loses the disks as well.
_POWER = 0.4
_NEW_DISKS = 0.1


class VirtualThreads:
    """Does what blocks after a while of virtual time, and nothing of it where the process dies."""

    def __init__(self, world: World, blocks: tuple[int, int]) -> None:
        """Take between these virtual µs for each."""
        self._world = world
        self._blocks = blocks

    async def run(self, work: Callable[[], R]) -> R:
        """Return what a function returns that blocks."""
        await asyncio.sleep(self._world.between(*self._blocks) / SECOND)
        return work()

    def close(self) -> None:
        """Do nothing: nothing runs by itself."""


class _Quiet:
    """Drops the log of a world's relay."""

    def is_due(self, trouble: Hashable, is_there: bool = True) -> bool:
        """Tell of nothing."""
        return False


class ShippedRelay(Process):
    """A relay node, with disks that outlive its process."""

    def __init__(self, scene: Scene, name: str, uppers: Sequence[str] = ()) -> None:
        """Be reached as `name`; pull from the relays `uppers` while they serve, else from the
        brokers.
        """
        brokers, dice = scene.brokers, scene.world.dice
        super().__init__(scene.world, brokers, name, scene.a_site(), _MISHAPS[brokers.far])
        self._history = scene.history
        hosts = [(f"node{node}", PORT) for node in brokers.hosts]
        self._config = RelayConfig(hosts, uppers=tuple(((upper, PORT),) for upper in uppers))
        self._blocks = dice.choice(_BLOCKS)
        self._checkpoint_bytes = dice.choice(_CHECKPOINT_BYTES)
        self._new_disks()

    def _new_disks(self) -> None:
        dice = self.world.dice
        self._files = SimDisk(Random(dice.getrandbits(64)))
        self._log = SimDisk(Random(dice.getrandbits(64)))

    def started(self) -> None:
        """Find the disks as the last life left them, or as a power cut did, or new ones."""
        if self.life == 1:
            return
        if self.world.chance(_NEW_DISKS):
            self.world.note(self.name, "has new disks")
            self._new_disks()
            return
        power = self.world.chance(_POWER)
        for disk in (self._files, self._log):
            if power:
                disk.crash()
            else:
                disk.kill()

    def failed(self, uncaught: list[str]) -> None:
        """Complain of what nobody caught."""
        self._history.complaints += [(CRASH, f"{self.name}: {text}") for text in uncaught]

    async def main(self) -> None:
        """Relay until it is killed."""
        mine = self._loop
        try:
            await self._relay()
        except Exception as error:
            if mine is self._loop:
                self._history.complaints.append((CRASH, f"{self.name}: {error!r}"))

    async def _relay(self) -> None:
        folder = RelayFolder(Path(self.name), self._files, lambda: self._log)
        found = await find(self._config, folder, asyncio.Event())
        assert found is not None  # nobody tells it to stop
        founded, network = found
        threads = VirtualThreads(self.world, self._blocks)
        settings = Settings(0, founded.system, _SEGMENT_BYTES, _ENTRY_BYTES_MAX)
        opening = partial(RelayStore.open, self._log, settings, self._checkpoint_bytes)
        store = await threads.run(opening)
        disk = RelayDisk(self._log, store, threads, _Quiet())
        relay = RelayHost(self._config, folder, founded, disk)
        listener = Listener(RelayGate(relay, RelayRequests(relay)))
        relay.start(network)
        await listener.start(self.name, PORT)
        await relay.ended()
