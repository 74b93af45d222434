"""An application at work: its connection, its subscriptions, and how they end together.

Of SIGTERM and Ctrl-C the first lets all apps of a process end, the second does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

from weir.app.dispatcher import Dispatcher
from weir.app.handlers import Hooks, Subscription, Threads, work_of
from weir.client.client import Client
from weir.client.connection.system import SYSTEM
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.dead_letters import bury
from weir.client.core.retries import seconds
from weir.errors import UnknownTopic, WeirError
from weir.model.message import Message

log = logging.getLogger("weir.app")


class _Stops:
    """What the first signal sets: of all applications that run in an event loop."""

    def __init__(self, tells: bool) -> None:
        self._tells = tells
        self.events: list[asyncio.Event] = []
        self._release: Callable[[], None] | None = None

    def catch(self) -> None:
        self._release = SYSTEM.get().signals(self._first)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _first(self) -> None:
        if self._tells:
            log.info("stopping: waiting for running handlers; a second signal does not wait")
        for one in self.events:
            one.set()
        self.release()


_all: WeakKeyDictionary[asyncio.AbstractEventLoop, _Stops] = WeakKeyDictionary()


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event, tells: bool = True) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT; the second does what it always did.

    The log says so, unless the first one in an event loop has it that `tells` is false.
    """
    loop = asyncio.get_running_loop()
    stops = _all.setdefault(loop, _Stops(tells))
    if not stops.events:
        stops.catch()
    stops.events.append(stop)
    try:
        yield
    finally:
        stops.events.remove(stop)
        if not stops.events:
            stops.release()
            _all.pop(loop, None)


class _One:
    """A subscription at work: its consumer, and its threads if it has some."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self.subscription = subscription
        self._client = client
        self._threads = Threads(f"weir {subscription.cluster}", subscription.concurrency)
        self._consumer: Consumer | None = None
        self._dispatcher: Dispatcher | None = None
        self._pruning: asyncio.Task[None] | None = None

    @property
    def failed(self) -> asyncio.Future[None]:
        assert self._dispatcher is not None  # it was started
        return self._dispatcher.failed

    async def start(self, hooks: Hooks) -> None:
        one, client = self.subscription, self._client
        dead_letter = one.policy.dead_letter
        if dead_letter is not None:
            await _ensure(client, dead_letter)
        if one.inbox is not None and not one.inbox.created:
            raise RuntimeError(
                f"the inbox of cluster {one.cluster} knows no database: call "
                "inbox.create(engine) in a function under @app.on_start"
            )
        self._consumer = await client.consumer(
            one.topic,
            cluster=one.cluster,
            mode=one.mode,
            lease=one.lease,
            max_messages=one.max_messages,
            max_work=None,
        ).open()

        async def buried(message: Message, attempts: int, reason: str) -> None:
            assert dead_letter is not None  # the policy says that nothing is dead without
            await bury(client, dead_letter, message, one.cluster, attempts, reason)

        work = work_of(one, hooks, self._threads)
        source = self._consumer.deliveries()
        self._dispatcher = Dispatcher(one, source, work, buried, SYSTEM.get().dice())
        self._dispatcher.start()
        if one.inbox is not None:
            watching = one.inbox.keep_pruned(client, one.topic)
            self._pruning = asyncio.get_running_loop().create_task(watching)

    async def stop(self, grace: float) -> int:
        """End; return how many messages were cancelled."""
        cancelled = 0
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.wait((self._pruning,))
        try:
            if self._dispatcher is not None:
                cancelled = await self._dispatcher.stop(grace)
        finally:
            self._threads.close()
            if self._consumer is not None:
                await self._consumer.close()
        return cancelled


class Running:
    """The subscriptions of an application, from `start` to `stop`."""

    def __init__(self, client: Client, subscriptions: Sequence[Subscription], hooks: Hooks) -> None:
        """Take what to run."""
        self.client = client
        self._hooks = hooks
        self._all = [_One(client, subscription) for subscription in subscriptions]

    async def start(self) -> None:
        """Let all begin. Raises what a consumer's `open` raises; then too, `stop` is needed."""
        for one in self._all:
            await one.start(self._hooks)

    async def ended(self) -> None:
        """Return never; raise what ends a subscription, as the topic being deleted."""
        await asyncio.gather(*(one.failed for one in self._all))

    def check(self) -> None:
        """Raise what has ended a subscription, if something has."""
        for one in self._all:
            if one.failed.done() and not one.failed.cancelled():
                one.failed.result()

    async def stop(self, grace: str | float) -> int:
        """Stop pulling, let what runs end, ack it, give back the rest.

        Returns how many messages were not over after `grace`, and cancelled.
        """
        stops = [one.stop(seconds(grace)) for one in self._all]
        outcomes = await asyncio.gather(*stops, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, WeirError):
                log.warning("acks may be lost, so their messages may come again: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return sum(outcome for outcome in outcomes if isinstance(outcome, int))


async def _ensure(client: Client, topic: str) -> None:
    """Make a topic unless it is there, whatever its settings are."""
    try:
        await client.describe(topic)
    except UnknownTopic:
        await client.create_topic(topic)
