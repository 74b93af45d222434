"""What a consumer has settled is told to the topic that it came from alone, and not for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import weir
from rigs.consuming import take
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import REAL
from weir.client.consumer.acknowledgements import Acking, Nacks
from weir.client.consumer.consumer import LeasedMessage
from weir.client.consumer.moves import KeptGrants
from weir.errors import BadRequest, StaleGrant, Unavailable, UnknownCluster, UnknownTopic
from weir.model.ids import Address
from weir.protocol.client import messages as m

SETTLING = m.Ack | m.Nack


def kept() -> KeptGrants:
    return KeptGrants("c", cast(NetworkClient, SimpleNamespace(system=REAL)))


async def settle(message: LeasedMessage, back: bool) -> None:
    await (message.nack(0, confirmed=True) if back else message.ack(confirmed=True))


def names_the_first(request: m.Request) -> bool:
    """Whether a request settles the message at offset 0."""
    ranges = request.ranges if isinstance(request, SETTLING) else ()
    return any(0 in one[-2:] for one in ranges)


# A node that had lost messages refused their acks. The consumer told them again and again, each
# time before anything it had pulled was handed out, so that nothing came to it any more.
@pytest.mark.parametrize("refusal", [BadRequest, UnknownCluster])
@pytest.mark.parametrize("back", [False, True])
def test_what_is_refused_for_good_is_not_told_for_ever(fake_broker, back, refusal) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            broker.topic("t")
            broker.script = lambda request: (
                m.Refusal(refusal.code, "no such thing") if names_the_first(request) else None
            )
            await w.publish("t", b"lost")
            mode = "ordered" if back else "shared"
            async with w.consumer("t", cluster="c", ack_within=0, mode=mode) as consumer:
                with pytest.raises(refusal):
                    await settle(await anext(consumer), back)
                await w.publish("t", b"next")
                until = asyncio.get_running_loop().time() + 5
                while True:
                    assert asyncio.get_running_loop().time() < until
                    try:
                        message = await take(consumer)
                    except refusal:  # once more perhaps, before it is forgotten
                        continue
                    if message.value == b"next":
                        break
            told = [request for request in broker.seen if names_the_first(request)]
            assert len(told) <= 1 + back

    asyncio.run(scenario())


class _Places:
    """A broker that has lost message 0, and where the grant 9 is over."""

    id = b"topic"

    def __init__(self) -> None:
        self.told: list[list[tuple[int, int, int]]] = []

    async def ask(self, partition: int, request: Any, *_: object, **__: object) -> m.Acked:
        ranges = request(Address(0, 0, 0)).ranges
        self.told.append(ranges)
        if any(fence == 9 for fence, _, _ in ranges):
            raise StaleGrant("over")
        if any(first == 0 for _, first, _ in ranges):
            raise BadRequest("no such message")
        return m.Acked(0)


# All that was settled in one request was dropped with the one that was lost, and came again; and
# where one beside it was stale, the lost one was kept and told for ever.
@pytest.mark.parametrize("with_a_stale_one", [False, True])
def test_what_is_settled_beside_a_lost_one_counts(with_a_stale_one: bool) -> None:
    async def scenario() -> None:
        places, acking = _Places(), Acking("t", "c", None, kept())
        acking.begin(cast(Places, places))
        ranges = [(1, 0, 1), (1, 2, 3), *([(9, 5, 6)] if with_a_stale_one else [])]
        for fence, first, behind in ranges:
            acking.done(0, fence, first, behind)
        with pytest.raises(BadRequest):
            await acking.flush(0)
        assert places.told == [ranges, *([one] for one in ranges)]
        assert acking.stale == with_a_stale_one
        assert acking.waiting() == []

    asyncio.run(scenario())


class _Returns(_Places):
    """The same, as it is told what goes back."""

    async def ask(self, partition: int, request: Any, *_: object, **__: object) -> Any:
        nack = request(Address(0, 0, 0))
        self.told.append([(nack.fence, *run) for run in nack.ranges])
        if nack.fence == 9:
            raise Unavailable("not now")
        if any(first == 0 for first, _ in nack.ranges):
            raise BadRequest("no such message")
        return m.Nacked(0)


# All that went back in one request, and with one flush, was dropped with the one that was lost, and
# came again only when its lease had ended.
def test_what_goes_back_beside_a_lost_one_counts() -> None:
    async def scenario() -> None:
        places, returning = _Returns(), Nacks("c", False, lambda *_: None, kept())
        returning.begin(cast(Places, places))
        for fence, first in ((1, 0), (1, 2), (2, 5)):
            returning.back(0, fence, (first, first + 1), 0, untried=True)
        with pytest.raises(BadRequest):
            await returning.flush(0)
        assert sorted(places.told) == [
            [(1, 0, 1)], [(1, 0, 1), (1, 2, 3)], [(1, 2, 3)], [(2, 5, 6)]
        ]  # fmt: skip
        assert returning.waiting() == []
        # What got no answer is told again, and only that.
        returning.back(0, 9, (7, 8), 0, untried=True)
        returning.back(0, 2, (8, 9), 0, untried=True)
        with pytest.raises(Unavailable):
            await returning.flush(0)
        del places.told[:]
        with pytest.raises(Unavailable):
            await returning.flush(0)
        assert places.told == [[(9, 7, 8)]]

    asyncio.run(scenario())


# What was given back by hand was not even sent then, and came again only when its lease had ended.
def test_what_is_given_back_by_hand_beside_a_lost_one_counts() -> None:
    async def scenario() -> None:
        places, returning = _Returns(), Nacks("c", False, lambda *_: None, kept())
        returning.begin(cast(Places, places))
        returning.back(0, 1, (0, 1), 0, untried=True)
        with pytest.raises(BadRequest):
            await returning.now(0, 2, [(5, 6)], 0)
        assert places.told == [[(1, 0, 1)], [(2, 5, 6)]]
        assert await returning.now(0, 2, [(6, 7)], 0)
        # One that is lost itself is told once, beside whatever else.
        with pytest.raises(BadRequest):
            await returning.now(0, 1, [(0, 1)], 0)
        assert returning.waiting() == []

    asyncio.run(scenario())


# They were kept, and told to the topic that had come under that name: there they settled what
# another consumer had, if its grant happened to have the same number.
@pytest.mark.parametrize("back", [False, True])
def test_what_is_settled_of_a_topic_that_went_is_told_to_no_other(fake_broker, back) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, weir.connect(broker.url) as w, asyncio.timeout(20):
            old = broker.topic("t").addresses[0]
            await w.publish("t", b"old")
            mode = "ordered" if back else "shared"
            async with w.consumer("t", cluster="c", ack_within=0, mode=mode) as consumer:
                message = await anext(consumer)
                broker.topic("t")
                broker.script = lambda request: (
                    m.Refusal(UnknownTopic.code, "it was deleted")
                    if getattr(request, "address", None) == old
                    else None
                )
                with pytest.raises(UnknownTopic):
                    await settle(message, back)
                with pytest.raises(UnknownTopic):
                    await anext(consumer)
                await w.publish("t", b"new")
                async with await anext(consumer) as last:
                    assert last.value == b"new"
                    await consumer.flush()
                    assert (broker.returned, broker.acked) == ([], {})

    asyncio.run(scenario())
