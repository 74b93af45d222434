"""Idle processes of a rack, played by one program: `ports_worker.py SETTINGS`, JSON `PortOrders`.

Each registers, has a socket of its own, joins, and then sends a beacon each interval, all at the
same time, as processes do whose clocks agree. Nothing else of a process is here, so that many of
them take little time.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

import msgspec

from weir_toc import packet as wire
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.frames import Frame, addresses_of, number_in, text_in
from weir_toc.hosts.udp import UdpSocket
from weir_toc.packet import Packet

_AGAIN_AFTER = 0.1
_LOOK_SECONDS = 0.002


class PortOrders(msgspec.Struct, frozen=True):
    """So many processes, and the interval in nanoseconds."""

    url: str
    ports: int
    interval: int


class Port:
    """One process: its connection to the controller, and its link to the switch."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.link = ControlLink(addresses_of(url), {"op": "hello", "kind": "guest"})
        self.process = 0
        self.socket: UdpSocket | None = None
        self.beacons = 0
        self.is_admitted = self.is_fenced = False
        #: What it has promised.
        self.barrier = 0

    async def join(self) -> None:
        """Register, and join until the switch has answered."""
        incarnation = random.SystemRandom().getrandbits(62)
        wish: Frame = {"op": "register", "name": self.name, "nonce": incarnation, "rack": 0}
        while (answer := await self.link.request(wish))["op"] != "done":
            await asyncio.sleep(_AGAIN_AFTER)
        self.process = number_in(answer, "process")
        hello: Frame = {"node": self.process, "incarnation": incarnation}
        self.link.hello = {"op": "hello", "kind": "node", **hello}
        switch = text_in(answer, "host"), number_in(answer, "port")
        self.socket = UdpSocket(("0.0.0.0", 0), switch)
        await self.link.request({"op": "attach", **hello})
        await self.link.is_set.wait()
        while not self.is_admitted:
            join = wire.encode(Packet(wire.JOIN, self.process, epoch=1))
            self.socket.send([(join, switch, len(join))])
            await asyncio.sleep(_LOOK_SECONDS)
            self.read()

    def beacon(self, now: int) -> None:
        """Send a beacon, and read what came."""
        if self.socket is not None and self.is_admitted:
            self.barrier = max(self.barrier, now)
            data = wire.encode_beacon(self.process, 1, self.barrier, self.barrier)
            self.socket.send([(data, self.socket.remote, len(data))])
            self.read()

    def read(self) -> None:
        """Take what the switch sends."""
        assert self.socket is not None
        for train in self.socket.read():
            for data in wire.split(train.data, train.size):
                self.beacons += data[22] == wire.BEACON
                self.is_fenced |= data[22] == wire.FENCED
                if data[22] == wire.JOINED:
                    floors = wire.decode_floors(bytes(data[wire.OVERHEAD_BYTES :]))
                    self.barrier = max(floors)
                    self.is_admitted = True


async def main(orders: PortOrders) -> None:
    """Join, and send beacons until a line comes; then say how it went."""
    loop = asyncio.get_running_loop()
    ports = [Port(orders.url, f"port-{number}") for number in range(orders.ports)]
    following = [asyncio.create_task(one.link.run()) for one in ports]
    joining = asyncio.gather(*(one.join() for one in ports))
    stopping: asyncio.Future[str] | None = None
    rounds = before = 0
    while stopping is None or not stopping.done():
        now = ports[0].link.now()
        for one in ports:  # also while others join: a link that is silent is fenced
            one.beacon(now)
        rounds += 1
        if stopping is None and joining.done():
            joining.result()
            print(json.dumps(["ready"]), flush=True)
            stopping = loop.run_in_executor(None, sys.stdin.readline)
            rounds, before = 0, sum(one.beacons for one in ports)
        now = ports[0].link.now()
        due = (now // orders.interval + 1) * orders.interval
        await asyncio.sleep((due - now) / 1e9)
    beacons = sum(one.beacons for one in ports) - before
    fenced = sum(one.is_fenced for one in ports)
    print(json.dumps(["done", {"rounds": rounds, "beacons": beacons, "fenced": fenced}]))
    for task in following:
        task.cancel()
    await asyncio.wait(following)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=PortOrders)))
