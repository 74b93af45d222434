"""The process that carries packets between TUN devices: `python -m weir_lab.network.switch`.

It reads a `Plan`, one line of JSON, and says which devices it has made; then each line is a
command that it answers with a line. It ends when its stdin does, and its devices with it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress

import msgspec

from weir_lab.network.links import Count, Link, Switch, Way

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_INFO = 0x0001 | 0x1000
_PACKET_BYTES_MAX = 1 << 16
#: Packets that are read of one device before it is looked what else there is.
_AT_ONCE = 64
_IPV4 = 4
_TARGET = slice(16, 20)
_REST_S = 1.0


class Connection(msgspec.Struct, frozen=True):
    """A link from one place to another."""

    way: Way
    link: Link


class Plan(msgspec.Struct, frozen=True):
    """Devices by the addresses of their places, and the links between places."""

    devices: list[str]
    addresses: list[str]
    connections: list[Connection]
    seed: int


class Cut(msgspec.Struct, frozen=True, tag=True):
    """Cut these ways, or let packets through again."""

    ways: list[Way]
    is_cut: bool


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Tell what came to each link."""


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Pass connections to `port` on to `target`, where a process of a place listens."""

    place: int
    port: int
    target: int


class Told(msgspec.Struct, frozen=True):
    """The answer to any command: the counts, if they were asked for."""

    counts: list[tuple[Way, Count]] = []


Command = Cut | Tell


class Carrier:
    """The devices of all places, and the switch between them."""

    def __init__(self, plan: Plan) -> None:
        """Make the devices. Raises `OSError` where that is not allowed, and `ValueError`."""
        links = {one.way: one.link for one in plan.connections}
        self._switch = Switch(links, random.Random(plan.seed))
        self._devices = [_device(name) for name in plan.devices]
        self._places = {fd: number for number, fd in enumerate(self._devices)}
        self._targets = {_packed(text): number for number, text in enumerate(plan.addresses)}

    def run(self, commands: int) -> None:
        """Carry packets until the file descriptor of commands ends."""
        said = b""
        watched = [commands, *self._devices]
        while True:
            next_at = self._switch.next_at
            wait = _REST_S if next_at is None else max(next_at - time.monotonic(), 0.0)
            # Unlike epoll, it waits for less than a millisecond.
            ready, _, _ = select.select(watched, (), (), min(wait, _REST_S))
            for fd in ready:
                if fd != commands:
                    self._take(fd)
                    continue
                data = os.read(commands, _PACKET_BYTES_MAX)
                if not data:
                    return
                *lines, said = (said + data).split(b"\n")
                for line in lines:
                    self._obey(msgspec.json.decode(line, type=Command))
            for target, packet in self._switch.due(time.monotonic()):
                # A device that is not up, or takes no more, loses packets as real ones do.
                with suppress(OSError):
                    os.write(self._devices[target], packet)

    def _take(self, fd: int) -> None:
        place, targets, switch = self._places[fd], self._targets, self._switch
        now = time.monotonic()
        with suppress(OSError):
            for _ in range(_AT_ONCE):
                packet = os.read(fd, _PACKET_BYTES_MAX)
                target = targets.get(packet[_TARGET]) if packet[0] >> 4 == _IPV4 else None
                if target is not None:
                    switch.take(now, (place, target), packet)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Cut):
            for way in command.ways:
                self._switch.cut(way, command.is_cut)
            _say(Told())
        else:
            _say(Told([*self._switch.counts().items()]))


def _device(name: str) -> int:
    """Return the file descriptor of a new TUN device."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_INFO))
    return fd


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))


def _say(what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Run the switch; return an exit code."""
    plan = msgspec.json.decode(_first_line(), type=Plan)
    try:
        carrier = Carrier(plan)
    except OSError as error:
        print(f"/dev/net/tun: {error}", file=sys.stderr)
        return 1
    _say(Told())
    gc.disable()  # a collection would delay packets, and nothing here refers to itself
    carrier.run(sys.stdin.fileno())
    return 0


def _first_line() -> bytes:
    """Read a line byte by byte, so that nothing behind it is taken."""
    line = b""
    while not line.endswith(b"\n") and (one := os.read(sys.stdin.fileno(), 1)):
        line += one
    return line


if __name__ == "__main__":
    sys.exit(main())
