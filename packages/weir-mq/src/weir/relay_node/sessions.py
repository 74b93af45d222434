"""Sessions of a relay's clients: each logs in to the core, over a connection that the relay makes
for it.

A relay keeps no users, rules or secrets. It passes the steps of a login on to the core, so a
password never reaches it, and asks by that client's own session whether it may read a topic: roles,
limits of tokens and revocations are the core's. What the core said counts for `RECHECK_SECONDS`; a
core that is away, for as long as a shard without news keeps its sessions. The session in the core
is kept as long as the client is here: when the core ends it, the client is let go.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import structs

from weir.access.scram import check_channel
from weir.client.connection.connection import Connection, Senders
from weir.errors import (
    BadRequest,
    Disconnected,
    NotAuthenticated,
    NotLeader,
    Overloaded,
    Refused,
    RemoteProtocolError,
    Unavailable,
    WeirError,
)
from weir.model.ids import Address, topic_of
from weir.model.limits import ACK_RANGES_MAX, CUTOFF_SECONDS_DEFAULT
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.tokens import RenewToken
from weir.protocol.client.topology import DescribeTopology, TopologyState
from weir.relay.messages import UNKNOWN, AskFilter, Pull, SayHold, encode_message
from weir.tls.dialling import dialler_of, files_of
from weir.tls.peers import check_broker

if TYPE_CHECKING:
    from weir.relay_node.host import RelayConfig

R = TypeVar("R", bound=m.Reply)

#: A right is asked for again after so many seconds.
RECHECK_SECONDS = 5.0
#: Without the core, what it said last counts for so many seconds.
CUTOFF_SECONDS = float(CUTOFF_SECONDS_DEFAULT)
#: A core that does not answer so long after a session in it is lost is away. It is looked as often
#: whether it is back.
GRACE_SECONDS = 1.0
_TIMEOUT = 3.0
#: What the core hands out is awaited longer, in seconds, for quotas may hold it back there; then
#: the session ends, and what it holds goes to others. A client waits 30 s by default.
GRANT_SECONDS = 25.0
#: A login takes two steps, and one more without a ticket that is not good any more.
_STEPS_MAX = 4
#: So many answers of the core are remembered for a client.
_RIGHTS_MAX = 4_096
#: So many clusters of a client are remembered, of those that it was granted messages in last.
BEGUN_CLUSTERS_MAX = 64
#: Of so many partitions it is told at once. The client's next pulls tell of the others.
BEGUN_PARTITIONS_MAX = 256


class Channel(Protocol):
    """The connection that a client came by."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it is by TLS."""

    @property
    def is_loopback(self) -> bool:
        """Whether it leaves no machine."""


class Core(Protocol):
    """What knows whether the core is away."""

    @property
    def is_reached(self) -> bool:
        """Whether there is a connection to it."""

    async def answers(self, within: float) -> bool:
        """Return whether it answers the relay itself within so many seconds."""


class BegunReports:
    """Tells the leaders in the core what the consumers of one client work on.

    A client reports it by pings to the node that it is connected to. The shard that receives a ping
    answers it, and a relay's one connection for a client ends at any shard of the core. So the
    relay reports each partition's part as a pull of no message, which the core forwards to the
    leader (docs/adr/0064). A message that ends its consumer thus counts as tried, whichever node
    leads the partition.
    """

    def __init__(self) -> None:
        """Nothing was granted yet."""
        #: By topic and cluster, the last pull that was granted messages: it has mode and tags,
        #: without which the core takes no pull.
        self._pulls: dict[tuple[int, str], m.Pull] = {}
        #: The connection by which reports are under way, and how many.
        self._upstream: Connection | None = None
        self._under_way = 0

    def granted(self, pull: m.Pull) -> None:
        """Take note of a pull that was granted messages."""
        key = topic_of(pull.address.group), pull.cluster
        self._pulls.pop(key, None)
        # It is of offsets only still, as one of a consumer behind a relay.
        self._pulls[key] = structs.replace(pull, max_messages=0, max_bytes=0, wait_ms=0, begun=None)
        if len(self._pulls) > BEGUN_CLUSTERS_MAX:
            del self._pulls[next(iter(self._pulls))]

    def tell(self, ping: m.Ping, upstream: Connection) -> None:
        """Pass on what a ping tells. While the last one is under way nothing is, nor is anything
        kept for a core that takes nothing: the next ping says it again. Raises `BadRequest` for
        more runs than the core takes.
        """
        if sum(len(runs) for _, _, runs in ping.begun) > ACK_RANGES_MAX:
            raise BadRequest(f"a ping tells of {ACK_RANGES_MAX:,} runs of messages at most")
        if upstream is self._upstream and self._under_way:
            return
        self._upstream, self._under_way = upstream, 0

        def told(_: int, __: m.Reply | Disconnected) -> None:
            # What was refused, as nobody holds it any more, concerns nobody.
            if upstream is self._upstream:
                self._under_way -= 1

        for address, cluster, runs in ping.begun:
            pull = self._pulls.get((topic_of(address.group), cluster))
            if pull is None or not runs:
                continue
            if self._under_way == BEGUN_PARTITIONS_MAX:
                return
            report = structs.replace(pull, address=Address(0, 0, address.group), begun=runs)
            if upstream.offer(report, told) is None:
                return
            self._under_way += 1


class ReaderSession:
    """The session of one client."""

    def __init__(self, config: RelayConfig, system: int, core: Core, channel: Channel) -> None:
        """Begin without logins. A relay that pulls as a user serves only users."""
        self._config = config
        self._system = system
        self._core = core
        self._channel = channel
        self._upstream: Connection | None = None
        self._begun = BegunReports()
        #: Held while the core is dialled: the steps of a login go by one connection.
        self._dialling = asyncio.Lock()
        self._steps = 0
        #: The user, once it has logged in.
        self.user = ""
        #: By which connection a consumer was first granted what it may take along to another one.
        self._keeping: Connection | None = None
        self._keeps = asyncio.Event()
        #: By topic, or by pull and principal: when the core last allowed it, by the clock of the
        #: loop.
        self._allowed: dict[tuple[int | bytes, ...], float] = {}

    # -- logins ------------------------------------------------------------------------------

    async def log_in(self, step: Login) -> LoginStep:
        """Pass on a step of a login. Raises what the core refuses, and `Unavailable` while it is
        away: then nobody is let in.
        """
        channel = self._channel
        check_channel(is_encrypted=channel.is_encrypted, is_loopback=channel.is_loopback)
        if not self.user:
            self._steps += 1
            if self._steps > _STEPS_MAX:
                raise NotAuthenticated("a login has two steps: connect again")
        async with self._dialling:
            if self._upstream is None:
                self._upstream = await self._dial()
        reply = await self._ask(step)
        if not isinstance(reply, LoginStep):
            raise RemoteProtocolError("the core answered a login with something else")
        if not reply.done:
            return reply
        if self.user:  # by a newer token
            if reply.user != self.user:
                raise NotAuthenticated(f"this connection is of {self.user}, not of {reply.user}")
            return reply
        await self._greet(self._upstream)
        self.user = reply.user
        return reply

    async def renew(self, request: RenewToken) -> m.Reply:
        """Pass on a newer token for other connections of the user."""
        self.check_greeted()
        return await self._ask(request)

    def check_greeted(self) -> None:
        """Raise `NotAuthenticated` for a client that has to log in first."""
        if self._config.is_private and not self.user:
            raise NotAuthenticated(
                "this relay serves users of its core alone: log in, as by weirs://USER@RELAY with "
                "a password or a token"
            )

    # -- rights ------------------------------------------------------------------------------

    async def check(self, topic: int) -> None:
        """Return if the client may read a topic. Raises what the core refuses it with, and
        `Unavailable` where that cannot be known.
        """
        # Any node answers this, and at once; it needs the rights of a fetch. A waiting request
        # counts as a use in an open set, too: when the set is closed, the sessions of users that
        # may not read end.
        await self._check((topic,), m.AskBarriers(topic, stamp=1, wait_ms=1))

    async def check_relay(self, asked: Pull | AskFilter | SayHold) -> None:
        """Return if the client may ask that as a relay: the core looks whether it may pull for the
        set that it names, and for these tags. Raises what `check` does.
        """
        # This changes nothing in the core. A relay without a log does not name its tags yet.
        begins = isinstance(asked, Pull) and asked.offset == UNKNOWN
        tags = () if isinstance(asked, SayHold) or begins else asked.tags
        of = asked.brokerset, asked.node, asked.topic
        question = AskFilter(asked.system, *of, asked.partition, 0, tags)
        payload = b"".join(encode_message(question))
        # What may be pulled of one partition may be of all of its topic; tags may be many.
        right = *of, sha256(repr(tags).encode()).digest()
        await self._check(right, m.AskRelay(Address(0, 0, asked.group), payload))

    async def check_operator(self) -> None:
        """Return if the client may list what the system has. Raises what `check` does."""
        await self._check((), DescribeTopology())

    async def _check(
        self,
        right: tuple[int | bytes, ...],
        question: m.AskBarriers | m.AskRelay | DescribeTopology,
    ) -> None:  # fmt: skip
        """Ask the core a question that it answers to clients that have a right, unless that is
        known.
        """
        self.check_greeted()
        if not self._config.is_private:
            return
        now = asyncio.get_running_loop().time()
        said = self._allowed.get(right)
        if said is not None and now - said < RECHECK_SECONDS:
            return
        try:
            reply = await self._ask(question)
        except (NotLeader, Overloaded, Unavailable):
            if said is None or now - said > CUTOFF_SECONDS:
                self._allowed.pop(right, None)
                raise
            return
        except WeirError:
            self._allowed.pop(right, None)
            raise
        if not isinstance(reply, m.Barriers | m.RelayTold | TopologyState):
            raise RemoteProtocolError("the core answered a question for a right otherwise")
        if len(self._allowed) >= _RIGHTS_MAX:
            self._allowed.clear()
        self._allowed[right] = now

    async def ask_core(self, request: m.Request, reply: type[R], wait: float) -> R:
        """Return what the core answers to this client. Raises its refusal, and `Unavailable`."""
        if not self._config.is_private:
            await self._connect()
        upstream = self._upstream
        found = await self._ask(request, wait)
        if not isinstance(found, reply):
            raise RemoteProtocolError(f"the core answered no {reply.__name__}")
        if isinstance(request, m.Pull) and isinstance(found, m.Granted) and found.fence:
            self._begun.granted(request)
            if request.token and self._keeping is None:
                self._keeping = upstream
                self._keeps.set()
        return found

    def release(self) -> None:
        """End the session in the core: what it holds goes to others, and the next request of a
        client without a login begins another one. One that logged in, or may keep its grants, is
        let go: see `ended`.
        """
        if self._upstream is not None:
            self._upstream.abort()

    def tell_begun(self, ping: m.Ping) -> None:
        """Pass on what a consumer works on to the leaders of its partitions: it counts as tried, if
        the consumer is lost. Raises `BadRequest` for more runs than the core takes.
        """
        if self._upstream is not None:
            self._begun.tell(ping, self._upstream)

    async def listed(self, namespace: str, after: str) -> tuple[set[str], str]:
        """Return full names of topics that the core tells this client of, behind `after`, and up
        to which name that was; "" for all.
        """
        self.check_greeted()
        page = await self._ask(m.ListTopics(namespace, after))
        if not isinstance(page, m.TopicList):
            raise RemoteProtocolError("the core answered a question for topics otherwise")
        names = {topic.full_name for topic in page.topics}
        last = page.topics[-1].full_name if page.more and page.topics else ""
        return names, last

    # -- its end -----------------------------------------------------------------------------

    async def ended(self) -> None:
        """Return once the client is to be let go: the core has ended its session, or has been away
        for too long. One without a login is let go if its session held grants that it may keep, for
        it moves them when it comes back (docs/adr/0171); the core is back by then.
        """
        if not self._config.is_private:
            await self._lost()
            return
        upstream = self._upstream
        if upstream is None:
            await asyncio.get_running_loop().create_future()
            return
        await upstream.over.wait()
        # A revoked user must be disconnected at once, and the core says so only by hanging up.
        if await self._core.answers(GRACE_SECONDS):
            return
        left = CUTOFF_SECONDS
        while True:
            await asyncio.sleep(GRACE_SECONDS)
            left -= GRACE_SECONDS
            if self._core.is_reached or left <= 0:
                return

    async def _lost(self) -> None:
        await self._keeps.wait()
        assert self._keeping is not None  # it was granted something
        await self._keeping.over.wait()
        while not await self._core.answers(GRACE_SECONDS):
            await asyncio.sleep(GRACE_SECONDS)

    def close(self) -> None:
        """The client is gone."""
        self.release()

    # -- the core ----------------------------------------------------------------------------

    async def _ask(self, request: m.Request, wait: float = 0.0) -> m.Reply:
        upstream = self._upstream
        if upstream is None:
            raise Unavailable("there is no session in the core: connect again")
        hands_out = _hands_out(request)
        try:
            return await upstream.request(
                request, (GRANT_SECONDS if hands_out else _TIMEOUT) + wait
            )
        except Disconnected:
            if hands_out:  # or the session would hold what nobody knows of
                upstream.abort()
            raise Unavailable(
                f"the core at {self._config.core} does not answer: try again shortly"
            ) from None
        except Refused as error:
            # As the core does. A newer token that is refused changes nothing there.
            if isinstance(request, Login) and not self.user and isinstance(error, NotAuthenticated):
                self.close()
            raise error

    async def _connect(self) -> None:
        """Have a connection to the core for a client that logs in nowhere. Raises `Unavailable`."""
        if self._upstream is not None and not self._upstream.over.is_set():
            return
        async with self._dialling:
            if self._upstream is None or self._upstream.over.is_set():
                found = await self._dial()
                try:
                    await self._greet(found)
                except BaseException:
                    found.abort()
                    raise
                self._upstream = found

    async def _greet(self, upstream: Connection) -> None:
        try:
            welcome = await upstream.request(m.Hello("weir-relay-reader", self._system), _TIMEOUT)
        except Disconnected:
            raise Unavailable(
                f"the core at {self._config.core} does not answer: try again shortly"
            ) from None
        if not isinstance(welcome, m.Welcome):
            raise RemoteProtocolError("the core answered hello with something else")
        check_broker(upstream.peer, welcome.system, welcome.node, "the core")
        upstream.greeted(welcome)

    async def _dial(self) -> Connection:
        tls = files_of(self._config.hosts)
        why: Exception | None = None
        for host, port in self._config.hosts:
            try:
                if tls is not None:
                    return await dialler_of(tls).connect(_make, host, port, _TIMEOUT)
                async with asyncio.timeout(_TIMEOUT):
                    loop = asyncio.get_running_loop()
                    _, found = await loop.create_connection(_make, str(host), port)
                    return found
            except (OSError, TimeoutError, WeirError) as error:
                why = error
        raise Unavailable(
            f"the core at {self._config.core} cannot be reached ({why}), and no user can log in "
            "without it: try again shortly"
        )


def _hands_out(request: m.Request) -> bool:
    """Whether the core may let a session hold something by its answer."""
    return isinstance(request, m.TakeTurn) or (
        isinstance(request, m.Pull) and request.max_messages > 0
    )


def _make() -> Connection:
    return Connection(Senders())


def refused_dialect(request: m.Request) -> BadRequest:
    """Return what is said to a request whose rights nobody can check here."""
    return BadRequest(f"this relay answers no {type(request).__name__}: ask its core")
