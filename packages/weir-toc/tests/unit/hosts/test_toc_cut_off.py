"""A process that joins in a rack that is cut off learns at once that it has failed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from rigs.early_process import EarlyProcess
from rigs.programs import PATIENCE_SECONDS, free_ports
from weir_toc.controller.codec import report_to
from weir_toc.controller.entries import InputSilent, ProcessJoined
from weir_toc.controller.records import Founded, Report
from weir_toc.endpoint.events import Service
from weir_toc.errors import Fenced
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import Frame
from weir_toc.topology import switch_id

RACK_1, SPINE = switch_id("rack-1"), switch_id("spine-0")


async def reported(link: ControlLink, report: Report) -> None:
    answer = await link.request({"op": "report", "report": report_to(report)})
    assert answer["op"] == "done"


async def ended_by(frame: Frame) -> list[bool]:
    """Return whether each stream of a process ends with words of the cut, once it is told this."""
    early = EarlyProcess()
    early.admitted()
    await early.excluded({}, frame)
    said = []
    for service in Service:
        with pytest.raises(Fenced) as found:
            await early.process.take(service)
        said.append("Its rack was cut off" in str(found.value))
    early.close()
    return said


def test_a_process_is_excluded_that_joins_where_the_network_is_cut_off(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = ("127.0.0.1", port)
    member = Controller(1, {1: address}, tmp_path, Founded(2, 1, 0, 1_000_000_000))

    def linked(**hello: object) -> ControlLink:
        link = ControlLink([address], {"op": "hello", **hello})
        tasks.append(asyncio.ensure_future(link.run()))
        return link

    async def body() -> None:
        tasks.append(asyncio.ensure_future(member.run()))
        rack, spine = (linked(kind="node", node=one, incarnation=1) for one in (RACK_1, SPINE))
        guest = linked(kind="guest")
        for link in (rack, spine):
            await link.request({"op": "start", "host": "127.0.0.1", "port": 9})
        register: Frame = {"op": "register", "name": "a", "rack": 1, "nonce": 7}
        process = (await guest.request(register))["process"]
        await guest.request({"op": "attach", "node": process, "incarnation": 7})
        await reported(spine, InputSilent(SPINE, RACK_1, 1, 50))
        answer = await guest.request({**register, "name": "b"})
        assert "rack 1 is cut off" in answer["why"]
        await reported(rack, ProcessJoined(process))
        while (frame := await guest.frames.get())["op"] != "excluded":
            pass
        assert await ended_by(frame) == [True, True]

    async def bounded() -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await body()
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(bounded())
