"""Scatterings over a set of real processes whose leaders are killed in the middle (*AllOrNone*)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import weir
from weir.client.client import Client
from weir.errors import WeirError
from weir.testing.nodes import NodeSet, Patient, running_set

#: Topics that are scattered to together, and their partitions.
TOPICS = {"t": 3, "u": 1}
PLACES = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
AUTHORS = 4
KILLS = 2


async def scatter(w: Client, author: int, confirmed: dict[bytes, int], doubtful: set[bytes],
                  over: asyncio.Event) -> None:  # fmt: skip
    """Scatter one thing after the other; note what was confirmed, and what may have been."""
    number = 0
    while not over.is_set():
        value = b"%d/%d" % (author, number)
        number += 1
        s = w.scatter()
        for topic, partition in PLACES:
            s.publish(topic, value, partition=partition)
        try:
            receipts = await s.send()
        except WeirError:
            doubtful.add(value)
        else:
            confirmed[value] = receipts[0].stamp


async def read(w: Client) -> dict[tuple[str, int], list[tuple[bytes, int]]]:
    """Return the values and stamps of each partition, up to today's end."""
    found: dict[tuple[str, int], list[tuple[bytes, int]]] = {place: [] for place in PLACES}
    for topic in TOPICS:
        async with w.reader(topic, follow=False, order="partition") as reader:
            async for message in reader:
                found[topic, message.partition].append((message.value, message.stamp))
    return found


async def leader(w: Client, partition: int) -> int:
    return (await w.describe("t")).addresses[partition].node


async def play(nodes: NodeSet) -> None:
    confirmed: dict[bytes, int] = {}
    doubtful: set[bytes] = set()
    over = asyncio.Event()
    async with weir.connect(nodes.url, request_timeout=20.0) as w, asyncio.timeout(80):
        for topic, count in TOPICS.items():
            others = sorted(TOPICS.keys() - {topic})
            await w.create_topic(topic, partitions=count, scatter_with=others)
        authors = [
            asyncio.create_task(scatter(w, author, confirmed, doubtful, over))
            for author in range(AUTHORS)
        ]
        for kill in range(KILLS):
            before = len(confirmed)
            while len(confirmed) < before + 50:
                await asyncio.sleep(0.01)
            number = await leader(w, kill % TOPICS["t"])
            # Between the prepares and the decisions of some: four are under way all the time.
            await asyncio.to_thread(nodes.kill, [number])
            before = len(confirmed)
            while len(confirmed) < before + 20:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(nodes.restart, number, Patient())
        over.set()
        await asyncio.gather(*authors)
        found = await read(w)
        while not all(len(rows) >= len(confirmed) for rows in found.values()):
            await asyncio.sleep(0.1)  # what is confirmed is seen a moment later
            found = await read(w)
    rows = found["t", 0]
    # The same, at the same stamps, in every partition: all parts or none, each once.
    assert all(found[place] == rows for place in PLACES)
    assert max(Counter(value for value, _ in rows).values()) == 1
    there = dict(rows)
    assert all(there[value] == stamp for value, stamp in confirmed.items())
    assert set(there) <= set(confirmed) | doubtful
    assert len(confirmed) >= KILLS * 70


def test_all_or_none_whoever_is_killed(tmp_path: Path) -> None:
    with running_set(tmp_path, 3) as nodes:
        asyncio.run(play(nodes))
