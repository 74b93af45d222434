"""Where nothing comes, clients ask rarely; what comes is there at once all the same."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

import weir
from weir import testing
from weir.client.reader import fetcher
from weir.client.reader.fetcher import LONG_POLL, LONGEST_POLL, LongPolls, pause_behind
from weir.model.ids import partition_of
from weir.protocol.client import codec
from weir.protocol.client import messages as m


def test_a_poll_doubles_with_each_empty_answer_up_to_a_limit_and_begins_again_with_messages() -> (
    None
):
    polls = LongPolls[int]()
    seen = []
    for _ in range(5):
        seen.append(polls.seconds(3))
        polls.answered(3, is_empty=True)
    assert seen == [LONG_POLL, 2 * LONG_POLL, 4 * LONG_POLL, 8 * LONG_POLL, LONGEST_POLL]
    assert polls.seconds(3) == LONGEST_POLL
    assert polls.seconds(4) == LONG_POLL, "each partition has its own"
    polls.answered(3, is_empty=False)
    assert polls.seconds(3) == LONG_POLL


def test_a_broker_that_waited_is_asked_again_at_once_and_one_that_did_not_is_not_stormed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "EMPTY_PAUSE", 0.2)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        pause = asyncio.create_task(pause_behind(loop.time() - 0.2))
        await asyncio.sleep(0)
        assert pause.done(), "in this very turn, as all others whose answers came in it"
        began = loop.time()
        await pause_behind(began - 0.1)
        assert loop.time() - began >= 0.09
        began = loop.time()
        await pause_behind(began)
        assert loop.time() - began >= 0.19

    asyncio.run(body())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[type, int], list[int]]:
    """Let polls be short, and fill up with the `wait_ms` of each, by kind and partition."""
    monkeypatch.setattr(fetcher, "LONG_POLL", 0.02)
    monkeypatch.setattr(fetcher, "LONGEST_POLL", 0.1)
    found: dict[tuple[type, int], list[int]] = defaultdict(list)
    decode = codec.decode_request

    def seen(frame: Any) -> Any:
        request = decode(frame)
        if isinstance(request, m.AwaitMark):
            found[m.AwaitMark, 1].append(request.wait_ms)
        if isinstance(request, m.Fetch | m.Pull):
            found[type(request), partition_of(request.address.group)].append(request.wait_ms)
        return request

    monkeypatch.setattr("weir.broker.router.decode_request", seen)
    return found


async def _until(waits: dict[tuple[type, int], list[int]], kind: type, wait_ms: int) -> None:
    async with asyncio.timeout(10):
        while not waits[kind, 1] or waits[kind, 1][-1] != wait_ms:
            await asyncio.sleep(0.005)


def test_an_idle_reader_asks_rarely(waits: dict[tuple[type, int], list[int]]) -> None:
    async def run() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t", partitions=2)
            async with w.reader("t", start="latest") as reader:
                coming = asyncio.ensure_future(anext(aiter(reader)))
                await _until(waits, m.Fetch, 100)
                await w.publish("t", b"x", partition=1)
                assert (await coming).value == b"x"
        assert waits[m.Fetch, 1][:4] == [20, 40, 80, 100]
        assert waits[m.Fetch, 0][:4] == [20, 40, 80, 100]

    asyncio.run(run())


def test_an_idle_reader_in_total_order_awaits_marks_for_longer_and_longer(
    waits: dict[tuple[type, int], list[int]],
) -> None:
    async def run() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t", partitions=2, order="total")
            async with w.reader("t", start="latest") as reader:
                for _ in range(2):
                    coming = asyncio.ensure_future(anext(aiter(reader)))
                    await w.publish("t", b"x", partition=1)
                    assert (await coming).value == b"x"
                    waits[m.AwaitMark, 1].clear()
                    await _until(waits, m.AwaitMark, 100)
                    assert {20, 40, 80} & {*waits[m.AwaitMark, 1]}, "a mark begins anew"

    asyncio.run(run())


def test_an_idle_consumer_pulls_rarely(waits: dict[tuple[type, int], list[int]]) -> None:
    async def run() -> None:
        async with testing.node() as node, weir.connect(node.url) as w:
            await w.create_topic("t", partitions=2)
            async with w.consumer("t", cluster="crew") as consumer:
                coming = asyncio.ensure_future(anext(aiter(consumer)))
                await _until(waits, m.Pull, 100)
                await w.publish("t", b"x", partition=1)
                message = await coming
                assert message.value == b"x"
                await message.ack()
        assert waits[m.Pull, 1][:4] == [20, 40, 80, 100]

    asyncio.run(run())
