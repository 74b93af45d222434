"""What befalls a set: each fault strikes one node, or all, and is over when it returns."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.bench.chaos.nets import Networks
from weir.bench.node_set import NodeSet, Patient

#: What happens meanwhile to somebody who clings to the node that is struck, for so many seconds.
Meanwhile = Callable[[float], Awaitable[None]]


class Fault(Protocol):
    """One kind of trouble."""

    name: str
    #: Whether somebody should cling to the node, because it lives on.
    witnessed: bool
    #: How much time is drawn behind the strike.
    drawn_s: float

    def victim(self, leader: int, nodes: int, number: int) -> int:
        """Return whom round `number` strikes."""

    async def strike(self, nodes: NodeSet, victim: int, meanwhile: Meanwhile) -> None:
        """Strike, and return when the node is back."""


class Killed:
    """kill -9 of a node, which is started again some seconds later."""

    witnessed = False
    drawn_s = 3.0

    def __init__(self, leader: bool, down_s: float) -> None:
        """Kill the leader, or a follower."""
        self.name = "kill-leader" if leader else "kill-follower"
        self._leader = leader
        self._down_s = down_s

    def victim(self, leader: int, nodes: int, number: int) -> int:
        """Return the leader, or each of the followers in turn."""
        if self._leader:
            return leader
        return (leader + number % (nodes - 1)) % nodes + 1

    async def strike(self, nodes: NodeSet, victim: int, meanwhile: Meanwhile) -> None:
        """Kill, wait, start again."""
        nodes.kill([victim])
        await asyncio.sleep(self._down_s)
        nodes.start_again([victim])
        await asyncio.to_thread(nodes.wait, [victim], Patient())


class Paused:
    """A leader that stands still for seconds, as in a pause of its machine, and wakes."""

    name = "pause-leader"
    witnessed = True
    drawn_s = 3.0

    def __init__(self, seconds: float) -> None:
        """Stop it for so long."""
        self._seconds = seconds

    def victim(self, leader: int, nodes: int, number: int) -> int:
        """Return the leader."""
        return leader

    async def strike(self, nodes: NodeSet, victim: int, meanwhile: Meanwhile) -> None:
        """SIGSTOP, wait, SIGCONT."""
        pid = nodes.node(victim).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await meanwhile(self._seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


class CutOff:
    """A leader that the other nodes cannot reach, nor it them; clients reach all."""

    name = "partition"
    witnessed = True
    drawn_s = 3.0

    def __init__(self, networks: Networks, seconds: float) -> None:
        """Cut it off for so long."""
        self._networks = networks
        self._seconds = seconds

    def victim(self, leader: int, nodes: int, number: int) -> int:
        """Return the leader."""
        return leader

    async def strike(self, nodes: NodeSet, victim: int, meanwhile: Meanwhile) -> None:
        """Cut, wait, heal."""
        await asyncio.to_thread(self._networks.cut, victim)
        try:
            await meanwhile(self._seconds)
        finally:
            self._networks.heal(victim)


class AllKilled:
    """kill -9 of all nodes at once, which are started again at once."""

    name = "restart-all"
    witnessed = False
    drawn_s = 6.0

    def victim(self, leader: int, nodes: int, number: int) -> int:
        """Return the leader; the others die with it."""
        return leader

    async def strike(self, nodes: NodeSet, victim: int, meanwhile: Meanwhile) -> None:
        """Kill all, start all."""
        numbers = [member.node for member in nodes.members]
        nodes.kill(numbers)
        nodes.start_again(numbers)
        await asyncio.to_thread(nodes.wait, numbers, Patient())
