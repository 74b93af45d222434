"""Consumers of clusters at a relay: the core grants, and messages come from the relay's log."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rigs.consuming import take
from rigs.relay_nodes import (
    ALL,
    TAGS,
    fill,
    known,
    make_small,
    play,
    relay,
    rows,
    until_known,
)
from rigs.scripted_core import ACK, AT, ScriptedCore
from weir.client.arguments import parse_url
from weir.client.client import Client, connect
from weir.client.connection.connection import Connection
from weir.client.connection.network_client import NetworkClient
from weir.client.core.retries import Backoff
from weir.errors import (
    DamagedRange,
    Disconnected,
    OffsetOutOfRange,
    Overloaded,
    Unauthorized,
    Unavailable,
    UnknownTopic,
)
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.relay_node.consumers import clusters, memory
from weir.relay_node.host import RelayConfig
from weir.relay_node.requests import AnswerRoom, Places, RelayRequests
from weir.relay_node.sessions import Channel, ReaderSession
from weir.testing.memory_node import Node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[m.Request, m.Reply]]:
    """What the sessions of consumers asked the core, and its answers."""
    found: list[tuple[m.Request, m.Reply]] = []
    ask_core = ReaderSession.ask_core

    async def noted(session: ReaderSession, request: m.Request, *more: Any) -> m.Reply:
        reply: m.Reply = await ask_core(session, request, *more)
        found.append((request, reply))
        return reply

    monkeypatch.setattr(ReaderSession, "ask_core", noted)
    return found


async def taken(client: Client, count: int, **options: Any) -> list[int]:
    async with client.consumer("t", cluster="crew", **options) as consumer:
        return sorted([int((await take(consumer)).value) for _ in range(count)])


def bytes_granted(asked: list[tuple[m.Request, m.Reply]]) -> int:
    return sum(len(b"".join(one.batches)) for _, one in asked if isinstance(one, m.Granted))


def read_from_core(asked: list[tuple[m.Request, m.Reply]]) -> int:
    return sum(isinstance(one, m.Fetched) for _, one in asked)


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_each_message_comes_once_and_its_bytes_from_the_relay(
    core: Node, tmp_path: Path, asked: list[tuple[m.Request, m.Reply]], mode: str
) -> None:
    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic("t", partitions=2)
        await fill(core, 30)
        async with relay(core, tmp_path) as url, connect(url) as near, connect(core.url) as far:
            await until_known(url, 30)
            found = await taken(near, 18, mode=mode)
            found += await taken(far, 12, mode=mode)
            assert sorted(found) == list(range(30))
            (crew,) = await far.clusters("t")
            assert (crew.lag, crew.granted) == (0, 0)
        assert (bytes_granted(asked), read_from_core(asked)) == (0, 0)

    play(work)


def test_a_grant_waits_for_what_is_on_its_way_to_the_relay(
    core: Node,
    tmp_path: Path,
    asked: list[tuple[m.Request, m.Reply]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOG_WAIT_SECONDS", "NEWS_WAIT_SECONDS"):
        monkeypatch.setattr(clusters, name, 20.0)

    async def work() -> None:
        await fill(core, 1)
        async with (
            relay(core, tmp_path) as url,
            connect(url) as near,
            connect(core.url) as far,
        ):
            await until_known(url, 1)
            async with near.consumer("t", cluster="crew") as consumer:
                assert int((await take(consumer)).value) == 0
                for number in range(1, 20):
                    await far.publish("t", b"%d" % number)
                    assert int((await take(consumer)).value) == number
        assert (bytes_granted(asked), read_from_core(asked)) == (0, 0)

    play(work)


def test_a_cluster_in_total_order_has_its_turns_from_the_core(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 24)
        async with relay(core, tmp_path) as url, connect(url) as near, connect(core.url) as far:
            await until_known(url, 24)
            found = []
            for client in (near, far, near):
                async with client.consumer("t", cluster="crew", mode="ordered") as consumer:
                    found += [int((await take(consumer)).value) for _ in range(8)]
            assert found == [int(row[3]) for row in await rows(core.url, **ALL)]

    play(work)


@pytest.mark.parametrize("tags", [None, ["b"]])
def test_what_a_relay_does_not_keep_is_read_from_the_core(
    core: Node, tmp_path: Path, asked: list[tuple[m.Request, m.Reply]], tags: list[str] | None
) -> None:
    async def work() -> None:
        await fill(core, 30)
        async with relay(core, tmp_path, tags=frozenset("b")) as url, connect(url) as near:
            await known(near, end=28)
            wanted = [n for n in range(30) if not tags or TAGS[n % 3] == "b"]
            assert await taken(near, len(wanted), tags=tags) == wanted
        assert bytes_granted(asked) == 0
        assert bool(read_from_core(asked)) is (tags is None)

    play(work)


def test_what_a_gone_consumer_held_goes_to_others_at_once(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        await fill(core, 12)
        async with relay(core, tmp_path) as url, connect(url) as near:
            await until_known(url, 12)
            async with near.consumer("t", cluster="crew") as consumer:
                held = [await anext(consumer) for _ in range(3)]
            assert len(held) == 3
            assert await taken(near, 12) == list(range(12))

    play(work)


def test_what_cannot_be_read_is_given_back_untried(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [Unavailable("no"), Unavailable("no")]
    ask_core = ReaderSession.ask_core

    async def ask(session: ReaderSession, request: m.Request, *more: Any) -> m.Reply:
        if isinstance(request, m.Fetch) and failures:
            raise failures.pop()
        reply: m.Reply = await ask_core(session, request, *more)
        return reply

    monkeypatch.setattr(ReaderSession, "ask_core", ask)

    async def work() -> None:
        await fill(core, 6)
        async with relay(core, tmp_path, tags=frozenset("b")) as url, connect(url) as near:
            await known(near, end=5)
            async with near.consumer("t", cluster="crew", lease="30s") as consumer:
                found = [await take(consumer) for _ in range(6)]
        assert sorted(int(one.value) for one in found) == list(range(6))
        assert {one.attempts for one in found} == {1}
        assert not failures

    play(work)


async def fill_in_order(core: Node, count: int) -> None:
    async with connect(core.url) as client:
        await client.create_topic("t")
        for number in range(count):
            await client.publish("t", b"%d" % number, tag="a" if number in (2, 3) else "b")


async def in_order(near: Client, count: int) -> list[int]:
    found = []
    async with near.consumer(
        "t", cluster="crew", mode="ordered", lease="60s", max_messages=3
    ) as consumer:
        while len(found) < count:
            with suppress(Unavailable):
                found.append(int((await take(consumer)).value))
    return found


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_a_message_that_cannot_be_read_holds_up_what_order_demands(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    nacks, wanted = list[m.Nack](), [0, 1] if mode == "ordered" else [0, 1, 3, 4, 5, 6]
    ask_core = ReaderSession.ask_core

    async def ask(session: ReaderSession, request: m.Request, *more: Any) -> m.Reply:
        if isinstance(request, m.Fetch):
            if request.offset == 2:
                raise DamagedRange("damaged", 1)
            if request.offset < 2:  # an answer ends before what is damaged
                request = msgspec.structs.replace(request, max_bytes=1)
        if isinstance(request, m.Nack):
            nacks.append(request)
        reply: m.Reply = await ask_core(session, request, *more)
        return reply

    monkeypatch.setattr(ReaderSession, "ask_core", ask)
    monkeypatch.setattr(clusters, "REST_MS", 50 if mode == "ordered" else 60_000)

    async def work() -> None:
        await fill_in_order(core, 7)
        async with relay(core, tmp_path, tags=frozenset("b")) as url, connect(url) as near:
            await known(near, end=7)
            found = []
            async with near.consumer(
                "t", cluster="crew", mode=mode, lease="60s", max_messages=4
            ) as consumer:
                while len(found) < len(wanted):
                    with suppress(DamagedRange):
                        found.append(int((await take(consumer)).value))
                if mode == "ordered":
                    with pytest.raises(DamagedRange):
                        await take(consumer)
        assert sorted(found) == wanted
        delayed = {run for one in nacks if one.delay_ms for run in one.ranges}
        assert mode == "ordered" or delayed == {(2, 3)}
        assert all(one.untried for one in nacks)

    play(work)


def test_what_the_log_does_not_give_is_read_from_the_core(
    core: Node,
    tmp_path: Path,
    asked: list[tuple[m.Request, m.Reply]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def entries(*_: object) -> object:
        raise Unavailable("the disk of this relay cannot read these messages")

    monkeypatch.setattr(RelayRequests, "entries", entries)

    async def work() -> None:
        await fill_in_order(core, 7)
        async with relay(core, tmp_path) as url, connect(url) as near:
            await until_known(url, 7)
            assert await taken(near, 7) == list(range(7))
        assert read_from_core(asked)

    play(work)


def test_a_grant_that_the_relay_did_not_hear_of_is_not_kept(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[m.Granted]()
    request_of = Connection.request

    async def request(connection: Connection, asked: m.Request, timeout: float) -> m.Reply:
        reply = await request_of(connection, asked, timeout)
        if isinstance(asked, m.Pull) and asked.offsets_only and not lost:
            assert isinstance(reply, m.Granted)
            if reply.fence:
                lost.append(reply)
                raise Disconnected("the broker did not answer in time")
        return reply

    monkeypatch.setattr(Connection, "request", request)

    async def work() -> None:
        await fill_in_order(core, 7)
        async with relay(core, tmp_path) as url, connect(url) as near:
            await until_known(url, 7)
            assert await in_order(near, 7) == list(range(7))
        assert lost

    play(work)


def test_a_grant_that_cannot_be_given_back_is_not_kept(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: list[type[m.Request]] = [m.Nack, m.Fetch]
    ask_core = ReaderSession.ask_core

    async def ask(session: ReaderSession, request: m.Request, *more: Any) -> m.Reply:
        if failing and isinstance(request, failing[-1]):
            failing.pop()
            raise Unavailable("no")
        reply: m.Reply = await ask_core(session, request, *more)
        return reply

    monkeypatch.setattr(ReaderSession, "ask_core", ask)

    async def work() -> None:
        await fill_in_order(core, 7)
        async with relay(core, tmp_path, tags=frozenset("b")) as url, connect(url) as near:
            await known(near, end=7)
            assert await in_order(near, 7) == list(range(7))
        assert not failing

    play(work)


class SilentCore:
    """A connection to a core that says who it is, and nothing more."""

    peer = None

    def __init__(self) -> None:
        self.over, self.aborted = asyncio.Event(), False

    async def request(self, asked: m.Request, timeout: float) -> m.Reply:
        if isinstance(asked, m.Hello):
            return m.Welcome(1, 1, 1, 0, 1, 1)
        raise Disconnected("the broker did not answer in time")

    def greeted(self, welcome: m.Welcome) -> None:
        """It is not looked whether others can take over."""

    def abort(self) -> None:
        self.aborted = True


def session_at(upstream: SilentCore, monkeypatch: pytest.MonkeyPatch) -> ReaderSession:
    async def dial(_: object) -> SilentCore:
        return upstream

    monkeypatch.setattr(ReaderSession, "_dial", dial)
    config = RelayConfig(parse_url("weir://127.0.0.1:1"))
    return ReaderSession(config, 1, SimpleNamespace(is_reached=True), cast(Channel, None))


def test_a_session_ends_with_a_pull_whose_outcome_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[m.Request, bool]] = [
        (m.Pull(AT, "crew", 1, 1), True), (m.TakeTurn(AT, "crew", (), 1, 1), True),
        (m.Pull(AT, "crew", 0, 0), False), (ACK, False), (m.Withdraw(AT, "crew"), False),
    ]  # fmt: skip

    async def work() -> None:
        for request, ends in asked:
            upstream = SilentCore()
            with pytest.raises(Unavailable):
                await session_at(upstream, monkeypatch).ask_core(request, m.Reply, 0.0)
            assert upstream.aborted is ends, request

    asyncio.run(work())


def test_what_a_consumer_works_on_counts_as_tried(core: Node, tmp_path: Path) -> None:
    async def work() -> None:
        async with connect(core.url) as client:
            await client.create_topic("t")
            for number in range(3):
                await client.publish("t", b"%d" % number)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
            network = NetworkClient(
                parse_url(url), name="test", retry=Backoff(), request_timeout=5.0, random=Random(1)
            )
            await network.start()
            address = (await network.request(m.DescribeTopic("t"), m.TopicInfo)).addresses[0]
            granted = await network.request(m.Pull(address, "crew", 3, 1 << 20), m.Granted)
            assert (granted.address, granted.next_offset) == (address, 3)
            await network.request(m.Ping(((address, "crew", [(1, 2)]),)), m.Pong)
            await network.request(m.Ping(), m.Pong)
            await network.close()
            async with connect(core.url) as far, far.consumer("t", cluster="crew") as consumer:
                found = {(one := await take(consumer)).offset: one.attempts for _ in range(3)}
            assert found == {0: 1, 1: 2, 2: 1}

    play(work)


def test_no_more_acks_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "ACKS_PENDING_MAX", 1)

    async def work() -> None:
        core = ScriptedCore()
        first = asyncio.ensure_future(core.ask(ACK))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="acks wait for the core"):
            await core.ask(ACK)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not core.requests.counts.pending
        assert not core.requests.counts.acking

    asyncio.run(work())


def test_few_acks_of_one_client_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CLIENT_ACKS_MAX", 1)

    async def work() -> None:
        core, other = ScriptedCore(), cast(ReaderSession, ScriptedCore())
        first = asyncio.ensure_future(core.ask(ACK))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 of them from this connection"):
            await core.ask(ACK)
        second = asyncio.ensure_future(core.requests.answer(ACK, AnswerRoom(Places(1)), other))
        await asyncio.sleep(0)
        assert len(core.requests.counts.pending) == 2
        for one in (first, second):
            one.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        core.requests.counts.check_room(cast(ReaderSession, core))

    asyncio.run(work())


LARGE: list[clusters.ClusterRequest] = [
    m.Ack(AT, "crew", [(1, 0, 1)] * ACK_RANGES_MAX), m.Ack(AT, "c" * 2_000_000, [(1, 0, 1)]),
    m.Nack(AT, "crew", 1, [(0, 1)] * ACK_RANGES_MAX), m.Extend(AT, "crew", [1] * ACK_RANGES_MAX, 1),
    m.Pull(AT, "crew", 1, 1, begun=[(0, 1)] * ACK_RANGES_MAX),
]  # fmt: skip


@pytest.mark.parametrize("request_", LARGE, ids=lambda one: type(one).__name__)
def test_requests_of_one_client_that_await_the_core_take_little_memory(
    request_: clusters.ClusterRequest,
) -> None:
    class Held(ScriptedCore):
        async def ask_core(self, request: m.Request, *_: object) -> m.Reply:
            return cast(m.Reply, await asyncio.Event().wait())

    async def work() -> None:
        core = Held()
        waiting = [asyncio.ensure_future(core.ask(request_)) for _ in range(4)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(Overloaded, match="8,388,608 bytes"):
                await core.ask(request_)
        small = asyncio.ensure_future(core.ask(ACK))
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(core.ask(request_)))
        await asyncio.sleep(0)
        assert not any(one.done() for one in [*waiting, small])
        for one in [*waiting, small]:
            one.cancel()
        await asyncio.gather(*waiting, small, return_exceptions=True)

    asyncio.run(work())


def test_requests_of_all_clients_together_take_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "REQUESTS_BYTES_MAX", memory.size_of(LARGE[0]))
    held, (one, other) = memory.RequestMemory(), (cast(ReaderSession, object()) for _ in range(2))
    with held.held(one, LARGE[0]), pytest.raises(Overloaded), held.held(other, ACK):
        pass
    assert held.used == 0
    with held.held(other, LARGE[0]):
        assert held.used == memory.size_of(LARGE[0])


def test_nothing_is_granted_before_the_acks_that_wait() -> None:
    async def work() -> None:
        core = ScriptedCore()
        first = asyncio.ensure_future(core.ask(ACK))
        await asyncio.sleep(0)
        assert await core.ask(m.Pull(AT, "crew", 1, 1, 1)) == m.Granted(AT, 0, 0, 0, 0)
        assert not any(isinstance(one, m.Pull) for one in core.asked)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    asyncio.run(work())


def test_a_report_is_not_taken_while_the_core_is_away() -> None:
    with pytest.raises(Unavailable):
        asyncio.run(ScriptedCore().ask(m.Pull(AT, "crew", 0, 0, 0, begun=[(0, 1)])))


def test_a_grant_is_read_from_the_core_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LOG_WAIT_SECONDS", 0.0)
    core = ScriptedCore(
        m.Granted(AT, 7, 9, 0, 4), m.Fetched(AT, 0, 2, 9, (b"a",)), m.Fetched(AT, 2, 6, 9, (b"b",))
    )
    granted = asyncio.run(core.ask(m.Pull(AT, "crew", 4, 1, 1)))
    assert isinstance(granted, m.Granted)
    assert (granted.next_offset, granted.batches) == (4, (b"a", b"b"))
    assert [one.offset for one in core.asked if isinstance(one, m.Fetch)] == [0, 2]
    assert (core.requests.counts.granted, core.requests.counts.from_core) == (4, 4)


def test_what_is_not_read_within_half_of_its_lease_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "LOG_WAIT_SECONDS", 0.0)

    class Slow(ScriptedCore):
        async def ask_core(self, request: m.Request, *more: object) -> m.Reply:
            if isinstance(request, m.Fetch):
                self.asked.append(request)
                await asyncio.Event().wait()
            return await super().ask_core(request, *more)

    core = Slow(m.Granted(AT, 7, 9, 0, 4), m.Nacked(0))
    with pytest.raises(Unavailable, match="half of the lease"):
        asyncio.run(core.ask(m.Pull(AT, "crew", 4, 1, 1, lease_ms=20)))
    (nack,) = [one for one in core.asked if isinstance(one, m.Nack)]
    assert (nack.fence, nack.ranges, nack.untried) == (7, [(0, 4)], True)


def test_what_is_not_granted_is_not_read() -> None:
    damaged = [DamagedRange("damaged", 1)]

    class Damaged(ScriptedCore):
        async def ask_core(self, request: m.Request, *more: object) -> m.Reply:
            if isinstance(request, m.Fetch) and request.offset == 0:
                self.asked.append(request)
                raise damaged[0]
            return await super().ask_core(request, *more)

    core = Damaged(
        m.Granted(AT, 7, 9, 0, 9, runs=((0, 1), (6, 9))), m.Fetched(AT, 6, 9, 9, (b"a",)),
        m.Nacked(0),
    )  # fmt: skip
    granted = asyncio.run(core.ask(m.Pull(AT, "crew", 4, 1, 1)))
    assert isinstance(granted, m.Granted)
    assert (granted.offset, granted.next_offset, granted.runs) == (6, 9, ())
    assert [one.offset for one in core.asked if isinstance(one, m.Fetch)] == [0, 6]
    (nack,) = [one for one in core.asked if isinstance(one, m.Nack)]
    assert (nack.ranges, nack.delay_ms) == ([(0, 1)], clusters.REST_MS)


class Deleting(ScriptedCore):
    """A core in which retention has passed offset 4."""

    async def ask_core(self, request: m.Request, *more: object) -> m.Reply:
        if isinstance(request, m.Fetch) and request.offset < 4:
            self.asked.append(request)
            raise OffsetOutOfRange("past retention", 4)
        return await super().ask_core(request, *more)


@pytest.mark.parametrize("mode", list(Mode))
def test_what_retention_has_passed_is_neither_handed_out_nor_given_back(mode: Mode) -> None:
    core = Deleting(m.Granted(AT, 7, 9, 0, 9), m.Fetched(AT, 4, 9, 9, (b"a",)))
    granted = asyncio.run(core.ask(m.Pull(AT, "crew", 9, 1, 1, mode=mode)))
    assert isinstance(granted, m.Granted)
    assert (granted.fence, granted.offset, granted.next_offset) == (7, 4, 9)
    assert [one.offset for one in core.asked if isinstance(one, m.Fetch)] == [0, 4]
    assert not [one for one in core.asked if isinstance(one, m.Nack)]


def test_a_grant_that_retention_has_passed_is_no_grant() -> None:
    core = Deleting(m.Granted(AT, 7, 9, 0, 3, runs=((0, 1), (2, 3))))
    granted = asyncio.run(core.ask(m.Pull(AT, "crew", 9, 1, 1)))
    assert granted == m.Granted(AT, 0, 0, 0, 0)
    assert len(core.asked) == 2, "nothing is given back"


def test_an_offset_behind_the_end_is_given_back() -> None:
    class Short(ScriptedCore):
        async def ask_core(self, request: m.Request, *more: object) -> m.Reply:
            if isinstance(request, m.Fetch):
                raise OffsetOutOfRange("the partition ends there", 0)
            return await super().ask_core(request, *more)

    core = Short(m.Granted(AT, 7, 9, 0, 2), m.Nacked(0))
    with pytest.raises(OffsetOutOfRange):
        asyncio.run(core.ask(m.Pull(AT, "crew", 9, 1, 1)))
    assert [one.ranges for one in core.asked if isinstance(one, m.Nack)] == [[(0, 2)]]


def test_the_core_is_asked_past_few_damaged_messages() -> None:
    class Damaged(ScriptedCore):
        async def ask_core(self, request: m.Request, *more: object) -> m.Reply:
            if isinstance(request, m.Fetch):
                self.asked.append(request)
                raise DamagedRange("damaged", 1)
            return await super().ask_core(request, *more)

    core = Damaged(m.Granted(AT, 7, 9, 0, 1_000), m.Nacked(0))
    with pytest.raises(DamagedRange):
        asyncio.run(core.ask(m.Pull(AT, "crew", 1_000, 1, 1)))
    assert sum(isinstance(one, m.Fetch) for one in core.asked) == clusters.CORE_FAILURES_MAX
    assert [one.ranges for one in core.asked if isinstance(one, m.Nack)] == [[(0, 1_000)]]


@pytest.mark.parametrize("hidden", [False, True])
def test_why_a_topic_is_barred_is_told_to_those_whom_the_core_tells_of_it(hidden: bool) -> None:
    class Barred(ScriptedCore):
        def partition(self, _: Address) -> tuple[object, object]:
            raise Unauthorized("the core does not allow reading this topic here: it says why")

        async def check(self, topic: int) -> None:
            if hidden:
                raise UnknownTopic("no such topic", topic)

    with pytest.raises(UnknownTopic if hidden else Unauthorized) as found:
        asyncio.run(Barred().ask(ACK))
    assert ("it says why" in str(found.value)) is not hidden


def test_a_grant_with_messages_takes_room_and_counts() -> None:
    class Room(AnswerRoom):
        taken = 0

        async def take(self) -> None:
            self.taken += 1

    core, room = ScriptedCore(m.Granted(AT, 7, 9, 0, 4, batches=(b"a",))), Room(Places(1))
    pull, session = m.Pull(AT, "crew", 4, 1, 1), cast(ReaderSession, core)
    asyncio.run(core.requests.answer(pull, room, session))
    assert (room.taken, core.requests.counts.granted) == (1, 4)


def test_of_a_grant_that_ends_with_its_session_nothing_is_handed_out() -> None:
    class Gone(ScriptedCore):
        released = False

        def release(self) -> None:
            self.released = True

    core = Gone(m.Granted(AT, 7, 9, 0, 4), m.Fetched(AT, 0, 2, 9, (b"a",)))
    with pytest.raises(Unavailable):
        asyncio.run(core.ask(m.Pull(AT, "crew", 4, 1, 1)))
    assert core.released
    assert any(isinstance(one, m.Nack) for one in core.asked)
