"""Machines that clients use together: the nodes of one set. They have power but while it is cut."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from weir.model.topic import Order
from weir.server.disk.node_folder import new_system
from weir.server.interpreter import python
from weir_lab.bench.faults.powercut.load import Load
from weir_lab.bench.faults.powercut.machine import DISK, Machine, MachineFailed, cut
from weir_lab.bench.harness.member import PORT, UP
from weir_lab.bench.harness.network import HOST, Network, addresses

T = TypeVar("T")

#: Nothing here stands still for longer, even on a busy machine.
PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_CHECK_SECONDS = 0.5


class Machines(ABC):
    """All machines of a run, and where its clients connect."""

    #: How the topic of the load is ordered, and how many of its readers follow it.
    order: Order = "partition"
    readers = 0

    def __init__(self, machines: Sequence[Machine], publish_at: str, consume_at: str) -> None:
        """Take them; `start` gives them power."""
        self.all = machines
        self.publish_at = publish_at
        self.consume_at = consume_at
        #: How many bytes of messages the access relay pulled, by whom it pulled from.
        self.pulled = Counter[str]()

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        cut(self.all)

    @abstractmethod
    async def start(self) -> None:
        """Give all of them power for the first time; return once clients may connect to each.

        Raises `MachineFailed`.
        """

    @abstractmethod
    def rounds(self, times: int) -> int:
        """Return how many rounds there are, where so many are wanted."""

    @abstractmethod
    def victims(self, number: int, dice: Random) -> list[Machine]:
        """Return whose power a round cuts; rounds count from 0 on."""

    @abstractmethod
    async def look(self) -> None:
        """Note whom the access relay pulled from since the last look; all are up."""

    async def up(self, machines: Sequence[Machine] | None = None) -> None:
        """Return once clients may connect to each of these, or of all. Raises `MachineFailed`."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                for one in self.all if machines is None else machines:
                    while not one.said(one.up):
                        await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise self.stuck("not every node came up") from None

    async def soon(self, wanted: Awaitable[T], load: Load, what: str) -> T:
        """Return what comes of it, while the machines live. Raises `MachineFailed`."""
        waiting = asyncio.ensure_future(wanted)
        moves, deadline = -1, 0.0
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=_CHECK_SECONDS)
                for one in self.all:
                    one.check()
                if moves != load.pulse.moves:
                    moves, deadline = load.pulse.moves, time.monotonic() + PATIENCE_SECONDS
                elif time.monotonic() > deadline:
                    raise self.stuck(f"{what} ({load.ledger}), and nothing moved")
            return await waiting
        finally:
            waiting.cancel()

    def stuck(self, what: str) -> MachineFailed:
        """Return the error that says so, with the last words of each."""
        words = "\n\n".join(f"{one.name}:\n{one.last_words()}" for one in self.all)
        return MachineFailed(f"{what} within {PATIENCE_SECONDS:g} s\n{words}")


class SetMachines(Machines):
    """The nodes of one set, each of which all clients may use."""

    def __init__(self, nodes: int, folder: Path, network: Network, *, never_sync: bool) -> None:
        """Make as many, with empty disks."""
        hosts = addresses(nodes)
        system = new_system()
        url = "weir://" + ",".join(f"{host}:{PORT}" for host in hosts)
        machines = [
            node(number, hosts, system, folder, network, never_sync=never_sync)
            for number in range(1, nodes + 1)
        ]
        super().__init__(machines, url, url)

    async def start(self) -> None:
        """Boot them at the same time."""
        for one in self.all:
            one.boot()
        await self.up()

    def rounds(self, times: int) -> int:
        """Return that number."""
        return times

    def victims(self, number: int, dice: Random) -> list[Machine]:
        """Return one, two, all of them, and again."""
        many = number % len(self.all) + 1
        return sorted(dice.sample(self.all, many), key=lambda one: one.name)

    async def look(self) -> None:
        """Note nothing: there is no relay."""


def node(
    number: int, hosts: Sequence[str], system: int, folder: Path, network: Network, *,
    never_sync: bool, name: str = "",
) -> Machine:  # fmt: skip
    """Return the machine of a node of the set at these hosts, which numbers count from 1 on."""
    command = python(
        "weir_lab.bench.harness.member",
        "--data", f"{DISK}/data", "--node", str(number),
        "--hosts", ",".join(hosts), "--system", str(system),
        # A busy machine loses up to seconds while such a kernel boots.
        "--clock", HOST,
        *(("--never-sync",) if never_sync else ()),
    )  # fmt: skip
    return Machine(name or f"node-{number}", folder, network, hosts[number - 1], command, UP)
