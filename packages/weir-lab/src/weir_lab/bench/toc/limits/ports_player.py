"""The links of idle processes: `ports_player.py SETTINGS`, JSON `PlayerOrders`.

They join one after the other. Each then sends a beacon in each interval, all at the same time, as
processes do whose clocks agree, until it is told that it is fenced. Nothing else of a process is
here, so that many of them take little time: the machine is the switch's, too. What comes is read
once in several intervals.

It runs before all else if it may, as it is a gauge: a link is silent only if the switch says so. It
stays on the processor that takes what comes by the devices of a tree: if it sends from another one,
each beacon wakes the thread of the kernel by itself, which then takes twice as long.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time

import msgspec

from weir_toc import packet as wire
from weir_toc.hosts.udp import UdpSocket
from weir_toc.net.linux import inside
from weir_toc.net.namespaces import NAMESPACES
from weir_toc.packet import Packet

#: What the switch has sent is read once in so many intervals. The kernel keeps it meanwhile.
_READ_INTERVALS = 16


class PortLink(msgspec.Struct, frozen=True):
    """A process, its switch, and the host of a tree of namespaces in which it is, if any."""

    process: int
    host: str
    port: int
    namespace: str | None = None


class PlayerOrders(msgspec.Struct, frozen=True):
    """The links of processes; the interval, and synchronised time less `CLOCK_MONOTONIC`: ns."""

    links: tuple[PortLink, ...]
    interval: int
    offset: int


class Port:
    """One process as its switch knows it."""

    def __init__(self, link: PortLink) -> None:
        self.sent = self.beacons = 0
        self.is_admitted = self.is_fenced = False
        #: What it has promised.
        self.barrier = 0
        with inside(NAMESPACES / link.namespace) if link.namespace else contextlib.nullcontext():
            self._socket = UdpSocket(("0.0.0.0", 0), (link.host, link.port))
        #: What it sends: a wish to join, and a beacon, of which only the barriers change.
        self._join = wire.encode(Packet(wire.JOIN, link.process, epoch=1))
        self._beacon = wire.encode_beacon(link.process, 1, 0, 0)

    def speak(self, now: int) -> None:
        """Send a beacon, or ask to join if the switch has not answered."""
        if self.is_fenced:
            return
        data = self._join
        if self.is_admitted:
            self.barrier = max(self.barrier, now)
            data = self._beacon
            wire.rewrite(data, self.barrier, self.barrier)
        with contextlib.suppress(BlockingIOError):  # it is lost, as what a process sends would be
            self._socket.socket.send(data)
            self.sent += self.is_admitted

    def read(self) -> None:
        """Take what the switch has sent."""
        for train in self._socket.read():
            for data in wire.split(train.data, train.size):
                self.beacons += data[22] == wire.BEACON
                self.is_fenced |= data[22] == wire.FENCED
                if data[22] == wire.JOINED:
                    floors = wire.decode_floors(bytes(data[wire.OVERHEAD_BYTES :]))
                    self.barrier = max(self.barrier, *floors)
                    self.is_admitted = True


class Player:
    """All links, at one time."""

    def __init__(self, orders: PlayerOrders) -> None:
        self._interval, self._offset = orders.interval, orders.offset
        self.ports = [Port(one) for one in orders.links]
        self._turns = self._joining = 0
        #: How late a turn has begun at most, in nanoseconds.
        self.late_max = 0

    @property
    def are_admitted(self) -> bool:
        """Whether all have joined."""
        return self._joining == len(self.ports)

    def _now(self) -> int:
        return time.monotonic_ns() + self._offset

    def turn(self) -> bool:
        """Wait until the next interval begins, and play it; return False once a line has come."""
        now = self._now()
        due = (now // self._interval + 1) * self._interval
        is_told, _, _ = select.select([sys.stdin], [], [], (due - now) / 1e9)
        now = self._now()
        self.late_max = max(self.late_max, now - due)
        for one in self.ports[: self._joining + 1]:
            one.speak(now)
        self._turns += 1
        for one in self.ports[self._turns % _READ_INTERVALS : self._joining : _READ_INTERVALS]:
            one.read()
        if not self.are_admitted:
            joining = self.ports[self._joining]
            joining.read()
            self._joining += joining.is_admitted
        return not is_told

    def read(self) -> None:
        """Take all that has come."""
        for one in self.ports:
            one.read()


def main(orders: PlayerOrders) -> None:
    """Join, say `ready`, and send beacons until a line comes; then say how it went."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    player = Player(orders)
    while not player.are_admitted and player.turn():
        pass
    player.read()
    sent, beacons = (sum(one.sent for one in player.ports),
                     sum(one.beacons for one in player.ports))  # fmt: skip
    player.late_max = 0
    print(json.dumps(["ready"]), flush=True)
    while player.turn():
        pass
    player.read()
    print(json.dumps(["done", {
        "sent": sum(one.sent for one in player.ports) - sent,
        "beacons": sum(one.beacons for one in player.ports) - beacons,
        "fenced": sum(one.is_fenced for one in player.ports),
        "late_ms": round(player.late_max / 1e6, 3),
    }]), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=PlayerOrders))
