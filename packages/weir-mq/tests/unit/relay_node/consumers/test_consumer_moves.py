"""A consumer whose relay goes takes what it was granted along to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rigs.consuming import take
from rigs.leaving import connected_again, leave
from rigs.relay_nodes import fill, make_small, play, relay, until_known
from weir.client.client import connect
from weir.client.consumer.delivery import Stale
from weir.client.consumer.leases import ConsumerLeases, TopicLeases
from weir.errors import Unavailable
from weir.model.ids import Address
from weir.model.limits import GRANTS_KEPT_MS
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.relay_node import sessions
from weir.relay_node.gate import RelayGate
from weir.relay_node.host import RelayConfig
from weir.relay_node.sessions import ReaderSession
from weir.testing.memory_node import Node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(sessions, "GRACE_SECONDS", 0.05)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> dict[ReaderSession, list[type[m.Request]]]:
    """Return what the core has answered, by the session of the client that asked."""
    found: dict[ReaderSession, list[type[m.Request]]] = {}
    honest = ReaderSession.ask_core

    async def ask_core(session: ReaderSession, request: m.Request, *asked: Any) -> Any:
        reply = await honest(session, request, *asked)
        found.setdefault(session, []).append(type(request))
        return reply

    monkeypatch.setattr(ReaderSession, "ask_core", ask_core)
    return found


class TwoRelays:
    """Two relays of a core, the first of which may go."""

    def __init__(self, core: Node, path: Path) -> None:
        self._core = core
        self._path = path
        self._going = asyncio.Event()
        self._first: asyncio.Task[None] | None = None
        self._second: Any = None
        self.url = self.second = ""

    async def start(self, messages: int) -> None:
        up = asyncio.get_running_loop().create_future()

        async def first() -> None:
            async with relay(self._core, self._path / "1") as url:
                up.set_result(url)
                await self._going.wait()

        self._first = asyncio.ensure_future(first())
        self._second = relay(self._core, self._path / "2")
        self.second = await self._second.__aenter__()
        found = await up
        for url in (found, self.second):
            await until_known(url, messages)
        self.url = f"{found},{self.second.removeprefix('weir://')}"

    async def end_first(self) -> None:
        assert self._first is not None
        self._going.set()
        await self._first

    async def close(self) -> None:
        await self.end_first()
        await self._second.__aexit__(None, None, None)


@asynccontextmanager
async def two_relays(core: Node, path: Path, messages: int) -> AsyncIterator[TwoRelays]:
    found = TwoRelays(core, path)
    await found.start(messages)
    try:
        yield found
    finally:
        await found.close()


@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_a_consumer_keeps_its_grants_at_another_relay(
    core: Node, tmp_path: Path, mode: Any
) -> None:
    async def work() -> None:
        async with connect(core.url) as far:
            await far.create_topic("t", partitions=1)
            for number in range(12):
                await far.publish("t", b"%d" % number, key=b"%d" % number)
            async with (
                two_relays(core, tmp_path, 12) as relays,
                connect(relays.url) as near,
                near.consumer("t", cluster="crew", mode=mode) as consumer,
                far.consumer("t", cluster="crew", mode=mode) as other,
            ):
                held = [await anext(consumer) for _ in range(1 if mode == "ordered" else 4)]
                await relays.end_first()
                found: list[int] = []

                async def rest() -> None:
                    async for message in other:
                        found.append(int(message.value))
                        await message.ack(confirmed=True)

                taking = asyncio.ensure_future(rest())
                await asyncio.sleep(1.0)  # what was lost would have been granted by then
                for message in held:
                    assert await message.ack(confirmed=True)
                found += [int(message.value) for message in held]
                while len(set(found)) < 12:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            found.append(int((await take(consumer)).value))
                taking.cancel()
                assert sorted(found) == list(range(12))

    play(work)


def test_leases_go_on_and_what_failed_goes_back_at_another_relay(
    core: Node, tmp_path: Path
) -> None:
    late: list[Stale] = []

    async def work() -> None:
        async with connect(core.url) as far:
            await fill(core, 2)
            async with (
                two_relays(core, tmp_path, 2) as relays,
                connect(relays.url) as near,
                near.consumer("t", cluster="crew", lease="2s", on_stale=late.append) as consumer,
            ):
                first, second = await anext(consumer), await anext(consumer)
                await relays.end_first()
                await asyncio.sleep(3.0)
                await second.nack(0, confirmed=True)
                assert await first.ack(confirmed=True)
                again = await take(consumer)
                assert (again.value, again.attempts) == (second.value, 2)
                assert late == []
            (crew,) = await far.clusters("t")
            assert (crew.lag, crew.granted) == (0, 0)

    play(work)


def test_a_consumer_keeps_its_grants_when_its_relay_ends_its_session_in_the_core(
    core: Node, tmp_path: Path, answered: dict[ReaderSession, list[type[m.Request]]]
) -> None:
    """The client knew nothing of it, and another consumer was granted what it worked on."""

    async def work() -> None:
        async with connect(core.url) as far:
            await fill(core, 2)
            async with (
                two_relays(core, tmp_path, 2) as relays,
                connect(relays.url) as near,
                near.consumer("t", cluster="crew", lease="1h") as consumer,
                far.consumer("t", cluster="crew") as other,
            ):
                held = [await anext(consumer), await anext(consumer)]
                (session,) = answered
                session.release()
                others = asyncio.ensure_future(anext(other))
                while sum(each.count(m.MoveGrants) for each in answered.values()) < 2:
                    await asyncio.sleep(0.01)  # its partitions
                core.advance(GRANTS_KEPT_MS / 1_000 + 1)
                for message in held:
                    assert await message.extend()
                assert not others.done()
                for message in held:
                    assert await message.ack(confirmed=True)
                others.cancel()
            (crew,) = await far.clusters("t")
            assert (crew.lag, crew.granted) == (0, 0)

    play(work)


@pytest.mark.parametrize("order", ["partition", "total"])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
def test_what_is_on_its_way_to_a_consumer_that_leaves_goes_to_others_at_once(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, order: Any
) -> None:
    """Counterexample: the core kept it for the consumer, which would not come back."""

    async def work() -> None:
        granted, leaving = asyncio.Event(), asyncio.Event()
        answer, close = RelayGate.answer, ConsumerLeases.close

        async def slowly(*asked: Any) -> m.Reply:
            reply = await answer(*asked)
            if isinstance(reply, m.Granted | m.Turn) and reply.fence:
                granted.set()
                await leaving.wait()
            return reply

        async def closing(leases: ConsumerLeases) -> None:
            asyncio.get_running_loop().call_later(0.1, leaving.set)
            await close(leases)

        monkeypatch.setattr(RelayGate, "answer", slowly)
        monkeypatch.setattr(ConsumerLeases, "close", closing)
        async with connect(core.url) as far:
            await far.create_topic("t", partitions=1, order=order)
            await fill(core, 1)
            async with two_relays(core, tmp_path, 1) as relays, connect(relays.url) as near:
                async with near.consumer("t", cluster="crew", mode=mode, lease="1h") as consumer:
                    taking = asyncio.ensure_future(anext(consumer))
                    await granted.wait()
                    taking.cancel()
                async with (
                    far.consumer("t", cluster="crew", mode=mode) as other,
                    asyncio.timeout(5),
                ):
                    found = await take(other)
                    # A turn that is lost with a relay's session counts as begun.
                    assert found.attempts == 1 + (mode == "ordered" and order == "total")

    play(work)


@pytest.mark.parametrize("how", ["failed", "cancelled", "vanished"])
@pytest.mark.parametrize("mode", ["shared", "keyed", "ordered"])
@pytest.mark.parametrize("where", ["core", "relay"])
def test_what_a_consumer_held_that_goes_is_kept_only_if_it_may_come_back(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, mode: Any, how: str
) -> None:
    """Counterexample: at a relay others waited for 10 s, whoever went, and at a core for none."""

    async def work() -> None:
        async with connect(core.url) as far:
            await far.create_topic("t", partitions=1)
            await fill(core, 1)
            async with relay(core, tmp_path / "1") as url:
                await until_known(url, 1)
                hosts = core.url if where == "core" else url
                several = f"{hosts},localhost:{hosts.rsplit(':', 1)[1]}"
                async with connect(several) as near:
                    consumer = near.consumer("t", cluster="crew", mode=mode, lease="1h")
                    held = await anext(consumer)
                    await leave(consumer, how, monkeypatch)
                    await held.ack()  # it is late
                    async with far.consumer("t", cluster="crew", mode=mode) as other:
                        found = asyncio.ensure_future(take(other))
                        is_kept = (where, how) == ("relay", "vanished")
                        await asyncio.wait([found], timeout=1.5 if is_kept else 5.0)
                        assert found.done() != is_kept
                        core.advance(GRANTS_KEPT_MS / 1_000)
                        assert (await found).attempts == 2

    play(work)


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_what_a_consumer_left_at_a_relay_that_died_goes_to_others_when_it_leaves(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It had another connection, and had not moved its grants there."""

    async def move(_: TopicLeases) -> None:
        raise Unavailable("its leader is not reached")

    async def work() -> None:
        await fill(core, 1)
        async with (
            connect(core.url) as far,
            two_relays(core, tmp_path, 1) as relays,
            connect(relays.url) as near,
        ):
            consumer = near.consumer("t", cluster="crew", mode="shared", lease="1h")
            held = await anext(consumer)
            monkeypatch.setattr(TopicLeases, "move", move)
            await relays.end_first()
            await connected_again(consumer)
            await leave(consumer, how, monkeypatch)
            await held.ack()  # it is late
            async with far.consumer("t", cluster="crew") as other, asyncio.timeout(5):
                assert (await take(other)).attempts == 2

    play(work)


def test_a_client_that_keeps_nothing_stays_when_its_session_in_the_core_ends(
    core: Node, tmp_path: Path, answered: dict[ReaderSession, list[type[m.Request]]]
) -> None:
    async def work() -> None:
        await fill(core, 2)
        async with (
            relay(core, tmp_path / "1") as url,
            connect(url) as near,
            near.consumer("t", cluster="crew", ack_within=0) as consumer,
        ):
            first = await take(consumer)
            await consumer.flush()
            (session,) = answered
            session.release()
            assert (await take(consumer)).value != first.value
            await asyncio.sleep(0.2)
            assert [*answered] == [session]

    play(work)


class Returning:
    """A core that answers when it is asked for the third time."""

    is_reached = True

    def __init__(self) -> None:
        self.asked = 0

    async def answers(self, within: float) -> bool:
        self.asked += 1
        return self.asked == 3


@pytest.mark.parametrize(("token", "fence"), [(b"t" * 16, 1), (b"t" * 16, 0), (b"", 1)])
def test_a_consumer_is_let_go_once_the_core_is_back_if_it_may_keep_something(
    monkeypatch: pytest.MonkeyPatch, token: bytes, fence: int
) -> None:
    async def work() -> None:
        core, over, here = Returning(), asyncio.Event(), Address(0, 0, 1)
        config = RelayConfig([("127.0.0.1", 1)])
        session = ReaderSession(config, 1, core, SimpleNamespace())

        async def granted(*_: object) -> m.Granted:
            return m.Granted(here, fence, 0, 0, 1)

        async def connected() -> None:
            """There is a connection."""

        monkeypatch.setattr(session, "_ask", granted)
        monkeypatch.setattr(session, "_connect", connected)
        monkeypatch.setattr(session, "_upstream", SimpleNamespace(over=over))
        ended = asyncio.ensure_future(session.ended())
        pull = m.Pull(here, "c", 1, 1, 0, 1_000, Mode.SHARED, None, token=token)
        await session.ask_core(pull, m.Granted, 0.0)
        await asyncio.sleep(0.1)
        assert not ended.done()
        assert core.asked == 0
        over.set()
        await asyncio.wait([ended], timeout=1.0 if token and fence else 0.2)
        assert ended.done() == bool(token and fence)
        assert core.asked == (3 if token and fence else 0)
        ended.cancel()

    play(work)
