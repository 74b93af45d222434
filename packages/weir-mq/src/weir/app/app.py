"""`App`: handlers of messages, registered by a decorator and run until somebody stops them.

An application at work is its connection and its subscriptions, which end together. Of SIGTERM and
Ctrl-C the first lets all apps of a process end, the second does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from weir.app.dispatcher import Dispatcher
from weir.app.handlers import (
    CONCURRENCY,
    LEASE,
    LISTED,
    PULLED,
    TIMEOUT,
    Hooks,
    Subscription,
    Threads,
    call,
    work_of,
)
from weir.client.arguments import ConsumerMode, parse_url
from weir.client.client import Client, connect
from weir.client.connection.credentials import split_user
from weir.client.connection.system import SYSTEM
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.settlement import bury
from weir.client.consumer.subscription import Topics
from weir.client.core.retries import Backoff, policy_of, seconds
from weir.client.reader.options import Start
from weir.errors import UnknownTopic, WeirError
from weir.model.message import Message

if TYPE_CHECKING:
    from weir.app.inbox import Inbox

log = logging.getLogger("weir.app")

H = TypeVar("H", bound=Callable[..., Any])

URL = "weir://localhost:6800"
GRACE = "10s"


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
            one.taken.given,
            cluster=one.cluster,
            start=one.start,
            mode=one.mode,
            lease=one.lease,
            max_messages=one.max_messages,
            max_work=None,
            tags=one.tags,
        ).open()

        async def buried(message: Message, attempts: int, reason: str) -> None:
            assert dead_letter is not None  # the policy says that nothing is dead without
            await bury(client, dead_letter, message, one.cluster, attempts, reason)

        work = work_of(one, hooks, self._threads)
        source = self._consumer.deliveries()
        self._dispatcher = Dispatcher(one, source, work, buried, SYSTEM.get().dice())
        self._dispatcher.start()
        if one.inbox is not None:
            watching = one.inbox.keep_pruned(client, self._consumer)
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


class App:
    """Handlers, and what runs them.

    app = weir.App("weir://localhost")

    @app.subscribe("unlocks", cluster="ledger", dead_letter="unlocks.dead")
    async def record(message: weir.Message) -> None:
        ...   # returning acks, raising retries with backoff, weir.Reject gives up

    app.run_sync()   # or `weir work module:app --cluster ledger`
    """

    def __init__(self, url: str | None = None, *, name: str = "app") -> None:
        """Take where to connect to, if `run` is not to be told; `name` is what brokers call it."""
        if url is not None:
            parse_url(split_user(url)[0])  # a wrong one is told here
        self._url = url
        self._name = name
        self._subscriptions: list[Subscription] = []
        self._hooks = Hooks()
        self._running: Running | None = None

    @property
    def url(self) -> str:
        """The address that the app connects to, unless `run` gets another one."""
        return self._url or URL

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions of the app."""
        return tuple(self._subscriptions)

    @property
    def client(self) -> Client:
        """The client of a running app: `await app.client.publish(...)`."""
        if self._running is None:
            raise RuntimeError("the app is not running: it has a client only while it runs")
        return self._running.client

    def subscribe(
        self,
        topic: Topics,
        *,
        cluster: str,
        start: Start = "earliest",
        mode: ConsumerMode = "shared",
        retry: Backoff | None = None,
        dead_letter: str | None = None,
        concurrency: int | None = None,
        batch: bool = False,
        max_messages: int | None = None,
        lease: str | float = LEASE,
        timeout: str | float | None = TIMEOUT,
        inbox: Inbox | None = None,
        tags: str | Sequence[str] | None = None,
    ) -> Callable[[H], H]:
        """Let the decorated function handle a topic's messages as a consumer of a cluster.

        `topic`: a topic, a list of them, or a prefix as "orders.*", as a consumer takes them: each
        has a cluster of that name, and those that a prefix matches later join within seconds.

        It takes a message (with `batch` a list, of `max_messages` at most) and is `async def`, or a
        plain function, which runs in a thread. Returning acks the message. Raising gives it back:
        `retry` sets the delay, and the number of attempts after which the message is published to
        `dead_letter` instead. `Reject` does that at once. Without `dead_letter` a message is tried
        for ever. A message whose attempts were used up by handlers that died is not handled again.

        `start`, as a reader's, says where the cluster begins in a topic unless it has begun there.

        `mode`, in each topic: "shared" hands out every message by itself; "keyed" those of one key
        one after the other; "ordered" those of a partition. At most `concurrency` are handled at
        once (16; of an ordered cluster 1). `lease` is extended while a message is handled: it is
        how long others wait for the messages of a machine that vanished. A handler that runs longer
        than `timeout` has failed. Old rows of `inbox` are deleted. `tags`, which the cluster keeps:
        only messages with one of them, "" for those without.

        Raises `ValueError`, `TypeError`, `BadName` and `BadRequest` for bad arguments.
        """
        if concurrency is None:
            concurrency = 1 if mode == "ordered" else CONCURRENCY
        if max_messages is None:
            max_messages = LISTED if batch else PULLED
        policy = policy_of(retry, dead_letter)

        def decorate(handler: H) -> H:
            subscription = Subscription(
                topic, cluster, handler, policy, mode, concurrency, batch, max_messages, lease,
                timeout, inbox, start, tags,
            )  # fmt: skip
            for one in self._subscriptions:
                if one.cluster == cluster and one.taken.meets(subscription.taken):
                    raise ValueError(
                        f"cluster {cluster!r} has a handler of {one.taken.text!r} already, and "
                        "each message goes to one of a cluster: name another cluster"
                    )
            self._subscriptions.append(subscription)
            return handler

        return decorate

    def before(self, hook: H) -> H:
        """Call `hook(message)` before a message is handled; an exception fails the message."""
        self._hooks.before.append(hook)
        return hook

    def after(self, hook: H) -> H:
        """Call `hook(message, error)` after a message; `error` is None if it was handled."""
        self._hooks.after.append(hook)
        return hook

    def on_start(self, hook: H) -> H:
        """Call `hook()` before the first message; an exception ends the app."""
        self._hooks.on_start.append(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Call `hook()` after the last message, also if the start failed."""
        self._hooks.on_stop.append(hook)
        return hook

    @contextlib.asynccontextmanager
    async def running(
        self, url: str | None = None, *, cluster: str | None = None, grace: str | float = GRACE
    ) -> AsyncIterator[Running]:
        """Run the app for the time of the block: for tests, and beside other tasks.

        `cluster`: only its handlers. Leaving stops pulling, waits up to `grace` for running
        handlers, acks what is done and gives back the rest. Raises `UnknownTopic`, `Disconnected`,
        `ValueError`.
        """
        chosen = [one for one in self._subscriptions if cluster in (None, one.cluster)]
        if not chosen:
            names = sorted({one.cluster for one in self._subscriptions})
            raise ValueError(
                f"no handler of cluster {cluster!r}: there are {', '.join(names)}"
                if names
                else "no handler: decorate one with @app.subscribe(topic, cluster=...)"
            )
        if self._running is not None:
            raise RuntimeError("the app is already running")
        patience = seconds(grace)
        async with connect(url or self.url, name=self._name) as client:
            running = self._running = Running(client, chosen, self._hooks)
            try:
                for hook in self._hooks.on_start:
                    await call(hook)
                await running.start()
                yield running
                running.check()
            finally:
                try:
                    await running.stop(patience)
                finally:
                    try:
                        for hook in self._hooks.on_stop:
                            await call(hook)
                    finally:
                        self._running = None

    async def run(
        self,
        url: str | None = None,
        *,
        cluster: str | None = None,
        stop: asyncio.Event | None = None,
        grace: str | float = GRACE,
    ) -> None:
        """Run until `stop` is set, or SIGTERM or SIGINT comes; see `running`.

        An app that has not connected by then gives up. A second signal does not wait. Raises the
        error that ends a subscription, such as `UnknownTopic`.
        """
        stop = stop or asyncio.Event()
        with stopped_by_signals(stop):
            begun = asyncio.Event()
            work = asyncio.ensure_future(self._run(url, cluster, grace, stop, begun))
            asked = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
                if not begun.is_set():
                    work.cancel()
                await asyncio.wait((work,))
            finally:
                work.cancel()
                asked.cancel()
                await asyncio.wait((work, asked))
            if not (stop.is_set() and work.cancelled()):
                work.result()

    async def _run(
        self,
        url: str | None,
        cluster: str | None,
        grace: str | float,
        stop: asyncio.Event,
        begun: asyncio.Event,
    ) -> None:
        async with self.running(url, cluster=cluster, grace=grace) as running:
            begun.set()
            asked = asyncio.ensure_future(stop.wait())
            ended = asyncio.ensure_future(running.ended())
            try:
                await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.result()
            finally:
                asked.cancel()
                ended.cancel()
                await asyncio.wait((asked, ended))

    def run_sync(
        self, url: str | None = None, *, cluster: str | None = None, grace: str | float = GRACE
    ) -> None:
        """Run in an event loop of its own, uvloop's if it is installed (`weir-mq[fast]`)."""
        run_in_new_loop(self.run(url, cluster=cluster, grace=grace))


def run_in_new_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, in an event loop of uvloop's if that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop

        factory = new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
