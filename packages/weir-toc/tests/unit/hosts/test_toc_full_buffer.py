"""The kernel drops whole bursts where a receive buffer is full: what is told, and what is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rigs.loopback import Loopback, loopback
from rigs.programs import PATIENCE_SECONDS
from weir_toc import Message, SendFailed
from weir_toc.cli import main
from weir_toc.endpoint.events import Service
from weir_toc.hosts.udp import Address, UdpSocket
from weir_toc.member import EventStream, Member

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells what it has dropped"
)

#: A buffer that has room for one burst, which the kernel takes into an empty one.
TINY_BYTES = 4_096
#: So many messages leave in one call, in bursts of up to 64.
COUNT = 192
PAYLOAD_BYTES = 60


class Tiny(UdpSocket):
    """A socket whose receive buffer is tiny."""

    def __init__(self, local: Address, remote: Address | None = None) -> None:
        super().__init__(local, remote)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TINY_BYTES)


class Told:
    """What one service has given to the sender and to the receiver."""

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self.got: list[Message] = []
        self.failed: list[int] = []

    async def take(self, stream: EventStream) -> None:
        async for event in stream:
            if isinstance(event, Message):
                self.got.append(event)
            elif isinstance(event, SendFailed):
                self.failed.append(event.stamp)

    @property
    def is_whole(self) -> bool:
        return {one.stamp for one in self.got} | {*self.failed} == {*self.stamps}


async def flood(
    sender: Member, receiver: Member, service: Service, drops: Callable[[], int]
) -> Told:
    """Send bursts until a kernel has dropped some; wait until nothing is open any more."""
    told = Told()
    await sender.wait_for(receiver.name)
    is_reliable = service is Service.RELIABLE
    call = sender.send_reliable_many if is_reliable else sender.send_many
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        takers = [tasks.create_task(told.take(one.reliable if is_reliable else one.best_effort))
                  for one in (sender, receiver)]  # fmt: skip
        while not drops():
            first = len(told.stamps)
            told.stamps += await call([
                [(receiver.name, b"%0*d" % (PAYLOAD_BYTES, number))]
                for number in range(first, first + COUNT)
            ])  # fmt: skip
        while not told.is_whole:
            await asyncio.sleep(0.01)
        for one in takers:
            one.cancel()
    return told


def judge(told: Told, service: Service) -> None:
    """All is delivered in its order, or its sender was told."""
    stamps = [one.stamp for one in told.got]
    assert stamps == sorted({*stamps})
    assert all(int(one.payload) == told.stamps.index(one.stamp) for one in told.got)
    if service is Service.RELIABLE:
        assert stamps == told.stamps
        assert told.failed == []
    else:
        assert len({*told.failed}) == len(told.failed) > 0


@pytest.mark.parametrize("service", [*Service])
def test_what_finds_no_room_at_a_process_is_resent_or_told(
    tmp_path: Path, service: Service
) -> None:
    async def body(network: Loopback) -> None:
        async with (
            Member(network.url, "sender", None, PATIENCE_SECONDS) as sender,
            Member(network.url, "tiny", None, PATIENCE_SECONDS, Tiny) as receiver,
        ):
            assert receiver.describe()["kernel_drops"] == 0
            told = await flood(sender, receiver, service, lambda: drops_of(receiver))
            judge(told, service)
            if service is Service.BEST_EFFORT:
                # Only the way to the receiver loses packets: what is told to be lost is lost.
                assert {*told.failed}.isdisjoint(one.stamp for one in told.got)
                # Each time a whole burst was lost, and each message of it is told.
                assert len(told.failed) > drops_of(receiver)
            assert drops_of(sender) == 0

    with loopback(tmp_path) as network:
        asyncio.run(body(network))


def drops_of(member: Member) -> int:
    drops = member.describe()["kernel_drops"]
    assert isinstance(drops, int)
    return drops


@pytest.mark.parametrize("service", [*Service])
def test_what_finds_no_room_at_a_switch_is_resent_or_told_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    def shown(url: str) -> tuple[int, int]:
        """What the status says that the kernels of the switch and of both processes dropped."""
        assert main(["status", url, "--json"]) == 0
        (member,) = json.loads(capsys.readouterr().out)["members"]
        found = (sum(one["kernel_drops"] for one in member[kind])
                 for kind in ("switches", "processes"))  # fmt: skip
        return next(found), next(found)

    async def body(network: Loopback) -> None:
        aggregator = network.aggregator
        assert aggregator is not None
        async with (
            Member(network.url, "sender", None, PATIENCE_SECONDS) as sender,
            Member(network.url, "receiver", None, PATIENCE_SECONDS) as receiver,
        ):
            drops = lambda: aggregator.socket.kernel_drops  # noqa: E731
            told = await flood(sender, receiver, service, drops)
            judge(told, service)
            dropped, until = drops(), time.monotonic() + PATIENCE_SECONDS
            while (found := await asyncio.to_thread(shown, network.url))[0] < dropped:
                assert time.monotonic() < until, found
                await asyncio.sleep(0.05)
            assert found[1] == 0
            await asyncio.to_thread(main, ["status", network.url])
            assert "kernel dropped" in capsys.readouterr().out

    with loopback(tmp_path, open_socket=Tiny) as network:
        asyncio.run(body(network))
