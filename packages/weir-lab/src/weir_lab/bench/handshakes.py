"""What TLS and signatures cost a node: handshakes of a core, memory of idle connections, and
MACs of frames.

Devices connect one after the other, say hello, and go. What counts is the node's CPU time, so other
work of the machine matters little. Memory is what the node's process grows by while many
connections stay open, with TLS and without.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from weir.access.devices import SECRET_BYTES
from weir.client.sync.client import connect
from weir.errors import WeirError
from weir.protocol import device as wire
from weir.protocol.proof import FrameOpener, FrameSigner
from weir.tls.dialling import dialler_of
from weir.tls.files import ClientFiles
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.machine import families_cpu_seconds
from weir_lab.bench.sides.certified import certified_nodes

_TOPIC = "handshakes"
_WARM = 200
_SECONDS = 30.0
_PAGE = 4_096
#: How many frames are signed, and what each publishes.
_FRAMES = 50_000
_VALUE_BYTES = 24
Progress = Callable[[int], None]


class BenchFailed(WeirError):
    """A measurement came to no figure; the message says why."""


class Settings(msgspec.Struct, frozen=True):
    """What to measure: so many handshakes one by one, in which the device shows a certificate if
    they are `mutual`, and so many connections at once that are idle.
    """

    handshakes: int = 2_000
    mutual: bool = False
    idle: int = 1_000
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(handshakes=(self.handshakes, 1, 1 << 20), idle=(self.idle, 10, 15_000))


class Result(msgspec.Struct, frozen=True):
    """What came of it, by a second of one core of the node: handshakes alone; and connections with
    all that they cost, which are accepted, say hello and end, by TLS and without. `per_s` is by the
    clock, devices' part included. Then the bytes of an idle connection, by TLS and without; and the
    CPU time of signing a device's publish of 24 bytes, and of checking it, in µs.
    """

    handshakes: int
    mutual: bool
    per_core_s: float
    tls_per_core_s: float
    plain_per_core_s: float
    per_s: float
    tls_bytes: float
    plain_bytes: float
    sign_us: float
    check_us: float


def measure(settings: Settings, progress: Progress) -> Result:
    """Run the test on a node of one shard, which is removed afterwards.

    Raises `ValueError` for settings that make no sense, and `WeirError` for a run without a figure.
    """
    settings.check()
    plain = _plain_bytes(settings)
    with certified_nodes(settings.folder, shards=1) as certified:
        node = certified.nodes
        with connect(certified.url) as client:
            client.create_topic(_TOPIC)
        files = certified.files(settings.mutual)
        place = ("127.0.0.1", node.port)
        # First: what thousands who are gone have left would be used again, and not be seen.
        secure = _bytes_of(node.pids[0], place, files, settings.idle)
        idle, _ = _used(node.pids, place, None, settings.handshakes, _nobody)
        used, took = _used(node.pids, place, files, settings.handshakes, progress)
        if used <= idle:
            raise BenchFailed("handshakes cost no CPU time that can be seen: give more of them")
    return Result(
        settings.handshakes, settings.mutual, settings.handshakes / (used - idle),
        settings.handshakes / used, settings.handshakes / max(idle, 0.01),
        settings.handshakes / took, secure, plain, *_signing_us(),
    )  # fmt: skip


def _plain_bytes(settings: Settings) -> float:
    """Return what an idle connection without TLS takes of a node of its own."""
    with certified_nodes(settings.folder, shards=1) as certified:
        node = certified.nodes
        with connect(node.url) as client:
            client.create_topic(_TOPIC)
        return _bytes_of(node.pids[0], ("127.0.0.1", node.port), None, settings.idle)


def _used(
    pids: list[int], place: tuple[str, int], files: ClientFiles | None, count: int,
    progress: Progress,
) -> tuple[float, float]:  # fmt: skip
    """Let devices come and go; return the CPU time of the node, and by the clock, in seconds."""
    for hub in range(_WARM):
        _come(place, files, hub).close()
    before, began = _cpu(pids), time.monotonic()
    for hub in range(count):
        _come(place, files, hub).close()
        progress(hub + 1)
    return _cpu(pids) - before, time.monotonic() - began


def _signing_us() -> tuple[float, float]:
    """Return what signing a frame takes, and what checking it does, one by one, in µs of CPU."""
    frame = wire.publish(1, bytes(_VALUE_BYTES), 0)
    signer, opener = FrameSigner(bytes(SECRET_BYTES)), FrameOpener(bytes(SECRET_BYTES))
    began = time.process_time()
    signed = [signer.sign(frame) for _ in range(_FRAMES)]
    between = time.process_time()
    for one in signed:
        opener.open(one)
    took = time.process_time() - between
    return (between - began) / _FRAMES * 1e6, took / _FRAMES * 1e6


def _nobody(_: int) -> None:
    """Do nothing: the side that is only compared with has no observer."""


def _cpu(pids: list[int]) -> float:
    found = families_cpu_seconds(pids)
    if found is None:
        raise BenchFailed("this system does not tell the CPU time of another process")
    return found


def _bytes_of(pid: int, place: tuple[str, int], files: ClientFiles | None, count: int) -> float:
    """Return what one of so many idle connections takes."""
    with ExitStack() as stack:
        for hub in range(_WARM):
            _come(place, files, hub).close()
        before = _resident(pid)
        for hub in range(count):
            stack.enter_context(_come(place, files, hub))
        return (_resident(pid) - before) / count


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _come(place: tuple[str, int], files: ClientFiles | None, hub: int) -> socket.socket:
    """Connect, say hello, and return the connection once that is answered."""
    # A certificate of a device is that hub's: all connections that show it are of that one.
    number = 1 if files is not None and files.certificate else hub + 1
    made: socket.socket = socket.create_connection(place, timeout=_SECONDS)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if files is not None:
            made = dialler_of(files).connect_blocking(made, place[0])
        made.sendall(wire.hello(number, 1, _TOPIC, 0))
        if not (replies := wire.DeviceReplies().receive(made.recv(4_096))) or replies[0].code:
            raise BenchFailed(f"hub {number} was not welcome")
    except BaseException:
        made.close()
        raise
    return made
