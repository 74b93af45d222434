"""The relays above this one: connections to them, and what becomes of what is asked there.

Each is one process at one address, which serves all that it has by one connection. What fails is
told to the partition's machine as `Overloaded`: it asks the next upper node then, at last the core.
Marks of a topic's order are asked for once, for all readers and relays below (`MarkFeeds`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol, TypeVar

from weir.client.connection.credentials import AnyCredentials
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.client.core.retries import Backoff
from weir.errors import (
    Disconnected,
    Overloaded,
    RemoteProtocolError,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import Address
from weir.model.limits import (
    RELAY_MARKS_AWAITED_MAX,
    RELAY_READERS_WAITING_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.protocol.client import messages as m
from weir.relay import messages as r
from weir.relay.marks import OrderFact, TopicMarks
from weir.relay.ports import AnswerCame, Event, FilterToldFrom, RefusalCame, UpperNode

log = logging.getLogger(__name__)

R = TypeVar("R", bound=m.Reply)

#: What a relay asks.
Asked = r.Pull | r.AskFilter | r.SayHold
Hosts = tuple[tuple[str, int], ...]
#: A pull that is not answered fails before the machine gives it up (5 s). If nothing at all comes
#: from an upper relay for 2 s, its connection ends, and all that waits for it goes elsewhere.
PULL_WAIT = 1.0
REQUEST_TIMEOUT = 2.5
RETRY = Backoff(first=0.05, most=2.0)
RETRY_MS, REFUSED_MS = 300, 2_000
#: For so long a partition leaves alone an upper relay that answers others, and not its pull.
SILENT_MS = 10_000
_AGAIN = 2.0
#: An upper relay that does not say how far the order is complete is not asked that for so long.
_MARKS_ELSEWHERE = 10.0
#: Of one topic, marks are asked for no more often, in seconds.
_MARK_EVERY = 0.001


class UpperRelay:
    """A relay that this one pulls from."""

    def __init__(
        self, hosts: Hosts, number: int, system: int, credentials: AnyCredentials | None
    ) -> None:
        """Pull from a relay of a system, as who the `credentials` are of; `number` tells it from
        others to the machines here.
        """
        self._credentials = credentials
        self.hosts = hosts
        self.upper = UpperNode(0, number, False)
        self._system = system
        self._network: NetworkClient | None = None
        #: Until when it is not asked for marks, by the clock of the loop.
        self._no_marks_until = 0.0

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    async def keep(self) -> None:
        """Keep a connection to it, until this is cancelled."""
        tries = 0
        try:
            while True:
                if self._network is None:
                    tries += 1
                    await self._reach(tries)
                elif self._network.error is not None:  # it will never answer by these again
                    await self._leave()
                await asyncio.sleep(_AGAIN)
        finally:
            await self._leave()

    async def _reach(self, tries: int) -> None:
        network = NetworkClient(
            list(self.hosts), name="weir-relay", retry=RETRY, request_timeout=REQUEST_TIMEOUT,
            random=SYSTEM.get().dice(), credentials=self._credentials, prompt=True,
        )  # fmt: skip
        level = logging.WARNING if tries == 1 else logging.DEBUG
        try:
            await network.start()
        except WeirError as error:
            log.log(level, "the upper relay at %s is not reached: %s", self, error)
            return
        self._network = network
        welcome = network.welcome
        if welcome is None or welcome.system != self._system:
            log.log(level, "the upper relay at %s is of another system: nothing is asked", self)
            await self._leave()

    async def _leave(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            await network.close()

    async def answer_to(self, message: Asked) -> Event | None:
        """Return what came of a message; None if that is nothing."""
        group = message.group
        network = self._network
        if network is None or not network.is_up or network.welcome is None:
            await asyncio.sleep(0)  # the caller continues first
            return self._refused(message, RETRY_MS)
        address = Address(0, 0, group, network.welcome.node)
        request = m.AskRelay(address, b"".join(r.encode_message(message)))
        loop = asyncio.get_running_loop()
        late_at = loop.time() + network.request_timeout + PULL_WAIT
        try:
            told = await network.request(request, m.RelayTold, wait=PULL_WAIT, again=False)
            return event_of(b"".join(told.message), self.upper)
        except (RemoteProtocolError, TypeError) as error:
            log.warning("the upper relay at %s sent a malformed message: %s", self, error)
        except WeirError as error:
            log.debug("group %d: the upper relay at %s: %s", group, self, error)
            if isinstance(error, Disconnected):
                # A connection that has ended is dialled anew: nothing is asked before it answers.
                return self._refused(message, SILENT_MS if loop.time() >= late_at else RETRY_MS)
            if getattr(error, "retryable", True):
                return self._refused(message, RETRY_MS)
        return self._refused(message, REFUSED_MS)

    async def next_mark(self, request: m.AwaitMark) -> m.OrderMark | None:
        """Return its answer; None if it has none. One that does not get to a stamp that is waited
        for may be cut off, or wait for a relay that waits for it: for a while others are asked.
        """
        loop, network = asyncio.get_running_loop(), self._network
        if network is None or not network.is_up or loop.time() < self._no_marks_until:
            return None
        try:
            wait = request.wait_ms / 1_000
            mark = await network.request(request, m.OrderMark, wait=wait, again=False)
        except (WeirError, TimeoutError) as error:
            log.debug("the upper relay at %s tells no marks: %s", self, error)
            self._no_marks_until = loop.time() + _MARKS_ELSEWHERE
            return None
        if request.stamp and not mark.reached:
            self._no_marks_until = loop.time() + _MARKS_ELSEWHERE
        return mark

    def _refused(self, message: Asked, pause_ms: int) -> Event | None:
        if not isinstance(message, r.Pull):
            return None
        return RefusalCame(self.upper, r.Overloaded(message.group, message.number, pause_ms))


class UpperRelays:
    """The relays that this one pulls from, by what its machines call them."""

    def __init__(self, system: int, first: int, credentials: AnyCredentials | None = None) -> None:
        """Pull from none yet; they are numbered from `first` on. Log in there by `credentials`."""
        self._credentials = credentials
        self._system = system
        self._number = first
        self._relays: dict[Hosts, UpperRelay] = {}
        self._keeping: dict[Hosts, asyncio.Task[None]] = {}

    @property
    def nodes(self) -> tuple[UpperNode, ...]:
        """Their names, the preferred one first."""
        return tuple(one.upper for one in self._relays.values())

    async def next_mark(self, request: m.AwaitMark) -> m.OrderMark | None:
        """Return what the first of them says that answers; None if none does."""
        for relay in list(self._relays.values()):
            if (mark := await relay.next_mark(request)) is not None:
                return mark
        return None

    def find(self, upper: UpperNode) -> UpperRelay | None:
        """Return the relay of a name."""
        return next((one for one in self._relays.values() if one.upper == upper), None)

    def use(self, hosts: Sequence[Hosts]) -> bool:
        """Pull from the relays at these addresses from now on, the preferred one first; return
        whether that is anything new.
        """
        if [*hosts] == [*self._relays]:
            return False
        former = self._relays
        self._relays = {}
        for one in hosts:
            self._relays[one] = former.get(one) or self._begin(one)
        for gone in former.keys() - self._relays.keys():
            self._keeping.pop(gone).cancel()
        return True

    def _begin(self, hosts: Hosts) -> UpperRelay:
        relay = UpperRelay(hosts, self._number, self._system, self._credentials)
        self._number += 1
        task = asyncio.get_running_loop().create_task(relay.keep())
        task.add_done_callback(_ended)
        self._keeping[hosts] = task
        return relay

    async def close(self) -> None:
        """End all connections."""
        self._relays = {}
        for task in self._keeping.values():
            task.cancel()
        await asyncio.gather(*self._keeping.values(), return_exceptions=True)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("this relay stopped pulling from an upper relay", exc_info=error)


def event_of(payload: bytes, upper: UpperNode) -> Event | None:
    """Return what an upper node says; None if it says nothing. Raises `RemoteProtocolError`."""
    if not payload:
        return None
    message, data = r.decode_message(payload)
    match message:
        case r.Answer():
            return AnswerCame(upper, message, data)
        case r.FilterFrom():
            return FilterToldFrom(upper, message)
        case r.Pull() | r.AskFilter() | r.SayHold():
            raise RemoteProtocolError(f"an upper node asks a {type(message).__name__} of a relay")
        case _:
            return RefusalCame(upper, message)


class MarkAsker(Protocol):
    """Asks an upper node for marks: this relay, or a user by its own session in the core."""

    async def ask_core(self, request: m.Request, reply: type[R], wait: float) -> R:
        """Return the answer. Raises what it is refused with, `Disconnected` and `Unavailable`."""


class _Feed:
    """The marks of one topic, and which stamps an upper node is asked for."""

    def __init__(self, topic: int) -> None:
        self.topic = topic
        self.marks = TopicMarks()
        #: By stamp, the task that asks for it, and the asker.
        self.asked: dict[int, tuple[asyncio.Task[None], MarkAsker]] = {}
        #: When the next question may be sent, by the clock of the loop.
        self.next_at = 0.0
        #: Set, and another one taken, with each answer.
        self.news = asyncio.Event()


class MarkFeeds:
    """Marks for all who wait for one here. A stamp that several wait for is asked for once."""

    def __init__(self) -> None:
        """Begin without waiters."""
        self._feeds: dict[int, _Feed] = {}
        self._waiting = 0

    async def next_mark(self, request: m.AwaitMark, asker: MarkAsker) -> m.OrderMark:
        """Return the mark that a reader waits for, or after its time what is known. An upper node
        is asked by the `asker` of one of those who wait. Raises what that is refused with,
        `Unavailable`, and `Overloaded`.
        """
        if self._waiting >= RELAY_READERS_WAITING_MAX:
            raise Overloaded("too many readers wait for marks here", RETRY_AFTER_MS)
        self._waiting += 1
        try:
            return await self._next_mark(request, asker)
        finally:
            self._waiting -= 1

    async def _next_mark(self, request: m.AwaitMark, asker: MarkAsker) -> m.OrderMark:
        loop, above, stamp = asyncio.get_running_loop(), request.above, request.stamp
        deadline = loop.time() + min(request.wait_ms, WAIT_MS_MAX) / 1_000
        while True:
            feed = self._feeds.get(request.topic)
            if feed is None:
                feed = self._feeds[request.topic] = _Feed(request.topic)
            reached = feed.marks.reached(above, stamp)
            left = deadline - loop.time()
            if reached or left <= 0:
                known = feed.marks.since(above)
                return m.OrderMark(
                    request.topic, known.stamp, known.partitions, list(known.throughs),
                    known.ended, reached=reached,
                )  # fmt: skip
            news, asking = feed.news, self._ask(feed, stamp, asker)
            try:
                await asyncio.wait_for(news.wait(), left)
            except TimeoutError:
                continue
            if asking is None or not asking.done() or asking.cancelled():
                continue
            if (error := asking.exception()) is not None:
                if isinstance(error, UnknownTopic):
                    self._feeds.pop(request.topic, None)
                raise error

    def _ask(self, feed: _Feed, stamp: int, asker: MarkAsker) -> asyncio.Task[None] | None:
        """Return what asks for a stamp by this asker; None where another one asks for it, or too
        many questions are under way: their answers are news. Each stamp is asked for by itself, for
        a higher one may wait for a partition that stands still.
        """
        if stamp in feed.asked:
            asking, by = feed.asked[stamp]
            return asking if by is asker else None
        if len(feed.asked) >= RELAY_MARKS_AWAITED_MAX:
            return None
        asking = asyncio.get_running_loop().create_task(self._ask_above(feed, stamp, asker))
        asking.add_done_callback(_retrieved)
        feed.asked[stamp] = asking, asker
        return asking

    async def _ask_above(self, feed: _Feed, stamp: int, asker: MarkAsker) -> None:
        loop = asyncio.get_running_loop()
        try:
            wait, feed.next_at = feed.next_at - loop.time(), max(feed.next_at, loop.time())
            feed.next_at += _MARK_EVERY
            if wait > 0:
                await asyncio.sleep(wait)
            marks = feed.marks
            request = m.AwaitMark(feed.topic, marks.stamp, stamp, round(PULL_WAIT * 1_000))
            try:
                told = await asker.ask_core(request, m.OrderMark, PULL_WAIT)
            except (Disconnected, TimeoutError):
                raise Unavailable("the core does not answer: try again shortly") from None
            fact = OrderFact(told.stamp, told.partitions, told.throughs, told.ended)
            marks.take(request.above, fact, is_awaited=told.reached)
        finally:
            feed.asked.pop(stamp, None)
            news, feed.news = feed.news, asyncio.Event()
            news.set()

    def forget(self, topic: int) -> None:
        """What was told of a topic does not hold any more: a lineage ended, or the topic is gone.
        Answers that are under way are for nobody.
        """
        feed = self._feeds.pop(topic, None)
        if feed is not None:
            for task, _ in feed.asked.values():
                task.cancel()
            feed.news.set()

    async def close(self) -> None:
        """Ask for nothing any more."""
        tasks = [task for feed in self._feeds.values() for task, _ in feed.asked.values()]
        for topic in list(self._feeds):
            self.forget(topic)
        await asyncio.gather(*tasks, return_exceptions=True)


def _retrieved(task: asyncio.Task[None]) -> None:
    """Those who waited were told, if somebody still did."""
    if not task.cancelled():
        task.exception()
