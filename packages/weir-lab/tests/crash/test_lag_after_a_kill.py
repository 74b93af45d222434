"""`kill -9` of a leader delays who reads in total order by one failover, and no more.

WEIR_LAG_KILLS=30 for more. Three nodes lead two partitions each. A reader of all partitions in
total order has to wait for those whose leader is gone; how long nothing of one is confirmed says
how long the set takes to go on without it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable

import pytest

from weir.testing.nodes import NodeSet
from weir_lab.bench.ordering.lag import measure

KILLS = int(os.environ.get("WEIR_LAG_KILLS", "1"))
PER_SECOND = 600
#: What a machine that does something else meanwhile may add to one round, and to most.
ADDED_MS, MEDIAN_ADDED_MS = 1_000.0, 250.0
#: It may add more now and then, but not each time.
TRIES = 4


@pytest.mark.timeout(120 + 60 * KILLS)
def test_total_order_waits_for_a_killed_leader_as_long_as_confirms_do(
    nodes: NodeSet, tell: Callable[..., None]
) -> None:
    async def body() -> None:
        async with asyncio.timeout(60 + 60 * KILLS):
            for _ in range(TRIES):
                rounds = await measure(nodes, PER_SECOND, ("killed",) * KILLS)
                for one in rounds:
                    added_ms = one.silent_ms - one.unconfirmed_ms
                    tell(kills=1, messages=one.messages, added_ms=added_ms)
                    assert one.misplaced == 0
                    assert one.messages > PER_SECOND, "next to nothing was delivered"
                added = [one.silent_ms - one.unconfirmed_ms for one in rounds]
                if max(added) <= ADDED_MS and statistics.median(added) <= MEDIAN_ADDED_MS:
                    return
        pytest.fail(f"readers waited for {added} ms more than confirms, in the last of {TRIES}")

    asyncio.run(body())
