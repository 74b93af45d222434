"""An operator who names the node that is to lead a partition waits until it can, or is told why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import weir
from rigs.fake_broker import FakeBroker
from weir.client import nodes
from weir.errors import Unavailable
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n

BEHIND = "node 3 lacks entries of this partition that its leader has"


class Leader(FakeBroker):
    """Hands over what it leads once it was asked so many times, and is node 1 of a set of two."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.is_alone = True

    async def answer(self, request: m.Request) -> m.Reply:
        if isinstance(request, n.TransferLeader):
            self.refusals -= 1
            if self.refusals >= 0:
                return m.Refusal(Unavailable.code, BEHIND)
            return n.Transferred(1)
        if isinstance(request, n.ListNodes):
            up = n.NodeRow(1, "here", 1, "active", 1, 1, 1, 1, 0)
            down = n.NodeRow(2, "there", 1, "active", 1, 1, 1, 1, 0)
            return n.NodeList([up] if self.is_alone else [up, down], 1, 77, 1, 1)
        if isinstance(request, n.DescribeShard):
            return n.ShardInfo(1, 0, 1, 1, 0, 0, {}, [])
        return await super().answer(request)


def run(leader: Leader, scenario: Callable[[weir.Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        leader.topic("t")
        await leader.start()
        try:
            async with (
                asyncio.timeout(20),
                weir.connect(
                    leader.url, request_timeout=2.0, retry=weir.Backoff(0.05, 0.05)
                ) as client,
            ):
                await scenario(client)
        finally:
            await leader.end()

    asyncio.run(whole())


def test_who_is_catching_up_is_waited_for_and_leads_in_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time in which it is to be elected begins once the leader hands over."""
    monkeypatch.setattr(nodes, "_LEADS_WITHIN", 0.2)

    async def scenario(client: weir.Client) -> None:
        assert (await client.nodes.transfer("t", 0, 3)).node == 1

    run(Leader(refusals=10), scenario)


def test_who_is_told_of_silent_nodes_is_told_what_the_leader_waits_for() -> None:
    leader = Leader(refusals=1_000)

    async def scenario(client: weir.Client) -> None:
        with pytest.raises(Unavailable, match=f"could hand it over; {BEHIND}"):
            await client.nodes.transfer("t", 0, 3)
        leader.is_alone = False
        with pytest.raises(Unavailable, match=f"no answer of node 2: start them; {BEHIND}"):
            await client.nodes.transfer("t", 0, 3)

    run(leader, scenario)
