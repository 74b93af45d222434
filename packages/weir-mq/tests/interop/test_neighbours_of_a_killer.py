"""A message that kills its process uses up its own attempts, and its neighbours keep theirs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

import weir
from rigs.consuming import take
from weir.testing.nodes import Node, running_node

KILLER = 7
MESSAGES = 20

#: Handles one message after the other, and tells of each before.
_VICTIM = """
import asyncio, os, sys
import weir

async def main(url, topic, mode, work):
    async with weir.connect(url) as w, w.consumer(topic, cluster="c", mode=mode) as consumer:
        async for message in consumer:
            print(message.offset, message.attempts, flush=True)
            await asyncio.sleep(work)
            if message.value == b"7":
                os._exit(9)
            await message.ack()

asyncio.run(main(*sys.argv[1:4], float(sys.argv[4])))
"""

#: Begins three messages when its only pull is long under way, does the first, and dies later.
_LATE = """
import asyncio, os, sys
import weir
from weir.client.core import session

async def main(url, topic, how):
    session.PING_AFTER = 0.3 if how == "ping" else 30.0
    async with weir.connect(url) as w:
        consumer = w.consumer(
            topic, cluster="c", lease="1200ms" if how == "extend" else "30s", max_messages=20,
            max_work=None if how == "extend" else 0, ack_within="50ms",
        )
        async with consumer:
            deliveries = consumer.deliveries()
            first = await anext(deliveries)
            await asyncio.sleep(0.2)
            some = [first, *[await anext(deliveries) for _ in range(2)]]
            assert [one.message.offset for one in some] == [0, 1, 2], some
            first.done()
            await asyncio.sleep(2.5 if how else 1.0)
            os._exit(9)

asyncio.run(main(*sys.argv[1:4]))
"""

#: Has a message in hand, which it does not begin, and dies.
_WAITER = """
import asyncio, os, sys
import weir

async def main(url, topic, mode):
    async with weir.connect(url) as w, w.consumer(topic, cluster="c", mode=mode) as consumer:
        deliveries = consumer.deliveries()
        while (delivery := deliveries.at_hand()) is None:
            await deliveries.more()
        print(delivery.message.offset, delivery.attempts, flush=True)
        os._exit(9)

asyncio.run(main(*sys.argv[1:4]))
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(segment_mib=32, spares=0, shards=1) as one:
        yield one


async def fill(url: str, topic: str, first: int = 0, behind: int = MESSAGES) -> None:
    numbers = range(first, behind)
    async with weir.connect(url) as w:
        await w.create_topic(topic, partitions=1)
        async with w.producer(topic) as producer:
            await producer.send_many([b"%d" % n for n in numbers], keys=[b"k"] * len(numbers))


@pytest.mark.parametrize(
    ("mode", "work"),
    [
        ("shared", 0.0),
        ("keyed", 0.02),
        ("ordered", 0.0),
        # Each mode and each pace is in one of those.
        pytest.param("shared", 0.02, marks=pytest.mark.slow),
        pytest.param("keyed", 0.0, marks=pytest.mark.slow),
        pytest.param("ordered", 0.02, marks=pytest.mark.slow),
    ],
)
def test_a_message_that_kills_its_process_reaches_its_last_attempt(
    node: Node, mode: str, work: float
) -> None:
    topic = f"{mode}-{work:.0%}".rstrip("%")
    asyncio.run(fill(node.url, topic))
    worst: dict[int, int] = {}
    deaths = 0
    while worst.get(KILLER, 0) < 5:
        victim = subprocess.run(
            [sys.executable, "-c", _VICTIM, node.url, topic, mode, str(work)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert victim.returncode == 9, victim.stderr
        for line in victim.stdout.splitlines():
            offset, attempts = map(int, line.split())
            worst[offset] = max(worst.get(offset, 0), attempts)
        deaths += 1
        assert deaths <= 5 + KILLER
    assert worst.pop(KILLER) == 5
    assert worst.keys() >= {*range(KILLER)}
    # Of what was done and not told yet, the first may seem to have been at work.
    assert max(worst.values()) <= 2


@pytest.mark.parametrize(("how", "tried"), [("ping", {1, 2}), ("extend", {1, 2}), ("", {1})])
def test_what_was_begun_after_the_pull_is_told_by_pings_and_extensions(
    node: Node, how: str, tried: set[int]
) -> None:
    topic = f"told-by-{how or 'nothing'}"
    asyncio.run(fill(node.url, topic))
    command = [sys.executable, "-c", _LATE, node.url, topic, how]
    victim = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert victim.returncode == 9, victim.stderr

    async def attempts() -> dict[int, int]:
        found = {}
        async with (
            asyncio.timeout(60),
            weir.connect(node.url) as w,
            w.consumer(topic, cluster="c") as consumer,
        ):
            while len(found) < MESSAGES - 1:
                message = await take(consumer)
                found[message.offset] = message.attempts
        return found

    found = asyncio.run(attempts())
    assert {offset for offset, count in found.items() if count == 2} == tried
    assert {*found.values()} == {1, 2}
    assert 0 not in found


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_what_was_tried_and_only_waits_loses_no_attempt(node: Node, mode: str) -> None:
    topic = f"waits-{mode}"
    asyncio.run(fill(node.url, topic, KILLER, KILLER + 1))

    def attempt(script: str, *arguments: str) -> str:
        victim = subprocess.run(
            [sys.executable, "-c", script, node.url, topic, mode, *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert victim.returncode == 9, victim.stderr
        return victim.stdout.strip()

    assert attempt(_VICTIM, "0") == "0 1"
    assert [attempt(_WAITER) for _ in range(3)] == ["0 2"] * 3
    assert [attempt(_VICTIM, "0") for _ in range(3)] == ["0 2", "0 3", "0 4"]
