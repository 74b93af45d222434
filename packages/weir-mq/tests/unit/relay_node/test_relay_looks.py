"""How a relay looks at its core: what one leader keeps back is not waited for by all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.relay_nodes import play
from weir.model.ids import Address, topic_of
from weir.protocol.client import messages as m
from weir.relay_node import host as hosting
from weir.relay_node.host import RelayedTopic, RelayHost

BARRED = "may not read"
HUNG = 1


class Looking(RelayHost):
    """A relay of barred topics; the leader of the first one hangs, and one has no partition yet."""

    def __init__(self, topics: int) -> None:
        self.topics = {
            number: RelayedTopic(
                m.TopicInfo(
                    number, "default", f"t{number}", "total", [Address(0, 0, number << 16)]
                ),
                barred=BARRED,
            )
            for number in range(1, topics + 1)
        }
        self.topics[topics].info.addresses.clear()
        self.founded: Any = SimpleNamespace(system=1, brokerset=5, node=8)
        self.config: Any = SimpleNamespace(tags=None)
        self.partitions: Any = SimpleNamespace(held={})
        self.network: Any = SimpleNamespace(error=None)
        self.under_way = self.most = 0

    async def _look_for_topics(self, network: object) -> None: ...

    async def _look_for_tiers(self, network: object) -> None: ...

    async def _ask_core(self, network: object, topic: RelayedTopic, message: Any) -> m.RelayTold:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        if topic_of(message.group) == HUNG:
            await asyncio.Event().wait()
        self.under_way -= 1
        return m.RelayTold(Address(0, 0, message.group))


def test_topics_are_allowed_again_though_the_leader_of_another_one_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosting, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(hosting, "_RIGHTS_AT_ONCE", 2)

    async def work() -> None:
        host = Looking(5)
        looking = asyncio.ensure_future(host._look_for_rights())
        await asyncio.wait_for(host._look(host.network), 1)
        while [number for number, topic in host.topics.items() if topic.barred] != [HUNG, 5]:
            assert not looking.done()
            await asyncio.sleep(0.01)
        assert host.most == 2
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    play(work)
