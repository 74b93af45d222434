"""A publish that runs out of time says what the broker refused it with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weir.client.client import connect
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, Overloaded
from weir.protocol.client import messages as m


def vain(fake_broker: Any, script: Any) -> str:
    """Return what a publish says that a broker with a script never confirms."""
    said = ""
    quick = Backoff(first=0.005, most=0.02)

    async def scenario() -> None:
        nonlocal said
        async with fake_broker() as broker:
            w = await connect(broker.url, retry=quick, request_timeout=0.8)
            await w.create_topic("t")
            broker.script = script
            with pytest.raises(Disconnected) as refused:
                await w.publish("t", b"x")
            said = str(refused.value)
            with pytest.raises(Disconnected):  # it is still not confirmed
                await w.close()

    asyncio.run(scenario())
    return said


def test_a_timeout_carries_the_last_refusal(fake_broker: Any) -> None:
    words = "the disk is full: free space or add a disk"

    def full(request: m.Request) -> m.Refusal | None:
        return m.Refusal(Overloaded.code, words, 5) if isinstance(request, m.Produce) else None

    said = vain(fake_broker, full)
    assert f"refused it last with: Overloaded: {words}" in said
    assert "majority" not in said


def test_a_timeout_without_a_refusal_asks_for_the_broker(fake_broker: Any) -> None:
    def cut(request: m.Request) -> str | None:
        return "cut" if isinstance(request, m.Produce) else None

    said = vain(fake_broker, cut)
    assert "Check that the broker is up and has a majority" in said
    assert "refused" not in said


def test_a_request_whose_last_try_has_no_answer_says_what_it_was_refused_with_before(
    fake_broker: Any,
) -> None:
    async def scenario() -> None:
        over = asyncio.Event()

        async with fake_broker() as broker, connect(broker.url, request_timeout=0.8) as w:
            await w.create_topic("t")
            plain = broker.answer

            async def silent(request: m.Request) -> m.Reply:
                await over.wait()
                reply: m.Reply = await plain(request)
                return reply

            def full(request: m.Request) -> m.Refusal | None:
                if not isinstance(request, m.OpenProducer):
                    return None
                broker.script, broker.answer = lambda _: None, silent
                return m.Refusal(Overloaded.code, "the disk is full", 5)

            broker.script = full
            with pytest.raises(Disconnected) as refused:
                await w.publish("t", b"x")
            over.set()
            said = str(refused.value)
            assert "did not answer within" in said
            assert "before that it was refused with Overloaded: the disk is full" in said

    asyncio.run(scenario())


def test_a_pause_that_outlasts_the_time_of_a_request_ends_it_with_the_refusal(
    fake_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine. A request with no time left could not be answered."""
    asked: list[m.Request] = []

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url, request_timeout=0.8) as w:
            await w.create_topic("t")

            def full(request: m.Request) -> m.Refusal | None:
                if not isinstance(request, m.OpenProducer):
                    return None
                asked.append(request)
                return m.Refusal(Overloaded.code, "the disk is full", 5)

            broker.script = full
            plain = asyncio.sleep
            monkeypatch.setattr(asyncio, "sleep", lambda seconds: plain(seconds + 1.0))
            with pytest.raises(Overloaded, match="the disk is full"):
                await w.publish("t", b"x")
            monkeypatch.undo()

    asyncio.run(scenario())
    assert len(asked) == 1
