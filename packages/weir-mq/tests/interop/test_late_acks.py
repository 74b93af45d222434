"""An ack answers for each message what it did, when two consumers had the same messages in turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import weir
from weir import sync
from weir.client.consumer.delivery import Stale
from weir.model.topic import AckOutcome
from weir.testing.nodes import Node, running_node

LEASE = "300ms"
DONE, ELSEWHERE, EXPIRED = AckOutcome.DONE, AckOutcome.DONE_ELSEWHERE, AckOutcome.EXPIRED


@pytest.fixture(scope="module")
def running() -> Iterator[Node]:
    with running_node(segment_mib=32, spares=0, shards=1) as one:
        yield one


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """A node on which there is no topic."""
    yield running
    with sync.connect(running.url) as client:
        client.delete_topic("t")


async def fill(w: weir.client.client.Client, count: int) -> None:
    await w.create_topic("t", partitions=1)
    async with w.producer("t") as producer:
        await producer.send_many([b"%d" % n for n in range(count)])


def test_a_grant_acked_after_anothers_ack_is_told_so_message_by_message(node: Node) -> None:
    told: list[Stale] = []
    mode = "ordered"  # it pulls the next grant only once this one is settled

    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(30):
            await fill(w, 4)
            first = w.consumer(
                "t",
                cluster="c",
                lease=LEASE,
                max_work=0,
                on_stale=told.append,
                max_messages=4,
                mode=mode,
            )
            second = w.consumer("t", cluster="c", lease="30s", max_messages=4, mode=mode)
            async with first as a, second as b:
                held = await anext(a.batches())
                assert [message.offset for message in held.messages()] == [0, 1, 2, 3]
                grants = b.batches()
                first_again = await anext(grants)  # what had an attempt comes alone
                assert [message.offset for message in first_again.messages()] == [0]
                assert (await first_again.ack(confirmed=True)).of(0) is DONE
                again = await anext(grants)
                messages = list(again.messages())
                assert [message.offset for message in messages] == [1, 2, 3]
                result = await again.ack(messages[:1], confirmed=True)
                assert result
                assert result.of(1) is DONE
                late = await held.ack(confirmed=True)
                assert not late
                assert late.outcome is AckOutcome.PARTLY
                assert [late.of(n) for n in range(4)] == [ELSEWHERE, ELSEWHERE, EXPIRED, EXPIRED]
                assert a.stale == 2
                rest = await again.ack(confirmed=True)
                assert rest.outcome is DONE
                assert b.stale == 0
            assert (await w.clusters("t", "c"))[0].lag == 0

    asyncio.run(scenario())
    assert [(one.offset, one.next_offset, one.outcome) for one in sorted(told, key=_offset)] == [
        (0, 2, ELSEWHERE),
        (2, 4, EXPIRED),
    ]


def _offset(stale: Stale) -> int:
    return stale.offset


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_a_message_acked_after_anothers_ack_is_told_so(node: Node, mode: str) -> None:
    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(30):
            await fill(w, 1)
            first = w.consumer("t", cluster="c", lease=LEASE, max_work=0, mode=mode)
            async with first as a, w.consumer("t", cluster="c", lease="30s", mode=mode) as b:
                held, again = await anext(a), await anext(b)
                assert await again.ack(confirmed=True)
                late = await held.ack(confirmed=True)
                assert not late
                assert late.of(held.offset) is ELSEWHERE
                assert (a.stale, b.stale) == (1, 0)

    asyncio.run(scenario())


def test_messages_that_are_settled_one_by_one_are_told_so_too(node: Node) -> None:
    told: list[Stale] = []

    async def scenario() -> None:
        async with weir.connect(node.url) as w, asyncio.timeout(30):
            await fill(w, 1)
            first = w.consumer("t", cluster="c", lease=LEASE, max_work=0, on_stale=told.append)
            async with first as a, w.consumer("t", cluster="c", lease="30s") as b:
                held = await anext(a.deliveries())
                again = await anext(b.deliveries())
                again.done()
                await b.flush()
                held.done()
                await a.flush()
                assert (a.stale, b.stale) == (1, 0)

    asyncio.run(scenario())
    assert [one.outcome for one in told] == [ELSEWHERE]


def test_the_blocking_client_is_told_the_same(node: Node) -> None:
    with weir.sync.connect(node.url) as w:
        w.create_topic("t", partitions=1)
        w.publish("t", b"0")
        with (
            w.consumer("t", cluster="c", lease=LEASE, max_work=0) as a,
            w.consumer("t", cluster="c", lease="30s") as b,
        ):
            held, again = next(iter(a.batches())), next(iter(b.batches()))
            assert again.ack(confirmed=True).outcome is DONE
            late = held.ack(confirmed=True)
            assert not late
            assert late.of(0) is ELSEWHERE
            assert (a.stale, b.stale) == (1, 0)


def test_a_handler_that_ends_after_anothers_ack_is_told_so(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), []
    app = weir.App(node.url)

    @app.subscribe("t", cluster="c", lease=LEASE)
    async def slow(message: weir.Message) -> None:
        begun.set()
        go_on.wait(20)  # the event loop stands still, so that nothing extends the lease
        ran.append(message.offset)

    async def run(stopped: threading.Event) -> None:
        running = asyncio.create_task(app.run())
        await asyncio.to_thread(stopped.wait, 30)
        running.cancel()
        await asyncio.wait([running])

    with weir.sync.connect(node.url) as w:
        w.create_topic("t", partitions=1)
        w.publish("t", b"0")
        stopped = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(run(stopped)))
        thread.start()
        try:
            assert begun.wait(20)
            with w.consumer("t", cluster="c", lease="30s") as b:
                assert next(iter(b.batches())).ack(confirmed=True).outcome is DONE
            go_on.set()
            until = time.monotonic() + 20
            while "have done them" not in caplog.text and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            go_on.set()
            stopped.set()
            thread.join(30)
    assert ran == [0]
    assert "have done them" in caplog.text
