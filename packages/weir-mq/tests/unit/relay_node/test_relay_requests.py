"""What a relay tells of the one order while its core is away, and of chunks that come yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.codec import Buffer
from weir.errors import Unavailable, UnknownTopic, ValueLost
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.relay.entries import ChunkStored, FilterSet, StartMoved, encode_entry
from weir.relay.messages import Mark
from weir.relay.partition import RelayPartition
from weir.relay.state import RelayState
from weir.relay_node import requests as answering
from weir.relay_node.host import RelayedTopic, RelayHost
from weir.relay_node.partitions import Held
from weir.relay_node.requests import AnswerRoom, Places, RelayRequests

TOPIC = 3
GROUPS = (3 << 16, 3 << 16 | 1)
#: Partition 0 as this relay names it.
HERE = Address(0, 0, GROUPS[0], 9)


def _held(mark: Mark | None, partitions: int = 0) -> Any:
    """A partition of which nothing is known but its mark, and the number in its roster."""
    machine = SimpleNamespace(state=SimpleNamespace(partitions=partitions))
    return Held(cast(Any, machine), 0, 0, mark=mark)


class CoreAway:
    """A host of two partitions whose core does not answer."""

    def __init__(self, *marks: Mark) -> None:
        info = m.TopicInfo(TOPIC, "default", "t", "total", [Address(0, 0, one) for one in GROUPS])
        self.topics = {TOPIC: RelayedTopic(info)}
        held = zip(GROUPS, (_held(mark) for mark in marks), strict=True)
        self.partitions = SimpleNamespace(held=dict(held))
        self.founded = SimpleNamespace(node=1)
        self.config = SimpleNamespace(core="weir://core")
        self.has_looked = False
        self.is_reached = False

    async def ask_core(self, *_: object) -> None:
        raise Unavailable("the core is not reached")


def barriers(*marks: Mark) -> m.Barriers:
    requests = RelayRequests(cast(RelayHost, CoreAway(*marks)))
    reply = asyncio.run(requests.answer(m.AskBarriers(TOPIC, 50, 0), AnswerRoom(Places(1))))
    assert isinstance(reply, m.Barriers)
    return reply


def test_marks_that_came_tell_how_far_the_order_is_complete() -> None:
    told = barriers(Mark(2, 60, 7), Mark(1, 50, 4))
    assert (told.registers, told.reached) == ([(0, 60, 7), (1, 50, 4)], True)
    assert not barriers(Mark(2, 60, 7), Mark(1, 49, 4)).reached


def test_a_partition_that_joined_and_is_not_here_yet_keeps_the_order_back() -> None:
    told = barriers(Mark(3, 60, 7), Mark(1, 50, 4))
    assert (told.registers, told.reached) == ([(0, 60, 7), (1, 50, 4), (2, 0, 0)], False)


def test_a_reader_learns_of_each_partition_that_a_barrier_is_told_of() -> None:
    told = barriers(Mark(3, 60, 7), Mark(1, 50, 4))
    assert {partition for partition, _ in told.roster} == {1, 2}
    assert all(not floor for _, floor in told.roster), "from which stamp on is not known here"


def test_entries_of_the_roster_count_before_a_mark_says_how_many_there_are() -> None:
    assert _held(None, 4).partitions == _held(Mark(3, 60, 7), 4).partitions == 4
    assert _held(Mark(5, 60, 7), 4).partitions == 5, "a core of an earlier release tells marks only"
    host = CoreAway(Mark(2, 60, 7), Mark(1, 60, 4))
    host.partitions.held[GROUPS[0]] = _held(None, 4)
    reply = asyncio.run(
        RelayRequests(cast(RelayHost, host)).answer(
            m.AskBarriers(TOPIC, 50, 0), AnswerRoom(Places(1))
        )
    )
    assert isinstance(reply, m.Barriers)
    assert [row[0] for row in reply.registers] == [0, 1, 2, 3]
    assert not reply.reached


def test_a_topic_is_not_unknown_before_the_core_has_told_its_topics() -> None:
    host = CoreAway(Mark(1, 1, 0), Mark(1, 1, 0))
    requests = RelayRequests(cast(RelayHost, host))

    def describe(name: str) -> m.Reply:
        return asyncio.run(requests.answer(m.DescribeTopic(name), AnswerRoom(Places(1))))

    with pytest.raises(Unavailable, match="the core at weir://core has not told its topics yet"):
        describe("other")
    assert isinstance(describe("t"), m.TopicInfo), "it is here from before the restart"
    host.has_looked = True
    with pytest.raises(UnknownTopic, match="no topic 'other' is relayed here"):
        describe("other")


class ChunkHost(CoreAway):
    """A host whose partition has chunk 7 of the core, which its disk gives once it was flushed."""

    def __init__(self) -> None:
        super().__init__(Mark(1, 1, 0), Mark(1, 1, 0))
        self.state = RelayState()
        for record in (StartMoved(0), FilterSet(1, None, 0), ChunkStored(7, 0)):
            self.state.apply(record, 1)
        held = SimpleNamespace(state=self.state, is_behind=True, unread_since=0.0)
        self.partitions = SimpleNamespace(held={GROUPS[0]: held})
        self.disk = self
        self.flushed = asyncio.Event()
        self.durable = False

    async def entries(self, group: int, indexes: list[int]) -> dict[int, Buffer]:
        assert indexes == [3]
        return {3: b"".join(encode_entry(ChunkStored(7, 0), b"chunk"))} if self.durable else {}

    def flush(self) -> None:
        self.durable = True
        self.flushed.set()

    async def ask(self, index: int, asker: Any = None) -> Any:
        requests = RelayRequests(cast(RelayHost, self))
        request = m.FetchChunks(HERE, index, 1, 1 << 20)
        return await requests.answer(request, AnswerRoom(Places(1)), asker)


def test_a_chunk_that_is_not_durable_yet_is_waited_for() -> None:
    async def work() -> None:
        host = ChunkHost()
        asking = asyncio.ensure_future(host.ask(7))
        await asyncio.sleep(0)
        assert not asking.done()
        host.flush()
        assert b"".join((await asking).batches) == b"chunk"

    asyncio.run(work())


def test_a_chunk_that_stays_away_is_to_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "CHUNKS_WAIT_SECONDS", 0.01)
    with pytest.raises(Unavailable, match="not durable yet: ask again"):
        asyncio.run(ChunkHost().ask(7))


def test_a_chunk_may_come_as_long_as_the_relay_is_behind() -> None:
    async def work() -> None:
        host = ChunkHost()
        with pytest.raises(Unavailable, match="has not received chunk"):
            await host.ask(8)
        host.is_reached = True
        with pytest.raises(Unavailable, match="the core is not reached"):
            await host.ask(8)

    asyncio.run(work())


class ChunkCore:
    """Who asks a core that has chunk 6 still, and no other."""

    def __init__(self) -> None:
        self.asked: list[m.Request] = []

    async def ask_core(self, request: m.FetchChunks, *_: object) -> m.Reply:
        self.asked.append(request)
        if request.index != 6:
            raise ValueLost("no chunk is in the core: it is past retention")
        return m.FetchedChunks(request.address, 6, (b"six",))


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_chunk_that_is_not_here_is_read_from_the_core(is_behind: bool) -> None:
    async def work() -> None:
        host, core = ChunkHost(), ChunkCore()
        host.is_reached = True
        host.flush()
        host.partitions.held[GROUPS[0]].is_behind = is_behind
        told = await host.ask(6, core)
        assert (told.address, told.index, told.batches) == (HERE, 6, (b"six",))
        assert core.asked == [m.FetchChunks(Address(0, 0, GROUPS[0]), 6, 1, 1 << 20)]
        with pytest.raises(ValueLost, match="in the core"):
            await host.ask(8, core)
        assert b"".join((await host.ask(7, core)).batches) == b"chunk"
        assert len(core.asked) == 2, "what is here is not asked for"

    asyncio.run(work())


def test_a_chunk_is_not_lost_while_the_core_cannot_say_so() -> None:
    with pytest.raises(Unavailable, match="the core is not reached"):
        asyncio.run(ChunkHost().ask(6))


def test_a_relay_is_behind_until_the_core_has_said_where_it_ends() -> None:
    state = ChunkHost().state
    held = Held(cast(RelayPartition, SimpleNamespace(state=state)), 0, 0)
    assert held.is_behind
    held.answers = 1
    assert not held.is_behind
    held.head = 1
    assert held.is_behind
