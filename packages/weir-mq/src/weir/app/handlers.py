"""One `@app.subscribe`: what a handler takes, how it is to be handled, and what is called for it.

From a handler as users write it, and hooks round it, comes one coroutine function. Handlers that
are plain functions get threads, which a program that ends does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from weir.client.arguments import ConsumerMode, check_tags
from weir.client.connection.system import SYSTEM
from weir.client.consumer.subscription import Subscription as Taken
from weir.client.consumer.subscription import Topics
from weir.client.core.retries import Policy, seconds
from weir.client.reader.options import Start
from weir.model.limits import GRANT_MS_MAX
from weir.model.message import Message
from weir.model.topic import check_name

if TYPE_CHECKING:
    from weir.app.inbox import Inbox

log = logging.getLogger("weir.app")

#: `async def`, or a plain function, which runs in a thread.
Handler = Callable[[Message], Any] | Callable[[Sequence[Message]], Any]

MODES = get_args(ConsumerMode)
CONCURRENCY = 16
#: Threads of plain functions, if all are at work at once.
CONCURRENCY_MAX = 10_000
LEASE = "30s"
#: A handler that takes longer hangs, as far as one can tell.
TIMEOUT = "30m"
#: Messages of a list, and of a pull for handlers that take them one by one, at most: a pull is what
#: is handled in about a second, so these bound the quickest handlers only.
LISTED = 1_000
PULLED = 10_000

#: A call for a thread: the future of its outcome, the function, and its argument.
Call = tuple[asyncio.Future[Any], Callable[[Any], Any], Any]
Work = Callable[[Any], Awaitable[object]]


class Subscription(msgspec.Struct, frozen=True):
    """One handler of the topics of a consumer, for one cluster.

    Raises `ValueError`, `TypeError`, `BadName`, `BadRequest`.
    """

    topic: Topics
    cluster: str
    handler: Handler
    policy: Policy
    mode: ConsumerMode = "shared"
    concurrency: int = CONCURRENCY
    #: Whether the handler takes a list of messages.
    batch: bool = False
    max_messages: int = PULLED
    lease: str | float = LEASE
    #: None: a handler may take for ever.
    timeout: str | float | None = TIMEOUT
    inbox: Inbox | None = None
    start: Start = "earliest"
    #: The cluster takes only messages with one of these tags; None: all.
    tags: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check everything now: the decorated line is where it can be mended."""
        taken = self.taken
        check_name(self.cluster, "cluster")
        check_tags(self.tags)
        dead_letter = self.policy.dead_letter
        if dead_letter is not None and taken.takes(dead_letter):
            raise ValueError(
                f"dead_letter={dead_letter!r} is a topic that the handler takes itself: name "
                "another"
            )
        if not callable(self.handler):
            raise TypeError(f"{self.handler!r} is no function: decorate one that takes a message")
        if self._is(inspect.isgeneratorfunction) or self._is(inspect.isasyncgenfunction):
            raise TypeError(f"{self.handler!r} yields, so that calling it does nothing: return")
        self._check_takes_one()
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: it must be one of {', '.join(MODES)}")
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency={self.concurrency}: give 1 to {CONCURRENCY_MAX:,}")
        if not 1 <= seconds(self.lease) * 1_000 <= GRANT_MS_MAX:
            raise ValueError(f"lease={self.lease!r}: give 1 ms to {GRANT_MS_MAX // 1_000:,} s")
        if self.max_messages < 1:
            raise ValueError(f"max_messages={self.max_messages}: give 1 or more")
        if self.timeout is not None and not seconds(self.timeout):
            raise ValueError("timeout=0: give more than 0, or None for no limit")
        if self.inbox is not None and self.inbox.cluster != self.cluster:
            raise ValueError(
                f"the inbox is of cluster {self.inbox.cluster!r}, and this is {self.cluster!r}: "
                "give each cluster an inbox of its own"
            )

    @property
    def taken(self) -> Taken:
        """The topics, and where the cluster begins in them, as a consumer takes them.

        Raises `TypeError`, `BadName`, `BadRequest`.
        """
        return Taken(self.topic, self.start)

    @property
    def name(self) -> str:
        """What it is called in the log: its function, topic and cluster."""
        function = getattr(self.handler, "__qualname__", repr(self.handler))
        return f"{function} ({self.taken.text}, cluster {self.cluster})"

    @property
    def awaited(self) -> bool:
        """Whether the handler is a coroutine function; any other runs in a thread."""
        return self._is(inspect.iscoroutinefunction)

    def _check_takes_one(self) -> None:
        """Raise `TypeError` unless the handler can be called with one argument."""
        what, kind = ("messages", "a list of messages") if self.batch else ("message", "a message")
        try:
            signature = inspect.signature(self.handler)
        except (TypeError, ValueError):
            return  # some functions of extensions tell nothing of theirs
        try:
            signature.bind(None)
        except TypeError as error:
            name = getattr(self.handler, "__name__", "handler")
            raise TypeError(
                f"{name}{signature} is called with {kind} alone ({error}): write "
                f"`def {name}({what})`"
            ) from None

    def _is(self, kind: Callable[[object], bool]) -> bool:
        handler = inspect.unwrap(self.handler)
        called = getattr(handler, "__call__", None)  # noqa: B004  # what is asked is its kind
        return kind(handler) or kind(called)


Hook = Callable[..., Awaitable[None] | None]


async def call(hook: Hook, *arguments: object) -> None:
    """Call a hook, plain or `async def`."""
    outcome = hook(*arguments)
    if inspect.isawaitable(outcome):
        await outcome


class Threads:
    """Up to `most` threads, started as they are needed, that calls are handed to."""

    def __init__(self, name: str, most: int) -> None:
        """Begin with none."""
        self._name = name
        self._most = most
        self._started = 0
        self._under_way = 0
        self._system = SYSTEM.get()
        self._calls = self._system.queue()

    async def run(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return what `call(argument)` does, or raise what it raises.

        A caller that is cancelled meanwhile returns at once; the call itself continues, and its
        outcome is lost. Its thread ends with it, and another one takes its place.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        if self._started < min(self._under_way, self._most):
            self._started += 1
            # `concurrent.futures` would wait for a call that hangs when the program ends.
            self._system.thread(self._work, self._name)
        self._calls.put((future, call, argument))
        try:
            return await future
        except asyncio.CancelledError:
            self._started -= future.cancelled()
            raise
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads, each when its call is over."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def _work(self) -> None:
        task: Call | None
        while (task := self._calls.get()) is not None:
            future, call, argument = task
            if future.cancelled():
                return
            try:
                outcome = partial(_settle, future, future.set_result, call(argument))
            except StopIteration as error:  # which no future takes
                failure = RuntimeError(f"the handler raised {error!r}")
                outcome = partial(_settle, future, future.set_exception, failure)
            except BaseException as error:
                outcome = partial(_settle, future, future.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop may have ended before the call
                future.get_loop().call_soon_threadsafe(outcome)
            if future.cancelled():
                return
            del task, future, call, argument, outcome  # what they hold is not kept while idle


def _settle(future: asyncio.Future[Any], how: Callable[[Any], None], what: Any) -> None:
    if not future.done():  # somebody still waits
        how(what)


class Hooks(msgspec.Struct, frozen=True):
    """What an application wants to be called, in the order in which it said so."""

    before: list[Hook] = msgspec.field(default_factory=list)
    after: list[Hook] = msgspec.field(default_factory=list)
    on_start: list[Hook] = msgspec.field(default_factory=list)
    on_stop: list[Hook] = msgspec.field(default_factory=list)


def work_of(subscription: Subscription, hooks: Hooks, threads: Threads) -> Work:
    """Return what handles a message, or a list of them: the handler alone, if that is all."""
    handler: Any = subscription.handler

    async def in_thread(given: Any) -> None:
        outcome = await threads.run(handler, given)
        if outcome is not None:
            await _come_true(outcome)

    work: Work = handler if subscription.awaited else in_thread
    if not hooks.before and not hooks.after:
        return work

    async def hooked(given: Any) -> None:
        messages: list[Message] = given if subscription.batch else [given]
        error: BaseException | None = None
        try:
            for message in messages:
                for hook in hooks.before:
                    await call(hook, message)
            await work(given)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for message in messages:
                for hook in hooks.after:
                    await _quietly(hook, message, error)
            del error  # it holds this frame, and this frame held it

    return hooked


async def _come_true(outcome: object) -> None:
    """Let that happen which a plain function has only promised, as a lambda of a coroutine function
    does: else its message would be acked, and nothing done. Raises `TypeError` for a generator.
    """
    if inspect.isawaitable(outcome):
        await outcome
    elif inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise TypeError("the handler returned a generator, so nothing ran: do not use yield in it")


async def _quietly(hook: Hook, message: Message, error: BaseException | None) -> None:
    """Call a hook whose own failure changes nothing: the message was handled."""
    try:
        await call(hook, message, error)
    except Exception:
        log.exception("an after hook raised; the message's outcome is unchanged")
