"""Devices in a process: `python -m weir_lab.bench.sides.devices`, led over its pipes.

Each connects at its moment of the burst, sends one message, and keeps its connection while it waits
for the confirm. One thread and epoll: eight thousand devices must not cost what is measured.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from weir.errors import WeirError
from weir.protocol import device as device
from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.sides.device_logins import Encrypted, Login, Proving, Speaker
from weir_lab.bench.sides.peers.peers import peer

VALUE_BYTES = 24
_ANYBODY = Login()
#: From one address to one port a machine has some 28,000 connections: spread over several.
DEVICES_PER_ADDRESS = 10_000
_READ = 1 << 12
#: What every reply of the device dialect begins with: a header and a code.
_REPLY = struct.Struct(device.HEADER.format + "H")
_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_CONFIRMS = device.DeviceOpcode.PUBLISH_SEQUENCED | device.REPLY
#: Devices share the machine with the broker: each is looked at once, or twice if it could not
#: connect at once, and told of once for each.
_NEWS = select.EPOLLIN | select.EPOLLET
_OPENS = select.EPOLLOUT | _NEWS
_BROKEN = select.EPOLLERR | select.EPOLLHUP
_EVENTS = 1_024
_WAIT_MAX = 0.2
_PROBLEMS_MAX = 5


class BurstPlan(msgspec.Struct, frozen=True):
    """Devices number `first`, `first` + `step` and so on below `devices`, over `over_s` seconds."""

    side: str
    port: int
    topic: str
    first: int
    step: int
    devices: int
    over_s: float
    timeout_s: float
    login: Login = Login()


class Burst(msgspec.Struct, frozen=True, tag="burst"):
    """What became of the devices. Times are CLOCK_MONOTONIC; latencies from connect to confirm."""

    began_ns: int
    last_confirm_ns: int
    confirmed: int
    confirm_ms: list[float]
    problems: dict[str, int]
    cpu_s: float


class Lock:
    """The device dialect of weir: hello and publish in one packet, and a confirm."""

    __slots__ = ("_hello", "_rest", "confirmed")

    #: A publish may follow its hello at once: the broker takes frames in order.
    ready = True

    def __init__(self, hub: int, topic: str) -> None:
        """Be a hub with one lock."""
        self.confirmed = 0
        self._hello = device.hello(hub, 1, topic)
        self._rest = b""

    def opening(self) -> bytes:
        """Return the hello."""
        return self._hello

    def receive(self, data: bytes) -> bytes:
        """Take replies, as a device without an object for each. Raises `WeirError` for one that
        refuses.
        """
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= _REPLY.size:
            _, length, opcode, _, code = _REPLY.unpack_from(data, at)
            behind = at + device.HEADER.size + length + 1
            if behind > end:
                break
            if code:
                raise WeirError(f"refused with code {code}")
            self.confirmed += opcode == _CONFIRMS
            at = behind
        self._rest = data[at:]
        return b""


class Asking:
    """No dialect: a record, and a byte (`weir_lab.bench.consumers.dormitory.serving`)."""

    ready = True

    def __init__(self) -> None:
        """Have no answer yet."""
        self.confirmed = 0

    def opening(self) -> bytes:
        """Return nothing."""
        return b""

    def receive(self, data: bytes) -> bytes:
        """Count answers."""
        self.confirmed += len(data)
        return b""


#: Makes the speaker of a device, and the bytes of its one message.
Maker = Callable[[int], tuple[Speaker, bytes]]


def maker(side: str, topic: str, login: Login = _ANYBODY) -> Maker:
    """Return what makes devices for a side; device n sends message 0 of producer n, and is hub n,
    which logs in to weir by `login`.
    """
    block = Block(VALUE_BYTES, 1)
    if side == "weir":

        def lock(number: int) -> tuple[Speaker, bytes]:
            (value,) = block.values_of(number, 0, 1)
            speaker: Speaker
            if login.auth in ("secret", "signed"):
                speaker = Proving(number, topic, login)
            else:
                speaker = Lock(number, topic)
                if login.auth == "tls":
                    speaker = Encrypted(speaker, login.ca)
            return speaker, device.publish(0, value, 0)

        return lock
    if side == "direct":
        return lambda number: (Asking(), block.values_of(number, 0, 1)[0])
    (server,) = peer(side)

    def client(number: int) -> tuple[Speaker, bytes]:
        dialect = server.publishing(topic, VALUE_BYTES)
        (value,) = block.values_of(number, 0, 1)
        return dialect, dialect.before(1) + dialect.head + value + dialect.tail

    return client


class _Device:
    __slots__ = ("began_ns", "connected", "message", "socket", "speaker")

    #: In C, and without what `socket.socket` adds in Python.
    socket: socket.SocketType | None

    def __init__(self, speaker: Speaker, message: bytes) -> None:
        self.speaker = speaker
        self.message = message
        self.socket = None
        self.connected = False
        self.began_ns = 0


class Crowd:
    """All devices of this process, on one epoll."""

    def __init__(self, plan: BurstPlan) -> None:
        """Make the devices; `run` lets them go."""
        make = maker(plan.side, plan.topic, plan.login)
        self._plan = plan
        self._devices = [
            _Device(*make(number)) for number in range(plan.first, plan.devices, plan.step)
        ]
        self._open: dict[int, _Device] = {}
        self._left = len(self._devices)
        self._confirm_ms: list[float] = []
        self._last_ns = 0
        self._problems: Counter[str] = Counter()
        self._epoll = select.epoll()

    def run(self) -> Burst:
        """Connect each device in its turn, and return when all are confirmed or have failed."""
        gc.freeze()  # the devices are here to stay
        cpu, began = time.process_time(), time.monotonic()
        deadline = began + self._plan.timeout_s
        started = 0
        try:
            while self._left:
                now = time.monotonic()
                if now > deadline:
                    self._problems["no confirm in time"] += self._left
                    break
                due = self._due(now - began)
                for number in range(started, due):
                    self._connect(self._devices[number], number)
                started = due
                for handle, event in self._epoll.poll(self._wait(started, began), _EVENTS):
                    self._turn(self._open[handle], event)
        finally:
            self._close()
        return Burst(
            int(began * 1e9),
            self._last_ns,
            len(self._confirm_ms),
            self._confirm_ms,
            dict(self._problems.most_common(_PROBLEMS_MAX)),
            time.process_time() - cpu,
        )

    def _due(self, seconds: float) -> int:
        count = len(self._devices)
        if seconds >= self._plan.over_s:
            return count
        return min(count, int(seconds / self._plan.over_s * count) + 1)

    def _wait(self, started: int, began: float) -> float:
        count = len(self._devices)
        if started == count:
            return _WAIT_MAX
        due = began + self._plan.over_s * started / count
        return min(_WAIT_MAX, max(0.0, due - time.monotonic()))

    def _connect(self, one: _Device, number: int) -> None:
        one.began_ns = time.monotonic_ns()
        sock = one.socket = socket.SocketType(socket.AF_INET, _KIND)
        news = _NEWS
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address := number // DEVICES_PER_ADDRESS:
                sock.bind((f"127.0.0.{1 + address}", 0))
            code = sock.connect_ex(("127.0.0.1", self._plan.port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            try:
                self._send(one, one.speaker.opening())  # where both ends are here it is open by now
                one.connected = True
            except BlockingIOError:
                news = _OPENS
        except (OSError, WeirError) as error:
            self._fail(one, f"connect: {getattr(error, 'strerror', None) or error}")
            return
        handle = sock.fileno()
        self._open[handle] = one
        self._epoll.register(handle, news)

    def _turn(self, one: _Device, event: int) -> None:
        try:
            if not one.connected:
                self._opened(one, event)
            if event & ~select.EPOLLOUT:
                self._read(one)
        except (OSError, WeirError) as error:
            self._fail(one, str(error))

    def _opened(self, one: _Device, event: int) -> None:
        assert one.socket is not None
        if event & _BROKEN and (code := one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            raise OSError(code, os.strerror(code))
        one.connected = True
        self._send(one, one.speaker.opening())

    def _read(self, one: _Device) -> None:
        assert one.socket is not None
        try:
            data = one.socket.recv(_READ)
        except BlockingIOError:
            return
        if not data:
            raise WeirError("the broker closed the connection")
        speaker = one.speaker
        waited = not speaker.confirmed
        if (answer := speaker.receive(data)) or one.message:
            self._send(one, answer)
        if waited and speaker.confirmed:
            self._last_ns = time.monotonic_ns()
            self._confirm_ms.append((self._last_ns - one.began_ns) / 1e6)
            self._left -= 1
        if len(data) == _READ:  # what is left is not told again
            self._read(one)

    def _send(self, one: _Device, data: bytes) -> None:
        """Send what the dialect says, and the message with it once that may be."""
        assert one.socket is not None
        message = one.message if one.speaker.ready else b""
        if not data and not message:
            return
        if message and isinstance(one.speaker, Proving | Encrypted):
            message = one.speaker.sealed(message)
        # A few hundred bytes always fit into the buffer of a connection that is new.
        if one.socket.send(data + message) != len(data) + len(message):
            raise WeirError("the connection took only a part of a message")
        if message:
            one.message = b""

    def _fail(self, one: _Device, why: str) -> None:
        if not one.speaker.confirmed:
            self._problems[why] += 1
            self._left -= 1
        if one.socket is not None:
            self._open.pop(one.socket.fileno(), None)
            one.socket.close()
            one.socket = None

    def _close(self) -> None:
        for one in self._open.values():
            if one.socket is not None:
                one.socket.close()
        self._open.clear()
        self._epoll.close()


async def burst(plan: BurstPlan, orders: Orders) -> Burst:
    """Make the devices, wait for the order, let them go."""
    allow_connections(len(range(plan.first, plan.devices, plan.step)))
    crowd = Crowd(plan)
    report(Ready())
    await orders.get()
    return await asyncio.get_running_loop().run_in_executor(None, crowd.run)


if __name__ == "__main__":
    be_led(BurstPlan, burst)
