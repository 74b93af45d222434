"""Devices of this network namespace: their addresses, queues, neighbours and programs."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from weir_toc.errors import XdpError
from weir_toc.hosts.frames import Address
from weir_toc.xdp import kernel
from weir_toc.xdp.node import NextHop

_GET_ADDRESS, _ETHTOOL, _GET_CHANNELS = 0x8927, 0x8946, 0x3C
_CHANNELS = struct.Struct("=9I")
_NETLINK_ROUTE, _SET_LINK, _REQUEST_AND_ACK, _ERROR = 0, 19, 5, 2
#: What the kernel tells of: devices, neighbours, IPv4 addresses and IPv4 routes.
_GROUPS = 1 | 4 | 0x10 | 0x40
_XDP, _XDP_FD, _XDP_FLAGS, _NESTED, _DRIVER_MODE = 43, 1, 3, 1 << 15, 1 << 2
_ROUTES, _NEIGHBOURS = Path("/proc/net/route"), Path("/proc/net/arp")
_COMPLETE = 2
#: A port to which a packet is sent only so that the kernel looks for the address of its host.
_DISCARD = 9


class Route(NamedTuple):
    """One line of the kernel's table."""

    device: str
    network: int
    mask: int
    gateway: int


def index_of(device: str) -> int:
    """Return the index of a device. Raises XdpError."""
    try:
        return socket.if_nametoindex(device)
    except OSError as error:
        raise XdpError(f"there is no device {device!r} in this network namespace") from error


def address_of(device: str) -> bytes:
    """Return the hardware address of a device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        answer = fcntl.ioctl(one, _GET_ADDRESS, struct.pack("256s", device.encode()))
    return answer[18:24]


def queues_of(device: str) -> int:
    """Return how many queues a device receives by; 1 if it does not say."""
    channels = bytearray(_CHANNELS.pack(_GET_CHANNELS, *([0] * 8)))
    pinned = (ctypes.c_char * len(channels)).from_buffer(channels)
    request = struct.pack("16sQ16x", device.encode(), ctypes.addressof(pinned))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            fcntl.ioctl(one, _ETHTOOL, request)
        except OSError:
            return 1
    _, _, _, _, _, received, _, _, combined = _CHANNELS.unpack(channels)
    return max(1, int(received) + int(combined))


def attach(program: int, device: str) -> int:
    """Attach a program to a device in native mode; return a link that holds it until closed.

    Raises XdpError for a device with several queues, whose packets overtake each other when their
    sender changes CPU, and for one without native XDP: generic XDP sees a burst as one packet.
    """
    index, queues = index_of(device), queues_of(device)
    if queues > 1:
        raise XdpError(
            f"device {device!r} receives by {queues} queues, which are not in order with each "
            f"other: make it with numrxqueues 1, or `ethtool -L {device} rx 1`"
        )
    try:
        return kernel.link_native(program, index)
    except OSError as error:
        if error.errno == errno.EBUSY:
            why = "another program is attached to it"
        elif error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            why = "it has no native XDP, and generic XDP takes a burst of packets for one"
        else:
            why = os.strerror(error.errno or 0)
        raise XdpError(f"device {device!r} takes no program: {why}") from error


def let_pass(device: str) -> None:
    """Attach a program that passes all to a device, as long as the device exists.

    The kernel gives packets of a program to a veth only if its other end has a program, too.
    """
    index, program = index_of(device), kernel.pass_program()
    try:
        fd, flags = struct.pack("=HHi", 8, _XDP_FD, program), struct.pack("=HHI", 8, _XDP_FLAGS,
                                                                       _DRIVER_MODE)  # fmt: skip
        nested = struct.pack("=HH", 4 + len(fd + flags), _XDP | _NESTED) + fd + flags
        body = struct.pack("=BxHiII", 0, 0, index, 0, 0) + nested
        head = struct.pack("=IHHII", 16 + len(body), _SET_LINK, _REQUEST_AND_ACK, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as one:
            one.send(head + body)
            answer = one.recv(4096)
        _, kind, _, _, _, code = struct.unpack_from("=IHHIIi", answer)
        if kind == _ERROR and code:
            raise XdpError(f"device {device!r} takes no program: {os.strerror(-code)}")
    finally:
        os.close(program)


# -- neighbours ----------------------------------------------------------------------------------


def routes_in(text: str) -> list[Route]:
    """Return the routes of /proc/net/route, the longest masks first."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        network, gateway, mask = (
            int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 2, 7)
        )
        found.append(Route(fields[0], network, mask, gateway))
    return sorted(found, key=lambda one: -one.mask)


def hardware_in(text: str) -> dict[tuple[str, str], bytes]:
    """Return the hardware addresses of /proc/net/arp, by device and IPv4 address."""
    found = {}
    for line in text.splitlines()[1:]:
        ip, _, flags, hardware, _, device = line.split()
        if int(flags, 16) & _COMPLETE:
            found[device, ip] = bytes.fromhex(hardware.replace(":", ""))
    return found


class Tables(NamedTuple):
    """The tables of the kernel at one moment: routes, the longest masks first, and neighbours."""

    routes: Sequence[Route]
    hardware: Mapping[tuple[str, str], bytes]

    @staticmethod
    def read() -> Tables:
        """Read the tables of this namespace."""
        return _tables_in(_ROUTES.read_text(), _NEIGHBOURS.read_text())


@lru_cache(maxsize=1)
def _tables_in(routes: str, neighbours: str) -> Tables:
    """Return what two texts say. Most of what the kernel tells of changes none of them."""
    return Tables(routes_in(routes), hardware_in(neighbours))


def next_hop(address: Address, ports: Sequence[str], tables: Tables) -> NextHop | None:
    """Return where an address is reached; None, after a question to the link, if that is unknown.

    Raises XdpError if the way to it does not begin at one of these ports.
    """
    ip = socket.inet_aton(address[0])
    target = int.from_bytes(ip, "big")
    for route in tables.routes:
        if target & route.mask == route.network:
            break
    else:
        return None
    if route.device not in ports:
        raise XdpError(
            f"{address[0]} is reached by device {route.device!r}, which is not a port of this "
            f"switch: its ports are {', '.join(ports)}"
        )
    via = socket.inet_ntoa(route.gateway.to_bytes(4, "big")) if route.gateway else address[0]
    hardware = tables.hardware.get((route.device, via))
    if hardware is None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.sendto(b"", (address[0], _DISCARD))
        return None
    return NextHop(index_of(route.device), address_of(route.device), hardware, ip, address[1])


class TableChanges:
    """Can be read when the tables of this namespace may have changed.

    The kernel tells of no route that goes with its device or address, but it tells of these.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_ROUTE
        )
        self._socket.bind((0, _GROUPS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take all that has come: whoever looks afterwards sees it."""
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # more had come than there was room for
                    raise


class Lookout:
    """Looks where neighbours are reached. Without a change it reads two tables, and no more."""

    def __init__(self, ports: Sequence[str]) -> None:
        self._ports = [*ports]
        #: The tables and addresses of the last look, if all neighbours were found in it.
        self._seen: tuple[Tables, Mapping[int, Address]] | None = None
        #: Why a neighbour cannot be reached.
        self.trouble = ""

    @property
    def is_complete(self) -> bool:
        """Whether all neighbours of the last look were found."""
        return self._seen is not None

    def look(self, addresses: Mapping[int, Address]) -> Mapping[int, NextHop]:
        """Return the next hops of neighbours, by their addresses; nothing if none has changed."""
        tables = Tables.read()
        if self._seen == (tables, addresses):
            return {}
        found = {}
        for neighbour, address in addresses.items():
            try:
                hop = next_hop(address, self._ports, tables)
            except XdpError as error:
                self.trouble = str(error)
                continue
            if hop is not None:
                found[neighbour] = hop
        self._seen = (tables, {**addresses}) if found.keys() == addresses.keys() else None
        return found
