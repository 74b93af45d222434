"""Asking other nodes who leads, while the node that owes an answer says nothing.

A leader that stands still keeps its connections open, and its followers elect another one long
before such a connection can be given up. The other nodes are asked in which Raft term who leads.
Once one of them names another leader, the requests for that partition are refused here as its old
leader would refuse them, and so go to the new one. The silent connection stays open: if the node
was only slow, its other answers still count. What is sent twice is deduplicated by the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from weir.client.connection.connection import Connection
from weir.client.connection.pool import Ways
from weir.errors import Disconnected, NotLeader, WeirError
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

#: Seconds that a node has to answer before it is asked again.
ASK_WITHIN = 0.5
#: So many nodes are asked while it is not known which of them hold a partition.
_ASKED_MOST = 4
#: Any node can answer these, and answering them twice changes nothing.
_ANYWHERE = (m.AskBarriers, m.DescribeTopic, m.OpenProducer, m.Ping)


class Leaders:
    """Finds the leaders of partitions whose node owes answers."""

    def __init__(self, ways: Ways, home: Callable[[], Connection | None]) -> None:
        """Ask by `ways`, and by the connection that `home` returns, which may have none."""
        self._ways = ways
        self._home = home
        #: By group, the highest term that any node named, and the nodes that hold it.
        self._terms: dict[int, int] = {}
        self._holders: dict[int, tuple[int, ...]] = {}
        #: The connection that answered last.
        self._answering: Connection | None = None
        #: What is asked, by group and node; group -1 asks only whether the node answers.
        self._asking: dict[tuple[int, int], asyncio.Task[None]] = {}

    def owes(self, silent: Connection) -> None:
        """Ask the other nodes about what a silent connection owes; its owner calls this again and
        again for as long as it is silent.
        """
        owed = silent.owed
        led = {at.group: at for at in map(_led, owed) if at is not None}
        for address in led.values():
            for node in self._others(address.group, silent.node):
                self._begin(address.group, node, self._find(silent, address, node))
        if any(type(request) in _ANYWHERE for request in owed):
            for node in self._others(-1, silent.node):
                self._begin(-1, node, self._look(silent, node))

    def instead(self, request: m.Request, home: Connection) -> Connection:
        """Return the connection by which to send a request that names no partition: `home`, or
        another one that answers while `home` is silent.
        """
        other = self._answering
        if type(request) not in _ANYWHERE or not home.is_silent:
            return home
        return other if other is not None and other.writable and not other.is_silent else home

    async def close(self) -> None:
        """Ask no more."""
        tasks = [*self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _others(self, group: int, silent: int) -> Iterable[int]:
        nodes = self._holders.get(group) or self._ways.nodes
        return [node for node in nodes if node != silent][:_ASKED_MOST]

    def _begin(self, group: int, node: int, asking: Coroutine[Any, Any, None]) -> None:
        if (group, node) in self._asking:
            asking.close()
            return
        task = asyncio.get_running_loop().create_task(asking, name="weir leader")
        self._asking[group, node] = task
        task.add_done_callback(lambda _: self._asking.pop((group, node), None))

    async def _find(self, silent: Connection, address: Address, node: int) -> None:
        at = self._ways.led_by(address, node)
        told = await self._ask(at, a.AskLeader(at))
        if not isinstance(told, a.LeaderInfo):
            return
        group = address.group
        self._holders[group] = told.nodes
        if told.term < self._terms.get(group, 0):
            return  # it has not heard of the newest election
        self._terms[group] = told.term
        if told.node not in (0, silent.node) and silent.is_silent:
            refused = m.Refusal(
                NotLeader.code,
                f"node {silent.node} does not answer, and node {told.node} leads this partition",
                told.node,
            )
            silent.answer(lambda request: _group(request) == group, refused)

    async def _look(self, silent: Connection, node: int) -> None:
        told = await self._ask(self._ways.led_by(Address(0, 0, 0), node), m.Ping())
        if told is not None and silent.is_silent:
            why = Disconnected(f"node {silent.node} does not answer, and node {node} does")
            silent.answer(lambda request: type(request) in _ANYWHERE, why)

    async def _ask(self, at: Address, request: m.Request) -> m.Reply | None:
        """Return what the shard at an address answers; None if it does not in time."""
        connection = await self._ways.open_to(at) or self._home()
        if connection is None or connection.node != at.node:
            return None
        with suppress(WeirError):  # an older release does not know the question
            reply = await connection.request(request, ASK_WITHIN)
            self._answering = connection
            return reply
        return None


def _led(request: m.Request) -> Address | None:
    """Return the address of the partition whose leader alone can answer a request."""
    return None if getattr(request, "replica", False) else getattr(request, "address", None)


def _group(request: m.Request) -> int:
    address = _led(request)
    return -1 if address is None else address.group
