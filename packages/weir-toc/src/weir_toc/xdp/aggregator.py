"""The host process of a programmable switch: its control side is that of every aggregator.

Packets are handled in the kernel. Here are its timers, joins, what the controller says, and the
generator of blank beacons.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from weir_toc.errors import XdpError
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.frames import Address
from weir_toc.node import SwitchConfig, SwitchNode
from weir_toc.places import Place
from weir_toc.topology import Switch, Topology
from weir_toc.xdp import kernel
from weir_toc.xdp.device import Lookout, TableChanges
from weir_toc.xdp.node import XdpNode
from weir_toc.xdp.path import KernelPath

#: Where neighbours are reached is looked at most so often.
LOOK_SECONDS = 0.1


class XdpAggregator(Aggregator):
    """One switch whose packets the kernel handles."""

    def __init__(
        self, controller: Sequence[Address], switch: int, listen: Address, ports: Sequence[str]
    ) -> None:
        """`listen` is an IPv4 address of this namespace, `ports` are the names of its devices."""
        lacks = kernel.missing()
        if lacks:
            raise XdpError(f"no switch can run in the kernel: {lacks}")
        super().__init__(controller, switch, listen, place=Place.XDP)
        cpus = sorted(os.sched_getaffinity(0))
        self.path = KernelPath(self.advertised, ports, cpus[switch % len(cpus)])
        self._xdp: XdpNode | None = None
        self._lookout = Lookout(ports)
        #: Set if neighbours may have moved, or some were not found.
        self._may_find = asyncio.Event()

    async def run(self) -> None:
        """Attach the programs, start at the controller, then serve."""
        with self.path, TableChanges() as changes:
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(self.look(changes))
                try:
                    await super().run()
                finally:
                    looking.cancel()

    async def look(self, changes: TableChanges) -> None:
        """Find neighbours that have moved, or that the kernel had not found yet.

        What changes within `LOOK_SECONDS` is looked at once.
        """
        loop = asyncio.get_running_loop()
        while True:
            loop.add_reader(changes, self._may_find.set)
            try:
                await self._may_find.wait()
            finally:
                loop.remove_reader(changes)
            await asyncio.sleep(LOOK_SECONDS)
            self._may_find.clear()
            changes.drain()
            self._find()

    def _make_node(self, switch: Switch, topology: Topology, config: SwitchConfig) -> SwitchNode:
        self._xdp = XdpNode(switch, topology, self.link.now(), config, self.path)
        self._find()
        return self._xdp

    def _addressed(self, neighbour: int, address: Address) -> None:
        self._find()

    def _find(self) -> None:
        if self._xdp is not None:
            for neighbour, hop in self._lookout.look(self._addresses).items():
                self._xdp.set_next_hop(self.link.now(), neighbour, hop)
            if not self._lookout.is_complete:
                self._may_find.set()
