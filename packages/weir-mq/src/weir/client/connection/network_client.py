"""Sends requests to a system of brokers: each to the shard that answers it, with retries.

`weir.client.connection.pool` has the connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import msgspec

from weir.client.connection.connection import (
    Connection,
    Dialler,
    OnAnswer,
    Senders,
    Silence,
    Work,
)
from weir.client.connection.credentials import AnyCredentials
from weir.client.connection.pool import ELECTED_WITHIN, ConnectionPool, HomeConnection
from weir.client.connection.system import REAL, System
from weir.client.core.retries import Backoff
from weir.errors import (
    Disconnected,
    NotLeader,
    Overloaded,
    Refused,
    StampTooFar,
    Unavailable,
    UnknownOpcode,
    WeirError,
)
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.tls.dialling import files_of

#: After so many refusals in a row a node is left for another, which may know more.
_TRIES_A_NODE = 8
#: Seconds that a node has to answer before it is asked again.
ASK_WITHIN = 0.5
#: So many nodes are asked while it is not known which of them hold a partition.
_ASKED_MOST = 4
#: Any node can answer these, and answering them twice changes nothing.
_ANYWHERE = (
    m.AskBarriers, m.AwaitMark, m.DescribeTopic, m.OpenProducer, m.Ping, m.ResolveCut,
)  # fmt: skip

R = TypeVar("R")


class _Stream(msgspec.Struct):
    """Batches of one partition that are under way, all by one connection: none overtakes."""

    connection: Connection
    count: int = 0
    #: Whether somebody waits to send by another connection.
    leaving: bool = False


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


async def _answer(connection: Connection, request: m.Request, left: float) -> object:
    """Return the reply to a request; say of a node that does not know it what to do."""
    try:
        return await connection.request(request, left)
    except UnknownOpcode as error:
        name = type(request).__name__
        raise UnknownOpcode(
            f"a node of this set runs an older release, which does not know {name}: upgrade all "
            f"nodes ({error})",
            error.detail,
        ) from error


class Rounds:
    """Wakes all that wait for the next round in one turn of the loop, so that one of them asks what
    several want to know.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        #: What is being asked, by name.
        self._asked: dict[str, asyncio.Future[m.TopicInfo]] = {}
        self._next = asyncio.Event()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, seconds: float) -> None:
        """Return with the next round. It comes so many seconds after the first of those who wait
        began to, so nobody waits for longer.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)
        self._waiting += 1
        try:
            await self._next.wait()
        finally:
            self._waiting -= 1
            if not self._waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def share(self, name: str, ask: Callable[[], Awaitable[m.TopicInfo]]) -> m.TopicInfo:
        """Return what `ask` does, or what it returns to somebody who asks about this name just now.
        Raises what it raises.
        """
        while (asked := self._asked.get(name)) is not None:
            await asyncio.wait([asked])
            if not asked.cancelled():
                return asked.result()
        asked = self._asked[name] = asyncio.get_running_loop().create_future()
        try:
            told = await ask()
        except Exception as error:
            asked.set_exception(error)
            asked.exception()  # nobody else may want to know
            raise
        else:
            asked.set_result(told)
            return told
        finally:
            asked.cancel()  # if it was cancelled: the next one asks
            del self._asked[name]

    def _begin(self) -> None:
        self._next.set()
        self._next, self._timer = asyncio.Event(), None


class NetworkClient:
    """Takes a client's requests to the nodes and shards of a system that are to answer them."""

    def __init__(
        self,
        hosts: list[tuple[str, int]],
        *,
        name: str,
        retry: Backoff,
        request_timeout: float,
        random: Random,
        system: System = REAL,
        work: Work | None = None,
        credentials: AnyCredentials | None = None,
        prompt: bool = False,
    ) -> None:
        """Take where to dial, as `HomeConnection` does, and who to log in as; `start` begins.
        Pings tell of `work`. A connection that owes answers and is silent for 2 s is ended where
        others can take over: nodes that its node names, or those that who is `prompt` asks then.
        """
        self.retry = retry
        self.request_timeout = request_timeout
        self.random = random
        #: The clocks of the process.
        self.system = system
        #: The highest stamp seen in confirms and batches (DESIGN §6 Causal).
        self.seen = 0
        #: Senders that have a connection of their own.
        self.senders = Senders()
        silence = Silence()
        files = files_of(hosts)
        self._dialler = Dialler(
            name, self.senders, silence, work, files, credentials, prompt=prompt
        )
        self._pool = ConnectionPool(self._dialler, self.senders)
        self._leaders = Leaders(self._pool, silence)
        #: To whichever host answers. What is asked for each batch is read there.
        self.home = HomeConnection(
            hosts, self._pool, self._dialler, self.senders, retry=retry, random=random
        )
        #: When its readers, consumers and producers look again where their topics are served.
        self.looks = Rounds()
        #: By group.
        self._streams: dict[int, _Stream] = {}

    @property
    def welcome(self) -> m.Welcome | None:
        """The node that answered last, and its limits."""
        return self.home.welcome

    @property
    def error(self) -> WeirError | None:
        """The error that ended it for good."""
        return self.home.error

    @property
    def is_up(self) -> bool:
        """Whether there is a connection just now."""
        return self._pool.home is not None

    async def start(self) -> None:
        """Return once connected. Raises `Disconnected` after `request_timeout` without, and
        `BadCertificate` for files of TLS that cannot be used.
        """
        self._dialler.check()
        self.home.start()
        self._leaders.start()
        try:
            await self.home.connected(self.request_timeout)
        except BaseException:
            await self.close()
            raise

    def another(self, work: Work) -> NetworkClient:
        """Return one of the same system, for work that must end with a connection of its own."""
        return NetworkClient(
            self.home.places,
            name=self._dialler.name,
            retry=self.retry,
            request_timeout=self.request_timeout,
            random=self.random,
            system=self.system,
            work=work,
            credentials=self._dialler.credentials,
            prompt=self._dialler.prompt,
        )

    async def close(self) -> None:
        """End the connections; whatever still waits gets `Disconnected`."""
        closed = Disconnected("the client is closed")
        try:
            await self.home.close(closed)
            await self._pool.close()
            await self._leaders.close()
        except BaseException:
            # A task that is cancelled ends it all the same: to the broker, a connection that stays
            # open is a consumer that works on what it was granted.
            self.home.end(closed)
            self._leaders.cancel()
            self._pool.abort(closed)
            raise

    def saw(self, stamp: int) -> None:
        """Remember the highest stamp: what is sent from now on is ordered behind it."""
        if stamp > self.seen:
            self.seen = stamp

    def send(self, request: m.Request, on_answer: OnAnswer) -> int | None:
        """Send now and return the correlation number; None while that is not possible."""
        way, connection = self._pool.toward(request), self._pool.home
        if way is not None and way.undecided:
            return None
        if way is not None and way.connection is not None:
            connection = way.connection
        if connection is None:
            return None
        if isinstance(request, m.Produce):
            return self._send_batch(connection, request, on_answer)
        return connection.offer(request, on_answer)

    def _send_batch(
        self, connection: Connection, request: m.Produce, on_answer: OnAnswer
    ) -> int | None:
        group = request.address.group
        stream = self._streams.get(group)
        if stream is None:
            stream = _Stream(connection)
        elif not stream.count:
            stream.connection, stream.leaving = connection, False
        elif stream.connection is not connection:
            stream.leaving = True
            return None

        def answered(correlation: int, answer: m.Reply | Disconnected) -> None:
            stream.count -= 1
            is_left = stream.leaving and not stream.count
            on_answer(correlation, answer)
            if not stream.count and self._streams.get(group) is stream:
                del self._streams[group]
            if is_left:
                self.senders.wake()

        correlation = connection.offer(request, answered)
        if correlation is not None:
            self._streams[group] = stream
            stream.count += 1
        return correlation

    async def request(
        self,
        request: m.Request,
        kind: type[R],
        *,
        wait: float = 0.0,
        again: bool = True,
        near: Address | None = None,
        behind: Callable[[m.Request], bool] | None = None,
    ) -> R:
        """Return the reply, which is a `kind`; `wait` seconds of it are the broker's to use.

        A lost connection or a busy broker is tried `again` until `request_timeout` is over. What
        goes by an address raises `NotLeader`: only who asks can find another. What any shard
        answers goes to the one at `near`, while a connection of its own is open to it. What is to
        come `behind` some requests goes by the connection on which one of them awaits its answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.request_timeout + wait
        attempt = 0
        refused: Refused | None = None
        at_home = False
        while True:
            left = max(deadline - loop.time(), 0.0)
            try:
                connection = self._pool.awaiting(behind) or (
                    await self._at_home(request, left)
                    if at_home
                    else self._pool.near(near) or await self._toward(request, left)
                )
            except Disconnected:
                # Why a node refused helps more than that no other one was reached after it.
                if refused is None:
                    raise
                raise refused from None
            try:
                reply = await _answer(connection, request, max(deadline - loop.time(), 0.0))
            except (Disconnected, Overloaded, Unavailable, NotLeader) as error:
                if isinstance(error, NotLeader) and hasattr(request, "address"):
                    raise
                attempt += 1
                pause = self.pause(attempt, error)
                refused = error if isinstance(error, Refused) else refused
                if connection is not self._pool.home:
                    at_home = True  # which passes on what it cannot answer
                elif isinstance(error, NotLeader | Unavailable):
                    self.doubt(attempt)
                if not again or self.home.error is not None or loop.time() + pause >= deadline:
                    if refused is None or refused is error:
                        raise
                    before = f"before that it was refused with {type(refused).__name__}: {refused}"
                    raise Disconnected(f"{error}; {before}") from error
                await asyncio.sleep(pause)
                if refused is not None and loop.time() >= deadline:
                    raise refused from None  # the pause lasted longer: nothing more can be asked
                continue
            if not isinstance(reply, kind):
                raise TypeError(f"{type(request).__name__} was answered by {reply!r}")
            return reply

    async def wall_ms(self) -> int:
        """Return what the clock of the broker says, in milliseconds since 1970."""
        return (await self.request(m.Ping(), m.Pong)).wall_ms

    def pause(self, attempt: int, error: Exception) -> float:
        """Return the seconds to wait before trying again after `error`."""
        if isinstance(error, StampTooFar):
            return error.wait_seconds
        asked = error.detail / 1_000 if isinstance(error, Overloaded) else 0.0
        delay = self.retry.delay(attempt, self.random.random())
        if self.home.is_of_several and not asked:
            delay = min(delay, ELECTED_WITHIN)
        return asked + delay

    def doubt(self, attempt: int) -> None:
        """Tell of the how-manieth refusal in a row because of no leader: the node may be cut off
        from the others, so that it never learns of one.
        """
        if attempt % _TRIES_A_NODE == 0:
            self.home.leave(Disconnected("this node knows of no leader: another may"))

    async def learn(self, addresses: Sequence[Address]) -> None:
        """Ask which nodes there are if one of these addresses names one that is not known."""
        known = self.home.welcome
        if known is None or not self._pool.lacks(addresses):
            return
        hello = m.Hello(self._dialler.name, known.system)
        await self.home.learn(await self.request(hello, m.Welcome))

    def led_by(self, address: Address, node: int) -> Address:
        """Return the address of a partition that `node` is said to lead."""
        return self._pool.led_by(address, node)

    def is_astray(self, address: Address) -> bool:
        """Whether what goes to this address is passed on, for its node is not reached itself."""
        return self._pool.is_astray(address)

    async def _toward(self, request: m.Request, timeout: float) -> Connection:
        way = self._pool.toward(request)
        if way is not None:
            loop = asyncio.get_running_loop()
            until = loop.time() + timeout
            try:
                async with asyncio.timeout(timeout):
                    await way.decided()
            except TimeoutError:
                raise Disconnected(f"no way to shard {way.shard} within {timeout:g} s") from None
            timeout = max(until - loop.time(), 0.0)
            if way.connection is not None and self.home.error is None:
                return way.connection
        return await self._at_home(request, timeout)

    async def _at_home(self, request: m.Request, timeout: float) -> Connection:
        return self._leaders.instead(request, await self.home.connected(timeout))
