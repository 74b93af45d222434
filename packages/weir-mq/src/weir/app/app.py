"""`App`: handlers of messages, registered by a decorator and run until somebody stops them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from weir.app.handlers import (
    CONCURRENCY,
    LEASE,
    LISTED,
    PULLED,
    TIMEOUT,
    Hooks,
    Subscription,
    call,
)
from weir.app.runner import Running, stopped_by_signals
from weir.client.arguments import ConsumerMode, parse_url
from weir.client.client import Client, connect
from weir.client.core.retries import Backoff, policy_of, seconds

if TYPE_CHECKING:
    from weir.app.inbox import Inbox

H = TypeVar("H", bound=Callable[..., Any])

URL = "weir://localhost:6800"
GRACE = "10s"


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
            parse_url(url)  # a wrong one is told here
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
        topic: str,
        *,
        cluster: str,
        mode: ConsumerMode = "shared",
        retry: Backoff | None = None,
        dead_letter: str | None = None,
        concurrency: int | None = None,
        batch: bool = False,
        max_messages: int | None = None,
        lease: str | float = LEASE,
        timeout: str | float | None = TIMEOUT,
        inbox: Inbox | None = None,
    ) -> Callable[[H], H]:
        """Let the decorated function handle a topic's messages as a consumer of a cluster.

        It takes a message (with `batch` a list, of `max_messages` at most) and is `async def`, or a
        plain function, which runs in a thread. Returning acks the message. Raising gives it back:
        `retry` sets the delay, and the number of attempts after which the message is published to
        `dead_letter` instead. `Reject` does that at once. Without `dead_letter` a message is tried
        for ever. A message whose attempts were used up by handlers that died is not handled again.

        `mode`: "shared" hands out every message by itself; "keyed" those of one key one after the
        other; "ordered" those of a partition. At most `concurrency` are handled at once (16; of an
        ordered cluster 1). `lease` is extended while a message is handled: it is how long others
        wait for the messages of a machine that vanished. A handler that runs longer than `timeout`
        has failed. Old rows of `inbox` are deleted.

        Raises `ValueError`, `TypeError` and `BadName` for bad arguments.
        """
        if concurrency is None:
            concurrency = 1 if mode == "ordered" else CONCURRENCY
        if max_messages is None:
            max_messages = LISTED if batch else PULLED
        policy = policy_of(retry, dead_letter)

        def decorate(handler: H) -> H:
            subscription = Subscription(
                topic, cluster, handler, policy, mode, concurrency, batch, max_messages, lease,
                timeout, inbox,
            )  # fmt: skip
            if any((one.topic, one.cluster) == (topic, cluster) for one in self._subscriptions):
                raise ValueError(
                    f"cluster {cluster!r} has a handler of {topic!r} already, and each message "
                    "goes to one of a cluster: name another cluster"
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
