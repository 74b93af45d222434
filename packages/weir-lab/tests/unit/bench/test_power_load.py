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

    def producer(self, *_: object, **__: object) -> Ended:
        return self

    async def open(self) -> Ended:
        return self

    async def close(self) -> None:
        self.closed = True


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


class Silent(Ended):
    """A client whose producer hears of no confirm, as behind the end of its node."""

    error = None

    async def ready(self) -> None:
        """There is room."""

    def send(self, value: bytes) -> None:
        """Keep it."""

    async def flush(self) -> None:
        """Wait for confirms, which do not come."""
        await asyncio.Event().wait()


# Where a node refused to start, the run stood still for as long as a request may take.
def test_writers_that_are_cancelled_wait_for_no_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Silent()

    @asynccontextmanager
    async def connected(*_: object, **__: object):
        yield client

    async def run() -> None:
        writing = asyncio.ensure_future(load.Load("weir://nowhere", 2, 15).write())
        await asyncio.sleep(0.05)
        writing.cancel()
        await asyncio.wait((writing,))
        assert writing.cancelled()

    monkeypatch.setattr(load, "connect", connected)
    asyncio.run(asyncio.wait_for(run(), 30))
    assert client.closed
