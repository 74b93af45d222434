"""Idle processes of a rack, played by one program: `ports_worker.py SETTINGS`, JSON `PortOrders`.

Each registers, has a socket of its own, joins, and then sends a beacon each interval, all at the
same time, as processes do whose clocks agree. Nothing else of a process is here, so that many of
them take little time: the machine is the aggregator's, too. What comes is read once in several
intervals, by one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import selectors
import sys

import msgspec

from weir_toc import packet as wire
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.frames import Frame, addresses_of, number_in, text_in
from weir_toc.hosts.udp import UdpSocket
from weir_toc.net.linux import inside
from weir_toc.net.namespaces import NAMESPACES
from weir_toc.packet import Packet

_AGAIN_AFTER = 0.1
#: What the switch has sent is read once in so many intervals. The kernel keeps it meanwhile.
_READ_INTERVALS = 16
#: They join one after the other, with so many intervals between: the controller tells all others of
#: each, and while this program reads that, it sends no beacons.
_JOIN_INTERVALS = 10


class PortOrders(msgspec.Struct, frozen=True):
    """So many processes, and the interval in nanoseconds."""

    url: str
    ports: int
    interval: int
    #: The hosts of a tree of namespaces in which they are; none for the namespace of this program.
    hosts: tuple[str, ...] = ()


class Port:
    """One process: its connection to the controller, and its link to the switch."""

    def __init__(self, url: str, name: str, host: str | None) -> None:
        self.name = name
        self.host = host
        self.link = ControlLink(addresses_of(url), {"op": "hello", "kind": "guest"})
        self.beacons = 0
        self.is_admitted = self.is_fenced = False
        #: What it has promised.
        self.barrier = 0
        self._socket: UdpSocket | None = None
        #: What it sends: a wish to join, and a beacon, of which only the barriers change.
        self._join = self._beacon = bytearray()

    async def register(self) -> None:
        """Get a process of the controller, and open the socket of its link."""
        incarnation = random.SystemRandom().getrandbits(62)
        wish: Frame = {"op": "register", "name": self.name, "nonce": incarnation, "rack": 0}
        while (answer := await self.link.request(wish))["op"] != "done":
            await asyncio.sleep(_AGAIN_AFTER)
        process = number_in(answer, "process")
        hello: Frame = {"node": process, "incarnation": incarnation}
        self.link.hello = {"op": "hello", "kind": "node", **hello}
        switch = text_in(answer, "host"), number_in(answer, "port")
        with inside(NAMESPACES / self.host) if self.host else contextlib.nullcontext():
            self._socket = UdpSocket(("0.0.0.0", 0), switch)
        await self.link.request({"op": "attach", **hello})
        await self.link.is_set.wait()
        self._join = wire.encode(Packet(wire.JOIN, process, epoch=1))
        self._beacon = wire.encode_beacon(process, 1, 0, 0)

    def speak(self, now: int) -> None:
        """Send a beacon, or ask to join if the switch has not answered."""
        assert self._socket is not None
        data = self._join
        if self.is_admitted:
            self.barrier = max(self.barrier, now)
            data = self._beacon
            wire.rewrite(data, self.barrier, self.barrier)
        with contextlib.suppress(BlockingIOError):  # it is lost, as what a process sends would be
            self._socket.socket.send(data)

    def read(self) -> None:
        """Take what the switch has sent."""
        assert self._socket is not None
        for train in self._socket.read():
            for data in wire.split(train.data, train.size):
                self.beacons += data[22] == wire.BEACON
                self.is_fenced |= data[22] == wire.FENCED
                if data[22] == wire.JOINED:
                    floors = wire.decode_floors(bytes(data[wire.OVERHEAD_BYTES :]))
                    self.barrier = max(self.barrier, *floors)
                    self.is_admitted = True


async def main(orders: PortOrders) -> None:
    """Join, and send beacons until a line comes; then say how it went."""
    loop = asyncio.get_running_loop()
    hosts = orders.hosts or [None] * orders.ports
    ports = [Port(orders.url, f"port-{number}", host) for number, host in enumerate(hosts)]
    following = [asyncio.create_task(one.link.run()) for one in ports]
    await asyncio.gather(*(one.register() for one in ports))
    clock = ports[0].link
    stopping: asyncio.Future[str] | None = None
    turns = rounds = before = 0
    while stopping is None or not stopping.done():
        now = clock.now()
        for one in ports[: 1 + turns // _JOIN_INTERVALS]:
            one.speak(now)
        turns += 1
        rounds += 1
        for number, one in enumerate(ports):
            if number % _READ_INTERVALS == turns % _READ_INTERVALS or not one.is_admitted:
                one.read()
        if stopping is None and all(one.is_admitted for one in ports):
            for one in ports:
                one.read()
            print(json.dumps(["ready"]), flush=True)
            stopping = loop.run_in_executor(None, sys.stdin.readline)
            rounds, before = 0, sum(one.beacons for one in ports)
        now = clock.now()
        due = (now // orders.interval + 1) * orders.interval
        await asyncio.sleep((due - now) / 1e9)
    for one in ports:
        one.read()
    beacons = sum(one.beacons for one in ports) - before
    fenced = sum(one.is_fenced for one in ports)
    print(json.dumps(["done", {"rounds": rounds, "beacons": beacons, "fenced": fenced}]))
    for task in following:
        task.cancel()
    await asyncio.wait(following)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that waits for parts of a millisecond: epoll would wait for whole ones."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(main(msgspec.json.decode(sys.argv[1], type=PortOrders)))
