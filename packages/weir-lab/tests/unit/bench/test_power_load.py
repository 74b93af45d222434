"""The load of the power cuts ends when its nodes refuse to go on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from weir.errors import SequenceGap
from weir_lab.bench.faults.powercut import load


class Ended:
    """A client whose producer was refused for good while it had nothing to send."""

    error = SequenceGap("sequence 861 came, 543 is missing", 543)

    async def create_topic(self, name: str, partitions: int) -> None:
        """There it is."""

    @asynccontextmanager
    async def producer(self, *_: object, **__: object):
        yield self


# Behind an outage of more than 8 s the writers wait for the consumer, and sent nothing that would
# have told them: the run stood still for 120 s.
def test_writers_that_wait_for_the_consumer_hear_of_a_refusal(monkeypatch) -> None:
    @asynccontextmanager
    async def connected(*_: object, **__: object):
        yield Ended()

    monkeypatch.setattr(load, "connect", connected)
    monkeypatch.setattr(load, "_BEHIND_MAX", 0)
    writing = load.Load("weir://nowhere", 2, 15).write()
    with pytest.raises(SequenceGap):
        asyncio.run(asyncio.wait_for(writing, 30))
