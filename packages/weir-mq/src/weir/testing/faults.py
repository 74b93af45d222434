"""The faults of a world: drawn by its seed, or done by hand."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from weir.testing.applications import Process
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.database import Database
from weir.testing.simulator.host import Host
from weir.testing.simulator.storm import FaultPlan, Storm
from weir.testing.simulator.world import SECOND
from weir.testing.simulator.world import World as VirtualTime


class Faults:
    """What breaks nodes, their network, disks and clocks, processes, and the database.

    Nodes are named by their numbers, from 1 on. What is done by hand lasts as long as it says, or
    until `stop`. Seconds are virtual.
    """

    def __init__(
        self,
        virtual: VirtualTime,
        brokers: BrokerSet,
        database: Database,
        processes: Sequence[Process],
        plan: FaultPlan,
    ) -> None:
        """Break nothing yet."""
        #: Whether the seed breaks things.
        self.on = False
        self._virtual = virtual
        self._brokers = brokers
        self._database = database
        self._processes = processes
        self._plan = plan
        self._storm = Storm(virtual, brokers, plan)
        self._before = self._by_hand = 0
        database.calm = True

    @property
    def count(self) -> int:
        """How many there were; those of the database and of processes are not counted."""
        return self._before + self._storm.faults + self._by_hand

    def start(self) -> None:
        """Let the seed break things from now on."""
        if self.on:
            return
        self.on = True
        self._before += self._storm.faults
        self._storm = Storm(self._virtual, self._brokers, self._plan)
        self._storm.start()
        self._database.calm = False
        for process in self._processes:
            process.spare(False)

    def stop(self) -> None:
        """Break nothing more, and mend all that is broken: nodes are up, or on their way."""
        self.on = False
        self._storm.stop()
        self._database.calm = True
        for process in self._processes:
            process.spare(True)
            process.go_on()

    # -- by hand -------------------------------------------------------------------------------

    def kill(self, node: int, down: float = 1.0) -> None:
        """End a node at once, as `kill -9` does; it starts again after so many seconds."""
        self._lose(node, down, power=False)

    def cut_power(self, node: int, down: float = 1.0) -> None:
        """End a node at once; what its disks had not synced is lost, or torn."""
        self._lose(node, down, power=True)

    def pause(self, node: int, seconds: float) -> None:
        """Let a node stand still, as a virtual machine does that is moved."""
        self._host(node, "").pause(int(seconds * SECOND))

    def isolate(self, *nodes: int) -> None:
        """Cut nodes off from the others and from all clients; among them they hear each other."""
        for node in nodes:
            self._host(node)
        net = self._brokers.net
        for node in nodes:
            for other in (*self._brokers.hosts, *self._plan.sites):
                if other not in nodes:
                    net.close(node, other)
                    net.close(other, node)

    def slow(self, node: int, times: int) -> None:
        """Let all that goes to and from a node take so many times as long."""
        self._host(node)
        for other in (*self._brokers.hosts, *self._plan.sites):
            if other != node:
                self._brokers.net.way(node, other).slow = times
                self._brokers.net.way(other, node).slow = times

    def rejoin(self) -> None:
        """Open the network again, and make it quick."""
        self._brokers.net.heal()

    def cut(self, node: int) -> None:
        """Break all connections to a node; clients may come again at once."""
        for process in self._host(node).running:
            process.sever()

    def jump_clock(self, node: int, seconds: float) -> None:
        """Set the wall clock of a node so far ahead, or back, of the right time."""
        self._host(node).time.skew_ms = int(seconds * 1_000)

    def fail_disk(self, node: int) -> None:
        """Let the next write of a node fail: it ends at once, and starts again."""
        next(iter(self._host(node).disks.values())).fail_next("write", errno.EIO)

    def fill_disk(self, node: int) -> None:
        """Leave no room on a node's disks, until `stop`."""
        self._host(node).fill(True)

    def _lose(self, node: int, down: float, power: bool) -> None:
        host = self._host(node, "")
        host.die(power)
        host.restart(int(down * SECOND))

    def _host(self, node: int, what: str = "by hand") -> Host:
        host = self._brokers.hosts.get(node)
        if host is None:
            raise ValueError(f"no node {node}: there are 1 to {len(self._brokers.hosts)}")
        self._by_hand += 1
        if what:
            self._virtual.note(what, node)
        return host
