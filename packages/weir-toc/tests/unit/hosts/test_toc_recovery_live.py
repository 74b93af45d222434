"""A real process that was stopped and goes on delivers what the others have delivered."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path

from rigs import recorder
from rigs.accounts import lines, wait_for
from rigs.programs import PATIENCE_SECONDS, Programs, programs
from weir_toc import Message, ProcessFailed
from weir_toc import packet as wire
from weir_toc.hosts.udp import Sending, UdpSocket
from weir_toc.member import Member

INTERVAL_MS = 40
COUNT = 20


class Unacknowledging(UdpSocket):
    """Loses the ACKs that its process sends, while it is told to; all else arrives."""

    is_losing = False

    def send(self, packets: Iterable[Sending]) -> None:
        kept = (one for one in packets if not (self.is_losing and one[0][22] == wire.ACK))
        super().send(list(kept))


async def exchange(crew: Programs) -> list[str]:
    """Send scatterings that `stops` acknowledges, and `stays` only once the other has failed.

    Return what `stays` has delivered by then.
    """
    got: list[str] = []
    url, stopped = crew.url, crew.running["stops"]
    async with (
        Member(url, "stays", None, PATIENCE_SECONDS, Unacknowledging) as stays,
        Member(url, "sender", None, PATIENCE_SECONDS) as sender,
    ):
        await sender.wait_for("stays", "stops")
        await sender.send_reliable([("stays", b"first"), ("stops", b"first")])
        event = await anext(aiter(stays.reliable))
        assert isinstance(event, Message)
        got.append(event.payload.decode())
        while ["got", "first"] not in lines(crew, "stops"):
            await asyncio.sleep(INTERVAL_MS / 1_000)
        Unacknowledging.is_losing = True
        for number in range(COUNT):
            text = b"%d" % number
            await sender.send_reliable([("stays", text), ("stops", text)])
        await asyncio.sleep(2 * INTERVAL_MS / 1_000)
        stopped.send_signal(signal.SIGSTOP)
        await asyncio.sleep(15 * INTERVAL_MS / 1_000)
        Unacknowledging.is_losing = False
        async for event in stays.reliable:
            if isinstance(event, Message):
                got.append(event.payload.decode())
            elif isinstance(event, ProcessFailed):
                break
        while len(got) < 1 + COUNT:
            (event,) = (await stays.reliable.batch())[:1]
            got += [event.payload.decode()] if isinstance(event, Message) else []
        assert [one[1] for one in lines(crew, "stops") if one[0] == "got"] == ["first"]
        stopped.send_signal(signal.SIGCONT)
        await asyncio.to_thread(wait_for, crew, ["stops"], "fenced")
    return got


def test_a_stopped_process_delivers_what_others_do_before_it_is_fenced(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", str(INTERVAL_MS))
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        crew.start("stops", recorder.__file__, crew.url, "stops")
        wait_for(crew, ["stops"], "ready")
        try:
            got = asyncio.run(asyncio.wait_for(exchange(crew), PATIENCE_SECONDS))
        finally:
            Unacknowledging.is_losing = False
        said = lines(crew, "stops")
    assert [one[1] for one in said if one[0] == "got"] == got
    assert got == ["first", *map(str, range(COUNT))]
    (words,) = (one[1] for one in said if one[0] == "words")
    assert "is lost" not in words
