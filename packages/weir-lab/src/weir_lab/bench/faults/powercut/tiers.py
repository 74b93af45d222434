"""A core, a tandem relay below it and an access relay below that, each on a machine of its own.

Writers publish to the core. The consumer and the readers are clients of the access relay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random

from weir.client.client import Client, connect
from weir.model.topic import Order
from weir.server.disk.node_folder import new_system
from weir.server.interpreter import python
from weir.topology.file import read
from weir_lab.bench.faults.chaos.relay_tree import raise_level
from weir_lab.bench.faults.powercut.load import TOPIC
from weir_lab.bench.faults.powercut.machine import DISK, Machine, MachineFailed
from weir_lab.bench.faults.powercut.machines import PATIENCE_SECONDS, Machines, node
from weir_lab.bench.faults.powercut.relay import UP
from weir_lab.bench.harness.member import PORT
from weir_lab.bench.harness.network import Network, addresses

CORE, TANDEM, ACCESS = TIERS = ("core", "tandem", "access")
#: The core's node was founded without a set: it is of set 0.
_SETS = dict(zip(TIERS, range(len(TIERS)), strict=True))
_READERS = 2


class TierMachines(Machines):
    """One machine for each tier."""

    order: Order = "total"
    readers = _READERS

    def __init__(
        self, partitions: int, folder: Path, network: Network, *, never_sync: bool
    ) -> None:
        """Make them, with empty disks; `never_sync` is of the core."""
        self._hosts = dict(zip(TIERS, addresses(len(TIERS)), strict=True))
        self._partitions = partitions
        core = self._url(CORE)
        machines = [
            node(
                1, [self._hosts[CORE]], new_system(), folder, network,
                never_sync=never_sync, name=CORE,
            ),
            *(
                Machine(
                    tier, folder, network, self._hosts[tier],
                    python(
                        "weir_lab.bench.faults.powercut.relay",
                        "--core", core, "--data", f"{DISK}/data", "--host", self._hosts[tier],
                        "--set", str(_SETS[tier]), "--node", str(_node_of(tier)),
                    ),
                    UP,
                )
                for tier in (TANDEM, ACCESS)
            ),
        ]  # fmt: skip
        super().__init__(machines, core, self._url(ACCESS))
        self._counts: Mapping[str, int] = {}

    async def start(self) -> None:
        """Boot the core, give it the topology and the topic, and boot the relays."""
        core, *relays = self.all
        core.boot()
        await self.up([core])
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), connect(self.publish_at) as client:
                await client.create_topic(TOPIC, partitions=self._partitions, order=self.order)
                await self._apply(client)
        except TimeoutError:
            raise self.stuck("the core did not take the topology") from None
        for one in relays:
            one.boot()
        await self.up()

    def rounds(self, times: int) -> int:
        """Return so many for each tier."""
        return times * len(self.all)

    def victims(self, number: int, dice: Random) -> list[Machine]:
        """Return the core, the tandem relay, the access relay, and again."""
        return [self.all[number % len(self.all)]]

    async def look(self) -> None:
        """Ask the access relay whom it pulled from. Raises `MachineFailed`."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), connect(self.consume_at) as client:
                told = await client.topology.describe_relay()
        except TimeoutError:
            raise self.stuck("the access relay did not say whom it pulls from") from None
        counts = {CORE if name == CORE else TANDEM: size for name, size in told.pulled}
        self.pulled.update(grown(self._counts, counts))
        self._counts = counts

    async def _apply(self, client: Client) -> None:
        """Apply the topology, from which the access relay knows whom it pulls from."""
        found = read(self.topology())
        if found.topology is None:
            raise MachineFailed(f"the topology of the machines is wrong: {found.problems}")
        await raise_level(client)
        state = await client.topology.describe()
        await client.topology.apply(found.topology, state.version)

    def topology(self) -> str:
        """Return the topology as a file has it."""
        above, rows = "", []
        for tier, number in _SETS.items():
            place = f"{_node_of(tier)}={self._hosts[tier]}:{PORT}"
            row = f'[[set]]\nid = {number}\nname = "{tier}"\ntier = "{tier}"\nnodes = ["{place}"]\n'
            rows.append(row + (f'upper = ["{above}"]\n' if above else ""))
            above = tier
        return "\n".join(rows)

    def _url(self, tier: str) -> str:
        return f"weir://{self._hosts[tier]}:{PORT}"


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return by how much counts have grown, which begin with 0 when their process does."""
    return {
        name: count - before.get(name, 0) if count >= before.get(name, 0) else count
        for name, count in after.items()
    }


def _node_of(tier: str) -> int:
    return TIERS.index(tier) + 1
