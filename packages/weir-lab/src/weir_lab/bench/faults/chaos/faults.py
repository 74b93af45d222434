"""What befalls a set: each fault strikes one node, or all, and is over when it returns."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from weir.errors import WeirError
from weir.testing.nodes import NodeSet, Patient
from weir_lab.bench.faults.chaos.nets import Networks

#: What happens meanwhile to somebody who clings to the node that is struck, for so many seconds.
Meanwhile = Callable[[float], Awaitable[None]]
#: From when to when, in monotonic nanoseconds.
Span = tuple[int, int]
_COMMAND_S = 60.0
_STDERR = 2
_NOTHING: Mapping[str, int] = MappingProxyType({})


class Fault(Protocol):
    """One kind of trouble."""

    name: str
    #: Whether somebody should cling to the node, because it lives on.
    witnessed: bool
    #: Whether every node is up, and every group where it should be, some time after it.
    settles: bool
    #: How much time is drawn behind the strike.
    drawn_s: float

    @property
    def kills(self) -> Sequence[Span]:
        """When it killed nodes (kill -9)."""

    @property
    def done(self) -> Mapping[str, int]:
        """How often it did what else it does, by name."""

    def victim(self, leader: int, number: int) -> int:
        """Return the node that round `number` strikes; 0 if that is not known."""

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """Strike, and return when the node is back."""


def killed(nodes: NodeSet, numbers: Sequence[int]) -> Span:
    """End nodes by kill -9; return when that was."""
    before = time.monotonic_ns()
    nodes.kill(numbers)
    return before, time.monotonic_ns()


class Killed:
    """kill -9 of a node, which is started again some seconds later."""

    witnessed = False
    settles = True
    drawn_s = 3.0
    done = _NOTHING

    def __init__(self, nodes: NodeSet, leader: bool, down_s: float) -> None:
        """Kill the leader, or a follower."""
        self.kills: list[Span] = []
        self._nodes = nodes
        self.name = "kill-leader" if leader else "kill-follower"
        self._leader = leader
        self._down_s = down_s

    def victim(self, leader: int, number: int) -> int:
        """Return the leader, or each of the followers in turn."""
        if self._leader:
            return leader
        nodes = len(self._nodes.members)
        return (leader + number % (nodes - 1)) % nodes + 1

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """Kill, wait, start again."""
        self.kills.append(killed(self._nodes, [victim]))
        await asyncio.sleep(self._down_s)
        self._nodes.start_again([victim])
        await asyncio.to_thread(self._nodes.wait, [victim], Patient())


class Paused:
    """A leader that stands still for seconds, as in a pause of its machine, and wakes."""

    name = "pause-leader"
    witnessed = True
    settles = True
    kills: Sequence[Span] = ()
    done = _NOTHING
    drawn_s = 3.0

    def __init__(self, nodes: NodeSet, seconds: float) -> None:
        """Stop it for so long."""
        self._nodes = nodes
        self._seconds = seconds

    def victim(self, leader: int, number: int) -> int:
        """Return the leader."""
        return leader

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """SIGSTOP, wait, SIGCONT."""
        pid = self._nodes.node(victim).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await meanwhile(self._seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


class CutOff:
    """A leader that the other nodes cannot reach, nor it them; clients reach all."""

    name = "partition"
    witnessed = True
    settles = True
    kills: Sequence[Span] = ()
    done = _NOTHING
    drawn_s = 3.0

    def __init__(self, networks: Networks, seconds: float) -> None:
        """Cut it off for so long."""
        self._networks = networks
        self._seconds = seconds

    def victim(self, leader: int, number: int) -> int:
        """Return the leader."""
        return leader

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
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
    settles = True
    drawn_s = 6.0
    done = _NOTHING

    def __init__(self, nodes: NodeSet) -> None:
        """Kill these."""
        self.kills: list[Span] = []
        self._nodes = nodes

    def victim(self, leader: int, number: int) -> int:
        """Return the leader; the others die with it."""
        return leader

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """Kill all, start all."""
        numbers = [member.node for member in self._nodes.members]
        self.kills.append(killed(self._nodes, numbers))
        self._nodes.start_again(numbers)
        await asyncio.to_thread(self._nodes.wait, numbers, Patient())


class CommandFailed(WeirError):
    """A command that was to do harm did not end well; the message says which."""


class ByCommand:
    """Whatever somebody else does to nodes that this machine need not know: commands do it, or a
    person, while this looks on.
    """

    name = "watch"
    witnessed = False
    settles = False
    kills: Sequence[Span] = ()
    done = _NOTHING

    def __init__(self, harm: str, mend: str, seconds: float) -> None:
        """Run `harm`, wait, and run `mend`; either may be empty."""
        self._harm = harm
        self._mend = mend
        self.drawn_s = seconds

    def victim(self, leader: int, number: int) -> int:
        """Return 0: only the command knows."""
        return 0

    async def strike(self, victim: int, meanwhile: Meanwhile) -> None:
        """Harm, wait, mend. Raises `CommandFailed`."""
        await _run(self._harm)
        await meanwhile(self.drawn_s)
        await _run(self._mend)


async def _run(command: str) -> None:
    """Run a command as it is, without a shell; what it says goes to stderr."""
    words = shlex.split(command)
    if not words:
        return
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=_STDERR
        )
    except OSError as error:
        raise CommandFailed(f"{command!r} cannot be run: {error}") from None
    try:
        code = await asyncio.wait_for(process.wait(), _COMMAND_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandFailed(f"{command!r} did not end within {_COMMAND_S:g} s") from None
    if code:
        raise CommandFailed(f"{command!r} ended with {code}")
