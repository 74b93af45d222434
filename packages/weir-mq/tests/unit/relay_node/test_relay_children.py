"""Relays below relays, over real sockets: what comes by a tandem is what the core has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rigs.relay_nodes import (
    ALL,
    OpenSession,
    fill,
    fill_until,
    frame,
    is_linked,
    make_small,
    offsets,
    play,
    refusals,
    relay,
    rows,
    spoken,
    until_known,
    why_refused,
)
from weir.client.arguments import parse_url
from weir.client.client import connect
from weir.client.connection.network_client import NetworkClient
from weir.errors import BadRequest, NotAuthenticated, Overloaded, Unavailable, WrongSystem
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.relay.lower import Me
from weir.relay.messages import Answer, AskFilter, Pull, decode_message, encode_message
from weir.relay.ports import AnswerCame, Event, SendToChild, UpperNode
from weir.relay_node import children as serving
from weir.relay_node import serve as starting
from weir.relay_node.children import ChildLinks
from weir.relay_node.disk import RelayDisk
from weir.relay_node.host import RelayHost
from weir.relay_node.listener import PENDING_MAX, Listener
from weir.relay_node.partitions import RelayPartitions
from weir.relay_node.requests import AnswerRoom
from weir.relay_node.store import RelayStore
from weir.relay_node.uppers import UpperRelay
from weir.testing.memory_node import Node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@asynccontextmanager
async def below(core: Node, upper: str, path: Path, **config: Any) -> AsyncIterator[str]:
    """Run a relay of a core below another relay; yield its address."""
    async with relay(core, path, uppers=(tuple(parse_url(upper)),), **config) as url:
        yield url


def test_a_relay_below_a_relay_has_what_the_core_has(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    async def work() -> None:
        await fill(core)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2) as url,
        ):
            await until_known(upper, 30)
            await until_known(url, 30)
            for options in ({}, {"tag": "b"}, {"start": {0: 3, 1: 4}}):
                options = {**ALL, **options}
                assert await rows(url, **options) == await rows(core.url, **options)
            count = await fill_until(core, 30, is_linked(told))
            await until_known(url, count)
            before = offsets(told)
            await fill(core, 20, count)
            await until_known(url, count + 20)
            assert offsets(told) - before == 20, "it comes by the tandem, and from nowhere else"
            assert await rows(url, **ALL) == await rows(core.url, **ALL)

    play(work)


def test_who_follows_all_partitions_is_told_by_the_tandem_how_far_they_are_complete(
    core: Node, tmp_path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[m.OrderMark | None] = []
    next_mark = UpperRelay.next_mark

    async def noted(upper: UpperRelay, request: m.AwaitMark) -> m.OrderMark | None:
        marks.append(await next_mark(upper, request))
        return marks[-1]

    monkeypatch.setattr(UpperRelay, "next_mark", noted)

    async def read(url: str, count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        async with connect(url) as client, client.reader("t", start="earliest") as reader:
            async for one in reader:
                found.append((one.stamp, one.partition))
                if len(found) == count:
                    break
        return found

    async def work() -> None:
        await fill(core)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2) as url,
        ):
            await until_known(url, 30)
            count = await fill_until(core, 30, is_linked(told))
            reading = [asyncio.ensure_future(read(url, count + 12)) for _ in range(4)]
            for first in range(count, count + 12, 3):
                await fill(core, 3, first)
            found = await asyncio.gather(*reading)
            assert found == [sorted(found[0])] * 4
            count += 12
            following = asyncio.ensure_future(read(url, 1_000_000))
            while not any(mark is not None and mark.reached for mark in marks):
                await fill(core, 1, count)
                count += 1
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    play(work)


def test_a_relay_that_pulls_from_a_tandem_serves_again_once_the_core_lets_it_in(
    core: Node, tmp_path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = NetworkClient.request

    async def refuse(network: NetworkClient, asked: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(asked, m.ListTopics):
            raise NotAuthenticated("nobody is let in for a moment")
        return await request(network, asked, *rest, **more)

    async def work() -> None:
        await fill(core)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2) as url,
            connect(url) as client,
        ):
            await until_known(upper, 30)
            await fill_until(core, 30, is_linked(told))
            with monkeypatch.context() as closed:
                closed.setattr(NetworkClient, "request", refuse)
                while (why := await why_refused(client)) is None:
                    await asyncio.sleep(0.02)
                assert "nobody is let in" in why
            while await why_refused(client) is not None:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_refused_pull_is_forgotten_once_the_core_allows_it_though_a_tandem_serves(
    core: Node, tmp_path: Path, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = list[RelayHost]()

    class Noted(RelayHost):
        def start(self, network: NetworkClient | None) -> None:
            hosts.append(self)
            super().start(network)

    monkeypatch.setattr(starting, "RelayHost", Noted)

    async def work() -> None:
        await fill(core)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2),
        ):
            await until_known(upper, 30)
            await fill_until(core, 30, is_linked(told))
            (topic,) = hosts[-1].topics.values()
            topic.barred = "a pull was refused a moment ago"
            while topic.barred:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_large_value_comes_by_the_tandem(core: Node, tmp_path: Path, told: list[Event]) -> None:
    value = bytes(range(256)) * 5_000

    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic("t", partitions=1, order="total")
            async with (
                relay(core, tmp_path / "tandem", node=1) as upper,
                below(core, upper, tmp_path / "access", node=2) as url,
            ):
                count = await fill_until(core, 0, is_linked(told, 1))
                async with client.producer("t") as producer:
                    await producer.publish_from([value] * 2)
                await until_known(url, count + 1)
                assert [row[3] for row in await rows(url, **ALL)][count:] == [value * 2]
        answers = [event.answer for event in told if isinstance(event, AnswerCame)]
        assert sum(len(answer.chunks) for answer in answers) > 1

    play(work)


def test_what_a_tandem_does_not_keep_comes_from_the_core(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    async def work() -> None:
        await fill(core)
        async with relay(core, tmp_path / "tandem", node=1, tags=frozenset({"a"})) as upper:
            await until_known(upper, 30)
            both = frozenset({"a", "b"})
            async with below(core, upper, tmp_path / "access", node=2, tags=both) as url:
                count = await fill_until(core, 30, lambda: "FilterNotCovered" in refusals(told))
                await until_known(url, count)
                options = {**ALL, "tag": ("a", "b")}
                truth = await rows(core.url, **options)
                assert len(truth) >= 20
                assert await rows(url, **options) == truth
        assert not offsets(told)

    play(work)


def test_a_tandem_that_is_wider_sends_only_what_is_wanted(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    async def work() -> None:
        await fill(core, 3)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2, tags=frozenset({"a"})) as url,
        ):
            await until_known(url, 3)
            count = await fill_until(core, 3, is_linked(told))
            await fill(core, 9, count)
            await until_known(url, count + 9)
            options = {**ALL, "tag": "a"}
            truth = await rows(core.url, **options)
            assert len(truth) >= 4
            assert await rows(url, **options) == truth
        answers = [event.answer for event in told if isinstance(event, AnswerCame)]
        assert any(row.kind == 3 for answer in answers for row in answer.rows), "some is skipped"

    play(work)


def test_filters_widen_at_the_larger_of_both_ends(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    one, both = frozenset({"a"}), frozenset({"a", "b"})

    async def ends(url: str) -> dict[int, int]:
        async with connect(url) as client:
            return {part.partition: part.end for part in await client.parts("t")}

    async def work() -> None:
        await fill(core, 9)
        for tags in (one, both):
            async with (
                relay(core, tmp_path / "tandem", node=1, tags=tags) as upper,
                below(core, upper, tmp_path / "access", node=2, tags=tags) as url,
            ):
                await until_known(url, 9)
                if tags is one:
                    continue
                options: dict[str, Any] = {"follow": False, "tag": ("a", "b")}
                with pytest.raises(BadRequest, match="keeps the tags 'a'"):
                    await rows(url, start="earliest", **options)
                count = await fill_until(core, 9, is_linked(told))
                await until_known(url, count)
                begins = await ends(core.url)
                while True:
                    try:
                        assert await rows(url, start=begins, **options) == []
                        break
                    except BadRequest:
                        await asyncio.sleep(0.02)
                await fill(core, 9, count)
                await until_known(url, count + 9)
                truth = await rows(core.url, start=begins, **options)
                assert len(truth) == 6
                assert await rows(url, start=begins, **options) == truth

    play(work)


def test_a_tandem_that_is_away_or_begins_anew_costs_nothing(
    core: Node, tmp_path: Path, told: list[Event]
) -> None:
    async def work() -> None:
        await fill(core, 9)
        async with (
            relay(core, tmp_path / "tandem", node=1) as upper,
            below(core, upper, tmp_path / "access", node=2) as url,
        ):
            await until_known(url, 9)
        ((_, port),) = parse_url(upper)
        async with below(core, upper, tmp_path / "access", node=2) as url:
            await fill(core, 6, 9)
            await until_known(url, 15)  # from the core
            told.clear()
            async with relay(core, tmp_path / "new", ("127.0.0.1", port), node=1):
                await until_known(url, await fill_until(core, 15, is_linked(told)))
            assert await rows(url, **ALL) == await rows(core.url, **ALL)

    play(work)


def question(kind: type[Pull] | type[AskFilter], system: int, node: int, group: int) -> bytes:
    topic, partition = group >> 16, group & 0xFFFF
    if kind is AskFilter:
        return b"".join(encode_message(AskFilter(system, 0, node, topic, partition, 1, ("a",))))
    pull = Pull(system, 0, node, topic, partition, 1, 0, 0, 0, None, 1 << 20, 0)
    return b"".join(encode_message(pull))


def test_questions_that_no_relay_below_may_ask_are_refused(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 9)
        async with relay(core, tmp_path, node=5) as url:
            await until_known(url, 9)
            async with connect(url) as client:
                address = (await client.describe("t")).addresses[0]
            welcome, *_ = await spoken(url, frame(m.Hello("test")))
            system = welcome.system
            asks = [
                question(Pull, system + 1, 7, address.group),
                question(Pull, system, 5, address.group),
                question(Pull, system, 7, address.group + 1),
                b"nonsense",
                question(Pull, system, 7, address.group),
                question(AskFilter, system, 7, address.group),
            ]
            found = []
            for ask in asks:
                _, *replies = await spoken(
                    url, frame(m.Hello("test")), frame(m.AskRelay(address, ask))
                )
                found.append(replies[0])
            codes = [one.code for one in found if isinstance(one, m.Refusal)]
            assert codes == [WrongSystem.code, *[BadRequest.code] * 3]
            answer, covered = (decode_message(b"".join(one.message))[0] for one in found[4:])
            assert isinstance(answer, Answer)
            assert answer.next > 0
            assert covered.offset == 0  # type: ignore[union-attr]

    play(work)


def test_pulls_that_wait_take_no_place_among_the_requests_of_a_connection() -> None:
    class Waiting:
        def session(self, channel: object) -> OpenSession:
            return OpenSession()

        async def answer(self, request: m.Request, room: AnswerRoom, session: object) -> m.Reply:
            if isinstance(request, m.AskRelay):
                room.step_aside()
                await asyncio.get_running_loop().create_future()
            if isinstance(request, m.Ping):
                return m.Pong(7)
            return m.Welcome(1, 0, 1, 0, 1 << 20, 1)

    async def work() -> None:
        listener = Listener(Waiting())  # type: ignore[arg-type]
        await listener.start("127.0.0.1", 0)
        pulls = [frame(m.AskRelay(Address(0, 0, 1 << 16), b""))] * (2 * PENDING_MAX)
        url = f"weir://127.0.0.1:{listener.port}"
        try:
            found = await spoken(url, frame(m.Hello("test")), *pulls, frame(m.Ping()))
        finally:
            await listener.stop()
        assert m.Pong(7) in found

    play(work)


def pull_of(child: int, group: int = 3 << 16) -> Pull:
    return Pull(1, 0, child, group >> 16, group & 0xFFFF, 1, 0, 0, 0, None, 1, 0)


def test_of_one_node_one_pull_of_a_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "RELAY_PULLS_WAITING_MAX", 2)
    links = ChildLinks()
    first, other = links.open(pull_of(7)), links.open(pull_of(8))
    with pytest.raises(Overloaded):
        links.open(pull_of(9))
    links.close(other)
    again = links.open(pull_of(7))
    assert isinstance(first.effects.get_nowait(), Unavailable)
    assert not links.close(first)
    told = SendToChild(again.number, Answer(3 << 16, 1, 0, 0, 0, (), 0, 0))
    links.tell([SendToChild(first.number, told.message), told])
    assert first.effects.empty()
    assert again.effects.get_nowait() is told
    assert links.close(again)
    links.open(pull_of(7)), links.open(pull_of(8))


def test_bytes_are_counted_for_as_many_nodes_as_may_be_held_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "HOLDS_MAX", 1)
    links = ChildLinks()
    first, other = links.open(pull_of(7)), links.open(pull_of(8))
    answer = Answer(3 << 16, 1, 0, 0, 0, (), 0, 0)
    for link in (first, first, other):
        links.tell([SendToChild(link.number, answer, (b"abc", b"de"))])
    assert links.sent == {first.child: 10}


def test_a_partition_that_is_gone_refuses_who_waits_for_it() -> None:
    links = ChildLinks()
    gone, other = links.open(pull_of(7)), links.open(pull_of(7, 3 << 16 | 1))
    error = Unavailable("it is pulled again")
    links.end(3 << 16, error)
    assert gone.effects.get_nowait() is error
    assert other.effects.empty()
    assert not links.close(gone)
    assert links.close(other)


def test_entries_that_cannot_be_read_yet_are_no_answer(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[Event]
) -> None:
    """A relay below asks again, or elsewhere."""

    async def nothing(*_: object) -> dict[int, bytes]:
        return {}

    async def work() -> None:
        await fill(core, 9)
        async with relay(core, tmp_path / "tandem", node=1) as upper:
            await until_known(upper, 9)
            with monkeypatch.context() as early:
                early.setattr(RelayDisk, "entries", nothing)
                async with below(core, upper, tmp_path / "access", node=2) as url:
                    count = await fill_until(core, 9, lambda: "Overloaded" in refusals(told))
                    await until_known(url, count)
        assert not offsets(told)

    play(work)


def test_the_core_alone_says_where_its_log_ends() -> None:
    """A reader who has read on in the core is not told that the log ends before."""
    store = SimpleNamespace(states={}, append=lambda *_: 0)
    core, tandem, group = UpperNode(0, 1, True), UpperNode(0, 2, False), 3 << 16
    partitions = RelayPartitions(cast(RelayStore, store), Me(7, 0, 5, 0), core, 0)
    partitions.open(group, None, (tandem,), 0)
    held = partitions.held[group]
    for upper, head in ((tandem, 5), (core, 9), (tandem, 6)):
        event = AnswerCame(upper, Answer(group, 1, 0, 0, 0, (), 0, head), memoryview(b""))
        partitions.handle(group, event, 0)
        assert (held.answers, held.head) == {5: (0, 5), 9: (1, 9), 6: (1, 9)}[head]
