"""One client's connections: the one at home, to whichever host answers, and those to shards.

Those to shards of the BrokerSet are dialled when they are first needed, by ports where they answer.
Where one cannot be reached, be it behind a firewall or starting again, requests go by the
connection at home: any shard passes them on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from random import Random

from weir.client.connection.connection import Connection, Dialler, Senders
from weir.client.core.retries import Backoff, seconds
from weir.errors import Disconnected, Refused, WeirError
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.protocol.frame import AnswersHttp

DIAL_TIMEOUT = 2.0
#: Long enough for most ports that can be reached; requests wait for it, but only the first time.
DECIDED_WITHIN = 0.5
_REST_FIRST = 0.2
_REST_MOST = 30.0
#: Another node that went comes back; a port behind a firewall does not.
_REST_MOST_NODE = 2.0

#: Of the connection at home, in whose place there is no other.
HOME_DIAL_TIMEOUT = 5.0
#: The first try is a short one, and each next one twice as long: a node's shared port leads to any
#: of its shards, so that another try may well meet one that answers.
_FIRST_DIAL_TIMEOUT = 1.0
#: Where several nodes can lead, one of them soon does: nobody waits longer for it to be asked.
ELECTED_WITHIN = 0.25
#: Where several nodes can answer, nobody waits longer before all of them are dialled again: once
#: a majority of them is back, it would be the client that keeps its messages waiting.
_REDIALLED_WITHIN = 1.0
#: A node that has not met its set is used for so long, and only if no other one is reached.
_UNMET_SECONDS = 1.0


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

    def awaiting(self, which: Callable[[m.Request], bool] | None) -> Connection | None:
        """Return the open connection by which one of some requests awaits its answer, if any."""
        if which is None:
            return None
        ways = [way.connection for way in self._shards.values()]
        return next(
            (one for one in (self.home, *ways) if one is not None and one.awaits(which)), None
        )

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
        assert self._welcome is not None  # the callers have checked
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


class _Unmet(Exception):
    """A node that was founded in a set and has not met it: others know more."""


class HomeConnection:
    """The connection that comes back: to whichever host answers, dialled again with backoff for as
    long as `retry` allows. It is its pool's `home` while it is open.
    """

    def __init__(
        self,
        hosts: list[tuple[str, int]],
        pool: ConnectionPool,
        dialler: Dialler,
        senders: Senders,
        *,
        retry: Backoff,
        random: Random,
    ) -> None:
        """Take where to dial, in order of preference; `start` begins.

        What the nodes there tell of others of their set is dialled behind these.
        """
        #: What the node that was reached last said.
        self.welcome: m.Welcome | None = None
        #: Why there will be no connection any more.
        self.error: WeirError | None = None
        self._hosts = hosts
        self._pool = pool
        self._dialler = dialler
        self._senders = senders
        self._retry = retry
        self._random = random
        self._up = asyncio.Event()
        #: How many connections there were, and what is set with the next one.
        self._times = 0
        self._next = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        #: What went wrong last, in words, or what a broker answered.
        self._last_failure: str | Refused = ""
        #: The host that answered last.
        self._host = ""
        #: The first try of this round at which a node was passed over that has not met its set.
        self._unmet_at: int | None = None

    @property
    def places(self) -> list[tuple[str, int]]:
        """Where any node of the set may answer."""
        told = self.welcome.nodes if self.welcome is not None else ()
        return list(dict.fromkeys([*self._hosts, *((host, port) for _, host, port in told)]))

    @property
    def is_of_several(self) -> bool:
        """Whether other nodes may answer as well."""
        # A node that has just started may know of no others yet.
        return len(self.places) > 1

    def start(self) -> None:
        """Begin to dial."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="weir home")

    async def close(self, closed: Disconnected) -> None:
        """Dial no more: from now on there is no connection, as `closed` says."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        self.end(closed)

    def end(self, error: WeirError) -> None:
        """There will be no connection any more, because of `error`."""
        if self.error is None:
            self.error = error
            self._up.set()
            self._senders.end(error)

    def leave(self, why: Disconnected) -> None:
        """End the connection, so that another node is dialled, if there may be one."""
        if self._pool.home is not None and self.is_of_several:
            self._pool.home.abort(why)

    async def learn(self, welcome: m.Welcome) -> None:
        """Take what the node that answers here says of its set by now."""
        if self.welcome is not None and welcome.node == self.welcome.node:
            self.welcome = welcome
            await self._pool.welcomed(self._host, welcome)

    async def connected(self, timeout: float) -> Connection:
        """Return the connection, once there is one; `Disconnected` after `timeout` seconds."""
        if self._pool.home is None and self.error is None:
            try:
                async with asyncio.timeout(timeout):
                    # One that came may be gone again before this has its turn.
                    while self._pool.home is None and self.error is None:
                        await self._up.wait()
            except TimeoutError:
                raise _unreached(self.places, timeout, self._last_failure) from None
        if self.error is not None:
            raise self.error
        assert self._pool.home is not None
        return self._pool.home

    @property
    def times(self) -> int:
        """How many connections there were."""
        return self._times

    async def used(self, times: int) -> int:
        """Return how many connections there were, once it is more than so many."""
        while self._times <= times:
            await self._next.wait()
        return self._times

    async def _keep(self) -> None:
        attempt = turn = strays = 0
        while True:
            places = self.places
            host, port = places[turn % len(places)]
            turn += 1
            if self._unmet_at is not None and turn - self._unmet_at >= len(places):
                self._unmet_at = None
                passes_over = False
            else:
                passes_over = len(places) > 1
            stray = None
            try:
                rounds = attempt // len(places)
                timeout = min(_FIRST_DIAL_TIMEOUT * 2 ** min(rounds, 8), HOME_DIAL_TIMEOUT)
                connection = await self._dial(host, port, timeout, passes_over)
            except _Unmet as error:
                self._last_failure = str(error)
                self._unmet_at = turn if self._unmet_at is None else self._unmet_at
            except Refused as error:
                if not error.retryable:
                    self.end(error)
                    return
                self._last_failure = error
            except (OSError, WeirError, TimeoutError) as error:
                stray = error.__cause__ if isinstance(error.__cause__, AnswersHttp) else None
                self._last_failure = why_unreachable(host, port, stray or error)
            else:
                self._unmet_at = None
                began = asyncio.get_running_loop().time()
                await self._use(connection)
                # One that ends at once counts as failed: else a broker that drops everybody
                # would be dialled by everybody without a pause.
                if asyncio.get_running_loop().time() - began >= seconds(self._retry.most):
                    attempt = 0
            attempt += 1
            strays = strays + 1 if stray else 0
            if strays >= len(places) and not self._times:
                # None of the addresses is a broker's: waiting does not help.
                self.end(Disconnected(f"no broker answers there: {self._last_failure}"))
                return
            if self._retry.spent(attempt):
                last = _unreached(self.places, 0, self._last_failure)
                self.end(Disconnected(f"given up after {attempt - 1} attempts; {last}"))
                return
            await asyncio.sleep(
                redial_pause(self._retry, attempt, len(self.places), self._random.random())
            )

    async def _dial(self, host: str, port: int, timeout: float, passes_over: bool) -> Connection:
        """Return a connection to a node. If this `passes_over` nodes that have not met their set,
        raises `_Unmet` for one; else such a node is left after a second unless it is the only one.
        """
        system = self.welcome.system if self.welcome else 0
        connection, welcome = await self._dialler.dial(host, port, timeout, system)
        if not welcome.met:
            unmet = _Unmet(
                f"{host}:{port} is not connected to its set yet: see `weir node status` there"
            )
            if passes_over:
                connection.abort(unmet)
                raise unmet
            if len(self.places) > 1:
                asyncio.get_running_loop().call_later(_UNMET_SECONDS, connection.abort, unmet)
        if welcome.met or self.welcome is None:  # what others told of the set stays true
            self.welcome = welcome
            self._host = host
            try:
                await self._pool.welcomed(host, welcome)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _use(self, connection: Connection) -> None:
        self._up.set()
        self._times += 1
        self._next.set()
        self._next.clear()
        await self._pool.use(connection)
        self._up.clear()
        if self.welcome is not None and self.is_of_several:
            self._pool.lost(self.welcome.node)


def redial_pause(retry: Backoff, attempt: int, places: int, dice: float) -> float:
    """Return the seconds to wait before a failed attempt is followed by the next one, which goes to
    the next of so many places; `dice` is uniform in [0, 1). Waits grow from one round of all places
    to the next.
    """
    if places < 2:
        return retry.delay(attempt, dice)
    delay = retry.delay((attempt - 1) // places + 1, dice)
    return min(delay, ELECTED_WITHIN if attempt % places else _REDIALLED_WITHIN)


def _unreached(
    places: Sequence[tuple[str, int]], timeout: float, why: str | Refused
) -> Disconnected:
    """Return what to say where no broker took a client in for `timeout` seconds; 0: for as long as
    it tried.
    """
    shown = ", ".join(f"{host}:{port}" for host, port in places)
    within = f" within {timeout:.3g} s" if timeout else ""
    if isinstance(why, Refused):  # a broker runs there, and says itself what is wrong
        return Disconnected(f"{shown} did not let this client in{within}: {why}")
    return Disconnected(
        f"no connection to {shown}{within} ({why or 'no answer'}): check that a broker runs there "
        "(`weir serve`), its host and port, and the firewall"
    )


def why_unreachable(host: str, port: int, error: Exception) -> str:
    """Return a sentence about a failed dial that names the host."""
    if isinstance(error, socket.gaierror):
        return (
            f"{host} has no address: check how the name is spelt, and that this machine can "
            f"resolve it ({error.strerror})"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {host}:{port}"
    return f"{host}:{port}: {str(error) or 'no answer in time'}"
