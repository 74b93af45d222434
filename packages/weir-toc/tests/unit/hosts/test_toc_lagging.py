"""The lag alarm of a network that runs: status and lines of the controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from rigs.late_clock import late_clock
from rigs.loopback import INTERVAL, loopback
from rigs.programs import PATIENCE_SECONDS, free_ports
from weir_toc import sync
from weir_toc.cli import main
from weir_toc.controller.lag import READ_INTERVALS
from weir_toc.controller.records import Founded
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import Frame, ask_once, framed_json
from weir_toc.topology import process_id, switch_id

#: The interval where no process is to be taken for dead, in nanoseconds.
FAST = 5_000_000


def leader(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", url, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out)["members"][0])


class Switch:
    """A controller of one member in this loop, and what the spine of five racks tells it."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = ("127.0.0.1", port)
        self.member = Controller(1, {1: self.address}, folder, Founded(5, 1, 0, FAST))
        self.writer: asyncio.StreamWriter | None = None

    async def status(self) -> Frame:
        return await ask_once(self.address, {"op": "status"})

    async def hello(self, node: int) -> None:
        """Connect as a node once the member leads."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.member.leads or self.member.state.network is None:
                await asyncio.sleep(0.01)
        _, self.writer = await asyncio.open_connection(*self.address)
        frame = {"op": "hello", "kind": "node", "node": node, "incarnation": 5}
        self.writer.write(framed_json(frame))

    def read(self, ages: Mapping[int, int]) -> None:
        """Tell the member how old the barriers of some inputs are."""
        assert self.writer is not None
        links = [[neighbour, age, 0, 0] for neighbour, age in ages.items()]
        frame = {"op": "links", "clock": 1, "late": 0, "links": links}
        self.writer.write(framed_json(frame))


def played(folder: Path, play: Callable[[Switch], Coroutine[Any, Any, None]]) -> None:
    """Let a member run while `play` does."""

    async def body() -> None:
        switch = Switch(folder)
        running = asyncio.create_task(switch.member.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await play(switch)
        finally:
            running.cancel()
            await asyncio.wait((running,))
            if switch.writer is not None:
                switch.writer.close()

    asyncio.run(body())


def test_inputs_that_the_network_does_not_have_are_neither_compared_nor_shown(
    tmp_path: Path,
) -> None:
    ages = dict.fromkeys((switch_id(f"rack-{rack}") for rack in range(4)), 0)
    strange = (switch_id("core-0") + (9 << 16), switch_id("spine-7"), process_id(0, 1))
    ages |= dict.fromkeys((switch_id("rack-4"), *strange), 10**12)

    async def play(switch: Switch) -> None:
        await switch.hello(switch_id("spine-0"))
        while not (found := await switch.status())["lagging"]:
            switch.read(ages)
            await asyncio.sleep(READ_INTERVALS * FAST / 1e9)
        assert [one["link"] for one in found["lagging"]] == [["rack-4", "spine-0"]]

    played(tmp_path, play)


def test_a_link_lags_no_more_once_its_node_reads_nothing(tmp_path: Path) -> None:
    ages = {switch_id("rack-0"): 0, switch_id("rack-1"): 10**12}

    async def play(switch: Switch) -> None:
        await switch.hello(switch_id("spine-0"))
        while not (await switch.status())["lagging"]:
            switch.read(ages)
            await asyncio.sleep(READ_INTERVALS * FAST / 1e9)
        assert not (await switch.member.next_alarm())[1]["over"]
        assert (await switch.member.next_alarm())[1]["over"]
        assert (await switch.status())["lagging"] == []

    played(tmp_path, play)


def test_a_leader_that_was_stopped_ends_its_alarms_and_counts_on(tmp_path: Path) -> None:
    ages = {switch_id("rack-0"): 0, switch_id("rack-1"): 10**12}

    async def play(switch: Switch) -> None:
        await switch.hello(switch_id("spine-0"))
        for count in (1, 2):
            while not (found := await switch.status())["lagging"]:
                switch.read(ages)
                await asyncio.sleep(READ_INTERVALS * FAST / 1e9)
            assert found["lagged"] == count
            assert not (await switch.member.next_alarm())[1]["over"]
            time.sleep(0.6)  # the member runs in this loop
            assert (await switch.member.next_alarm())[1]["over"]
            assert (await switch.status())["lagging"] == []

    played(tmp_path, play)


def test_a_process_whose_clock_is_behind_is_named_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loopback(tmp_path) as network, contextlib.ExitStack() as stack:
        members = [stack.enter_context(sync.join(network.url, name=name)) for name in "abc"]
        assert leader(network.url, capsys)["lagging"] == []
        clock = late_clock(members[1])
        for _ in range(8):  # not at once: a process without beacons is taken for dead
            clock.behind += INTERVAL
            time.sleep(1.5 * INTERVAL / 1e9)
        until = time.monotonic() + PATIENCE_SECONDS
        while not (found := leader(network.url, capsys)["lagging"]):
            assert time.monotonic() < until
            time.sleep(0.05)
        (one,) = found
        assert one["link"] == one["hop"] == ["b", "rack-0"]
        assert one["cause"] == "clock"
        assert one["behind_ms"] > 5 * INTERVAL / 1e6
        assert main(["status", network.url]) == 0
        assert "lagging b to rack-0  by " in capsys.readouterr().out
        assert main(["status", network.url, "--metrics"]) == 0
        said = capsys.readouterr().out
        assert 'weir_toc_lagging_links{cause="clock"} 1\n' in said
        assert re.search(r'_behind_seconds\{source="b",to="rack-0",.*"clock"\} [0-9.]+\n', said)
        assert 'weir_toc_connected{node="b",' in said
        assert network.controller is not None
        told = asyncio.run_coroutine_threadsafe(network.controller.next_alarm(), network.loop)
        assert told.result(PATIENCE_SECONDS)[1]["hop"] == one["hop"]
        clock.behind = 0
        while (status := leader(network.url, capsys))["lagging"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status["lagged"] >= 1
