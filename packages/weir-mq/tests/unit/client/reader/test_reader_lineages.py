"""A reader has read at home what a set that is promoted then does not have: it is told so, however
far the partition has grown by the time when it asks again.
"""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest

from rigs.parted_sets import ALONE, BOTH, LOOK, PartedSets
from weir.client.client import Client
from weir.errors import OffsetOutOfRange, WeirError


class Split(PartedSets):
    """The client at home is a reader that runs all the time."""

    def __init__(
        self,
        order: Literal["partition", "total"],
        read_from: Literal["leader", "any"],
        alone: int = ALONE,
    ) -> None:
        super().__init__(order, alone)
        self.read_from = read_from
        #: Why it ended, and what comes from where it is told to go on.
        self.error: WeirError | None = None
        self.again: list[bytes] = []

    async def read(self, w: Client) -> None:
        reader = w.reader("t", start="earliest", order=self.order, read_from=self.read_from)
        try:
            async with reader:
                async for message in reader:
                    self.given[message.offset] = bytes(message.value)
        except OffsetOutOfRange as error:
            self.error = error
            # The same reader is told again, until it is given another position.
            with pytest.raises(OffsetOutOfRange):
                await anext(reader)
            async with w.reader("t", start={0: error.detail}, follow=False) as rest:
                self.again = [bytes(message.value) async for message in rest]


@pytest.mark.parametrize(
    ("order", "read_from", "count"),
    [
        ("partition", "leader", ALONE - 3),
        ("partition", "leader", ALONE),
        ("partition", "leader", 2 * ALONE),
        ("partition", "any", 2 * ALONE),
        ("total", "leader", 2 * ALONE),
    ],
)
def test_a_running_reader_is_told_of_what_it_has_read_in_vain(
    order: Literal["partition", "total"], read_from: Literal["leader", "any"], count: int
) -> None:
    """The partition ends before its position, at it, or behind it when it asks again."""
    split = Split(order, read_from)
    split.play(count)
    assert list(split.given) == list(range(BOTH + ALONE))
    assert split.given[BOTH + ALONE - 1] == b"gone %d" % (ALONE - 1), "nothing behind it was given"
    assert split.error is not None
    assert split.error.detail == BOTH
    assert "when a core set was promoted" in str(split.error)
    assert split.again == [b"new %d" % number for number in range(count)]


def test_a_reader_that_has_read_what_both_have_goes_on() -> None:
    split = Split("partition", "leader", alone=0)
    split.play(ALONE)
    assert split.error is None
    assert list(split.given) == list(range(BOTH + ALONE))
    assert split.given[BOTH] == b"new 0"


class Kept(PartedSets):
    """The client at home keeps the position of its reader, and begins there once all is mended."""

    def __init__(self, order: Literal["partition", "total"], stop_at: int) -> None:
        super().__init__(order)
        self.stop_at = stop_at
        self.checkpoint: dict[int, tuple[int, int]] = {}
        self.error: WeirError | None = None
        self.again: list[bytes] = []
        self.by_offset: list[bytes] = []

    async def read(self, w: Client) -> None:
        async with w.reader("t") as reader:
            async for message in reader:
                self.given[message.offset] = bytes(message.value)
                if message.offset + 1 == self.stop_at:
                    self.checkpoint = reader.checkpoint()
                if message.offset + 1 == BOTH + ALONE:
                    break
        while not self.is_mended:
            await asyncio.sleep(LOOK)
        await asyncio.sleep(10.0)  # home has heard that it was left behind
        kept = json.loads(json.dumps(self.checkpoint))
        start = {int(partition): pair for partition, pair in kept.items()}
        try:
            async with w.reader("t", start=start, follow=False) as reader:
                self.again = [bytes(message.value) async for message in reader]
            assert reader.checkpoint() == {0: (BOTH + 2 * ALONE, 1)}
        except OffsetOutOfRange as error:
            self.error = error
        offsets = {partition: offset for partition, (offset, _) in start.items()}
        async with w.reader("t", start=offsets, follow=False) as reader:
            self.by_offset = [bytes(message.value) async for message in reader]


@pytest.mark.parametrize("order", ["partition", "total"])
def test_a_kept_position_has_its_lineage(order: Literal["partition", "total"]) -> None:
    kept = Kept(order, BOTH + ALONE)
    kept.play(2 * ALONE)
    assert kept.checkpoint == {0: (BOTH + ALONE, 0)}
    assert kept.error is not None
    assert kept.error.detail == BOTH
    assert kept.by_offset == [b"new %d" % number for number in range(ALONE, 2 * ALONE)], "alone"


def test_a_kept_position_that_both_have_goes_on() -> None:
    kept = Kept("partition", BOTH)
    kept.play(2 * ALONE)
    assert kept.checkpoint == {0: (BOTH, 0)}
    assert kept.error is None
    assert kept.again == [b"new %d" % number for number in range(2 * ALONE)]
