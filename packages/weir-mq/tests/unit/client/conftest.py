"""A small broker on loopback that a test can tell to misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from rigs.fake_broker import FakeBroker


@pytest.fixture
def fake_broker() -> Callable[[], AbstractAsyncContextManager[FakeBroker]]:
    """`async with fake_broker() as broker:` inside the test's own event loop."""

    @asynccontextmanager
    async def running() -> AsyncIterator[FakeBroker]:
        broker = FakeBroker()
        await broker.start()
        try:
            yield broker
        finally:
            await broker.end()

    return running
