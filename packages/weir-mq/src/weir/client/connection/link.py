"""A connection that comes back: one live `Connection` to whichever host answers.

`weir.client.connection.pool` has connections to other shards, of that node and of others.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from weir.client.connection.connection import (
    Connection,
    Dialler,
    OnAnswer,
    Senders,
    Silence,
    Work,
)
from weir.client.connection.pool import ConnectionPool, Leaders
from weir.client.connection.system import REAL, System
from weir.client.core.retries import Backoff, seconds
from weir.errors import (
    Disconnected,
    NotLeader,
    Overloaded,
    Refused,
    StampTooFar,
    Unavailable,
    WeirError,
)
from weir.model.ids import Address
from weir.protocol.client import messages as m

DIAL_TIMEOUT = 5.0
#: The first try is a short one, and each next one twice as long: a node's shared port leads to any
#: of its shards, so that another try may well meet one that answers.
_FIRST_DIAL_TIMEOUT = 1.0
#: Where several nodes can lead, one of them soon does: nobody waits longer for it to be asked.
_ELECTED_WITHIN = 0.25
#: Where several nodes can answer, nobody waits longer before all of them are dialled again: once
#: a majority of them is back, it would be the client that keeps its messages waiting.
_REDIALLED_WITHIN = 1.0
#: After so many refusals in a row a node is left for another, which may know more.
_TRIES_A_NODE = 8
#: A node that has not met its set is used for so long, and only if no other one is reached.
_UNMET_SECONDS = 1.0

R = TypeVar("R")


class _Unmet(Exception):
    """A node that was founded in a set and has not met it: others know more."""


@dataclass(slots=True)
class _Stream:
    """Batches of one partition that are under way, all by one connection: none overtakes."""

    connection: Connection
    count: int = 0
    #: Whether somebody waits to send by another connection.
    leaving: bool = False


class Link:
    """Dials, says hello, and dials again with backoff for as long as `retry` allows."""

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
    ) -> None:
        """Take where to dial, in order of preference; `start` begins. Pings tell of `work`.

        What the nodes there tell of others of their set is dialled behind these.
        """
        self.retry = retry
        self.request_timeout = request_timeout
        self.random = random
        #: The clocks of whoever runs this.
        self.system = system
        #: The highest stamp seen in confirms and batches (DESIGN §6 Causal).
        self.seen = 0
        self.welcome: m.Welcome | None = None
        self.error: WeirError | None = None
        #: Who sends by himself.
        self.senders = Senders()
        silence = Silence()
        self._dialler = Dialler(name, self.senders, silence, work)
        self._pool = ConnectionPool(self._dialler, self.senders)
        self._leaders = Leaders(self._pool, silence)
        self._hosts = hosts
        self._streams: dict[int, _Stream] = {}
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last_failure = ""
        #: The host that answered last.
        self._host = ""
        #: The first try of this round at which a node was passed over that has not met its set.
        self._unmet_at: int | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection just now."""
        return self._pool.home is not None

    async def start(self) -> None:
        """Return once connected. Raises `Disconnected` after `request_timeout` without."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="weir link")
        self._leaders.start()
        try:
            await self._connected(self.request_timeout)
        except BaseException:
            await self.close()
            raise

    def another(self, work: Work) -> Link:
        """Return a link to the same system, for work that must end with a connection of its own."""
        return Link(
            self._places,
            name=self._dialler.name,
            retry=self.retry,
            request_timeout=self.request_timeout,
            random=self.random,
            system=self.system,
            work=work,
        )

    async def close(self) -> None:
        """End the connection; whatever still waits gets `Disconnected`."""
        keeper, self._keeper = self._keeper, None
        closed = Disconnected("the client is closed")
        try:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
            self._end(closed)
            await self._pool.close()
            await self._leaders.close()
        except BaseException:
            # Who is cancelled ends it all the same: to the broker, a connection that stays open is
            # a consumer that works on what it was granted.
            self._end(closed)
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
    ) -> R:
        """Return the reply, which is a `kind`; `wait` seconds of it are the broker's to use.

        A lost connection or a busy broker is tried `again` until `request_timeout` is over. What
        goes by an address raises `NotLeader`: only who asks can find another. What any shard
        answers goes to the one at `near`, while a connection of its own is open to it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.request_timeout + wait
        attempt = 0
        refused: Refused | None = None
        at_home = False
        while True:
            left = max(deadline - loop.time(), 0.0)
            try:
                if at_home:
                    connection = self._leaders.instead(request, await self._connected(left))
                else:
                    connection = self._pool.near(near) or await self._toward(request, left)
            except Disconnected:
                # Why a node refused helps more than that no other one was reached after it.
                if refused is None:
                    raise
                raise refused from None
            try:
                reply = await connection.request(request, max(deadline - loop.time(), 0.0))
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
                if not again or self.error is not None or loop.time() + pause >= deadline:
                    if refused is None or refused is error:
                        raise
                    before = f"before that it was refused with {type(refused).__name__}: {refused}"
                    raise Disconnected(f"{error}; {before}") from error
                await asyncio.sleep(pause)
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
        if self._of_several and not asked:
            delay = min(delay, _ELECTED_WITHIN)
        return asked + delay

    def doubt(self, attempt: int) -> None:
        """Tell of the how-manieth refusal in a row because of no leader: the node may be cut off
        from the others, so that it never learns of one.
        """
        if attempt % _TRIES_A_NODE == 0 and self._pool.home is not None and self._of_several:
            self._pool.home.abort(Disconnected("this node knows of no leader: another may"))

    @property
    def _of_several(self) -> bool:
        # A node that has just started may know of no others yet.
        return len(self._places) > 1

    async def learn(self, addresses: Sequence[Address]) -> None:
        """Ask which nodes there are if one of these addresses names one that is not known."""
        if self.welcome is None or not self._pool.lacks(addresses):
            return
        welcome = await self.request(m.Hello(self._dialler.name, self.welcome.system), m.Welcome)
        if welcome.node == self.welcome.node:
            self.welcome = welcome
            await self._pool.welcomed(self._host, welcome)

    def led_by(self, address: Address, node: int) -> Address:
        """Return the address of a partition that `node` is said to lead."""
        return self._pool.led_by(address, node)

    def is_astray(self, address: Address) -> bool:
        """Whether what goes to this address is passed on, for its node is not reached itself."""
        return self._pool.is_astray(address)

    @property
    def _places(self) -> list[tuple[str, int]]:
        """Where any node of the set may answer."""
        told = self.welcome.nodes if self.welcome is not None else ()
        return list(dict.fromkeys([*self._hosts, *((host, port) for _, host, port in told)]))

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
            if way.connection is not None and self.error is None:
                return way.connection
        return self._leaders.instead(request, await self._connected(timeout))

    async def _connected(self, timeout: float) -> Connection:
        if self._pool.home is None and self.error is None:
            try:
                async with asyncio.timeout(timeout):
                    # One that came may be gone again before this has its turn.
                    while self._pool.home is None and self.error is None:
                        await self._up.wait()
            except TimeoutError:
                raise _unreached(self._places, timeout, self._last_failure) from None
        if self.error is not None:
            raise self.error
        assert self._pool.home is not None
        return self._pool.home

    async def _keep(self) -> None:
        attempt = turn = 0
        while True:
            places = self._places
            host, port = places[turn % len(places)]
            turn += 1
            if self._unmet_at is not None and turn - self._unmet_at >= len(places):
                self._unmet_at = None
                passes_over = False
            else:
                passes_over = len(places) > 1
            try:
                rounds = attempt // len(places)
                timeout = min(_FIRST_DIAL_TIMEOUT * 2 ** min(rounds, 8), DIAL_TIMEOUT)
                connection = await self._dial(host, port, timeout, passes_over)
            except _Unmet as error:
                self._last_failure = str(error)
                self._unmet_at = turn if self._unmet_at is None else self._unmet_at
            except Refused as error:
                if not error.retryable:
                    self._end(error)
                    return
                self._last_failure = str(error)
            except (OSError, WeirError, TimeoutError) as error:
                self._last_failure = why_unreachable(host, port, error)
            else:
                self._unmet_at = None
                began = asyncio.get_running_loop().time()
                await self._use(connection)
                # One that ends at once counts as failed: else a broker that drops everybody
                # would be dialled by everybody without a pause.
                if asyncio.get_running_loop().time() - began >= seconds(self.retry.most):
                    attempt = 0
            attempt += 1
            if self.retry.spent(attempt):
                last = _unreached(self._places, 0, self._last_failure)
                self._end(Disconnected(f"given up after {attempt - 1} attempts; {last}"))
                return
            await asyncio.sleep(
                redial_pause(self.retry, attempt, len(self._places), self.random.random())
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
            if len(self._places) > 1:
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
        await self._pool.use(connection)
        self._up.clear()
        if self.welcome is not None and self._of_several:
            self._pool.lost(self.welcome.node)

    def _end(self, error: WeirError) -> None:
        if self.error is None:
            self.error = error
            self._up.set()
            self.senders.end(error)


def redial_pause(retry: Backoff, attempt: int, places: int, dice: float) -> float:
    """Return the seconds to wait before a failed attempt is followed by the next one, which goes to
    the next of so many places; `dice` is uniform in [0, 1). Waits grow from one round of all places
    to the next.
    """
    if places < 2:
        return retry.delay(attempt, dice)
    delay = retry.delay((attempt - 1) // places + 1, dice)
    return min(delay, _ELECTED_WITHIN if attempt % places else _REDIALLED_WITHIN)


def _unreached(places: Sequence[tuple[str, int]], timeout: float, why: object) -> Disconnected:
    shown = ", ".join(f"{host}:{port}" for host, port in places)
    return Disconnected(
        f"no connection to {shown} within {timeout:.3g} s ({why or 'no answer'}): check that a "
        "broker runs there (`weir serve`), its host and port, and the firewall"
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
