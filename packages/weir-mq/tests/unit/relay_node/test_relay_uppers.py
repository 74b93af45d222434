"""Relays that do not answer: what waits for one goes elsewhere, until it answers anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.fake_broker import FakeBroker
from weir.errors import Disconnected, Unavailable
from weir.protocol.client import messages as m
from weir.relay import messages as r
from weir.relay.ports import Event, RefusalCame
from weir.relay_node import uppers
from weir.relay_node.uppers import RETRY_MS, SILENT_MS, UpperRelay

SYSTEM = 77
PULL = r.Pull(SYSTEM, 1, 9, 1, 0, 5, 0, 0, 0, (), 1 << 20, 0)
MARK = m.AwaitMark(1, 0, 7, 1_000)


class Above(FakeBroker):
    """A relay that can be cut off: it takes what is sent, and answers none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    async def answer(self, request: m.Request) -> m.Reply:
        if self.is_cut:
            await asyncio.Event().wait()  # what this connection asks is lost
        if isinstance(request, m.AskRelay):
            told = r.Behind(PULL.group, PULL.number, 0)
            return m.RelayTold(request.address, (b"".join(r.encode_message(told)),))
        return await super().answer(request)

    def count(self, kind: type[m.Request]) -> int:
        return sum(isinstance(one, kind) for one in self.seen)


@asynccontextmanager
async def reached(above: Above) -> AsyncIterator[UpperRelay]:
    """Yield the relay above, once it answers."""
    await above.start()
    upper = UpperRelay((("127.0.0.1", above.port),), 2, SYSTEM, None)
    keeping = asyncio.ensure_future(upper.keep())
    try:
        await until_answered(upper)
        yield upper
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await above.end()


async def until_answered(upper: UpperRelay) -> None:
    while not is_answer(await upper.answer_to(PULL)):
        await asyncio.sleep(0.001)


def is_answer(event: Event | None) -> bool:
    return isinstance(event, RefusalCame) and isinstance(event.refusal, r.Behind)


def refused(upper: UpperRelay, pause_ms: int) -> Event:
    """Return what a pull comes to that goes to another upper node, and here again after a pause."""
    return RefusalCame(upper.upper, r.Overloaded(PULL.group, PULL.number, pause_ms))


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))


def test_who_waits_for_a_relay_that_is_cut_off_goes_elsewhere_until_it_answers_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weir.client.core.session.PROMPT_PING_AFTER", 0.05)
    monkeypatch.setattr("weir.client.core.session.PROMPT_DEAD_AFTER", 0.15)
    monkeypatch.setattr("weir.client.connection.pool._FIRST_DIAL_TIMEOUT", 0.1)
    monkeypatch.setattr(uppers, "REQUEST_TIMEOUT", 60.0)

    async def work() -> None:
        above = Above()
        async with reached(above) as upper:
            above.is_cut = True
            pulled, mark = await asyncio.gather(upper.answer_to(PULL), upper.next_mark(MARK))
            assert pulled == refused(upper, RETRY_MS), "its connection has ended"
            assert mark is None
            asked, hellos = above.count(m.AskRelay), above.count(m.Hello)
            while above.count(m.Hello) == hellos:
                await asyncio.sleep(0.001)
            assert await upper.answer_to(PULL) == refused(upper, RETRY_MS)
            assert above.count(m.AskRelay) == asked, "it is asked before it has answered"
            above.is_cut = False
            await until_answered(upper)

    run(work)


class Late:
    """Connections to a relay that answers others, and not what is asked here."""

    is_up = True
    welcome = SimpleNamespace(system=SYSTEM, node=4)
    error = None
    request_timeout = 60.0
    why: Exception = Disconnected("it did not answer")

    def __init__(self, *_: object, **__: object) -> None:
        """Reach it."""

    async def start(self) -> None:
        """It is reached."""

    async def close(self) -> None:
        """It is not needed any more."""

    async def request(self, *_: object, **__: object) -> m.RelayTold:
        await asyncio.sleep(0.001)
        raise self.why


@pytest.mark.parametrize(
    ("timeout", "why", "pause_ms"),
    [
        (0.0, Disconnected("it did not answer in time"), SILENT_MS),
        (60.0, Disconnected("the connection has ended"), RETRY_MS),
        (0.0, Unavailable("not now"), RETRY_MS),
    ],
)
def test_a_partition_leaves_a_relay_alone_that_answers_others_and_not_its_pull(
    timeout: float, why: Exception, pause_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uppers, "NetworkClient", Late)
    monkeypatch.setattr(uppers, "PULL_WAIT", 0.0)
    monkeypatch.setattr(Late, "request_timeout", timeout)
    monkeypatch.setattr(Late, "why", why)

    async def work() -> None:
        upper = UpperRelay((("a", 1),), 2, SYSTEM, None)
        keeping = asyncio.ensure_future(upper.keep())
        await asyncio.sleep(0)
        assert await upper.answer_to(PULL) == refused(upper, pause_ms)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run(work)
