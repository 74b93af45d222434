"""A Spark query has read at home what a set that is promoted then does not have: it fails, however
far the partition has grown by the time when it plans again. What plans and reads is the source as
it ships; what Spark does with a checkpoint is played.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import Any, Literal, TypeVar

import pytest
from msgspec.structs import replace
from rigs.parted_sets import ALONE, BOTH, LOOK, PartedSets

from weir.client.client import Client
from weir.client.connection.system import SYSTEM
from weir.errors import OffsetOutOfRange, WeirError
from weir.spark.options import Options
from weir.spark.rows import read_rows
from weir.spark.stream import Stream
from weir_lab.sim.programs.shipped.blocking_sockets import dial, sleep

T = TypeVar("T")
#: Numbers of processes: a connection is kept by them, and a world has none of another one.
PROCESSES = count(1)


class Queried(PartedSets):
    """The client at home is a query, whose process ends with the parting if it is `stopped`."""

    def __init__(
        self, order: Literal["partition", "total"], stopped: bool, alone: int = ALONE
    ) -> None:
        super().__init__(order, alone)
        self.stopped = stopped
        self._process = next(PROCESSES)
        #: The ends of micro-batches, as Spark writes them.
        self.checkpoint: list[str] = []
        self.error: WeirError | None = None
        self.again: list[bytes] = []

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def blocking() -> T:
            SYSTEM.set(replace(SYSTEM.get(), dial=dial, sleep=sleep, process=lambda: self._process))
            return work()

        return await self.world.in_thread(blocking)

    def _stream(self, **options: str) -> tuple[Stream, Options]:
        url = self.world.url
        parsed = Options.parse({"topic": "t", "url": url} | options)
        return Stream(parsed), parsed

    def _batch(self, stream: Stream, options: Options) -> list[tuple[int, bytes]]:
        """Plan a micro-batch and read it; nothing if nothing is new."""
        start: dict[str, Any] = (
            json.loads(self.checkpoint[-1]) if self.checkpoint else stream.initial()
        )
        end = stream.latest(start)
        if end == start:
            return []
        self.checkpoint.append(json.dumps(end))
        return [
            (offset, value)
            for portion in stream.portions(start, end)
            for batch in read_rows(portion, options)
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            )
        ]

    async def read(self, w: Client) -> None:
        stream, options = self._stream()
        try:
            while not self.is_mended:
                found = await self._in_thread(lambda: self._batch(stream, options))
                self.given |= dict(found)
                if self.stopped and len(self.given) >= BOTH + self.alone:
                    break
                await asyncio.sleep(LOOK)
            while not self.is_mended:
                await asyncio.sleep(LOOK)
            await asyncio.sleep(10.0)
            if self.stopped:
                self._process = next(PROCESSES)
                stream, options = self._stream()
            for _ in range(100):
                found = await self._in_thread(lambda: self._batch(stream, options))
                self.given |= dict(found)
                await asyncio.sleep(LOOK)
        except OffsetOutOfRange as error:
            self.error = error


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("taken", [ALONE - 3, ALONE, 2 * ALONE])
def test_a_query_is_told_of_what_it_has_read_in_vain(
    order: Literal["partition", "total"], stopped: bool, taken: int
) -> None:
    queried = Queried(order, stopped)
    queried.play(taken)
    assert list(queried.given) == list(range(BOTH + ALONE))
    assert queried.given[BOTH + ALONE - 1] == b"gone %d" % (ALONE - 1), "nothing behind it came"
    assert queried.error is not None, "the query has missed messages, and nobody says so"
    assert queried.error.detail == BOTH
