"""Hosts the partitions of a relay on asyncio: connections to the core, the disk, and time.

The event loop owns everything; flushes, reads, checkpoints and new files run in threads. Pulls go
by the client of a reader, which finds leaders, dials again with backoff, and never ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from weir.client.connection.credentials import AnyCredentials
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.errors import (
    AccessRevoked,
    DiskFailed,
    NotAuthenticated,
    Refused,
    RemoteProtocolError,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import NODE_MAX, partition_of, topic_of
from weir.model.limits import RELAY_TOPICS_MAX, RELAY_UNSYNCED_BYTES_MAX
from weir.model.topic import RESERVED_NAMESPACE
from weir.protocol.client import messages as m
from weir.protocol.client import topology as t
from weir.relay import messages as r
from weir.relay.lower import Me
from weir.relay.ports import Event, RefusalCame, SendToUpper, UpperNode
from weir.relay.rows import Tags, pack_tags
from weir.relay_node.disk import RelayDisk
from weir.relay_node.folder import BadRelayFolder, Founded, RelayFolder
from weir.relay_node.partitions import Held, Outcome, RelayPartitions
from weir.relay_node.tiers import Tiers
from weir.relay_node.uppers import (
    PULL_WAIT,
    REFUSED_MS,
    REQUEST_TIMEOUT,
    RETRY,
    RETRY_MS,
    Asked,
    Hosts,
    UpperRelays,
    event_of,
)
from weir.tls.dialling import SecureHost, files_of
from weir.tls.files import ServerFiles

log = logging.getLogger(__name__)

R = TypeVar("R", bound=m.Reply)

_HELD_UP_MS = 20
_TICK = 0.25
#: A full disk holds up a stop for so many seconds.
_STOP_WITHIN = 10.0
#: The core is one upper node to a relay: the client finds the leader of a partition there.
CORE = UpperNode(0, 1, True)
_LOOK_EVERY = 2.0
#: At the wish of clients that know of more, so often at most.
_LOOK_ANEW_EVERY = 0.25
#: Of so many topics that may not be read it is asked at once whether they may be.
_RIGHTS_AT_ONCE = 8
#: What the core's access refuses with: nobody is served until it lets this relay in, or read.
#: Numbers from here on are drawn for relays that no topology names.
_DRAWN_FROM = NODE_MAX // 2
#: So many seconds after the core was not reached by a new relay it is tried again.
_AGAIN = 1.0
_BARRED = (NotAuthenticated, Unauthorized, AccessRevoked)


class RelayConfig(msgspec.Struct, frozen=True):
    """What a relay is told: the core's hosts, which set and node it is, which topics (none: all)
    and tags (None: all messages) it keeps, and the relays that it pulls from while they can serve
    it, the preferred one first.
    """

    hosts: list[tuple[str, int]]
    brokerset: int = 0
    #: 0: drawn when the relay reaches the core for the first time.
    node: int = 0
    topics: frozenset[str] = frozenset()
    tags: Tags = None
    uppers: tuple[Hosts, ...] = ()
    #: Where its pages are served; None: nowhere.
    metrics: tuple[str, int] | None = None
    #: Its user in the core; None: none, unless the hosts name a certificate.
    credentials: AnyCredentials | None = None
    #: What it serves TLS with; None: it serves without.
    tls: ServerFiles | None = None

    @property
    def is_private(self) -> bool:
        """Whether it holds what a user may read, and not what anybody may."""
        files = files_of(self.hosts)
        return self.credentials is not None or bool(files and files.certificate)

    @property
    def core(self) -> str:
        """The core's address, for people."""
        scheme = "weirs" if any(isinstance(host, SecureHost) for host, _ in self.hosts) else "weir"
        hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in self.hosts]
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in hosts)


class RelayedTopic(msgspec.Struct):
    """A topic: as the core describes it, and where its partitions are led there. While the core
    does not let this relay in, `locked_out` says why; while it lets it in and not read this topic,
    `barred` does. `refused` is what was logged of that last.
    """

    info: m.TopicInfo
    places: Places | None = None
    locked_out: str = ""
    barred: str = ""
    refused: str = ""
    news: dict[int, asyncio.Event] = msgspec.field(default_factory=dict)

    @property
    def why_barred(self) -> str:
        """Why nobody may read it here; "" if somebody may."""
        return self.locked_out or self.barred

    def places_by(self, network: NetworkClient) -> Places:
        """Return where the partitions are led, by these connections to the core."""
        if self.places is None:
            self.places = Places(network, self.info.full_name, self.info)
        return self.places


class _Looks(msgspec.Struct):
    """Whether the core has told its topics since the start; and of those at the wish of clients,
    when the last began, in seconds of the loop, and whose turn it is.
    """

    told: bool = False
    began: float = float("-inf")
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class _KeptTopics(msgspec.Struct):
    """Whether the folder has other topics than these, and whose turn it is to write them down."""

    is_stale: bool = False
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return SYSTEM.get().now_us() // 1_000


def steady_ms() -> int:
    """Return milliseconds since 1970 by a clock that nobody sets back: pauses would last longer."""
    return SYSTEM.get().steady_us() // 1_000


class RelayHost:
    """A running relay node."""

    def __init__(
        self, config: RelayConfig, folder: RelayFolder, founded: Founded, disk: RelayDisk
    ) -> None:  # fmt: skip
        """Host what the store of a disk holds; `start` begins."""
        self.config = config
        self.founded = founded
        self._folder = folder
        self.disk = disk
        me = Me(founded.system, founded.brokerset, founded.node, 0)
        uppers = UpperRelays(founded.system, CORE.node + 1, config.credentials)
        core, _ = config.hosts[0]
        self.tiers = Tiers(founded.brokerset, founded.node, uppers, config.uppers, core)
        self.partitions = RelayPartitions(disk.store, me, CORE, steady_ms())
        #: By number.
        self.topics: dict[int, RelayedTopic] = {}
        #: The connections to the core; None until it answered once.
        self.network: NetworkClient | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._looks = _Looks()
        #: Groups that pull once the disk has taken more.
        self._held_up: set[int] = set()
        self._kept = _KeptTopics()
        self._stopping = False
        self._flusher: asyncio.Task[None] | None = None
        self._failures: asyncio.Queue[Exception] = asyncio.Queue()

    # -- life --------------------------------------------------------------------------------

    def start(self, network: NetworkClient | None) -> None:
        """Serve what is here, and pull: by these connections to the core, or once it answers."""
        self.network = network
        self.tiers.start()
        for info in self._folder.topics():
            if self._is_wanted(info):
                self._take_topic(info)
                continue
            self._kept.is_stale = True
            for address in info.addresses:
                self.partitions.close(address.group)
        disk = (self.disk.make_spares, self.disk.run_chores)
        for work in (self._reach, self._look_for_rights, self._tick, *disk):
            self._spawn(self._run(work))
        self._flusher = asyncio.get_running_loop().create_task(self._run(self._flush))

    async def ended(self) -> None:
        """Return once something failed for good; raise it. After a `DiskFailed` nobody knows what
        the disk holds: the process is to end at once, and does not `stop`.
        """
        raise await self._failures.get()

    async def stop(self) -> None:
        """Make durable what is here, save a checkpoint, and end."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tiers.marks.close()
        await self.tiers.uppers.close()
        if self.network is not None:
            await self.network.close()
        self.disk.dirty.set()
        if self._flusher is not None:  # a flush that is under way comes to its end
            await asyncio.wait((self._flusher,), timeout=_STOP_WITHIN)
            self._flusher.cancel()
        await self.disk.save_checkpoint(self.partitions.states())
        await self.disk.end_chores()
        self.disk.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except DiskFailed as error:
            self._failures.put_nowait(error)
        except Exception as error:
            log.exception("the relay ends")
            self._failures.put_nowait(error)

    # -- the core ----------------------------------------------------------------------------

    async def _reach(self) -> None:
        tries = 0
        while True:
            tries += 1
            network = None
            if self.network is None:
                network = await reach(self.config, tries, self._lock_out)
            if network is not None:
                tries = 0
                self.network = network  # it is closed when this relay stops
                assert network.welcome is not None
                check_system(self.founded, network.welcome, self.config)
            if self.network is not None:
                await self._look(self.network)
            await asyncio.sleep(_LOOK_EVERY)

    async def _look(self, network: NetworkClient) -> None:
        try:
            await self._look_for_topics(network)
            self._lock_out("")
            await self._look_for_tiers(network)
        except _BARRED as error:
            self._lock_out(str(error))
        except WeirError as error:
            log.debug("the core does not tell its topics: %s", error)
        if network.error is not None:  # it will never answer by these connections again
            self.network = None
            for topic in self.topics.values():
                topic.places = None
            await network.close()

    def _lock_out(self, why: str) -> None:
        """Serve nothing while the core does not let this relay in, for the reason `why`; "": it
        does.
        """
        for topic in self.topics.values():
            topic.locked_out = why

    async def look_anew(self) -> None:
        """Ask the core for its topics, for a client that knows of one, or of a partition, that is
        not here: it may be new. Clients that ask meanwhile wait for the same answer. Raises
        `Unavailable` if the core does not answer.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with self._looks.turn:
            if self._looks.began >= since:
                return
            await asyncio.sleep(max(self._looks.began + _LOOK_ANEW_EVERY - loop.time(), 0))
            began, network = loop.time(), self.network
            try:
                if network is None or not network.is_up:
                    raise Unavailable("there is no connection")
                await self._look_for_topics(network)
            except WeirError as error:
                raise Unavailable(
                    f"that is not relayed here, and the core at {self.config.core} does not say "
                    f"whether it is new ({error}): try again shortly"
                ) from None
            self._looks.began = began

    async def _look_for_topics(self, network: NetworkClient) -> None:
        after, found = "", list[m.TopicInfo]()
        while True:
            page = await network.request(m.ListTopics("", after), m.TopicList)
            found += page.topics
            if not page.more or not page.topics:
                break
            after = page.topics[-1].full_name
        self._looks.told, changed = True, False
        for info in filter(self._is_wanted, found):
            changed = self._take_topic(info) or changed
        if changed or self._kept.is_stale:
            await self._keep_topics()

    async def _look_for_rights(self) -> None:
        """Ask whether topics may be read again that a pull was refused of: the next pulls may all
        go to a relay above. Nothing else waits for a leader that does not answer.
        """
        turns = asyncio.Semaphore(_RIGHTS_AT_ONCE)
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            barred = [topic for topic in self.topics.values() if topic.barred]
            await asyncio.gather(*(self._look_for_right(topic, turns) for topic in barred))

    async def _look_for_right(self, topic: RelayedTopic, turns: asyncio.Semaphore) -> None:
        async with turns:
            network, addresses = self.network, topic.info.addresses
            if network is None or not addresses:
                return
            group = addresses[0].group
            me = self.founded.system, self.founded.brokerset, self.founded.node
            tags = pack_tags(self._tags_of(group))
            question = r.AskFilter(*me, topic_of(group), partition_of(group), 0, tags)
            try:
                await self._ask_core(network, topic, question)
            except WeirError as error:
                log.debug("whether %s may be read is not known: %s", topic.info.full_name, error)
            else:
                topic.barred = ""

    def _tags_of(self, group: int) -> Tags:
        """Return which messages of a partition are pulled."""
        held = self.partitions.held.get(group)
        now = None if held is None else held.state.filter_at(held.state.end)
        return self.config.tags if now is None else now.tags

    async def _look_for_tiers(self, network: NetworkClient) -> None:
        """Ask for the topology: the relays that pull from here, and the upper nodes."""
        try:
            told = await network.request(t.DescribeTopology(), t.TopologyState)
        except Unauthorized as error:
            log.debug("the core does not tell the topology: %s", error)
            return
        if self.tiers.take(told):
            for group in self.partitions:
                self._place(group)

    def _place(self, group: int) -> None:
        topic = self.topics.get(topic_of(group))
        if topic is not None and group in self.partitions.held:
            info = topic.info
            children = self.tiers.children(f"{info.namespace}/{info.name}")
            uppers = self.tiers.uppers.nodes
            self._take(group, self.partitions.place(group, uppers, children, steady_ms()))

    def _open(self, group: int) -> None:
        uppers = self.tiers.uppers.nodes
        self._send(self.partitions.open(group, self.config.tags, uppers, steady_ms()))
        self._place(group)

    def _is_wanted(self, info: m.TopicInfo) -> bool:
        wanted = self.config.topics
        is_named = not wanted or f"{info.namespace}/{info.name}" in wanted
        return is_named and info.namespace != RESERVED_NAMESPACE

    def _take_topic(self, info: m.TopicInfo) -> bool:
        """Relay a topic as it is described now; return whether anything is new."""
        known = self.topics.get(info.id)
        if known is None:
            if len(self.topics) >= RELAY_TOPICS_MAX:
                log.warning("%s is not relayed: %d topics are", info.full_name, len(self.topics))
                return False
            known = self.topics[info.id] = RelayedTopic(info)
        is_new = known.info != info or not known.news
        known.info = info
        for address in info.addresses:
            if address.group not in self.partitions.held:
                known.news.setdefault(address.group, asyncio.Event())
                self._open(address.group)
        return is_new

    def _send(self, asked: Sequence[SendToUpper]) -> None:
        for sent in asked:
            if self._stopping:
                return
            message = sent.message
            if isinstance(message, r.Pull) and self._is_full():
                # The machine gives up a pull that is kept: the node would seem to be silent.
                self._held_up.add(message.group)
                refusal = r.Overloaded(message.group, message.number, _HELD_UP_MS)
                event = RefusalCame(sent.upper, refusal)
                self._take(message.group, self.partitions.handle(message.group, event, steady_ms()))
            else:
                self._spawn(self._run(partial(self._ask, sent)))
        if self.disk.store.log.staged is not None:
            self.disk.dirty.set()

    def _is_full(self) -> bool:
        return self.disk.is_full or self.disk.unsynced > RELAY_UNSYNCED_BYTES_MAX

    async def _ask(self, sent: SendToUpper) -> None:
        message, upper = sent.message, self.tiers.uppers.find(sent.upper)
        group = message.group
        if isinstance(message, r.Pull):
            wait = self.partitions.pull_delay(group, asyncio.get_running_loop().time())
            if wait:
                await asyncio.sleep(wait)
        if upper is not None:
            event = await upper.answer_to(message)
        else:
            event = await self._answer_to(group, message)
        if event is not None:
            self.handle(group, event)

    def handle(self, group: int, event: Event) -> None:
        """Let a partition take an event, if it is still here, and do what comes of it."""
        if group in self.partitions.held and not self._stopping:
            self._take(group, self.partitions.handle(group, event, steady_ms()))

    async def _answer_to(self, group: int, message: Asked) -> Event | None:
        """Return what came of a message; None if that is nothing."""
        number = 0 if isinstance(message, r.SayHold) else message.number
        topic, network = self.topics.get(topic_of(group)), self.network
        if topic is None:
            return None
        if network is None:
            await asyncio.sleep(RETRY_MS / 1_000)
            return self._refused(message, r.Overloaded(group, number, RETRY_MS))
        try:
            told = await self._ask_core(network, topic, message)
            if isinstance(message, r.Pull):
                topic.barred = ""
            return event_of(b"".join(told.message), CORE)
        except UnknownTopic:
            return self._refused(message, r.TopicGone(group, number))
        except _BARRED as error:
            if topic.refused != str(error):
                topic.refused = str(error)
                log.warning("the core does not let this relay read %s: %s",
                            topic.info.full_name, error)  # fmt: skip
            if isinstance(message, r.Pull):  # what was kept by then may be read all the same
                topic.barred = str(error)
            return self._refused(message, r.Overloaded(group, number, REFUSED_MS))
        except RemoteProtocolError as error:
            log.warning("the core sent a malformed message: %s", error)
            return self._refused(message, r.Overloaded(group, number, REFUSED_MS))
        except WeirError as error:
            log.debug("group %d: %s", group, error)
            return self._refused(message, r.Overloaded(group, number, RETRY_MS))

    async def _ask_core(
        self, network: NetworkClient, topic: RelayedTopic, message: Asked
    ) -> m.RelayTold:  # fmt: skip
        """Return what the leader of a partition in the core answers. Raises `WeirError`."""
        partition, places = partition_of(message.group), topic.places_by(network)
        payload = b"".join(r.encode_message(message))
        if partition >= len(places):
            await places.find_again()
        if partition >= len(places):  # who was asked has not heard of it yet
            raise Unavailable(f"{topic.info.full_name} has no partition {partition} yet")
        return await places.ask(
            partition, lambda address: m.AskRelay(address, payload), m.RelayTold, wait=PULL_WAIT
        )

    def _refused(self, message: Asked, refusal: r.AnyRefusal) -> Event | None:
        return RefusalCame(CORE, refusal) if isinstance(message, r.Pull) else None

    def _take(self, group: int, outcome: Outcome) -> None:
        topic = self.topics.get(topic_of(group))
        if outcome.is_over:
            self._forget(topic_of(group))
            return
        if outcome.is_cut:
            self.tiers.marks.forget(topic_of(group))
        self._send(outcome.sends)
        self.partitions.children.tell(outcome.children)
        if outcome.moved and topic is not None and (news := topic.news.get(group)) is not None:
            topic.news[group] = asyncio.Event()
            news.set()

    def _forget(self, number: int) -> None:
        """The core has no such topic any more."""
        topic = self.topics.pop(number, None)
        if topic is None:
            return
        log.info("%s is gone from the core, and from here", topic.info.full_name)
        self.tiers.marks.forget(number)
        for group, news in topic.news.items():
            self._close(group, UnknownTopic("the topic was deleted", number))
            news.set()
        self._spawn(self._run(self._keep_topics))

    def begin_anew(self, group: int, held: Held, why: Exception) -> None:
        """What is `held` of a partition cannot be read: pull it again, unless that has begun."""
        if self.partitions.held.get(group) is not held:
            return
        log.error("group %d begins anew, and is pulled again: %s", group, why)
        self._close(group, Unavailable("the relay pulls this partition again: ask again shortly"))
        self._open(group)

    def _close(self, group: int, why: Refused) -> None:
        self.partitions.close(group)
        self.partitions.children.end(group, why)

    async def _keep_topics(self) -> None:
        """Write down the topics, and nobody else meanwhile; where that fails, at the next look."""
        async with self._kept.turn:
            self._kept.is_stale = True
            kept = [topic.info for topic in self.topics.values()]
            try:
                await self.disk.in_thread(self._folder.keep_topics, kept)
            except OSError as error:
                words = "the topics were not written down; free some room"
                self.disk.troubles.failed("topics", words, error)
            else:
                self.disk.troubles.worked("topics")
                self._kept.is_stale = False

    # -- readers -----------------------------------------------------------------------------

    @property
    def has_looked(self) -> bool:
        """Whether the core has told its topics since the start."""
        return self._looks.told

    @property
    def is_reached(self) -> bool:
        """Whether there is a connection to the core."""
        return self.network is not None and self.network.is_up

    async def answers(self, within: float) -> bool:
        """Return whether the core answers this relay within so many seconds."""
        if self.network is None or not self.network.is_up:
            return False
        try:
            async with asyncio.timeout(within):
                await self.network.request(m.Ping(), m.Pong, again=False)
        except (TimeoutError, WeirError):
            return False
        return True

    async def ask_core(self, request: m.Request, reply: type[R], wait: float) -> R:
        """Return the core's answer, or for marks that of a relay above. Raises the core's refusal,
        `Unavailable` and `Disconnected`.
        """
        if isinstance(request, m.AwaitMark):
            mark = await self.tiers.uppers.next_mark(request)
            if isinstance(mark, reply):
                return mark
        network = self.network
        if network is None or not network.is_up:
            raise Unavailable(f"the core at {self.config.core} is not reached: try again shortly")
        if isinstance(request, m.Positions):  # the leader alone knows
            group, stamp = request.address.group, request.stamp
            topic = self.topics.get(topic_of(group))
            if topic is None:
                raise UnknownTopic("no such topic is relayed here", topic_of(group))
            places = topic.places_by(network)
            return await places.ask(partition_of(group), lambda at: m.Positions(at, stamp), reply)
        return await network.request(request, reply, wait=wait, again=False)

    # -- the disk ----------------------------------------------------------------------------

    async def _flush(self) -> None:
        while not self._stopping:
            await self.disk.dirty.wait()
            self.disk.dirty.clear()
            await self._flush_all()
            if self.disk.store.is_due:
                await self.disk.save_checkpoint(self.partitions.states())

    async def _flush_all(self) -> None:
        while (tokens := await self.disk.flush()) is not None:
            self._send(self.partitions.synced(tokens, steady_ms()))
            if self._held_up and not self._is_full():
                held_up, self._held_up = self._held_up, set()
                for group in held_up & self.partitions.held.keys():
                    self._take(group, self.partitions.tick(group, steady_ms()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            for group in self.partitions:
                if group in self.partitions.held:
                    self._take(group, self.partitions.tick(group, steady_ms()))
            if self.disk.store.log.staged is None:
                self.disk.store.log.mark_idle()
                self.disk.dirty.set()


async def reach(
    config: RelayConfig, tries: int, locked_out: Callable[[str], None] | None = None
) -> NetworkClient | None:
    """Return connections to the core; None if it does not answer now, which is told of the first of
    many `tries`. If it does not let this relay in, `locked_out` is told why.
    """
    network = NetworkClient(
        config.hosts, name="weir-relay", retry=RETRY, request_timeout=REQUEST_TIMEOUT,
        random=SYSTEM.get().dice(), credentials=config.credentials,
    )  # fmt: skip
    try:
        await network.start()
    except WeirError as error:
        if locked_out is not None and isinstance(error, _BARRED):
            locked_out(str(error))
        level = logging.WARNING if tries == 1 else logging.DEBUG
        log.log(level, "the core at %s is not reached: %s", config.core, error)
        return None
    return network


def check_system(founded: Founded, welcome: m.Welcome, config: RelayConfig) -> None:
    """Raise `BadRelayFolder` unless the core is of the system that the folder holds a copy of."""
    if founded.system != welcome.system:
        raise BadRelayFolder(
            f"this folder holds a copy of system {founded.system:x}, and {config.core} is of "
            f"system {welcome.system:x}: give this relay another folder, or the core it had"
        )


async def find(
    config: RelayConfig, folder: RelayFolder, stop: asyncio.Event
) -> tuple[Founded, NetworkClient | None] | None:
    """Return who this relay is. A new one waits for the core, whose system it becomes a part of;
    None if it is to stop before that.
    """
    founded = folder.founded()
    if founded is not None:
        asked = config.brokerset, config.node or founded.node
        if asked != (founded.brokerset, founded.node):
            raise BadRelayFolder(
                f"{folder.path} belongs to node {founded.node} of BrokerSet {founded.brokerset}, "
                f"not to node {asked[1]} of {asked[0]}: a relay keeps both for good"
            )
        return _checked_privacy(config, folder, founded), None
    tries = 0
    while not stop.is_set():
        tries += 1
        if (network := await reach(config, tries)) is not None:
            assert network.welcome is not None
            node = config.node or SYSTEM.get().dice().randrange(_DRAWN_FROM, NODE_MAX)
            system = network.welcome.system
            founded = Founded(system, config.brokerset, node, config.is_private)
            check_system(founded, network.welcome, config)
            folder.found(founded)
            return founded, network
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _AGAIN)
    return None


def _checked_privacy(config: RelayConfig, folder: RelayFolder, founded: Founded) -> Founded:
    """Return who a relay is, which is private from its first start as a user on. Raises
    `BadRelayFolder` for a start as nobody with what only users may read.
    """
    if founded.private and not config.is_private:
        raise BadRelayFolder(
            f"{folder.path} holds messages that only a user may read: name that user again, as in "
            "weirs://USER@HOST, or remove the folder to pull what everybody may read"
        )
    if config.is_private and not founded.private:
        founded = msgspec.structs.replace(founded, private=True)
        folder.found(founded)
    return founded
