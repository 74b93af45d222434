"""Consumers that end without giving back what they hold."""

from __future__ import annotations

import asyncio

import pytest

from weir.client.consumer.consumer import Consumer
from weir.client.consumer.leases import TopicLeases
from weir.errors import BadRequest


async def leave(consumer: Consumer, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a consumer that has pulled: by an error (`failed`), by the end of its connection without
    a word (`vanished`), or by a `close` that is `cancelled` while it gives back what it holds.
    """
    ways = {"failed": _fail, "vanished": _vanish}
    if how in ways:
        await ways[how](consumer)
        return
    with monkeypatch.context() as patch:
        patch.setattr(TopicLeases, "give_back_all", _never)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.2)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing


async def _fail(consumer: Consumer) -> None:
    """Let an ack be refused."""
    leases = consumer.settlement.leases
    assert leases._feed is not None
    leases._feed.fail(BadRequest("an ack was refused"))
    with pytest.raises(BadRequest):
        await leases.take(1)


async def _vanish(consumer: Consumer) -> None:
    leases = consumer.settlement.leases
    network, leases._network = leases._network, None
    assert network is not None
    await network.close()


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


async def connected_again(consumer: Consumer) -> None:
    """Wait until a consumer has its second connection."""
    network = consumer.settlement.leases._network
    assert network is not None
    await network.home.used(1)
