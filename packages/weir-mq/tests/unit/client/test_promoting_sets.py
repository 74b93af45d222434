"""How a set is promoted whose home was stopped a moment ago: its nodes still count as linked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from weir.client import promotion
from weir.client.connection.network_client import NetworkClient
from weir.client.promotion import Promoter
from weir.errors import Unavailable
from weir.model.ids import REGISTRY_GROUP, place_node, place_of
from weir.protocol.client.nodes import NodeList
from weir.protocol.client.topology import (
    CopyList,
    CopyRow,
    DescribeCopies,
    ForceRegistry,
    PromoteSet,
)


class Away:
    """Two nodes of set 2, which see node 1 of set 1 until they were asked so many times."""

    def __init__(self, linked_for: int) -> None:
        self.left = linked_for
        self.asked: list[type[object]] = []

    async def request(self, request: object, kind: type[object], *, again: bool) -> Any:
        self.asked.append(type(request))
        self.left -= 1
        others = [1] if self.left >= 0 else []
        match request:
            case DescribeCopies(place=place):
                return _copies(place or place_of(3, 0), others)
            case ForceRegistry(place=place):
                if others and not request.forced:
                    raise Unavailable("node 1 of the other core set answers")
                return _copies(place, others)
            case PromoteSet():
                return NodeList([], 3, 0, 0, 0)
            case _:
                raise AssertionError(request)


def _copies(place: int, others: list[int]) -> CopyList:
    node = place_node(place)
    row = CopyRow(REGISTRY_GROUP, "", node << 16, 0, 0, 0, 1, 9, 9, 40, 0, 0, [1])
    members = [(3, 1), (4, 1)]
    return CopyList([row], False, node, 2, 9, "south", members, 1, 0, others, [], False)


def promoter(away: Away) -> Promoter:
    return Promoter(cast(NetworkClient, away))


def test_a_plan_waits_until_nodes_that_were_stopped_are_seen_to_be_gone() -> None:
    away = Away(linked_for=5)
    plan = asyncio.run(promoter(away).plan("south", wait=60.0))
    assert (plan.others, plan.nodes) == ((), (3, 4))
    assert away.left < 0


def test_a_plan_that_need_not_wait_says_who_answers_at_once() -> None:
    away = Away(linked_for=100)
    assert asyncio.run(promoter(away).plan("south")).others == (1,)
    assert len(away.asked) == 3  # who there is, and what each has


def test_a_plan_waits_no_longer_than_it_is_told() -> None:
    assert asyncio.run(promoter(Away(10_000)).plan("south", wait=0.3)).others == (1,)


def test_a_promotion_waits_until_nodes_that_were_stopped_are_seen_to_be_gone() -> None:
    async def work() -> None:
        plan = await promoter(Away(0)).plan("south")
        assert not plan.is_led
        away = Away(linked_for=3)
        await promoter(away).promote(plan)
        assert away.asked == [*[ForceRegistry] * 5, PromoteSet]

    asyncio.run(work())


def test_a_promotion_is_refused_while_the_other_set_goes_on_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(promotion, "ALONE_WITHIN", 0.3)

    async def work() -> None:
        plan = await promoter(Away(0)).plan("south")
        away = Away(linked_for=10_000)
        with pytest.raises(Unavailable, match="node 1 of the other core set answers"):
            await promoter(away).promote(plan)
        assert {*away.asked} == {ForceRegistry}
        assert len(away.asked) > 1

    asyncio.run(work())
