"""What a relay answers its clients: reads from its own log, questions about the one order from the
core, and that it takes no writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from heapq import nsmallest
from typing import Any, Protocol, TypeVar

import msgspec

from weir.codec import Buffer
from weir.errors import (
    BadName,
    BadRequest,
    Damaged,
    Disconnected,
    Overloaded,
    Refused,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    ValueLost,
    WeirError,
    WrongSystem,
)
from weir.model.ids import Address, partition_of, topic_of
from weir.model.limits import (
    BATCH_BYTES_MAX,
    CHUNKS_PER_FETCH_MAX,
    FETCH_BYTES_MAX,
    PIPELINE_WINDOW,
    REQUESTS_PENDING_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.model.topic import Presence, split_name
from weir.order.clock import milliseconds_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.relays import RelayInfo, RelayTopic
from weir.relay.messages import Mark, Pull, SayHold, decode_question, encode_message
from weir.relay.portion import Plan, Portion
from weir.relay.ports import (
    FilterAsked,
    HoldSaid,
    LinkClosed,
    PortionRead,
    PullCame,
    SendToChild,
)
from weir.relay_node import reads
from weir.relay_node.children import read_portion
from weir.relay_node.host import RelayedTopic, RelayHost, steady_ms, wall_ms
from weir.relay_node.partitions import Held, children_of, lag_of, tags_kept

log = logging.getLogger(__name__)
R = TypeVar("R", bound=m.Reply)

#: So many questions go to the core at once.
FORWARDED_MAX = 256
#: So long a chunk is waited for that the disk has not taken yet.
CHUNKS_WAIT_SECONDS = 5.0
#: What the disk does not give for so long is pulled again.
UNREAD_SECONDS = 30.0
_PAGE = 500
#: So many nodes below are told of in one answer, and topics of about so many partitions.
PAGE_CHILDREN, PAGE_PARTITIONS = 1_024, 4_096
_REASON_LENGTH = 500


class Places(asyncio.Semaphore):
    """The places of the requests of one connection, and of how many that wait without one."""

    def __init__(self, most: int) -> None:
        """Have `most` places; nobody waits without one."""
        super().__init__(most)
        self.aside = 0


class AnswerRoom(AsyncExitStack):
    """The memory that one answer may use, from when messages are read for it until it is sent.

    A request that has it waits for nothing that others may hold: a place among the requests of a
    connection is taken before it, never after it.
    """

    def __init__(self, places: Places, *limits: asyncio.Semaphore) -> None:
        """Take none yet; the request has one of the `places` among those of its connection."""
        super().__init__()
        self._places = places
        self._is_aside = False
        self._limits = limits
        self._taken = False

    def step_aside(self) -> None:
        """Give up the place of a request that waits for what may come much later. It keeps its
        place while it has memory, and where too many wait already.
        """
        if self._is_aside or self._taken or self._places.aside >= REQUESTS_PENDING_MAX:
            return
        self._places.aside += 1
        self._is_aside = True
        self._places.release()

    async def step_back(self) -> None:
        """Wait for a place, if the request gave up its own."""
        if self._is_aside:
            await self._places.acquire()
            self._places.aside -= 1
            self._is_aside = False

    async def take(self) -> None:
        """Wait until there is room for a large answer."""
        await self.step_back()
        if not self._taken:
            self._taken = True
            for limit in self._limits:
                await self.enter_async_context(limit)


class CoreAsker(Protocol):
    """Asks the core."""

    async def ask_core(self, request: m.Request, reply: type[R], wait: float) -> R:
        """Return the core's answer, which takes `wait` seconds more than others. Raises its
        refusal, `Unavailable` and `Disconnected`.
        """


class RelayRequests:
    """Answers requests, one call each."""

    def __init__(self, host: RelayHost) -> None:
        """Answer for a running relay."""
        self._host = host
        self._forwarded = 0
        self._handlers: dict[type[m.Request], Callable[[Any], Awaitable[m.Reply]]] = {
            m.Hello: self._hello,
            m.Ping: self._ping,
            m.DescribeTopic: self._describe,
            m.ListTopics: self._list,
            m.ListOffsets: self._list_offsets,
            m.DescribeRelay: self._describe_self,
            a.DescribePartition: self._describe_partition,
            a.AskLeader: self._tell_leader,
        }
        self._of_core: dict[
            type[m.Request], Callable[[Any, AnswerRoom, CoreAsker], Awaitable[m.Reply]]
        ] = {
            m.Positions: self._positions,
            m.AskBarriers: self._ask_barriers,
            m.AwaitMark: self._await_mark,
            m.ResolveCut: self._resolve_cut,
        }

    async def answer(
        self, request: m.Request, room: AnswerRoom, asker: CoreAsker | None = None
    ) -> m.Reply:  # fmt: skip
        """Return the answer to a request, which takes `room` if it has messages. What the core is
        to say is asked by `asker`, or else by the relay. Raises `Refused`, and `BadName`.
        """
        if isinstance(request, m.Fetch):
            return await self._fetch(request, room)
        if isinstance(request, m.FetchChunks):
            return await self._fetch_chunks(request, room, asker or self._host)
        if isinstance(request, m.AskRelay):
            return await self._tell_relay(request, room)
        if isinstance(request, a.TraceMessage):
            return await self._trace(request, room)
        if (of_core := self._of_core.get(type(request))) is not None:
            return await of_core(request, room, asker or self._host)
        handler = self._handlers.get(type(request))
        if handler is None:
            core = self._host.config.core
            raise BadRequest(
                f"this node is a relay of {core} and takes no writes: connect to {core} for "
                f"{type(request).__name__}"
            )
        return await handler(request)

    # -- who and what ------------------------------------------------------------------------

    async def _hello(self, request: m.Hello) -> m.Reply:
        me = self._host.founded
        if request.system not in (0, me.system):
            raise WrongSystem(f"this is system {me.system:x}, not {request.system:x}", me.system)
        return m.Welcome(me.system, me.brokerset, me.node, 0, BATCH_BYTES_MAX, PIPELINE_WINDOW)

    async def _ping(self, request: m.Ping) -> m.Reply:
        return m.Pong(wall_ms())

    async def _describe(self, request: m.DescribeTopic) -> m.Reply:
        return self._info(self._named(request.name))

    async def _list(self, request: m.ListTopics) -> m.Reply:
        return m.TopicList(*self._page(request))

    async def _list_offsets(self, request: m.ListOffsets) -> m.Reply:
        infos, more = self._page(request)
        rows: list[tuple[int, int, int]] = []
        for info in infos:
            for address in info.addresses:
                held = self._host.partitions.held.get(address.group)
                if held is not None and held.state.begun:
                    rows.append((address.group, held.state.start, held.state.end))
        return m.OffsetList(infos, rows, more)

    def _page(self, request: m.ListTopics | m.ListOffsets) -> tuple[list[m.TopicInfo], bool]:
        topics = self._host.topics.values()
        infos = [self._info(topic) for topic in topics if not topic.why_barred]
        found = sorted(
            (info for info in infos if request.namespace in ("", info.namespace)),
            key=lambda info: info.full_name,
        )
        found = [info for info in found if info.full_name > request.after]
        return found[:_PAGE], len(found) > _PAGE

    async def _describe_self(self, request: m.DescribeRelay) -> m.Reply:
        return info_of(self._host, request.after)

    async def _describe_partition(self, request: a.DescribePartition) -> m.Reply:
        _, held = self.partition(request.address)
        state = held.state
        return a.PartitionInfo(
            state.start, state.end, state.ranges.total, [], [self._host.founded.node]
        )

    async def _tell_leader(self, request: a.AskLeader) -> m.Reply:
        self.partition(request.address)
        node = self._host.founded.node
        return a.LeaderInfo(node, 1, (node,))

    async def _trace(self, request: a.TraceMessage, room: AnswerRoom) -> m.Reply:
        """Say whether a message is here. What was read and is not durable yet counts, as it does
        for readers.
        """
        group, offset = request.address.group, request.offset
        _, held = self.partition(request.address)
        if reads.presence_in(held.state, offset, held.machine.log_start) is Presence.STORED:
            await room.take()
            _, held = self.partition(request.address)
        state, stamp, received_ms = held.state, 0, 0
        presence = reads.presence_in(state, offset, held.machine.log_start)
        start, end = state.start, state.end
        if presence is Presence.STORED:
            (index,) = state.entries_from(offset, offset + 1, 1)
            found = await self.entries(group, held, [index])
            if index not in found:
                raise Unavailable(f"offset {offset} is not durable here yet: ask again shortly")
            presence, stamp, received_ms = reads.found_in(found[index], offset)
        return a.TracedMessage(presence, start, end, stamp, received_ms, wall_ms())

    def _info(self, topic: RelayedTopic) -> m.TopicInfo:
        """Return a topic as the core describes it, served here."""
        node = self._host.founded.node
        addresses = [Address(0, 0, one.group, node) for one in topic.info.addresses]
        return msgspec.structs.replace(topic.info, addresses=addresses)

    def find(self, name: str) -> RelayedTopic | None:
        """Return a topic that is relayed here. Raises `BadName`, and `Unavailable` for one that the
        core may yet tell this relay of, which has started just now.
        """
        namespace, plain = split_name(name)
        for topic in self._host.topics.values():
            if (topic.info.namespace, topic.info.name) == (namespace, plain):
                return topic
        if not self._host.has_looked:
            core = self._host.config.core
            raise Unavailable(f"the core at {core} has not told its topics yet: try again shortly")
        return None

    def unknown(self, name: str) -> UnknownTopic:
        """Return how a topic is said not to be here."""
        return UnknownTopic(f"no topic {name!r} is relayed here: ask {self._host.config.core}")

    def _named(self, name: str) -> RelayedTopic:
        found = self.find(name)
        if found is None:
            raise self.unknown(name)
        return self._allowed(found)

    def _allowed(self, topic: RelayedTopic) -> RelayedTopic:
        if why := topic.why_barred:
            raise Unauthorized(f"the core does not allow reading this topic here: {why}")
        return topic

    def partition(self, address: Address) -> tuple[RelayedTopic, Held]:
        """Return a partition that is relayed here, and its topic. Raises `UnknownTopic`, and
        `Unauthorized` while the core lets nobody read it here.
        """
        topic = self._host.topics.get(topic_of(address.group))
        held = self._host.partitions.held.get(address.group)
        if topic is None or held is None:
            raise UnknownTopic("no such partition is relayed here", topic_of(address.group))
        return self._allowed(topic), held

    # -- messages ----------------------------------------------------------------------------

    async def _positions(
        self, request: m.Positions, room: AnswerRoom, asker: CoreAsker
    ) -> m.Reply:  # fmt: skip
        _, held = self.partition(request.address)
        state = held.state
        if not state.begun:
            raise Unavailable("this relay has received nothing yet: try again shortly")
        if not request.stamp:
            return m.PositionsReply(state.start, state.end, state.start)
        asked = m.Positions(Address(0, 0, request.address.group), request.stamp)
        told = await self._ask_core(room, asker.ask_core(asked, m.PositionsReply, 0.0))
        start = max(told.start, state.start)
        return m.PositionsReply(start, max(told.end, start), max(told.at, start))

    async def _fetch(self, request: m.Fetch, room: AnswerRoom) -> m.Reply:
        group = request.address.group
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.wait_ms, WAIT_MS_MAX) / 1_000
        _, held = self.partition(request.address)
        heard = held.answers
        while True:
            topic, held = self.partition(request.address)
            news = topic.news[group]
            name, core = topic.info.full_name, self._host.config.core
            reads.check_fetch(held.state, request, name, core, held.machine.log_start)
            lineage = held.state.lineage  # what is read may be cut off before it is answered
            plan = reads.plan_of(held.state, request)
            if plan is not None:
                await room.take()
                found = await self.entries(group, held, plan.indexes)
                portion = reads.read_portion(plan, found, held.state)
                if portion is not None:
                    return reads.fetched_of(
                        request, portion, held.committed, held.mark, held.partitions, lineage
                    )
            left = deadline - loop.time()
            if left <= 0:
                break
            room.step_aside()  # a reader has one such request for each partition
            try:
                # What was read and is not durable yet brings no news: look again soon.
                await asyncio.wait_for(news.wait(), left if plan is None else min(left, 0.01))
            except TimeoutError:
                continue
        # A reader may be ahead of a relay that restarted, because it read before, or in the core:
        # only an answer to a later request says where the core ends.
        if request.offset > held.committed and held.answers > heard + 1:
            raise request.beyond(held.state.start, held.committed, held.state.forks)
        return reads.nothing_for(request, held.committed, held.mark, held.partitions, lineage)

    async def entries(self, group: int, held: Held, indexes: Sequence[int]) -> Mapping[int, Buffer]:
        """Read entries. Raises `Unavailable` where they are damaged, or the disk has not given them
        for a while: they are pulled again then. A core that is away would not bring them back.
        """
        try:
            found = await self._host.disk.entries(group, indexes)
        except Damaged as error:
            self._host.begin_anew(group, held, error)
            raise Unavailable(
                "these messages are damaged in this relay, which pulls them again: ask again "
                "shortly"
            ) from None
        except OSError as error:
            now = asyncio.get_running_loop().time()
            held.unread_since = held.unread_since or now
            if now - held.unread_since > UNREAD_SECONDS and self._host.is_reached:
                self._host.begin_anew(group, held, error)
            raise Unavailable(
                f"the disk of this relay cannot read these messages ({error.strerror}): ask again "
                "shortly"
            ) from None
        held.unread_since = 0.0
        return found

    async def _fetch_chunks(
        self, request: m.FetchChunks, room: AnswerRoom, asker: CoreAsker
    ) -> m.Reply:  # fmt: skip
        """Answer with chunks: those that are here, else the core's. A consumer of a cluster may be
        granted a message whose chunks this relay does not keep, or has not got yet.
        """
        await room.take()
        try:
            return await self._chunks_here(request)
        except (ValueLost, Unavailable) as error:
            if isinstance(error, Unavailable) and not self._host.is_reached:
                raise
        address = Address(0, 0, request.address.group)
        asked = msgspec.structs.replace(request, address=address)
        told = await self._ask_core(
            room, asker.ask_core(asked, m.FetchedChunks, CHUNKS_WAIT_SECONDS)
        )
        return msgspec.structs.replace(told, address=request.address)

    async def _chunks_here(self, request: m.FetchChunks) -> m.FetchedChunks:
        """Return chunks of the log. Those that are neither durable yet nor in memory any more are
        waited for.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CHUNKS_WAIT_SECONDS
        while True:
            _, held = self.partition(request.address)
            reads.check_chunk(held.state, request.index, held.is_behind)
            flushed = self._host.disk.flushed
            if chunks := await self._chunks(held, request):
                return m.FetchedChunks(request.address, request.index, tuple(chunks))
            try:
                await asyncio.wait_for(flushed.wait(), deadline - loop.time())
            except TimeoutError:
                raise Unavailable(
                    f"chunk {request.index} is here and not durable yet: ask again shortly"
                ) from None

    async def _chunks(self, held: Held, request: m.FetchChunks) -> list[Buffer]:
        """Return the chunks that can be read by now, from the one that is asked for on."""
        count = min(request.count, CHUNKS_PER_FETCH_MAX)
        chunks, size = list[Buffer](), 0
        for index in reads.chunk_indexes(held.state, request.index, count):
            found = await self.entries(request.address.group, held, [index])
            some = reads.chunks_in([index], found)
            size += sum(map(len, some))
            if not some or (chunks and size > min(request.max_bytes, FETCH_BYTES_MAX)):
                break
            chunks += some
        return chunks

    # -- relays below ------------------------------------------------------------------------

    async def _tell_relay(self, request: m.AskRelay, room: AnswerRoom) -> m.Reply:
        """Answer what a relay below asks, once there is something to tell."""
        group, founded = request.address.group, self._host.founded
        message = decode_question(request.message, group)
        self.partition(request.address)
        if message.system != founded.system:
            raise WrongSystem(f"this is system {founded.system:x}", founded.system)
        if (message.brokerset, message.node) == (founded.brokerset, founded.node):
            raise BadRequest(
                f"node {founded.node} of BrokerSet {founded.brokerset} is this relay: give the "
                "relay below another --node, or it pulls from itself"
            )
        if isinstance(message, SayHold):
            self._host.handle(group, HoldSaid(message))
            return m.RelayTold(request.address)
        link = self._host.partitions.children.open(message)
        # Each partition of a relay below has a pull that waits.
        room.step_aside()
        try:
            if isinstance(message, Pull):
                self._host.handle(group, PullCame(link.number, message))
            else:
                self._host.handle(group, FilterAsked(link.number, message))
            while not isinstance(effect := await link.effects.get(), SendToChild):
                if isinstance(effect, Refused):
                    raise effect
                await room.take()
                portion = await self._portion(group, effect.plan)
                self._host.handle(group, PortionRead(effect.ticket, portion))
            self._host.partitions.children.close(link)
            return m.RelayTold(request.address, encode_message(effect.message, effect.data))
        finally:
            if self._host.partitions.children.close(link):  # the relay below is gone
                self._host.handle(group, LinkClosed(link.number))

    async def _portion(self, group: int, plan: Plan) -> Portion | None:
        """Return what a plan names; None where it cannot be read now."""
        held = self._host.partitions.held.get(group)
        if held is None:
            return None
        try:
            return await read_portion(plan, held.state, self._host.disk)
        except Damaged as error:
            self._host.begin_anew(group, held, error)
        except OSError as error:
            log.debug("group %d is not read for a relay below: %s", group, error)
        return None

    # -- the one order -----------------------------------------------------------------------

    async def _ask_barriers(
        self, request: m.AskBarriers, room: AnswerRoom, asker: CoreAsker
    ) -> m.Reply:  # fmt: skip
        self._topic(request.topic)
        wait = min(request.wait_ms, WAIT_MS_MAX) / 1_000
        try:
            return await self._ask_core(room, asker.ask_core(request, m.Barriers, wait))
        except Unavailable:
            if request.anew or not request.stamp:
                raise
        return self._barriers_here(request)

    def _barriers_here(self, request: m.AskBarriers) -> m.Barriers:
        """Return what marks told before the core was away: what is here is handed out. Partition 0
        says how many there are, for one that joined lately may not be here yet.
        """
        marks: list[Mark | None] = []
        partitions = 0
        for address in self._host.topics[request.topic].info.addresses:
            held = self._host.partitions.held.get(address.group)
            marks.append(held.mark if held is not None else None)
            if held is not None and not partition_of(address.group):
                partitions = held.partitions
        marks += [None] * (partitions - len(marks))
        rows = [
            (partition, *((mark.stamp, mark.through) if mark else (0, 0)))
            for partition, mark in enumerate(marks)
        ]
        # Readers learn here of partitions that joined. Only the core knows from which stamp on each
        # counts: the first one is safe.
        roster = tuple((partition, 0) for partition in range(1, len(rows)))
        reached = all(stamp >= request.stamp for _, stamp, _ in rows)
        return m.Barriers(request.topic, rows, roster, reached)

    async def _await_mark(
        self, request: m.AwaitMark, room: AnswerRoom, asker: CoreAsker
    ) -> m.Reply:  # fmt: skip
        self._topic(request.topic)
        room.step_aside()
        return await self._host.tiers.marks.next_mark(request, asker)

    async def _resolve_cut(
        self, request: m.ResolveCut, room: AnswerRoom, asker: CoreAsker
    ) -> m.Reply:  # fmt: skip
        for name in request.topics:
            self._named(name)
        wait = min(request.wait_ms, WAIT_MS_MAX) / 1_000
        return await self._ask_core(room, asker.ask_core(request, m.ResolvedCut, wait))

    def _topic(self, number: int) -> RelayedTopic:
        topic = self._host.topics.get(number)
        if topic is None:
            raise UnknownTopic("no such topic is relayed here", number)
        return self._allowed(topic)

    async def _ask_core(self, room: AnswerRoom, asked: Awaitable[R]) -> R:
        """Return what the core answers. Raises its refusal, `Unavailable` if it does not answer."""
        if self._forwarded >= FORWARDED_MAX:
            if asyncio.iscoroutine(asked):
                asked.close()
            raise Overloaded("too many questions wait for the core", RETRY_AFTER_MS)
        self._forwarded += 1
        room.step_aside()
        try:
            return await asked
        except (Disconnected, TimeoutError):
            core = self._host.config.core
            raise Unavailable(f"the core at {core} does not answer: try again shortly") from None
        finally:
            self._forwarded -= 1


def refusal_of(error: WeirError) -> m.Refusal:
    """Return what a client is told."""
    if isinstance(error, Refused):
        return m.Refusal(error.code, str(error), error.detail)
    if isinstance(error, BadName):
        return m.Refusal(BadName.code, str(error))
    return m.Refusal(Unavailable.code, f"this relay cannot answer: {error}")


def info_of(host: RelayHost, after: str) -> RelayInfo:
    """Return how far a relay is, with a page of its topics: those with names behind `after`."""
    partitions = host.partitions
    pulled: dict[str, int] = {}
    for upper, size in partitions.pulled.items() if not after else ():
        name = host.tiers.name_of(upper)
        pulled[name] = pulled.get(name, 0) + size
    sent = [] if after else sorted((*child, n) for child, n in partitions.children.sent.items())
    named = ((topic.info.full_name, topic) for topic in host.topics.values())
    left = nsmallest(_PAGE + 1, (row for row in named if row[0] > after), lambda row: row[0])
    found, count = list[RelayTopic](), 0
    for _, topic in left[:_PAGE]:
        rows = [partitions.held[one.group] for one in topic.info.addresses
                if one.group in partitions.held]  # fmt: skip
        found.append(topic_of_rows(topic, rows, steady_ms(), wall_ms()))
        count += len(rows)
        if count >= PAGE_PARTITIONS:
            break
    founded = host.founded
    return RelayInfo(
        founded.brokerset, founded.node, host.is_reached, sorted(pulled.items()),
        sent[:PAGE_CHILDREN], found, len(found) < len(left),
    )  # fmt: skip


def topic_of_rows(
    topic: RelayedTopic, rows: Sequence[Held], now_ms: int, now_wall_ms: int
) -> RelayTopic:
    """Return how far a relay is with the partitions of a topic."""
    lags = [lag_of(held, now_ms) for held in rows]
    below = children_of(rows, now_ms).values()
    tags = [tags_kept(held) for held in rows]
    marks = [milliseconds_of(held.mark.stamp) for held in rows if held.mark is not None]
    return RelayTopic(
        name=topic.info.full_name,
        barred=topic.why_barred[:_REASON_LENGTH],
        partitions=len(rows),
        lag_messages=sum(lag.messages for lag in lags),
        lag_bytes=sum(lag.bytes for lag in lags),
        lag_ms=_ms(max((lag.seconds for lag in lags), default=0.0)),
        news_ms=_ms(max((lag.news_seconds for lag in lags), default=0.0)),
        held_bytes=sum(held.state.ranges.total for held in rows),
        lost=sum(b - a for held in rows for a, b in held.state.gaps),
        tags=-1 if -1 in tags else max(tags, default=0),
        mark_ms=max((max(now_wall_ms - mark, 0) for mark in marks), default=-1),
        holds=sum(len(held.machine.upper.holds.silent(now_ms)) for held in rows),
        hold_messages=max((lag.messages for lag in below), default=0),
        hold_ms=_ms(max((lag.silent_seconds for lag in below), default=0.0)),
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
