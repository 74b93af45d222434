"""The data path of a running switch: programs on its ports, and a device by which it is commanded.

XDP cannot create packets. So a pair of devices is made in the namespace of the switch: frames that
are written to one of them come to the program by the other, in line with all others.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from weir_toc import packet as wire
from weir_toc.errors import XdpError
from weir_toc.hosts.frames import Address
from weir_toc.xdp import device, kernel
from weir_toc.xdp import layout as at

#: The pair of devices: frames are written to the first.
GENERATOR, INNER = "weir-gen", "weir-gen-in"
#: Packets that may wait for the switch.
QUEUE_PACKETS = 16_384
#: A burst of frames is one send with a header of virtio: `PACKET_VNET_HDR`, and its fields for a
#: sum of UDP that is left to the device, and for segments of UDP.
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_VIRTIO = struct.Struct("=BBHHHH")
_NEEDS_SUM, _UDP_SEGMENTS, _UDP_AT, _SUM_AT = 1, 5, 34, 6
#: Segments of one burst.
BURST_MAX = 64
_AGAIN_SECONDS, _ANSWER_SECONDS, _LOOK_SECONDS = 0.02, 2.0, 0.00002

_SINGLE = bytes(_VIRTIO.size)
_BURST = _VIRTIO.pack(
    _NEEDS_SUM, _UDP_SEGMENTS, at.HEADER_BYTES, wire.OVERHEAD_BYTES, _UDP_AT, _SUM_AT
)


class KernelPath:
    """`DataPath` in the kernel, from `with` on until its end."""

    def __init__(self, address: Address, ports: Sequence[str], cpu: int) -> None:
        """One thread of the kernel, on `cpu`, handles what comes by `ports` for the UDP address."""
        self._ip, self._port = socket.inet_aton(address[0]), address[1]
        self._ports = [*ports]
        self._cpu = cpu
        self._number = 0
        #: Whether the kernel takes bursts: until it refuses one.
        self._takes_bursts = True
        #: Commands that are not obeyed yet, by number.
        self._sent: deque[tuple[int, bytes]] = deque()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            loaded = stack.enter_context(
                kernel.Loaded(kernel.read_object(kernel.OBJECT.read_bytes()))
            )
            self._maps = loaded.maps
            #: What runs on every port.
            self.program = loaded.programs["enter"]
            self.words = memoryview(loaded.maps["states"].shared()).cast("Q")
            self.words[at.IP] = int.from_bytes(self._ip, "little")
            self.words[at.UDP_PORT] = int.from_bytes(self._port.to_bytes(2, "big"), "little")
            self.words[at.CPU] = self._cpu
            self._maps["queue"].set(
                self._cpu, struct.pack("=Ii", QUEUE_PACKETS, loaded.programs["forward"])
            )
            for name in self._ports:  # first: they are refused if another switch has them
                self._attach(stack, name, at.HOSTS)
                ifindex = device.index_of(name)
                self._maps["outputs"].set(
                    ifindex, struct.pack("=Ii", ifindex, loaded.programs["leave"])
                )
            _make_generator(self.program, stack)
            self._attach(stack, INNER, at.GENERATOR)
            self._socket = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
            self._socket.bind((GENERATOR, 0))
            self._stack = stack.pop_all()
        return self

    def _attach(self, stack: ExitStack, port: str, behind: int) -> None:
        stack.callback(os.close, device.attach(self.program, port))
        self.lead(device.index_of(port), behind, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def execute(self, now: int, changes: Sequence[at.Change]) -> None:
        """Change the state between two packets, behind all earlier changes."""
        self._number += 1
        packet = at.frame(at.command(self._number, now, changes), self._ip, self._port)
        self._sent.append((self._number, packet))
        self._send(packet)

    def settle(self) -> None:
        """Wait until all changes are done. Raises XdpError if the kernel does not answer."""
        if self._is_done():
            return
        end = time.monotonic() + _ANSWER_SECONDS
        again = time.monotonic() + _AGAIN_SECONDS
        while not self._is_done():
            time.sleep(_LOOK_SECONDS)
            if time.monotonic() > again:  # the queue of the switch may have been full
                for _, packet in self._sent:
                    self._send(packet)
                again = time.monotonic() + _AGAIN_SECONDS
            if time.monotonic() > end:
                raise XdpError(f"the kernel has not obeyed within {_ANSWER_SECONDS:g} s")

    def _is_done(self) -> bool:
        """Whether all commands are obeyed: the data path takes each only behind the one before."""
        done = self.words[at.COMMAND]
        while self._sent and self._sent[0][0] <= done:
            self._sent.popleft()
        return not self._sent

    def beacon(self, blanks: bytes | bytearray) -> None:
        """Inject blank beacons, which lie behind each other. Raises XdpError if they cannot leave.

        The device cuts a burst into frames, which wait for the switch at once: it wakes once.
        """
        step = BURST_MAX if self._takes_bursts else 1
        for begin in range(0, len(blanks), step * wire.OVERHEAD_BYTES):
            some = blanks[begin : begin + step * wire.OVERHEAD_BYTES]
            is_burst = len(some) > wire.OVERHEAD_BYTES
            if not self._send(at.frame(some, self._ip, self._port), is_burst):
                self._takes_bursts = False
                self.beacon(blanks[begin:])
                return

    def _send(self, packet: bytes, is_burst: bool = False) -> bool:
        """Send a frame, or several. What has no place in a queue is lost, as on any link.

        Returns whether the kernel takes bursts. Raises XdpError if no frame can leave.
        """
        head = _BURST if is_burst else _SINGLE
        try:
            self._socket.send(head + packet)
        except OSError as error:
            if error.errno == errno.EINVAL and is_burst:
                return False
            if error.errno != errno.ENOBUFS:
                raise XdpError(
                    f"no beacon leaves by device {GENERATOR!r}: {os.strerror(error.errno or 0)}. "
                    "Start this switch again: it makes the device anew"
                ) from error
        return True

    def name(self, neighbour: int, slot: int | None) -> None:
        """Say which slot a neighbour has, or that it has none any more."""
        if slot is None:
            self._maps["neighbours"].delete(neighbour)
        else:
            self._maps["neighbours"].set(neighbour, struct.pack("=I", slot))

    def lead(self, ifindex: int, behind: int, leader: int | None) -> None:
        """Say what lies behind a port, and which slot gets the beacons for all ports there."""
        self._maps["ports"].set(ifindex, at.port(behind, leader))

    def route(self, rack: int, down: int, up: int) -> None:
        """Say which slots lead to the processes of a rack."""
        self._maps["routes"].set(rack, struct.pack("=QQ", down, up))


def _make_generator(program: int, stack: ExitStack) -> None:
    """Make the pair of devices, which `stack` deletes.

    Raises XdpError if another switch of this namespace has one, or none can be made.
    """
    if any(name == INNER for _, name in socket.if_nameindex()):
        os.close(device.attach(program, INNER))  # that of a switch which runs has a program
        _ip("link", "del", GENERATOR)  # of a switch that was killed
    one_queue = ("numtxqueues", "1", "numrxqueues", "1")
    made = _ip("link", "add", GENERATOR, *one_queue, "type", "veth",
               "peer", "name", INNER, *one_queue)  # fmt: skip
    if not made:
        stack.callback(_ip, "link", "del", GENERATOR)
    for name in (GENERATOR, INNER):
        made = made or _ip("link", "set", "dev", name, "addrgenmode", "none", "up")
    if made:
        raise XdpError(f"no pair of devices can be made for beacons: {made}")


def _ip(*arguments: str) -> str:
    """Run `ip`; return why it has failed, or nothing."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "`ip` is missing: install iproute2"
    return done.stderr.strip() if done.returncode else ""
