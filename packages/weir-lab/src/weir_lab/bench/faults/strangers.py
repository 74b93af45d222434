"""`python -m weir_lab.bench.faults.strangers`: how long others wait beside connections that mean no
good.

First a thousand connections that claim a frame of 8 MiB and send 1 KB of it; then devices that ping
without pause.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.model.limits import KIB, MIB
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import CLIENT_HEADER
from weir.testing.nodes import running_node
from weir_lab.bench.harness.machine import Machine, this_machine

_TOPIC = "strangers"
_PATIENCE_SECONDS = 60.0
_PINGS = 1_000 * device.frame(device.DeviceOpcode.PING, 1, b"")
_FRAME_BYTES = 60 * KIB
_BATCH_BYTES = MIB - 4 * KIB
_LATE_DEVICES = 20


class Shape(msgspec.Struct, frozen=True):
    """How many connections of each kind, and how many lone publishes are timed beside them."""

    claims: int = 1_000
    floods: int = 64
    publishes: int = 300


class Result(msgspec.Struct, frozen=True):
    """What it came to; times are in milliseconds, memory in MiB of all processes of the node."""

    shape: Shape
    machine: Machine
    #: Lone publishes of 60 KiB, without strangers and beside claims.
    alone_p99_ms: float
    beside_p99_ms: float
    p99_ratio: float
    #: The longest of those beside claims.
    beside_longest_ms: float
    #: The longest of ten batches of 1 MiB beside claims.
    batch_ms: float
    resident_more_mib: float
    #: The longest from connecting to the confirm of a device beside floods of pings.
    device_wait_ms: float


async def measure(shape: Shape) -> Result:
    """Run a node and time what honest peers see of it."""
    with running_node() as node:
        async with asyncio.timeout(5 * _PATIENCE_SECONDS):
            async with connect(node.url, request_timeout=_PATIENCE_SECONDS) as client:
                await client.create_topic(_TOPIC)
                await _publish(client, shape.publishes, _FRAME_BYTES)  # what is done once is done
                alone = await _publish(client, shape.publishes, _FRAME_BYTES)
                before = _resident_mib(node.pids)
                with ExitStack() as held:
                    for _ in range(shape.claims):
                        held.enter_context(await asyncio.to_thread(_claim, node.port))
                    beside = await _publish(client, shape.publishes, _FRAME_BYTES)
                    batches = await _publish(client, 10, _BATCH_BYTES)
                    more = _resident_mib(node.pids) - before
            with _flooding(node.port, shape.floods):
                waits = [
                    await asyncio.to_thread(_device, node.port, hub) for hub in range(_LATE_DEVICES)
                ]
    return Result(
        shape, this_machine(), _p99(alone), _p99(beside), _p99(beside) / _p99(alone), max(beside),
        max(batches), more, max(waits),
    )  # fmt: skip


async def _publish(client: Client, count: int, size: int) -> list[float]:
    taken = []
    began = time.perf_counter()  # the first one is timed with the opening of its producer
    async with client.producer(_TOPIC, linger=0, partition=0) as producer:
        for _ in range(count):
            await producer.publish(bytes(size))
            now = time.perf_counter()
            taken.append((now - began) * 1_000)
            began = now
    return taken


def _p99(taken: Sequence[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


def _claim(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS)
    hello = b"".join(encode_request(m.Hello("stranger"), 1))
    sock.sendall(hello + CLIENT_HEADER.pack(2, 0, opcode_of(m.Produce), 8 * MIB, 2) + bytes(KIB))
    return sock


@contextmanager
def _flooding(port: int, count: int) -> Iterator[None]:
    over = threading.Event()

    def flood() -> None:
        with contextlib.suppress(OSError), ExitStack() as stack:
            socks = []
            for hub in range(count):
                sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS)
                stack.enter_context(sock)
                sock.sendall(device.hello(1_000 + hub, 1, _TOPIC))
                sock.setblocking(False)
                socks.append((sock, bytearray()))
            while not over.is_set():
                for sock, left in socks:
                    left += b"" if left else _PINGS
                    with contextlib.suppress(BlockingIOError):
                        del left[: sock.send(left)]
                    with contextlib.suppress(BlockingIOError):
                        sock.recv(MIB)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        time.sleep(1.0)  # until all are there and what they send piles up
        yield
    finally:
        over.set()
        thread.join()


def _device(port: int, hub: int) -> float:
    began, replies, found = time.perf_counter(), device.DeviceReplies(), 0
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS) as sock:
        sock.sendall(device.hello(hub, 1, _TOPIC) + device.publish(1, b"late"))
        while found < 2:
            data = sock.recv(65_536)
            if not data:
                raise ConnectionResetError("the node hung up on a device")
            found += len(replies.receive(data))
    return (time.perf_counter() - began) * 1_000


def _resident_mib(pids: Sequence[int]) -> float:
    pages = 0
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):  # it has ended
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return pages * resource.getpagesize() / MIB


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print what it came to as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.faults.strangers", description=__doc__
    )
    parser.add_argument("--claims", type=int, default=1_000)
    parser.add_argument("--floods", type=int, default=64)
    parser.add_argument("--publishes", type=int, default=300)
    chosen = parser.parse_args(arguments)
    result = asyncio.run(measure(Shape(chosen.claims, chosen.floods, chosen.publishes)))
    print(msgspec.json.encode(result).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
