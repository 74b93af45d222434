"""A blocking client over a plain socket, for worker processes that run no event loop; and one
connection to the broker a process, kept from task to task, and made again when it breaks.

Spark forks its Python workers and uses each for many tasks, and module globals live on between
them: a connection made by one task serves the next. The process id is part of the key, because a
forked child that used its parent's socket would take the parent's answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar, cast

import numpy as np

from weir.client.connection.credentials import AnyCredentials, StaleTicket
from weir.client.connection.system import SYSTEM, is_private
from weir.client.core.retries import Backoff
from weir.codec import Buffer
from weir.errors import (
    BadBatch,
    Disconnected,
    NotAuthenticated,
    Refused,
    RemoteProtocolError,
    Unavailable,
    UnknownOpcode,
    UnknownTopic,
    WeirError,
    WrongSystem,
    refusal,
)
from weir.model.ids import PARTITIONS_MAX, Address, group_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import client_frame_size, decode_reply, encode_request
from weir.protocol.frame import CLIENT_HEADER, ClientFrame, Flags
from weir.spark.login import Hosts, alike, credentials_of, forget_credentials
from weir.tls.dialling import like, peer_of_socket
from weir.tls.peers import check_broker

#: How many seconds pass before it is asked again which partitions a topic has.
_LOOK_AGAIN = 0.05
#: How long a question is asked again while a broker restarts or a leader moves.
ANSWER_TIMEOUT = 30.0
#: How long one call may take before the broker counts as gone.
CALL_TIMEOUT = 10.0
#: After so many refusals a host is left for another: it may be cut off from those that lead.
_TRIES_A_HOST = 8

#: How long one host is dialled before it counts as away.
DIAL_TIMEOUT = 5.0
#: For so long a name without an address is tried again, unless it had one before: a name that is
#: misspelt is not found later either. The last look-up may take four seconds more.
NAME_TIMEOUT = 1.0

T = TypeVar("T")

#: The system of hosts that a broker has told of.
_systems: dict[Hosts, int] = {}
#: By hosts and process, those that were reached, the soonest first.
_nearest: dict[tuple[Hosts, int], Hosts] = {}
_kept: dict[tuple[Hosts, int], BlockingClient] = {}
#: Hosts of which one has been connected to.
_met: set[Hosts] = set()
_backoff = Backoff(first=0.05, most=1.0)


@dataclass(slots=True)
class _Begun:
    """A request that was sent ahead, and its reply if that has come."""

    request: m.Request
    number: int
    reply: m.Reply | None = None


class _UnknownHost(Disconnected):
    """The name of a host has no address."""


class BlockingClient:
    """One connection, one request at a time. After any `WeirError` but a refusal it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float = 30.0,
        name: str = "blocking",
        system: int = 0,
        credentials: AnyCredentials | None = None,
    ) -> None:
        """Connect, log in and say hello; `timeout` in seconds bounds every call. Raises
        `Disconnected`, also if the broker is not of a `system` that is given; `NotAuthenticated`.
        """
        self._timeout = timeout
        self._last = 0
        self._host = host
        self._place = f"{host}:{port}"
        parts = SYSTEM.get()
        self._monotonic = parts.monotonic
        self._sleep = parts.sleep
        #: What was sent ahead, and the numbers of what was and is not asked for any more.
        self._begun: _Begun | None = None
        self._dropped: set[int] = set()
        #: Whether the broker resolves cuts; one of the release before says that it does not.
        self._resolves = True
        hello = m.Hello(name, system)
        try:
            self.welcome = self._open(host, port, hello, credentials)
        except StaleTicket:
            self.welcome = self._open(host, port, hello, credentials)

    def _open(
        self, host: str, port: int, hello: m.Hello, credentials: AnyCredentials | None
    ) -> m.Welcome:
        try:
            self._socket = SYSTEM.get().dial(host, port, min(self._timeout, DIAL_TIMEOUT))
        except socket.gaierror as error:
            raise _UnknownHost(
                f"{host} has no address ({error.strerror}): check the option url, and that this "
                "machine can resolve the name"
            ) from error
        except OSError as error:
            raise Disconnected(
                f"no connection to {self._place} ({error}): check that a broker runs there"
            ) from error
        try:
            if credentials is not None:
                credentials.log_in_blocking(self.request, is_private(self._socket))
            welcome = self._greet(hello)
            if not isinstance(welcome, m.Welcome) or welcome.protocol != m.PROTOCOL:
                raise RemoteProtocolError(f"{self._place} speaks another protocol: upgrade it")
            if not welcome.met:
                raise Disconnected(
                    f"{self._place} is not connected to its set yet: try another node"
                )
            check_broker(peer_of_socket(self._socket), welcome.system, welcome.node, self._place)
        except BaseException:
            self.close()
            raise
        return welcome

    def place_of(self, address: Address) -> tuple[str, int] | None:
        """Return where the shard that leads a partition is to be reached by itself, as far as the
        broker has told; None if that is here, or not known.
        """
        welcome = self.welcome
        if address.node not in (0, welcome.node):
            nodes = {n: (like(host, self._host), port) for n, host, port in welcome.nodes}
            return nodes.get(address.node)
        if address.shard == welcome.shard or address.shard >= len(welcome.ports):
            return None
        return self._host, welcome.ports[address.shard]

    def _greet(self, hello: m.Hello) -> m.Reply:
        try:
            return self.request(hello)
        except WrongSystem as error:  # as behind a tunnel, where a port leads somewhere else
            raise Disconnected(f"{self._place} is another system: {error}") from error

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def request(self, request: m.Request, wait: float = 0.0) -> m.Reply:
        """Return the reply; `wait` seconds of it are the broker's to use. Raises refusals."""
        return self.requests([request], wait)[0]

    def begin(self, request: m.Request) -> None:
        """Send a request ahead: the same one, asked next, has its reply, which comes meanwhile. One
        is under way at a time; what nobody asks for is dropped. Raises `OSError`.
        """
        if self._begun is not None and self._begun.reply is None:
            self._dropped.add(self._begun.number)
        self._last += 1
        self._socket.settimeout(self._timeout)
        self._socket.sendall(b"".join(encode_request(request, self._last)))
        self._begun = _Begun(request, self._last)

    def requests(self, requests: Sequence[m.Request], wait: float = 0.0) -> list[m.Reply]:
        """Send all at once and return the replies in the order of the requests.

        Raises the first refusal among them, when all are answered.
        """
        begun, first = self._begun, self._last + 1
        replies: dict[int, m.Reply] = {}
        if begun is not None and [begun.request] == [*requests]:
            first, self._begun = begun.number, None
            if begun.reply is not None:
                replies[first] = begun.reply
        numbers = range(first, first + len(requests))
        try:
            self._socket.settimeout(self._timeout + wait)
            if first > self._last:
                self._last += len(requests)
                for number, request in zip(numbers, requests, strict=True):
                    self._socket.sendall(b"".join(encode_request(request, number)))
            self._collect(numbers, replies, self._monotonic() + self._timeout + wait)
        except OSError as error:  # TimeoutError is one
            self.close()
            raise Disconnected(
                f"no answer from {self._place} ({error or 'closed'}); "
                "it may or may not have happened"
            ) from error
        except (Disconnected, RemoteProtocolError):
            self.close()
            raise
        ordered = [replies[number] for number in numbers]
        for reply in ordered:
            if isinstance(reply, m.Refusal):
                raise refusal(reply.code, reply.message, reply.detail)
        return ordered

    def describe(self, topic: str) -> m.TopicInfo:
        """Return a topic and where its partitions are served. Raises `UnknownTopic`."""
        reply = self.request(m.DescribeTopic(topic))
        assert isinstance(reply, m.TopicInfo)  # decoded by the opcode of the request
        return reply

    def positions(self, topic: str, stamp: int = 0) -> tuple[m.TopicInfo, list[m.PositionsReply]]:
        """Return a topic and where each of its partitions begins and ends.

        See `weir.protocol.client.messages.PositionsReply` for what `stamp` does.
        """
        info = self.describe(topic)
        replies = self.requests([m.Positions(address, stamp) for address in info.addresses])
        assert all(isinstance(reply, m.PositionsReply) for reply in replies)
        return info, cast(list[m.PositionsReply], replies)

    def await_partitions(self, topic: str, info: m.TopicInfo, count: int) -> m.TopicInfo:
        """Return a topic as the node tells of it once that has heard of `count` partitions, or is
        sure that there are fewer. Raises `Unavailable` if it takes too long.
        """
        if not len(info.addresses) < count <= PARTITIONS_MAX:
            return info
        until = self._monotonic() + self._timeout
        try:
            # Refused only by a node whose registry is up to date.
            self.request(a.AskLeader(Address(0, 0, group_of(info.id, count - 1))))
        except UnknownTopic:
            return self.describe(topic)
        while True:
            found = self.describe(topic)
            if len(found.addresses) >= count or found.id != info.id:
                return found
            if self._monotonic() >= until:
                raise Unavailable(f"{topic} has {count} partitions, and this node does not say so")
            self._sleep(_LOOK_AGAIN)

    def barriers(self, topic: int, stamp: int, wait_ms: int) -> m.Barriers:
        """Return how far the one order of a topic's partitions is complete, once that is `stamp`,
        or after `wait_ms`.
        """
        reply = self.request(m.AskBarriers(topic, stamp, wait_ms), wait_ms / 1_000)
        assert isinstance(reply, m.Barriers)  # decoded by the opcode of the request
        return reply

    def resolve_cut(self, request: m.ResolveCut) -> m.ResolvedCut | None:
        """Return a cut through topics, within what the request waits and some time; None if the
        broker is of a release that does not resolve them. Raises `UnknownTopic`.
        """
        if not self._resolves:
            return None
        try:
            reply = self.request(request, request.wait_ms / 1_000)
        except UnknownOpcode:
            self._resolves = False
            return None
        assert isinstance(reply, m.ResolvedCut)  # decoded by the opcode of the request
        return reply

    def fetch(
        self,
        address: Address,
        offset: int,
        max_bytes: int,
        wait_ms: int = 0,
        replica: bool = False,
        tags: tuple[str, ...] = (),
        lineage: int = -1,
    ) -> m.Fetched:
        """Return whole batches from `offset` on, in one buffer whose batches are 8-aligned; with
        `tags`, what `Fetched.is_filtered` says.

        Check each one: `Batch(view).check(address.group)`.
        """
        request = m.Fetch(address, offset, max_bytes, wait_ms, replica, True, tags, lineage)
        reply = self.request(request, wait_ms / 1_000)
        assert isinstance(reply, m.Fetched)  # decoded by the opcode of the request
        return reply

    def _collect(self, numbers: range, replies: dict[int, m.Reply], deadline: float) -> None:
        """Receive until all these are answered; keep, or drop, the reply to what was begun."""
        while len(replies) < len(numbers):
            number, reply = self._reply(deadline)
            if self._begun is not None and number == self._begun.number:
                self._begun.reply = reply
            elif number in self._dropped:
                self._dropped.remove(number)
            elif number in replies or number not in numbers:
                raise RemoteProtocolError(f"{self._place} answered another request")
            else:
                replies[number] = reply

    def _reply(self, deadline: float) -> tuple[int, m.Reply]:
        frame = self._frame(deadline)
        if not frame.flags & Flags.RESPONSE:
            raise RemoteProtocolError(f"{self._place} sent a request, which a broker never does")
        return frame.correlation, decode_reply(frame)

    def _frame(self, deadline: float) -> ClientFrame:
        header = memoryview(self._exactly(CLIENT_HEADER.size, deadline))
        _, flags, opcode, length, correlation = CLIENT_HEADER.unpack(header)
        client_frame_size(header, 0)  # refuses a size over the limit before it is allocated
        # A body of its own begins 8-aligned, and so do batches behind the 40 bytes of a fetch.
        body = memoryview(self._exactly(length, deadline))
        return ClientFrame(flags, opcode, correlation, body)

    def _exactly(self, size: int, deadline: float) -> Buffer:
        found = memory_of(size)
        view = memoryview(found)
        while len(view):
            self._socket.settimeout(max(deadline - self._monotonic(), 0.001))
            count = self._socket.recv_into(view)
            if count == 0:
                raise Disconnected(f"{self._place} closed the connection")
            view = view[count:]
        return found


def ask(
    hosts: Hosts, question: Callable[[BlockingClient], T], timeout: float = ANSWER_TIMEOUT
) -> T:
    """Return what `question` returns over the kept connection; ask again if that may help.

    A lost connection, a busy or moving broker and bytes that changed on the way are tried again for
    `timeout` seconds, hosts in turn; but for `NAME_TIMEOUT` if no host has, or had, an address.
    Every other error is raised at once.
    """
    system = SYSTEM.get()
    began = system.monotonic()
    attempt = unknown = 0
    while True:
        try:
            return question(_connection(hosts, attempt))
        except WeirError as error:
            if not _passes(error):
                raise
            attempt += 1
            unknown += isinstance(error, _UnknownHost)
            nowhere = unknown == attempt >= len(hosts) and hosts not in _met
            limit = min(timeout, NAME_TIMEOUT) if nowhere else timeout
            if not isinstance(error, Refused) or not attempt % _TRIES_A_HOST:
                forget(hosts)
            pause = _backoff.delay(attempt, system.dice().random())
            if system.monotonic() + pause >= began + limit:
                error.add_note(
                    f"tried for {limit:g} s: check that the broker is up, then start the query "
                    "again; it continues from its checkpoint"
                )
                raise
        system.sleep(pause)


def begin(hosts: Hosts, request: m.Request) -> None:
    """Send a request ahead over the kept connection, if there is one: see `BlockingClient.begin`.
    The caller that sends it next gets its answer or error.
    """
    client = _kept.get((hosts, SYSTEM.get().process()))
    if client is not None:
        with suppress(OSError):
            client.begin(request)


def toward(hosts: Hosts, address: Address) -> Hosts:
    """Return where to dial for what is asked of a partition: its leader first, as far as one of the
    hosts knows it, then these.
    """
    return ask(hosts, lambda client: led_first(client, hosts, address))


def led_first(client: BlockingClient, hosts: Hosts, address: Address) -> Hosts:
    """Return the same by what one connection tells."""
    leader = client.place_of(address)
    if leader is None:
        return hosts
    found = alike([leader, *(one for one in hosts if one != leader)], hosts)
    _systems[found] = client.welcome.system
    return found


def nearest(hosts: Hosts) -> Hosts:
    """Return where to dial for what any node can answer: the one first that this process connected
    to soonest, when that was tried.
    """
    system = SYSTEM.get()
    key = hosts, system.process()
    if key not in _nearest:
        known = _nodes_of(hosts)
        took = {}
        for host, port in known:
            began = system.monotonic()
            with suppress(OSError):
                system.dial(host, port, DIAL_TIMEOUT).close()
                took[host, port] = system.monotonic() - began
        found = alike(sorted(took, key=lambda place: took[place]), hosts) or hosts
        _systems[found] = ask(hosts, lambda client: client.welcome.system)
        _nearest[key] = found
    return _nearest[key]


def _nodes_of(hosts: Hosts) -> Hosts:
    """Return the hosts, and the nodes that one of them tells of."""
    told = ask(hosts, lambda client: client.welcome.nodes)
    nodes = [(like(host, hosts[0][0]), port) for _, host, port in told]
    return tuple(dict.fromkeys([*nodes, *hosts]))


def forget(hosts: Hosts) -> None:
    """Close this process's connection, if there is one; the next question makes another."""
    client = _kept.pop((hosts, SYSTEM.get().process()), None)
    if client is not None:
        client.close()


def forget_all() -> None:
    """Close all connections of this process, and forget which sets it has met."""
    here = SYSTEM.get().process()
    _systems.clear()
    _met.clear()
    for hosts, process in list(_kept):
        if process == here:
            forget(hosts)
    for key in [key for key in _nearest if key[1] == here]:
        del _nearest[key]


def _connection(hosts: Hosts, attempt: int) -> BlockingClient:
    process = SYSTEM.get().process()
    key = (hosts, process)
    client = _kept.get(key)
    if client is None:
        host, port = hosts[attempt % len(hosts)]
        name = f"spark-{process}"
        system = _systems.get(hosts, 0)
        try:
            client = BlockingClient(host, port, CALL_TIMEOUT, name, system, credentials_of(hosts))
        except NotAuthenticated:
            forget_credentials(hosts)  # a retry may find another password
            raise
        _kept[key] = client
        _met.add(hosts)
    return client


def _passes(error: WeirError) -> bool:
    """Tell whether the same question may be answered if it is asked again."""
    if isinstance(error, Refused):
        return error.retryable
    return isinstance(error, Disconnected | RemoteProtocolError | BadBatch)


def memory_of(size: int) -> memoryview:
    """Return memory, 8-aligned, that nobody has filled with zeros: what is received overwrites it
    all.
    """
    return np.empty(size, np.uint8).data
