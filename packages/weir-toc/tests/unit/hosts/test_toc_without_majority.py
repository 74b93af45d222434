"""The controller loses its majority under traffic: reliable stops where it needs a decision."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rigs import recorder
from rigs.accounts import wait_for
from rigs.programs import PATIENCE_SECONDS, Programs, programs
from weir_toc import Member, Message, ProcessFailed
from weir_toc.member import Event, EventStream

#: The processes of a test share two cores: they must not be taken for dead.
INTERVAL_MS = 100
#: How long is watched that something does not happen, in intervals: longer than a silence.
WATCHED = 30


class Taken:
    """What a process was given of one service."""

    def __init__(self, stream: EventStream) -> None:
        self.events: list[Event] = []
        self._stream = stream
        self._news = asyncio.Event()

    async def run(self) -> None:
        async for event in self._stream:
            self.events.append(event)
            self._news.set()

    @property
    def texts(self) -> list[bytes]:
        return [one.payload for one in self.events if isinstance(one, Message)]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


class Majority:
    """Two of the three members, the leader among them: killed, or stopped as if cut off."""

    def __init__(self, crew: Programs, is_killed: bool) -> None:
        self.crew = crew
        self.is_killed = is_killed
        leader = crew.leader()["member"]
        self.members = [leader, leader % 3 + 1]

    def lose(self) -> None:
        for id in self.members:
            if self.is_killed:
                self.crew.kill(f"controller-{id}")
            else:
                self.crew.running[f"controller-{id}"].send_signal(signal.SIGSTOP)

    def bring_back(self) -> None:
        for id in self.members:
            if self.is_killed:
                self.crew.controller(id, "--interval-ms", str(INTERVAL_MS))
            else:
                self.crew.running[f"controller-{id}"].send_signal(signal.SIGCONT)

    async def status(self) -> tuple[int, list[dict[str, Any]]]:
        code, found = await asyncio.to_thread(self.crew.status)
        return code, [one for one in found["members"] if "role" in one]


async def traffic(crew: Programs, majority: Majority, a: Member, b: Member) -> None:
    best_effort, reliable = Taken(b.best_effort), Taken(b.reliable)
    gone = a.names["gone"]

    async def send(text: bytes, is_reliable: bool) -> None:
        await (a.send_reliable if is_reliable else a.send)([("b", text)])

    async with asyncio.TaskGroup() as tasks:
        takers = [tasks.create_task(one.run()) for one in (best_effort, reliable)]
        majority.lose()
        # The one that is left finds that nobody leads.
        code, found = await majority.status()
        while len(found) != 1 or found[0]["majority"]:
            await asyncio.sleep(0.1)
            code, found = await majority.status()
        (left,) = found
        assert code == 3
        assert left["problem"].startswith("no leader is elected: start a majority of the members.")

        # Nothing needs a decision: both services go on.
        for is_reliable, taken in ((False, best_effort), (True, reliable)):
            await send(b"without a majority", is_reliable)
            await taken.until(lambda taken=taken: taken.texts == [b"without a majority"])  # type: ignore[misc]

        # A process fails, and nobody decides up to where its messages count.
        crew.kill("gone")
        await asyncio.sleep(2 * INTERVAL_MS / 1_000)
        await send(b"beside the dead", True)
        for number in range(WATCHED):
            await send(b"%d" % number, False)
            await asyncio.sleep(INTERVAL_MS / 1_000)
        last = b"%d" % (WATCHED - 1)
        await best_effort.until(lambda: last in best_effort.texts)
        assert len(best_effort.texts) == 1 + WATCHED
        assert reliable.texts == [b"without a majority"]
        assert not any(isinstance(one, ProcessFailed) for one in reliable.events)

        majority.bring_back()
        await reliable.until(lambda: b"beside the dead" in reliable.texts)
        await send(b"with a majority", True)
        await reliable.until(lambda: b"with a majority" in reliable.texts)
        failed = [one for one in reliable.events if isinstance(one, ProcessFailed)]
        assert [one.process for one in failed] == [gone]
        assert reliable.texts[1:] == [b"beside the dead", b"with a majority"]
        place = reliable.events.index(failed[0])
        stamps = [one.stamp for one in reliable.events]
        assert max(stamps[:place]) <= failed[0].stamp < min(stamps[place + 1 :])
        while (await majority.status())[0]:
            await asyncio.sleep(0.1)
        for one in takers:
            one.cancel()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_reliable_waits_for_a_decision_and_best_effort_goes_on(
    tmp_path: Path, is_killed: bool
) -> None:
    async def body(crew: Programs) -> None:
        async with (
            asyncio.timeout(3 * PATIENCE_SECONDS),
            Member(crew.url, "a", None, PATIENCE_SECONDS) as a,
            Member(crew.url, "b", None, PATIENCE_SECONDS) as b,
        ):
            await a.wait_for("b", "gone")
            await traffic(crew, majority, a, b)

    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", str(INTERVAL_MS))
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        crew.start("gone", recorder.__file__, crew.url, "gone")
        wait_for(crew, ["gone"], "ready")
        majority = Majority(crew, is_killed)
        asyncio.run(body(crew))
