"""A network whose frames are long on their way: a switch of ours that holds each for a while.

It needs no traffic shaper in the kernel. Every port is a TAP device whose other end is a process's
network namespace, or our own. It is gone when this process ends.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

from weir_lab.bench.harness.network import Network, ip

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_INFO = 0x0002 | 0x1000
_MTU = 9_000
_FRAME_BYTES_MAX = _MTU + 64
_MAC = slice(0, 6), slice(6, 12)
#: Frames that are read before it is looked which are due.
_AT_ONCE = 64


class FarNetwork:
    """Ports that are `round_trip_s` apart from each other; frames pass while the block runs."""

    def __init__(self, round_trip_s: float, home: str) -> None:
        """Make the port of this process, with the address `home`."""
        self._delay_s = round_trip_s / 2
        self._ports: list[int] = []
        #: At which port a hardware address was seen.
        self._seen: dict[bytes, int] = {}
        self._held: deque[tuple[float, int, bytes]] = deque()
        self._ended = threading.Event()
        self._switch = threading.Thread(target=self._run, name="weir far network", daemon=True)
        name = self._port()
        ip("link", "set", "lo", "up")
        ip("addr", "add", Network.with_prefix(home), "dev", name)
        ip("link", "set", name, "mtu", str(_MTU), "up")

    def cable(self, pid: int, address: str) -> None:
        """Give a process with a network namespace of its own an address. Before the block."""
        name = self._port()
        ip("link", "set", name, "netns", str(pid))
        inside = ("nsenter", "--net", "--target", str(pid))
        ip("link", "set", "lo", "up", before=inside)
        ip("addr", "add", Network.with_prefix(address), "dev", name, before=inside)
        ip("link", "set", name, "mtu", str(_MTU), "up", before=inside)

    def __enter__(self) -> FarNetwork:
        self._switch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        self._switch.join()
        for port in self._ports:
            os.close(port)

    def _port(self) -> str:
        """Make a port; return the name of its other end, which may move to another namespace."""
        name = f"far{len(self._ports)}"
        port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._ports.append(port)
        fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_INFO))
        return name

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for port in self._ports:
                ready.register(port, selectors.EVENT_READ)
            while not self._ended.is_set():
                wait = self._held[0][0] - time.monotonic() if self._held else self._delay_s
                for key, _ in ready.select(max(wait, 0.0)):
                    self._take(key.fd)
                now = time.monotonic()
                while self._held and self._held[0][0] <= now:
                    _, port, frame = self._held.popleft()
                    self._pass_on(port, frame)

    def _take(self, port: int) -> None:
        due = time.monotonic() + self._delay_s
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                self._held.append((due, port, os.read(port, _FRAME_BYTES_MAX)))

    def _pass_on(self, source: int, frame: bytes) -> None:
        to, by = _MAC
        self._seen[frame[by]] = source
        known = self._seen.get(frame[to])
        for port in self._ports if known is None else (known,):
            if port != source:
                with suppress(
                    OSError
                ):  # its other end is not up, or takes no more: frames get lost
                    os.write(port, frame)
