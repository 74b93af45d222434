"""Processes that send data straight to each other, and beacons to their switch by the same socket.

On loopback data do not cross the links of the beacons. So best effort messages may come late here;
what is compared is who is sent what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigs.loopback import Loopback, loopback
from rigs.programs import PATIENCE_SECONDS, free_ports
from weir_toc import Message, sync
from weir_toc import packet as wire
from weir_toc.controller.entries import ProcessJoined
from weir_toc.controller.records import Founded
from weir_toc.errors import ControlError, first_error
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import socket_in
from weir_toc.hosts.rack_link import RackLink
from weir_toc.hosts.udp import Train, UdpSocket, ends_towards
from weir_toc.packet import Packet
from weir_toc.places import Place
from weir_toc.topology import switch_id

HERE = ("127.0.0.1", 0)


class Recorder(UdpSocket):
    """A socket that keeps the opcodes of all packets that it has read."""

    def __init__(self, local: tuple[str, int], remote: tuple[str, int] | None = None) -> None:
        super().__init__(local, remote)
        self.opcodes: set[int] = set()

    def read(self, reads_max: int = 512) -> list[Train]:
        found = super().read(reads_max)
        for one in found:
            self.opcodes |= {*one.data[22 :: one.size]}
        return found


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("toc")
    with loopback(folder, place=Place.SWITCH, open_socket=Recorder) as made:
        yield made


def test_data_go_straight_to_their_receivers_and_beacons_to_the_switch(network: Loopback) -> None:
    with sync.join(network.url, name="a") as a, sync.join(network.url, name="b") as b:
        a.wait_for("b")
        b.wait_for("a")
        first = a.send_reliable([("a", b"to a"), ("b", b"to b")])
        assert next(iter(b.reliable)) == Message(first, a.process, b"to b")
        assert next(iter(a.reliable)) == Message(first, a.process, b"to a")
        stamps = b.send_reliable_many([[("a", b"%04d" % number)] for number in range(200)])
        own = iter(a.reliable)
        assert [next(own) for _ in stamps] == [
            Message(stamp, b.process, b"%04d" % number) for number, stamp in enumerate(stamps)
        ]
        assert a.describe()["runs"]
        for one in (a, b):  # what data carry is the barrier of one process, ahead of the minimum
            assert one.describe()["corrupt_barriers"] == 0
    assert network.aggregator is not None
    switch = network.aggregator.socket
    assert isinstance(switch, Recorder)
    assert switch.opcodes == {wire.JOIN, wire.BEACON}


def test_beacons_of_others_than_the_switch_are_not_taken() -> None:
    switch, other = UdpSocket(HERE), UdpSocket(HERE)
    link = RackLink(switch.address, Place.SWITCH, UdpSocket)
    assert link.address is not None
    told = {
        opcode: bytes(wire.encode(Packet(opcode, 1)))
        for opcode in (wire.FENCED, wire.BEACON, wire.JOINED, wire.NAK)
    }
    for opcode in told:
        other.send([(told[opcode], link.address, len(told[opcode]))])
    assert link.read() == [(told[wire.NAK], len(told[wire.NAK]))]
    assert link.strangers == 3
    run = told[wire.NAK] + told[wire.FENCED]
    other.send([(run, link.address, len(run) // 2)])
    assert not link.read()
    for opcode in told:
        switch.send([(told[opcode], link.address, len(told[opcode]))])
    assert link.read() == [(b"".join(told.values()), wire.OVERHEAD_BYTES)]
    assert link.read() is None
    for one in (switch, other, link):
        one.close()


def test_a_packet_goes_to_its_receiver_or_to_the_switch() -> None:
    switch, other = UdpSocket(HERE), UdpSocket(HERE)
    link = RackLink(switch.address, Place.SWITCH, UdpSocket)
    packets = {to: wire.encode(Packet(wire.DATA_BE, 1, to)) for to in (0, 2, 3)}

    def sent() -> list[bytes]:
        link.send((data, len(data)) for data in packets.values())
        return [b"".join(one.data for one in socket.read()) for socket in (switch, other)]

    link.learn([2], {2: other.address})
    assert sent() == [packets[0], packets[2]]  # 3 is not known
    link.learn([2, 3], {3: switch.address})  # 2 is not connected: its address is kept
    assert sent() == [packets[0] + packets[3], packets[2]]
    link.learn([3], {})
    assert sent() == [packets[0] + packets[3], b""]
    host = RackLink(switch.address, Place.HOST, UdpSocket)
    assert host.address is None
    host.send((data, len(data)) for data in packets.values())
    assert b"".join(one.data for one in switch.read()) == b"".join(packets.values())
    for one in (switch, other, link, host):
        one.close()


def test_a_switch_of_another_place_than_the_network_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        address = ("127.0.0.1", free_ports(1)[0])
        founding = Founded(1, 0, 0, 50_000_000, "switch")
        controller = Controller(1, {1: address}, tmp_path, founding)
        serving = asyncio.ensure_future(controller.run())
        try:
            await Aggregator([address], switch_id("rack-0"), ("127.0.0.1", 0)).run()
        finally:
            serving.cancel()
            await asyncio.wait((serving,))

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(body())
    error = first_error(caught.value)
    assert isinstance(error, ControlError)
    assert "--place switch" in str(error)


def test_all_are_told_the_address_of_a_process_that_connects_anew(tmp_path: Path) -> None:
    address = ("127.0.0.1", free_ports(1)[0])

    def connected(tasks: set[asyncio.Task[None]], **hello: object) -> ControlLink:
        link = ControlLink([address], {"op": "hello", "kind": "guest", **hello})
        tasks.add(asyncio.ensure_future(link.run()))
        return link

    async def joined(link: ControlLink, switch: ControlLink, name: str, port: int) -> int:
        register = {"op": "register", "name": name, "rack": 0, "nonce": 1}
        process = (await link.request(register))["process"]
        await link.request({"op": "attach", "node": process, "incarnation": 9,
                            "host": "127.0.0.1", "port": port})  # fmt: skip
        switch.report(ProcessJoined(process))
        return int(process)

    async def told(link: ControlLink, addresses: list[list[object]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await link.frames.get()).get("addresses") != addresses:
                continue

    async def body() -> None:
        founding = Founded(1, 0, 0, 1_000_000_000, "switch")
        controller = Controller(1, {1: address}, tmp_path, founding)
        tasks = {asyncio.ensure_future(controller.run())}
        switch = connected(tasks, kind="node", node=switch_id("rack-0"), incarnation=1)
        await switch.request({"op": "start", "host": "127.0.0.1", "port": 9})
        a, b = connected(tasks), connected(tasks)
        first = await joined(a, switch, "a", 1_001)
        second = await joined(b, switch, "b", 1_002)
        await told(b, [[first, "127.0.0.1", 1_001], [second, "127.0.0.1", 1_002]])
        connected(tasks, kind="node", node=first, incarnation=9, host="127.0.0.1", port=1_003)
        await told(b, [[first, "127.0.0.1", 1_003], [second, "127.0.0.1", 1_002]])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(body())


@pytest.mark.parametrize(("host", "port"), [
    ("localhost", 1), ("", 1), ("10.0.0.1", 0), ("10.0.0.1", 1 << 16), ("10.0.0", 1), (7, 1),
])  # fmt: skip
def test_what_is_no_numeric_address_is_refused(host: object, port: int) -> None:
    with pytest.raises(ControlError):
        socket_in({"op": "attach", "host": host, "port": port})


def test_both_ends_towards_an_address_are_numeric() -> None:
    assert socket_in({"op": "attach", "host": "::1", "port": 9}) == ("::1", 9)
    own, remote = ends_towards(("localhost", 9))
    assert socket_in({"op": "x", "host": own, "port": 1})
    assert remote == (socket_in({"op": "x", "host": remote[0], "port": 9}))
