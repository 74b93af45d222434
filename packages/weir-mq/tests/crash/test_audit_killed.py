"""`kill -9` of real nodes between changes: the audit topic has each change exactly once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress

from weir.client.client import connect
from weir.errors import TopicExists
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.testing.nodes import NodeSet, Patient

AUDIT, ROUNDS, BETWEEN = "_weir/audit", 3, 6


def test_each_change_is_published_once_though_nodes_are_killed(nodes: NodeSet) -> None:
    async def work() -> tuple[list[str], list[dict[str, str]]]:
        names: list[str] = []
        async with connect(nodes.url, request_timeout=60) as client:
            while (await client.nodes.raise_level()).level < FORMAT_LEVEL_ACCESS:
                await asyncio.sleep(0.1)  # a node has not said yet what it supports
        async with connect(nodes.url, request_timeout=60) as client:
            await client.create_topic(AUDIT)
            for number in range(ROUNDS):
                for more in range(BETWEEN):
                    if more == BETWEEN // 2:
                        await asyncio.to_thread(nodes.kill, [1 + number % 3])
                    names.append(f"shop/t{number}.{more}")
                    with suppress(TopicExists):  # the first answer was lost with a node
                        await client.create_topic(names[-1], partitions=1)
                await asyncio.to_thread(nodes.restart, 1 + number % 3, Patient())
            await client.create_topic("shop/last")
            found: list[dict[str, str]] = []
            async with client.reader(AUDIT) as reader:
                async for message in reader:
                    found.append(json.loads(message.value))
                    if found[-1]["resource"] == "shop/last":
                        return names, found
        raise AssertionError("a reader that follows does not end")

    names, found = asyncio.run(asyncio.wait_for(work(), 240))
    changes = [one for one in found if one["id"].startswith("change:")]
    assert max(Counter(one["id"] for one in changes).values()) == 1
    created = Counter(one["resource"] for one in changes if one["verb"] == "create")
    assert all(created[name] >= 1 for name in names), created
    assert {one["whence"] for one in changes} == {"127.0.0.1"}
