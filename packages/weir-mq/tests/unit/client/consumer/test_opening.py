"""A consumer asks partition 0 for its cluster's mode before it pulls from any partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rigs.consuming import take
from weir.client.client import connect
from weir.errors import BadRequest, UnknownOpcode
from weir.model.topic import Mode
from weir.protocol.client import messages as m


@pytest.mark.parametrize("is_old", [False, True])
def test_it_asks_once_and_pulls_then(fake_broker: Any, is_old: bool) -> None:
    """A broker of an earlier release does not know the question: there it pulls all the same."""

    def script(request: m.Request) -> m.Refusal | None:
        if is_old and isinstance(request, m.OpenCluster):
            return m.Refusal(UnknownOpcode.code, "not known here")
        return None

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.script = script
            addresses = broker.topic("t", 3).addresses
            for partition in range(3):
                await w.publish("t", b"x", partition=partition)
            async with w.consumer("t", cluster="crew", mode="keyed") as consumer:
                for _ in range(3):
                    await take(consumer)
            asked = [one for one in broker.seen if isinstance(one, m.OpenCluster | m.Pull)]
            opens = m.OpenCluster(addresses[0], "crew", Mode.KEYED)
            assert [one for one in asked if isinstance(one, m.OpenCluster)] == [opens]
            assert asked[0] == opens
            assert {one.address for one in asked[1:]} == {*addresses}

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_who_is_refused_pulls_nothing(fake_broker: Any) -> None:
    def script(request: m.Request) -> m.Refusal | None:
        if isinstance(request, m.OpenCluster):
            return m.Refusal(BadRequest.code, "the cluster is shared")
        return None

    async def scenario() -> None:
        async with fake_broker() as broker, connect(broker.url) as w:
            broker.script = script
            broker.topic("t", 3)
            async with w.consumer("t", cluster="crew", mode="keyed") as consumer:
                with pytest.raises(BadRequest, match="is shared"):
                    await anext(aiter(consumer))
            assert not any(isinstance(one, m.Pull) for one in broker.seen)

    asyncio.run(asyncio.wait_for(scenario(), 20))
