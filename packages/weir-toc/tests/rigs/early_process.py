"""A process that has an id and is not admitted yet, without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import patch

from weir_toc import packet as wire
from weir_toc.controller.codec import command_to
from weir_toc.controller.entries import Fail
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import EndpointConfig
from weir_toc.hosts.frames import Frame
from weir_toc.hosts.process import Process
from weir_toc.hosts.rack_link import Piece, RackLink
from weir_toc.hosts.udp import UdpSocket
from weir_toc.packet import Acknowledgement, Packet
from weir_toc.places import Place


class EarlyProcess:
    """Process 1; its packets go nowhere."""

    def __init__(self) -> None:
        self.process = Process([("127.0.0.1", 1)], "a", None)
        self.now = self.process.link.now()
        self.process._endpoint = Endpoint(1, 1, self.now, EndpointConfig(program_takes=True))
        self.process._socket = RackLink(("127.0.0.1", 1), Place.HOST, UdpSocket)

    def told(self, command: Fail) -> None:
        """Let the controller's command come."""
        self.process._take_frame({"op": "command", "term": 1, "command": command_to(command)})

    def admitted(self) -> None:
        """Let the aggregator admit it."""
        assert self.process._endpoint is not None
        floors = wire.encode_floors(self.now, self.now)
        joined = Packet(wire.JOINED, 1 << 31, 1, epoch=1, payload=floors)
        self.process._endpoint.receive(self.now, [wire.encode(joined)])
        self.process._after()
        self.process._after()  # what the admission led to

    def granted(self, by: int) -> None:
        """Let a receiver answer with a window."""
        assert self.process._endpoint is not None
        ack = wire.encode_ack(Acknowledgement(wire.DATA_R, 100_000, 0, 0))
        packet = Packet(wire.ACK, by, 1, payload=ack)
        self.process._endpoint.receive(self.now, [wire.encode(packet)])
        self.process._after()

    def holds_a_message(self, by: int) -> None:
        """Let a reliable message come, which waits for its barrier."""
        assert self.process._endpoint is not None
        connect = Packet(wire.CONNECT, by, 1, payload=wire.encode_count(0))
        data = Packet(wire.DATA_R, by, 1, self.now + 1, flags=wire.BEGIN | wire.END, payload=b"x")
        self.process._endpoint.receive(self.now, map(wire.encode, (connect, data)))
        assert self.process._endpoint.held == (self.now + 1, {by})

    async def excluded(self, answer: Frame, *frames: Frame) -> None:
        """Let the controller say that it has failed, and answer what it asks then."""

        async def request(_frame: Frame) -> Frame:
            return answer

        for frame in frames or ({"op": "excluded"},):
            self.process._take_frame(frame)
        with patch.object(self.process.link, "request", request):
            await self.process._settle()

    def ticks(self, bursts: Callable[[], Sequence[Piece]], now: Callable[[], int]) -> int:
        """Let its timer ring at its deadline while a link gives bursts; return how many packets it
        sends.
        """
        endpoint, link = self.process._endpoint, self.process._socket
        assert endpoint is not None
        assert link is not None
        sent = endpoint.read_link(0).sent
        with patch.object(link, "read", bursts), patch.object(self.process.link, "now", now):
            self.process._tick()
        return endpoint.read_link(0).sent - sent

    @property
    def deadline(self) -> int:
        """When its timer rings next."""
        assert self.process._endpoint is not None
        return max(self.now, self.process._endpoint.deadline)

    def reports(self) -> list[object]:
        """What it has reported, and is not confirmed."""
        return [frame["report"] for frame, _ in self.process.link._unanswered.values()]

    def close(self) -> None:
        assert self.process._socket is not None
        self.process._alarm.cancel()
        self.process._socket.close()
