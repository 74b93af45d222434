"""Data between two processes are lost while beacons pass: the controller forwards on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

import weir_toc
from rigs.loopback import loopback, mute
from rigs.programs import free_ports
from weir_toc import Message, ProcessFailed, SendFailed
from weir_toc import packet as wire
from weir_toc.controller.away import Away
from weir_toc.controller.pacing import Pacing
from weir_toc.controller.records import Founded
from weir_toc.controller.state import ControllerState
from weir_toc.errors import ControlError
from weir_toc.hosts import sessions as sessions_of_nodes
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import forward_of, packets_in
from weir_toc.hosts.sessions import Session
from weir_toc.hosts.udp import Sending, UdpSocket
from weir_toc.packet import Packet
from weir_toc.topology import process_id


class CutSocket(UdpSocket):
    """The socket of an aggregator that loses all packets between some processes."""

    cut: ClassVar[set[tuple[int, int]]] = set()

    def send(self, packets: Iterable[Sending]) -> None:
        super().send([
            (one, to, size)
            for data, to, size in packets
            for one in wire.split(data, size)
            if (int.from_bytes(one[24:28], "big"), wire.receiver_of(one)) not in self.cut
        ])  # fmt: skip


async def following(stream: AsyncIterator[weir_toc.Event]) -> weir_toc.Event:
    async with asyncio.timeout(60):
        return await anext(stream)


def test_a_path_that_is_cut_stops_nobody(tmp_path: Path) -> None:
    async def body(url: str) -> None:
        async with (
            weir_toc.join(url, name="a") as a,
            weir_toc.join(url, name="b") as b,
            weir_toc.join(url, name="c") as c,
        ):
            for one in (a, b, c):
                await one.wait_for("a", "b", "c")
            CutSocket.cut = {(a.process, b.process), (b.process, a.process)}
            stamp = await a.send_reliable([("b", b"one"), ("c", b"one")])
            own = await c.send_reliable([("c", b"behind")])
            assert await following(b.reliable) == Message(stamp, a.process, b"one")
            assert await following(c.reliable) == Message(stamp, a.process, b"one")
            assert await following(c.reliable) == Message(own, c.process, b"behind")
            status = await asyncio.to_thread(made.status)
            assert status["forwarding"] == [["a", "b"]]
            assert status["forwarded"] >= 2
            assert a.describe()["forwarded"]
            # Now B answers by no way at all.
            mute(b)
            lost = await a.send_reliable([("b", b"two"), ("c", b"two")])
            failed = await following(c.reliable)
            assert isinstance(failed, ProcessFailed)
            assert failed.process == b.process
            told = [await following(a.reliable) for _ in range(2)]
            assert failed in told
            assert SendFailed(lost, b.process, "process failed") in told

    with loopback(tmp_path, open_socket=CutSocket) as made:
        try:
            asyncio.run(body(made.url))
        finally:
            CutSocket.cut = set()


def test_a_member_that_forwards_packets_of_others_is_sent_away(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = ("127.0.0.1", port)
    member = Controller(1, {1: address}, tmp_path, Founded(1, 0, 0, 1_000_000_000))
    own, other = process_id(0, 1), process_id(0, 2)
    link = ControlLink([address], {"op": "hello", "kind": "node", "node": own, "incarnation": 1})

    async def body() -> None:
        async with asyncio.timeout(60):
            await link.is_set.wait()
            for source, to in ((own, other), (other, own)):
                link.trouble = ""
                packet = wire.encode(Packet(wire.DATA_R, source, to))
                link.forward(to, [packet])
                while source != own and not link.trouble:
                    await asyncio.sleep(0.05)
        assert f"node {own} forwards a packet of {other}" in link.trouble

    async def bounded() -> None:
        tasks = [asyncio.ensure_future(one) for one in (member.run(), link.run())]
        try:
            await body()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    asyncio.run(bounded())


class Waiting:
    """The transport of a session whose node has left so many bytes unread, and what it is sent."""

    def __init__(self, unread: int = 0) -> None:
        self.unread = unread
        self.sent: list[bytes] = []

    @property
    def transport(self) -> Waiting:
        return self

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.sent.append(data)


A, B, GONE = process_id(0, 1), process_id(0, 2), process_id(0, 3)


def passed_on(source: int, to: int, reader: Waiting, *packets: Packet) -> Pacing:
    """Let a process forward packets to another one, or a message; A and B go on."""
    state = SimpleNamespace(failures=SimpleNamespace(processes={A, B}))
    pacing = Pacing(1_000_000)
    some = packets or (Packet(wire.DATA_R, source, to),)
    frame = forward_of(to, [wire.encode(one) for one in some])
    sessions = {to: Session(cast(asyncio.StreamWriter, reader))}
    sessions_of_nodes.forward(source, frame, cast(ControllerState, state), pacing, sessions)
    return pacing


@pytest.mark.parametrize(("source", "to"), [(A, GONE), (GONE, B), (GONE, GONE)])
def test_nothing_is_forwarded_unless_both_processes_go_on(source: int, to: int) -> None:
    reader = Waiting()
    paths = passed_on(source, to, reader).paths
    assert (reader.sent, paths.pairs, paths.passed) == ([], [], 0)


@pytest.mark.parametrize(
    ("unread", "is_sent"), [(0, True), (1 << 20, True), ((1 << 20) + 1, False)]
)
def test_a_mebibyte_of_what_is_forwarded_may_wait_for_a_slow_reader(
    unread: int, is_sent: bool
) -> None:
    reader = Waiting(unread)
    # The path is known, so that a receiver which reads nothing fails in time.
    assert passed_on(A, B, reader).paths.pairs == [(A, B)]
    assert bool(reader.sent) == is_sent


@pytest.mark.parametrize(("flags", "is_asked"), [(0, False), (wire.CONFIRM, True)])
def test_the_leader_notes_whom_a_receiver_asks_for_memory(
    flags: int, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Away, "asked", lambda _away, _now, process: asked.append(process))
    reader = Waiting()
    pacing = passed_on(A, B, reader, Packet(wire.ACK, A, B, flags=flags))
    assert asked == [B] * is_asked
    assert reader.sent
    assert not pacing.paths.pairs  # no answer is waited for


def test_a_frame_without_packets_is_refused() -> None:
    for packets in (7, [7], ["not base 64!"], [None]):
        with pytest.raises(ControlError):
            packets_in({"op": "forward", "node": 1, "packets": packets})
    packets = [bytes(range(256)), b""]
    assert packets_in(forward_of(1, packets)) == packets
