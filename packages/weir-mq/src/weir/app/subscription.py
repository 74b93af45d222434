"""What a handler takes, and how it is to be handled: one `@app.subscribe`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from weir.client.arguments.choices import ConsumerMode
from weir.client.core.durations import seconds
from weir.client.core.retry_policy import Policy
from weir.model.limits import GRANT_MS_MAX
from weir.model.message import Message
from weir.model.topic import check_name, split_name

if TYPE_CHECKING:
    from weir.app.inbox import Inbox

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


@dataclass(frozen=True, slots=True)
class Subscription:
    """One handler of one topic, for one cluster. Raises `ValueError`, `TypeError`, `BadName`."""

    topic: str
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

    def __post_init__(self) -> None:
        """Check everything now: the decorated line is where it can be mended."""
        split_name(self.topic)
        check_name(self.cluster, "cluster")
        if self.policy.dead_letter is not None:
            split_name(self.policy.dead_letter)
            if split_name(self.policy.dead_letter) == split_name(self.topic):
                raise ValueError(f"dead_letter={self.topic!r} is the topic itself: name another")
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
    def name(self) -> str:
        """What it is called in the log: its function, topic and cluster."""
        function = getattr(self.handler, "__qualname__", repr(self.handler))
        return f"{function} ({self.topic}, cluster {self.cluster})"

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
