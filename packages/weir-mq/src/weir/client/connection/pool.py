"""Connections to shards of a BrokerSet, by ports where they answer, and which of the nodes lead.

They are dialled when they are first needed. Where one cannot be reached, be it behind a firewall or
starting again, requests go by the connection that was dialled first: any shard passes them on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from weir.client.connection.connection import Connection, Dialler, Senders, Silence
from weir.errors import Disconnected, NotLeader, WeirError
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

DIAL_TIMEOUT = 2.0
#: Long enough for most ports that can be reached; requests wait for it, but only the first time.
DECIDED_WITHIN = 0.5
_REST_FIRST = 0.2
_REST_MOST = 30.0
#: Another node that went comes back; a port behind a firewall does not.
_REST_MOST_NODE = 2.0

#: Seconds that a node has to answer before it is asked again.
ASK_WITHIN = 0.5
#: So many nodes are asked while it is not known which of them hold a partition.
_ASKED_MOST = 4
#: Any node can answer these, and answering them twice changes nothing.
_ANYWHERE = (m.AskBarriers, m.DescribeTopic, m.OpenProducer, m.Ping)


class Node:
    """A node: the port that all of its shards share (0: not known), and their own, if known."""

    __slots__ = ("host", "id", "port", "ports")

    def __init__(self, id: int, host: str, port: int, ports: tuple[int, ...] = ()) -> None:
        """Be node `id` at `host`."""
        self.id = id
        self.host = host
        self.port = port
        self.ports = ports


class ShardConnection:
    """The way to one shard; `connection` while it is open."""

    def __init__(
        self, node: Node, shard: int, system: int, dialler: Dialler, senders: Senders
    ) -> None:
        """Dial nothing yet. `senders` are woken whenever requests go another way from then on."""
        self.connection: Connection | None = None
        self.shard = shard
        self._node = node
        self._system = system
        self._dialler = dialler
        self._senders = senders
        self._keeper: asyncio.Task[None] | None = None
        #: Set once it is known whether the port can be reached.
        self._tried = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def undecided(self) -> bool:
        """Whether it is being dialled for the first time, so that requests should wait."""
        return not self._tried.is_set()

    def begin(self) -> None:
        """Dial, unless that was begun already."""
        if self._keeper is None:
            loop = asyncio.get_running_loop()
            self._keeper = loop.create_task(self._keep(), name="weir way")
            self._deadline = loop.call_later(DECIDED_WITHIN, self._decide)

    async def decided(self) -> None:
        """Return once it is known whether the port can be reached; that is soon."""
        await self._tried.wait()

    async def close(self) -> None:
        """End the connection, once what is buffered is written."""
        self._stop()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])
        if self.connection is not None:
            await self.connection.close()

    def abort(self, why: Exception) -> None:
        """End the connection at once."""
        self._stop()
        if self.connection is not None:
            self.connection.abort(why)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
        self._tried.set()  # nobody will try any more

    async def _keep(self) -> None:
        most = _REST_MOST_NODE if self._node.port else _REST_MOST
        rest = _REST_FIRST
        while True:
            try:
                connection = await self._reach()
            except (OSError, WeirError, TimeoutError):
                rest = min(2 * rest, most)
            else:
                if connection is not None:
                    rest = _REST_FIRST
                    await self._use(connection)
                else:  # another one's port by now
                    rest = most
            self._decide()
            await asyncio.sleep(rest)

    async def _reach(self) -> Connection | None:
        """Dial the shard's own port; for that, ask at the shared one which ports there are."""
        node = self._node
        if not node.ports:
            connection, welcome = await self._dial(node.port)
            if welcome.node != node.id or not welcome.met:
                connection.abort()
                return None
            # A node without own ports has one shard, whatever was said of it before it restarted.
            if not welcome.ports or welcome.shard == self.shard:
                return connection
            connection.abort()
            node.ports = welcome.ports
        if self.shard >= len(node.ports):
            return None
        connection, welcome = await self._dial(node.ports[self.shard])
        if (welcome.node, welcome.shard) == (node.id, self.shard) and welcome.met:
            return connection
        connection.abort()
        if node.port:
            node.ports = ()
        return None

    async def _dial(self, port: int) -> tuple[Connection, m.Welcome]:
        return await self._dialler.dial(self._node.host, port, DIAL_TIMEOUT, self._system)

    async def _use(self, connection: Connection) -> None:
        self.connection = connection
        self._decide()
        await connection.over.wait()
        self.connection = None

    def _decide(self) -> None:
        """Requests go by it, or another way, from now on."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._tried.set()
        self._senders.wake()


class ConnectionPool:
    """The connection that was dialled first, `home` while it is open, and the ways to all shards of
    the nodes that the one at home told of.
    """

    def __init__(self, dialler: Dialler, senders: Senders) -> None:
        """Know of no node yet."""
        self.home: Connection | None = None
        self._dialler = dialler
        self._senders = senders
        self._welcome: m.Welcome | None = None
        self._nodes: dict[int, Node] = {}
        self._shards: dict[tuple[int, int], ShardConnection] = {}

    async def use(self, home: Connection) -> None:
        """Have a connection at home, and return when it has ended."""
        self.home = home
        self._senders.wake()
        await home.over.wait()
        self.home = None

    async def welcomed(self, host: str, welcome: m.Welcome) -> None:
        """Take what a node told; ways to what is elsewhere now are closed."""
        self._welcome = welcome
        known, self._nodes = self._nodes, {}
        for id, name, port in welcome.nodes:
            self._nodes[id] = _still(known.get(id), Node(id, name, port))
        if not welcome.nodes or welcome.ports:
            home = Node(welcome.node, host, 0, welcome.ports)
            self._nodes[home.id] = _still(known.get(home.id), home)
        gone = [key for key in self._shards if self._nodes.get(key[0]) is not known.get(key[0])]
        await asyncio.gather(*(self._shards.pop(key).close() for key in gone))

    def toward(self, request: m.Request) -> ShardConnection | None:
        """Return the way to the shard that a request is for; None if that is where one is."""
        address = getattr(request, "address", None)
        home = self._welcome
        if address is None or home is None:
            return None
        if address.shard == home.shard and address.node in (0, home.node):  # as most are
            return None
        way = self._way(address)
        if way is not None:
            way.begin()
        return way

    def near(self, address: Address | None) -> Connection | None:
        """Return the open way to the shard at an address, if it is one of its own and answers."""
        if address is None or self._welcome is None:
            return None
        way = self._shards.get((address.node or self._welcome.node, address.shard))
        connection = way.connection if way is not None else None
        return connection if connection is not None and not connection.is_silent else None

    def lost(self, node: int) -> None:
        """A node that has others beside it is gone: what is open to it still may never answer."""
        for (id, _), way in self._shards.items():
            if id == node and way.connection is not None:
                way.connection.abort()

    @property
    def nodes(self) -> list[int]:
        """All nodes that were told of."""
        return [*self._nodes]

    async def open_to(self, address: Address) -> Connection | None:
        """Return the open way to the shard at an address, once that was tried; None if there is no
        way of its own, or it cannot be reached.
        """
        way = self._way(address) if self._welcome is not None else None
        if way is None:
            return None
        way.begin()
        await way.decided()
        return way.connection

    def lacks(self, addresses: Iterable[Address]) -> bool:
        """Whether one of these names a node that came to the set since it was told of."""
        home = self._welcome
        known = {0, home.node, *self._nodes} if home is not None else set()
        return home is not None and any(address.node not in known for address in addresses)

    def led_by(self, address: Address, node: int) -> Address:
        """Return the address of a partition that `node` leads, as far as its shards are known."""
        shards = max(len(self._nodes[node].ports), 1) if node in self._nodes else 1
        return Address(address.log % shards, address.log, address.group, node)

    def is_astray(self, address: Address) -> bool:
        """Whether what is for this address goes by others, because another node is not reached."""
        home = self._welcome
        if home is None or address.node in (0, home.node):
            return False
        way = self._shards.get((address.node, address.shard))
        return way is None or (way.connection is None and not way.undecided)

    async def close(self) -> None:
        """End all connections, once what is buffered is written."""
        if self.home is not None:
            await self.home.close()
        await asyncio.gather(*(way.close() for way in self._shards.values()))

    def abort(self, why: Exception) -> None:
        """End all connections at once."""
        if self.home is not None:
            self.home.abort(why)
        for way in self._shards.values():
            way.abort(why)

    def _way(self, address: Address) -> ShardConnection | None:
        assert self._welcome is not None  # whoever asks has looked
        home = self._welcome
        id, shard = address.node or home.node, address.shard
        if id == home.node and (shard == home.shard or shard >= len(home.ports)):
            return None
        node = self._nodes.get(id)
        if node is None:
            return None
        way = self._shards.get((id, shard))
        if way is None:
            way = self._shards[id, shard] = ShardConnection(
                node, shard, home.system, self._dialler, self._senders
            )
        return way


def _still(known: Node | None, now: Node) -> Node:
    """Return the node as it is known, if it is where it was: its ways are open perhaps."""
    if known is None or (known.host, known.port) != (now.host, now.port):
        return now
    # Of another node the ports are learnt when it is dialled, and corrected then.
    return known if now.port or known.ports == now.ports else now


class Leaders:
    """Asks other nodes who leads, while the node that owes an answer says nothing.

    A leader that stands still keeps its connections open, and its followers elect another one long
    before such a connection can be given up. The other nodes are asked in which Raft term who
    leads. Once one of them names another leader, the requests for that partition are refused here
    as its old leader would refuse them, and so go to the new one. The silent connection stays open:
    if the node was only slow, its other answers still count. What is sent twice is deduplicated by
    the broker.
    """

    def __init__(self, pool: ConnectionPool, silence: Silence) -> None:
        """Ask by the connections of a pool about those that are noted as silent."""
        self._pool = pool
        self._silence = silence
        self._watching: asyncio.Task[None] | None = None
        #: By group, the highest term that any node named, and the nodes that hold it.
        self._terms: dict[int, int] = {}
        self._holders: dict[int, tuple[int, ...]] = {}
        #: The connection that answered last.
        self._answering: Connection | None = None
        #: What is asked, by group and node; group -1 asks only whether the node answers.
        self._asking: dict[tuple[int, int], asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to look after silent connections."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="weir silence")

    async def _watch(self) -> None:
        while True:
            for connection in await self._silence.take():
                self._ask_others(connection)

    def _ask_others(self, silent: Connection) -> None:
        """Ask the other nodes about what a silent connection owes."""
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
        """Ask no more; return when nothing is asked."""
        await asyncio.gather(*self.cancel(), return_exceptions=True)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Ask no more; return what is ending."""
        tasks = [*self._asking.values()]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        return tasks

    def _others(self, group: int, silent: int) -> Iterable[int]:
        nodes = self._holders.get(group) or self._pool.nodes
        return [node for node in nodes if node != silent][:_ASKED_MOST]

    def _begin(self, group: int, node: int, asking: Coroutine[Any, Any, None]) -> None:
        if (group, node) in self._asking:
            asking.close()
            return
        task = asyncio.get_running_loop().create_task(asking, name="weir leader")
        self._asking[group, node] = task
        task.add_done_callback(lambda _: self._asking.pop((group, node), None))

    async def _find(self, silent: Connection, address: Address, node: int) -> None:
        at = self._pool.led_by(address, node)
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
        told = await self._ask(self._pool.led_by(Address(0, 0, 0), node), m.Ping())
        if told is not None and silent.is_silent:
            why = Disconnected(f"node {silent.node} does not answer, and node {node} does")
            silent.answer(lambda request: type(request) in _ANYWHERE, why)

    async def _ask(self, at: Address, request: m.Request) -> m.Reply | None:
        """Return what the shard at an address answers; None if it does not in time."""
        connection = await self._pool.open_to(at) or self._pool.home
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
