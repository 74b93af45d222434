"""Two aggregators of one switch: the first one serves as long as it answers; the other is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from rigs.loopback import loopback
from rigs.programs import PATIENCE_SECONDS, free_ports
from weir_toc import sync
from weir_toc.cli import TAKEN, main
from weir_toc.controller.records import Founded
from weir_toc.errors import SwitchTaken
from weir_toc.hosts import control_link, sessions
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import Address, Frame, framed_json, parsed, read_frame
from weir_toc.topology import switch_id

RACK = switch_id("rack-0")
START = {"op": "start", "host": "127.0.0.1", "port": 9, "number": 1}


class Connection:
    """What an aggregator and the leader say to each other, frame by frame."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._writers: list[asyncio.StreamWriter] = []

    async def hello(self, incarnation: int, **more: bool) -> Frame:
        """Say hello by a new connection; return the first answer."""
        self._reader, writer = await asyncio.open_connection(*self._address)
        self._writers.append(writer)
        self.say({"op": "hello", "kind": "node", "node": RACK, "incarnation": incarnation, **more})
        return await self.read()

    def say(self, frame: Frame) -> None:
        self._writers[-1].write(framed_json(frame))

    async def read(self) -> Frame:
        return parsed(*await read_frame(self._reader, 1 << 20))

    async def start(self) -> Frame:
        """Ask to be the aggregator of the switch."""
        self.say(START)
        while (answer := await self.read())["op"] not in ("done", "refused"):
            pass
        return answer

    def close(self) -> None:
        """End all connections."""
        for one in self._writers:
            one.close()


def played(folder: Path, play: Callable[[Address], Coroutine[Any, Any, None]]) -> None:
    """Let a member lead a network while `play` does."""

    async def body() -> None:
        (port,) = free_ports(1)
        address = ("127.0.0.1", port)
        member = Controller(1, {1: address}, folder, Founded(1, 0, 0, 5_000_000))
        running = asyncio.create_task(member.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not member.leads or member.state.network is None:
                    await asyncio.sleep(0.01)
                await play(address)
        finally:
            running.cancel()
            await asyncio.wait((running,))

    asyncio.run(body())


def answers_for(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has said nothing for so long does not answer."""
    monkeypatch.setattr(sessions, "ANSWERS_SECONDS", seconds)


def test_a_second_aggregator_waits_until_the_first_is_silent_which_is_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(address: Address) -> None:
        first, second = Connection(address), Connection(address)
        answers_for(1_000, monkeypatch)
        assert (await first.hello(1))["op"] == "welcome"
        assert (await first.start())["op"] == "done"
        refused = await second.hello(2)
        assert refused["op"] == "taken"
        assert "an aggregator serves this switch already at 127.0.0.1:9" in refused["why"]
        second.close()
        again = Connection(address)
        assert (await again.hello(1, started=True))["op"] == "welcome"  # the first, once more
        answers_for(0, monkeypatch)
        assert (await second.hello(2))["op"] == "welcome"
        assert (await second.start())["op"] == "done"
        answers_for(1_000, monkeypatch)
        told = await first.hello(1, started=True)
        assert told["op"] == "replaced"
        assert "another aggregator has taken the place of this one" in told["why"]
        for one in (first, second, again):
            one.close()

    played(tmp_path, play)


def test_one_that_starts_after_the_first_has_hung_up_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(address: Address) -> None:
        first, second = Connection(address), Connection(address)
        answers_for(1_000, monkeypatch)
        assert (await first.hello(1))["op"] == "welcome"
        assert (await first.start())["op"] == "done"
        first.close()
        # A leader that has just been elected gives the first one time to connect.
        assert (await second.hello(2))["op"] == "taken"
        answers_for(0.01, monkeypatch)
        while (await second.hello(2))["op"] == "taken":
            pass
        assert (await second.start())["op"] == "done"
        second.close()

    played(tmp_path, play)


def test_an_aggregator_that_is_replaced_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(address: Address) -> None:
        other = Connection(address)
        await other.hello(2)
        await other.start()
        hello = {"op": "hello", "kind": "node", "node": RACK, "incarnation": 1, "started": True}
        with pytest.raises(SwitchTaken, match="stop that one and start this one again"):
            await ControlLink([address], hello).run()
        other.close()

    played(tmp_path, play)


def test_what_the_first_one_says_counts_and_not_when_it_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(address: Address) -> None:
        first, second = Connection(address), Connection(address)
        await first.hello(1)
        await first.start()
        connected = monotonic_ns()
        first.say({"op": "clock", "sent": 1})
        while (await first.read())["op"] != "clock":
            pass
        # So long after the first has connected that only what it has said since then counts.
        answers_for(1_000, monkeypatch)
        monkeypatch.setattr(sessions, "monotonic_ns", lambda: connected + 1_000 * 10**9)
        assert (await second.hello(2))["op"] == "taken"
        first.close()
        second.close()

    played(tmp_path, play)


def told(hello: Frame, answers: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return with which error a node ends that gets these answers, each 100 s after the other."""
    monkeypatch.setattr(control_link, "monotonic", iter(range(0, 10_000, 100)).__next__)
    left = iter(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader, 1 << 20)
        op = next(left)
        writer.write(framed_json({"op": op, "why": op, "term": 1}))
        await writer.drain()
        writer.close()

    async def body() -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(SwitchTaken) as raised:
                await ControlLink([server.sockets[0].getsockname()], hello).run()
        return str(raised.value)

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("started", "answers", "ends"),
    [(False, ["taken", "taken", "replaced"], "taken"),
     (False, ["taken", "welcome", "taken", "replaced"], "replaced"),
     (True, ["taken", "taken", "replaced"], "replaced")],
)  # fmt: skip
def test_a_newcomer_gives_up_and_one_that_was_admitted_waits_for_the_verdict(
    started: bool, answers: list[str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told({"op": "hello", "started": started}, answers, monkeypatch) == ends


def test_a_second_aggregator_ends_with_a_code_of_its_own_and_processes_join_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_link, "TAKEN_SECONDS", 0.1)
    with loopback(tmp_path) as network:
        assert network.aggregator is not None
        assert network.aggregator.link.hello["started"] is True
        assert main(["aggregator", network.url]) == TAKEN
        assert "stop that one first" in capsys.readouterr().err
        with sync.join(network.url, name="a", timeout=PATIENCE_SECONDS) as me:
            stamp = me.send_reliable([("a", b"x")])
            assert next(iter(me.reliable)).stamp == stamp
