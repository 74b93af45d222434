"""Cuts through the one order, where `follow=False` ends and `start="latest"` begins."""

from __future__ import annotations

import asyncio
from typing import Any

from weir.client.reader.positions import Barriers, Moment
from weir.protocol.client import messages as m


class Leaders:
    """Two partitions, led elsewhere: the one answers later, so its barrier is the higher."""

    def __init__(self, *answers: list[tuple[int, int, int]]) -> None:
        self._answers = [*answers]
        self.asked: list[int] = []
        self.request_timeout = 5.0

    async def find_all(self, count: int) -> None:
        assert count <= len(self)

    def __len__(self) -> int:
        return 2

    @property
    def id(self) -> int:
        return 1

    async def request(
        self, request: m.AskBarriers, kind: Any, *, wait: float, near: Any
    ) -> m.Barriers:
        self.asked.append(request.stamp)
        registers = self._answers.pop(0)
        least = min(stamp for _, stamp, _ in registers)
        return m.Barriers(1, registers, reached=least >= request.stamp)


def test_a_cut_is_at_one_stamp_of_all_partitions() -> None:
    """What partition 0 stamps between 10 and 20 lies before what partition 1 has below 20: with the
    first answers alone the cut would lack it.
    """
    leaders: Any = Leaders(
        [(0, 10, 1), (1, 20, 2)],
        [(0, 15, 3), (1, 25, 4)],  # not there yet
        [(0, 22, 5), (1, 30, 6)],
    )
    moment = asyncio.run(Barriers(leaders, leaders).now())
    assert moment == Moment(20, {0: 1, 1: 2}, {0: 5, 1: 6})
    assert leaders.asked == [0, 20, 20]


def test_a_cut_at_a_stamp_begins_nowhere_in_particular() -> None:
    leaders: Any = Leaders([(0, 9, 1), (1, 20, 2)], [(0, 12, 3), (1, 20, 2)])
    moment = asyncio.run(Barriers(leaders, leaders).through(12))
    assert moment == Moment(12, {0: 0, 1: 0}, {0: 3, 1: 2})
    assert leaders.asked == [12, 12]
