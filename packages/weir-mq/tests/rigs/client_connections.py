"""Connections of peers without a network: socket and clock do as they are told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from weir.broker.api import events as ev
from weir.broker.runtime.budget import Budget
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.logs import FlushSchedule
from weir.host.shard_loop import EventQueue
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request


class FakeTransport:
    """Keeps what is written until `taken` takes it."""

    def __init__(self) -> None:
        self.unsent = 0
        self.reading = True
        self.end = ""
        self.written = b""
        self.sent = b""
        self.is_half_closed = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_half_closed = True

    def write(self, data: bytes) -> None:
        self.unsent += len(data)
        self.written += data
        self.sent += data

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.unsent += sum(map(len, buffers))
        self.written += b"".join(buffers)
        self.sent += b"".join(buffers)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return bool(self.end)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "cut"


class Network:
    """Knows nobody."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.gone: set[FakeTransport] = set()
        self.peer = "10.0.0.1"

    def address(self, transport: FakeTransport) -> str:
        return self.peer

    def is_gone(self, transport: FakeTransport) -> bool:
        return transport in self.gone


class Around:
    """What is around connections; the shard takes nothing."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.time = 0.0
        self.budget = Budget(0)
        flushes = FlushSchedule((), (), lambda: self.time)
        self.queue = EventQueue(cast(Shard, None), flushes)
        self.network = Network()
        self.remote_peers: dict[int, Any] = {}
        self.connections: Connections[FakeTransport] = Connections(
            self.queue, self.budget, limits or ConnectionLimits(), self.network,
            self.remote_peers.get, lambda: self.time, 1, logging.getLogger(__name__),
        )  # fmt: skip

    @property
    def frames(self) -> list[Any]:
        return [
            frame
            for event in self.queue.events
            if isinstance(event, ev.Received)
            for frame in event.frames
        ]

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.queue.events if isinstance(event, ev.LetGo)]


class Scene:
    """One connection and what is around it."""

    def __init__(self, around: Around | None = None) -> None:
        self.around = around or Around()
        self.transport = FakeTransport()
        self.peer = self.around.connections.connection()
        self.peer.open(self.transport)

    def greet(self) -> None:
        """Say hello, as a client does."""
        self.peer.receive(b"".join(encode_request(m.Hello("client"), 1)))

    def sweep_after(self, seconds: float) -> str:
        """Let time pass and sweep; return how the connection ended, or nothing."""
        self.around.time += seconds
        limits = ConnectionLimits(frame_seconds=60, idle_seconds=1_800)
        self.peer.sweep(limits, self.around.time)
        return self.transport.end
