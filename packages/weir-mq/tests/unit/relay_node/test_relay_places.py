"""The places of requests of one connection to a relay: which of them wait without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rigs.relay_nodes import OpenSession, frame, play
from weir.model.ids import Address
from weir.model.topic import Presence
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply
from weir.relay.entries import FilterSet, Relayed, StartMoved, encode_entry
from weir.relay.messages import AskFilter, encode_message
from weir.relay.rows import Row, RowKind
from weir.relay.state import RelayState
from weir.relay_node import requests as answering
from weir.relay_node.children import ChildLinks
from weir.relay_node.gate import RelayGate
from weir.relay_node.host import RelayedTopic, RelayHost
from weir.relay_node.listener import PENDING_MAX, Listener
from weir.relay_node.partitions import Held
from weir.relay_node.requests import AnswerRoom, Places, RelayRequests
from weir.relay_node.uppers import MarkFeeds

TOPIC = 3
SYSTEM = 7
PARTITIONS = 2 * PENDING_MAX
GROUPS = [TOPIC << 16 | partition for partition in range(PARTITIONS)]


class IdleHost:
    """A host of partitions without messages, whose core answers nothing."""

    def __init__(self, *, is_private: bool = False) -> None:
        addresses = [Address(0, 0, group) for group in GROUPS]
        topic = RelayedTopic(m.TopicInfo(TOPIC, "default", "t", "total", addresses))
        topic.news = {group: asyncio.Event() for group in GROUPS}
        self.topics = {TOPIC: topic}
        state = RelayState()
        for record in (StartMoved(0), FilterSet(1, None, 0)):
            state.apply(record, 1)
        machine = SimpleNamespace(state=state, log_start=0)
        held = Held(cast(Any, machine), 0, 0)
        self.partitions = SimpleNamespace(held=dict.fromkeys(GROUPS, held), children=ChildLinks())
        self.config = SimpleNamespace(is_private=is_private, core="weir://core")
        self.founded = SimpleNamespace(system=SYSTEM, brokerset=0, node=1)
        self.asked = 0
        self.tiers = SimpleNamespace(marks=MarkFeeds())

    def handle(self, group: int, event: object) -> None:
        """Keep a relay below waiting."""

    async def ask_core(self, *_: object) -> None:
        self.asked += 1
        await asyncio.Event().wait()


class Waiting(OpenSession):
    """A session of a user about whose rights the core says nothing."""

    def __init__(self) -> None:
        self.checks = 0

    def check_greeted(self) -> None:
        """It has logged in."""

    async def check_relay(self, asked: object) -> None:
        self.checks += 1
        await asyncio.Event().wait()


class Gate(RelayGate):
    """A gate all of whose clients have one session."""

    def __init__(self, host: IdleHost) -> None:
        self.waiting = Waiting()
        found = cast(RelayHost, host)
        super().__init__(found, RelayRequests(found))

    def session(self, channel: object) -> Any:
        return self.waiting


def pull(group: int) -> m.AskRelay:
    asked = AskFilter(SYSTEM, 5, 8, group >> 16, group & 0xFFFF, 0, ())
    return m.AskRelay(Address(0, 0, group), b"".join(encode_message(asked)))


async def is_read_on(gate: RelayGate, waiting: Sequence[m.Request]) -> bool:
    """Return whether a relay answers a ping behind requests that wait."""
    listener = Listener(gate)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.writelines([frame(m.Hello("test")), *map(frame, waiting), frame(m.Ping())])
    stream, found = ClientStream(), list[object]()
    try:
        while not any(isinstance(one, m.Pong) for one in found):
            data = await asyncio.wait_for(reader.read(1 << 16), 0.2)
            found += [decode_reply(one) for one in stream.receive(data)]
    except TimeoutError:
        return False
    finally:
        writer.close()
        await listener.stop()
    assert len(found) == 2, found
    return True


@pytest.mark.parametrize(
    "waiting",
    [
        [m.Fetch(Address(0, 0, group), 0, 1 << 20, 5_000) for group in GROUPS],
        [m.AwaitMark(TOPIC, 1, 9, 5_000)] * PARTITIONS,
        [pull(group) for group in GROUPS],
    ],
    ids=["fetches", "marks", "pulls"],
)
def test_what_waits_for_each_of_many_partitions_leaves_the_places_to_others(
    waiting: Sequence[m.Request],
) -> None:
    async def work() -> None:
        assert await is_read_on(Gate(IdleHost()), waiting)

    play(work)


def test_nobody_waits_without_a_place_whose_rights_are_not_known() -> None:
    async def work() -> None:
        gate = Gate(IdleHost(is_private=True))
        assert not await is_read_on(gate, [pull(group) for group in GROUPS])
        assert gate.waiting.checks == PENDING_MAX

    play(work)


def test_so_many_wait_without_a_place_and_further_ones_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "REQUESTS_PENDING_MAX", 1)

    async def work() -> None:
        places, large = Places(2), asyncio.Semaphore()
        first, second = AnswerRoom(places, large), AnswerRoom(places)
        for room in (first, second):
            await places.acquire()
            room.step_aside()
            room.step_aside()
        assert not places.locked()
        await places.acquire()
        assert places.locked()
        places.release()
        await first.take()
        assert places.locked()
        first.step_aside()
        assert places.locked(), "who has memory has a place"
        second.step_aside()
        assert not places.locked()
        await first.aclose()

    play(work)


def test_a_trace_reads_where_there_is_room_for_it() -> None:
    class Host(IdleHost):
        reads = 0

        def __init__(self) -> None:
            super().__init__()
            self.disk = self
            self.held = self.partitions.held[GROUPS[0]]
            self.held.unread_since = 0.0
            self.record = Relayed(0, 0, 1, 1, 9, (Row(RowKind.VOID, 1),))
            self.index = self.held.state.apply(self.record, 1)

        async def entries(self, group: int, indexes: list[int]) -> dict[int, bytes]:
            self.reads += 1
            return {self.index: b"".join(encode_entry(self.record))}

    async def work() -> None:
        host, memory, places = Host(), asyncio.Semaphore(0), Places(1)
        requests = RelayRequests(cast(RelayHost, host))

        async def traced(offset: int) -> m.Reply:
            async with AnswerRoom(places, memory) as room:
                return await requests.answer(a.TraceMessage(Address(0, 0, GROUPS[0]), offset), room)

        told = await traced(1)  # nothing is read for what is not there
        assert isinstance(told, a.TracedMessage)
        assert (told.presence, host.reads) == (Presence.AWAITED, 0)
        tracing = asyncio.ensure_future(traced(0))
        await asyncio.sleep(0.01)
        assert host.reads == 0
        memory.release()
        told = await tracing
        assert isinstance(told, a.TracedMessage)
        assert (told.presence, host.reads) == (Presence.ABORTED, 1)
        assert not memory.locked(), "others read now"

    play(work)
