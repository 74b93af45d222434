"""A Spark query has read at home what a set that is promoted then does not have: it fails, however
far the partition has grown by the time when it plans or reads again. What plans and reads is the
source as it ships; what Spark does with a checkpoint is played.
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
    """The client at home is a query, of which another process goes on once all is mended."""

    def __init__(
        self,
        order: Literal["partition", "total"] = "partition",
        ends: Literal["planned", "read", "never"] = "read",
        alone: int = ALONE,
        **options: str,
    ) -> None:
        """Its process ends once it has planned what home has alone, or has read it; or never."""
        super().__init__(order, alone)
        self.ends = ends
        self.options = {"topic": "t", "url": self.world.url} | options
        self._process = next(PROCESSES)
        #: The ends of micro-batches, as Spark writes them; and how many are done.
        self.checkpoint: list[str] = []
        self.commits = 0
        self.error: WeirError | None = None
        self.again: list[bytes] = []

    @property
    def reached(self) -> int:
        """As planned."""
        return int(json.loads(self.checkpoint[-1])["p"]["00000"]) if self.checkpoint else 0

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def blocking() -> T:
            SYSTEM.set(replace(SYSTEM.get(), dial=dial, sleep=sleep, process=lambda: self._process))
            return work()

        return await self.world.in_thread(blocking)

    def _stream(self) -> Stream:
        return Stream(Options.parse(self.options))

    def _plan(self, stream: Stream) -> None:
        """Plan a micro-batch, unless one is not done, or nothing is new."""
        if self.commits < len(self.checkpoint):
            return
        start = self._start(stream)
        end = json.dumps(stream.latest(start))
        if end != json.dumps(start):
            self.checkpoint.append(end)

    def _start(self, stream: Stream) -> dict[str, Any]:
        found: dict[str, Any] = (
            json.loads(self.checkpoint[self.commits - 1]) if self.commits else stream.initial()
        )
        return found

    def _batch(self, stream: Stream) -> dict[int, bytes]:
        """Read the micro-batch that is not done."""
        options = Options.parse(self.options)
        found: dict[int, bytes] = {}
        for end in self.checkpoint[self.commits :]:
            for portion in stream.portions(self._start(stream), json.loads(end)):
                for batch in read_rows(portion, options):
                    columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
                    found |= dict(zip(*columns, strict=True))
            self.commits += 1
        return found

    async def _turn(self, stream: Stream) -> None:
        await self._in_thread(lambda: self._plan(stream))
        if not (self.ends == "planned" and self.reached > BOTH and not self.is_mended):
            self.given |= await self._in_thread(lambda: self._batch(stream))
        await asyncio.sleep(LOOK)

    async def read(self, w: Client) -> None:
        stream = self._stream()
        try:
            while not self.is_mended:
                if self.ends == "planned" and self.reached == BOTH:
                    while not self.is_cut:
                        await asyncio.sleep(LOOK)
                    await asyncio.sleep(3.0)  # home takes all that it is to take alone
                if self.ends == "never" or self.reached < BOTH + self.alone or self.alone == 0:
                    await self._turn(stream)
                await asyncio.sleep(LOOK)
            await asyncio.sleep(10.0)
            if self.ends != "never":
                self._process = next(PROCESSES)
                stream = self._stream()
            for _ in range(100):
                await self._turn(stream)
        except OffsetOutOfRange as error:
            self.error = error
            told = str(error)
            offsets = told[told.index("{") : told.index("}") + 1] if "{" in told else "{}"
            self.checkpoint, self.commits, given = [], 0, self.given
            self.options["startingOffsets"], self.given = offsets, {}
            self._process = next(PROCESSES)
            stream = self._stream()
            await self._turn(stream)
            self.again, self.given = [*self.given.values()], given


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("ends", ["read", "never"])
@pytest.mark.parametrize("taken", [ALONE - 3, ALONE, 2 * ALONE])
def test_a_query_is_told_of_what_it_has_read_in_vain(
    order: Literal["partition", "total"], ends: Literal["read", "never"], taken: int
) -> None:
    queried = Queried(order, ends)
    queried.play(taken)
    assert list(queried.given) == list(range(BOTH + ALONE))
    assert queried.given[BOTH + ALONE - 1] == b"gone %d" % (ALONE - 1), "nothing behind it came"
    assert queried.error is not None, "the query has missed messages, and nobody says so"
    assert queried.error.detail == BOTH
    assert 'startingOffsets {"0": 20}' in str(queried.error)
    assert queried.again == [b"new %d" % number for number in range(taken)]


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("taken", [ALONE - 3, 2 * ALONE])
def test_what_was_planned_at_home_is_not_read_elsewhere(
    order: Literal["partition", "total"], taken: int
) -> None:
    """Who reads a micro-batch again gets the same messages or an error."""
    queried = Queried(order, "planned")
    queried.play(taken)
    assert list(queried.given) == list(range(BOTH))
    assert queried.error is not None
    assert queried.error.detail == BOTH
    assert f"messages {BOTH} to {BOTH + ALONE - 1} of t/0 were planned in lineage 0" in str(
        queried.error
    )


def test_a_query_that_has_read_what_both_have_goes_on() -> None:
    queried = Queried(ends="never", alone=0)
    queried.play(ALONE)
    assert queried.error is None
    assert list(queried.given) == list(range(BOTH + ALONE))
    assert queried.given[BOTH] == b"new 0"
    assert [json.loads(end)["l"] for end in queried.checkpoint][-1] == 1
    assert json.loads(queried.checkpoint[0])["l"] == 0
