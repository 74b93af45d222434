"""A node in memory, and a consumer of deliveries that a test makes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import weir
from rigs.deliveries import FakeDelivery, FakeSource, Seen
from weir.app.dispatcher import Dispatcher
from weir.app.handlers import Subscription
from weir.client.core.retries import policy_of

Begun = Callable[..., contextlib.AbstractAsyncContextManager[Any]]


@pytest.fixture
def begun() -> Begun:
    """A subscription at work on a source that a test fills; `dead` is what was buried, and why."""

    @contextlib.asynccontextmanager
    async def begin(
        work: Callable[[Any], Awaitable[None]],
        *,
        retry: weir.Backoff | None = None,
        dead_letter: str | None = "dead",
        **options: Any,
    ) -> AsyncIterator[Any]:
        policy = policy_of(retry, dead_letter)
        subscription = Subscription("doors", "ledger", work, policy, **options)
        source, dead = FakeSource(), list[tuple[bytes, int, str]]()

        async def bury(message: weir.Message, attempts: int, reason: str) -> None:
            dead.append((message.value, attempts, reason))

        handling = Dispatcher(subscription, source, work, bury, Random(1))
        handling.start()
        try:
            yield SimpleNamespace(source=source, dead=dead, handling=handling)
        finally:
            await handling.stop(5.0)

    return begin


@pytest.fixture
def delivery() -> type[FakeDelivery]:
    """What makes a delivery of a value."""
    return FakeDelivery


@pytest.fixture
def node() -> Iterator[Any]:
    """A broker."""
    with weir.testing.node() as node:
        yield node


@pytest.fixture
def seen() -> Seen:
    """Where handlers put what they got."""
    return Seen()


@pytest.fixture
def all_done() -> Callable[[Any, str, str], Awaitable[None]]:
    """What waits until a cluster has done all of a topic."""

    async def wait(w: Any, topic: str, cluster: str) -> None:
        async with asyncio.timeout(30):
            while not (found := await w.clusters(topic, cluster)) or found[0].lag:
                await asyncio.sleep(0.01)

    return wait
