"""The load of the power cuts ends when its nodes refuse to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from weir.errors import SequenceGap, UnknownTopic
from weir.model.message import Message
from weir_lab.bench.faults.powercut import load
from weir_lab.bench.faults.powercut.ledger import Name, Place, value_of


class Ended:
    """A client whose producer was refused for good while it had nothing to send."""

    error = SequenceGap("sequence 861 came, 543 is missing", 543)

    async def create_topic(self, name: str, partitions: int, order: str) -> None:
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
    writing = load.Load("weir://nowhere", "weir://nowhere", 2, 15).write()
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
        writing = asyncio.ensure_future(
            load.Load("weir://nowhere", "weir://nowhere", 2, 15).write()
        )
        await asyncio.sleep(0.05)
        writing.cancel()
        await asyncio.wait((writing,))
        assert writing.cancelled()

    monkeypatch.setattr(load, "connect", connected)
    asyncio.run(asyncio.wait_for(run(), 30))
    assert client.closed


def test_the_topic_has_the_order_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[tuple[int, str]] = []

    class Creating(Ended):
        async def create_topic(self, name: str, partitions: int, order: str) -> None:
            created.append((partitions, order))

    @asynccontextmanager
    async def connected(*_: object, **__: object):
        yield Creating()

    monkeypatch.setattr(load, "connect", connected)
    writing = load.Load("weir://core", "weir://relay", 2, 15, order="total").write()
    with pytest.raises(SequenceGap):
        asyncio.run(asyncio.wait_for(writing, 30))
    assert created == [(2, "total")]


def test_what_a_reader_was_given_is_where_it_lies_and_which_it_is() -> None:
    value = value_of(Name(1, 7))
    for bad in (False, True):
        message = Message(
            topic=load.TOPIC, partition=1, offset=9, stamp=5, value=value[:-1] if bad else value
        )
        assert load.given(message) == (Place(1, 9), None if bad else Name(1, 7))


class Learning:
    """A client of a relay that hears of the topic after a while."""

    asked = 0

    async def positions(self, topic: str) -> None:
        """Refuse, twice."""
        self.asked += 1
        if self.asked < 3:
            raise UnknownTopic(f"no topic {topic}")


def test_clients_wait_until_a_relay_knows_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_REST_SECONDS", 0.0)
    client = Learning()
    asyncio.run(asyncio.wait_for(load.known(client), 30))  # type: ignore[arg-type]
    assert client.asked == 3


# A reader that stands still must hold up the rounds, else a run may end before it was judged.
def test_a_load_with_readers_flows_and_ends_once_each_was_given_what_was_sent() -> None:
    async def run() -> None:
        one = load.Load("weir://core", "weir://relay", 2, 15, order="total", readers=2)
        ledger, pulse = one.ledger, one.pulse
        ledger.sent = {0: 1, 1: 1}
        flowing, ending = (asyncio.ensure_future(it) for it in (one.flows(), one.all_done()))
        await asyncio.sleep(0)
        ledger.confirmed.update({0: [0, 1], 1: [0, 1]})
        ledger.sent = {0: 2, 1: 2}
        ledger.acked = {Place(writer, offset) for writer in range(2) for offset in range(2)}
        pulse.ack()
        given = [(Place(writer, offset), None) for offset in range(2) for writer in range(2)]
        steps = (([4, 2], (False, False)), ([4, 3], (True, False)), ([4, 4], (True, True)))
        for counts, done in steps:
            ledger.readings = [given[:count] for count in counts]
            pulse.give()
            await asyncio.sleep(0.01)
            assert (flowing.done(), ending.done()) == done

    asyncio.run(asyncio.wait_for(run(), 30))


class Connected(Exception):
    """A client was about to connect."""


# At the core, a consumer and readers would say nothing of the tiers below it.
@pytest.mark.parametrize(
    ("task", "at"),
    [
        (load.Load.write, "weir://core"),
        (load.Load.work, "weir://relay"),
        (lambda one: one.read(0), "weir://relay"),
    ],
)
def test_only_writers_connect_to_the_core(
    task: Callable[[load.Load], Coroutine[None, None, None]],
    at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(url: str, **_: object) -> None:
        raise Connected(url)

    monkeypatch.setattr(load, "connect", connect)
    one = load.Load("weir://core", "weir://relay", 2, 15, order="total", readers=1)
    one.ledger.confirmed[0].append(0)  # the others wait for the first confirm
    with pytest.raises(Connected, match=at):
        asyncio.run(asyncio.wait_for(task(one), 30))
