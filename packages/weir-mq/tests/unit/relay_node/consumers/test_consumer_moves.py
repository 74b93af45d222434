"""A consumer whose relay goes takes what it was granted along to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rigs.consuming import take
from rigs.relay_nodes import fill, make_small, play, relay, until_known
from weir.client.client import connect
from weir.client.consumer.delivery import Stale
from weir.testing.memory_node import Node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


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
