"""Asking now and then whether a topic has got more partitions, and what ends that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weir.client.connection import metadata
from weir.errors import Disconnected, Overloaded, UnknownTopic


class Growing:
    """A topic of which each look finds what comes next: a number of partitions, or an error."""

    def __init__(self, *found: int | Exception) -> None:
        self._found = [*found]
        self._count = 1

    def __len__(self) -> int:
        return self._count

    async def next_look(self) -> None:
        await asyncio.sleep(metadata.ASK_EVERY)

    async def look_again(self) -> None:
        await self.find_again()

    async def find_again(self) -> None:
        found = self._found.pop(0)
        if isinstance(found, Exception):
            raise found
        self._count = found


@pytest.mark.parametrize("gone", [UnknownTopic("no such topic"), UnknownTopic("made again", 2)])
def test_a_topic_that_is_gone_ends_it_and_nothing_else_does(
    gone: UnknownTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches must hear of it: it asked for a topic that was gone for ever."""
    monkeypatch.setattr(metadata, "ASK_EVERY", 0.0)
    places: Any = Growing(1, Disconnected("cut"), 2, Overloaded("busy", 1), 4, gone, 9)
    grown: list[range] = []
    looks: list[int] = []

    async def look() -> None:
        looks.append(len(places))

    async def body() -> None:
        async with asyncio.timeout(30):
            await metadata.watch(places, 1, grown.append, look)

    with pytest.raises(UnknownTopic) as caught:
        asyncio.run(body())
    assert caught.value is gone
    assert grown == [range(1, 2), range(2, 4)]
    assert looks == [1, 2, 4]


def test_partitions_that_others_found_first_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that looks for a leader asks where the topic is served, too: a consumer never
    pulled from a partition that was found that way.
    """
    monkeypatch.setattr(metadata, "ASK_EVERY", 0.01)
    places: Any = Growing(3, 3, UnknownTopic("no such topic"))
    grown: list[range] = []

    async def body() -> None:
        watching = asyncio.ensure_future(metadata.watch(places, 1, grown.append))
        await asyncio.sleep(0)
        await places.find_again()
        async with asyncio.timeout(5):
            with pytest.raises(UnknownTopic):
                await watching

    asyncio.run(body())
    assert grown == [range(1, 3)]
