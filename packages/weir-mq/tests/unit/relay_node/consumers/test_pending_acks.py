"""Acks that wait at a relay for a core that is away, and where they are shown."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import cast

import pytest

from rigs.consuming import take
from rigs.relay_nodes import fill, make_small, play, started_relay, until_known
from rigs.scripted_core import ACK, AT, ScriptedCore
from weir.cli.admin.clusters import cluster_rows
from weir.cli.doctor.bottleneck import Figures
from weir.cli.doctor.relay import examine_relay
from weir.cli.main import main
from weir.client.client import connect
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.relay_node.requests import AnswerRoom, Places
from weir.relay_node.sessions import ReaderSession
from weir.testing.memory_node import Node


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


async def pending(place: str) -> float:
    """Return how many acks a relay says are waiting."""
    return (await asyncio.to_thread(figures_of, place)).total("weir_relay_acks_pending")


def figures_of(place: str) -> Figures:
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=5) as page:
        return Figures(page.read().decode())


def test_acks_wait_for_a_core_that_is_away_and_pulls_bring_nothing(
    core: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        await fill(core, 6)
        async with started_relay(core, tmp_path, metrics=("127.0.0.1", 0)) as relay:
            url, pages = f"weir://127.0.0.1:{relay.port}", f"127.0.0.1:{relay.metrics_port}"
            await until_known(url, 6)
            async with (
                connect(url) as near,
                near.consumer("t", cluster="crew", max_messages=3) as consumer,
            ):
                held = [await anext(consumer) for _ in range(3)]
                await asyncio.to_thread(core.crash)
                acks = [asyncio.ensure_future(one.ack(confirmed=True)) for one in held]
                while await pending(pages) == 0:
                    assert not any(one.done() for one in acks)
                    await asyncio.sleep(0.02)
                found = await asyncio.to_thread(examine_relay, pages)
                (line,) = [one for one in found if one.check == "relay-acks"]
                assert line.state == "warn"
                first = len({one.partition for one in held})  # the others wait at the client
                while sum(row.pending for row in await near.clusters("t")) < first:
                    await asyncio.sleep(0.02)
                (crew,) = await near.clusters("t")
                assert crew.is_cut_off
                words = ["cluster", "list", "t", "--url", url]
                assert await asyncio.to_thread(main, words) == 0
                row = capsys.readouterr().out.splitlines()[1]
                assert row.split() == ["crew", *"-" * 10, str(first)]
                told = cluster_rows([crew])
                assert told == [{"name": "crew", "pending": first, "cut_off": True}]
                await asyncio.to_thread(core.restart)
                assert all(await asyncio.gather(*acks))
                assert await pending(pages) == 0
                (crew,) = await near.clusters("t")
                assert (crew.pending, crew.is_cut_off, crew.lag) == (0, False, 3)
                rest = [int((await take(consumer)).value) for _ in range(3)]
                assert sorted([*rest, *(int(one.value) for one in held)]) == list(range(6))

    play(work)


def test_acks_that_wait_are_listed_by_cluster_partition_and_user() -> None:
    class Away(ScriptedCore):
        is_reached = False

        def __init__(self, user: str) -> None:
            super().__init__()
            self.user = user

        async def check(self, _: int) -> None:
            """It may read the topic."""

    async def work() -> None:
        ann, bob = Away("ann"), Away("bob")
        sessions = [cast(ReaderSession, one) for one in (ann, bob)]
        acks = [
            ACK,
            m.Ack(AT, "crew", [(1, 4, 9), (2, 9, 10)]),
            m.Ack(AT, "other", [(1, 0, 2)]),
            m.Ack(Address(0, 0, 2), "crew", [(1, 0, 1)]),
            m.MoveCursor(AT, "total", 1, (5,), 1_000),
        ]
        waiting = [
            asyncio.ensure_future(ann.requests.answer(one, AnswerRoom(Places(1)), sessions[0]))
            for one in acks
        ]
        await asyncio.sleep(0)

        async def listed(session: ReaderSession, name: str = "") -> a.ClusterList:
            asked, room = a.ListClusters(AT, name), AnswerRoom(Places(1))
            found = await ann.requests.answer(asked, room, session)
            assert isinstance(found, a.ClusterList)
            assert found.is_cut_off
            return found

        assert (await listed(sessions[0])).pending == (("crew", 7), ("other", 2), ("total", 1))
        assert (await listed(sessions[0], "other")).pending == (("other", 2),)
        assert (await listed(sessions[1])).pending == ()
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (await listed(sessions[0])).pending == ()

    asyncio.run(work())
