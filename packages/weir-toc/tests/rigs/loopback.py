"""A network in this process, on loopback: a controller of one member, an aggregator, one thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from rigs.lossy_link import LossyLink
from rigs.programs import free_ports
from weir_toc.controller.records import Founded
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import Frame
from weir_toc.hosts.udp import OpenSocket, UdpSocket
from weir_toc.member import Member
from weir_toc.places import Place
from weir_toc.topology import switch_id

#: Long, since tests share two cores: nobody may be taken for dead by mistake.
INTERVAL = 50_000_000


class Loopback:
    """One rack. `url` is where to join."""

    def __init__(
        self,
        folder: Path,
        loss: float = 0.0,
        place: Place = Place.HOST,
        open_socket: OpenSocket = UdpSocket,
    ) -> None:
        """`loss` is the share of all packets that are lost, each way.

        `open_socket` opens that of the aggregator.
        """
        self.place = place
        self.open_socket = open_socket
        (self.port,) = free_ports(1)
        self.loss = loss
        self.link: LossyLink | None = None
        self.url = f"toc://127.0.0.1:{self.port}"
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.controller: Controller | None = None
        self.aggregator: Aggregator | None = None
        self.started = threading.Event()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        founding = Founded(1, 0, 0, INTERVAL, self.place.value)
        address = ("127.0.0.1", self.port)
        self.controller = Controller(1, {1: address}, self.folder, founding)
        listen = ("0.0.0.0", self.port)
        self.tasks["controller"] = asyncio.ensure_future(self.controller.run(listen))
        await self.start_aggregator()
        self.started.set()
        await self._stop.wait()
        if self.link is not None:
            self.link.close()
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())

    async def start_aggregator(self) -> None:
        """Start an aggregator, in place of the former one if there is one."""
        former = self.tasks.pop("aggregator", None)
        if former is not None:
            former.cancel()
            await asyncio.wait((former,))
        (own,) = free_ports(1, socket.SOCK_DGRAM)
        advertise = None
        if self.loss:
            self.link = LossyLink(("127.0.0.1", 0), ("127.0.0.1", own), self.loss)
            advertise = self.link.address
        self.aggregator = Aggregator([("127.0.0.1", self.port)], switch_id("rack-0"),
                                     ("127.0.0.1", own), advertise, self.open_socket,
                                     self.place)  # fmt: skip
        self.tasks["aggregator"] = asyncio.ensure_future(self.aggregator.run())
        await self.aggregator.is_started.wait()

    def restart_aggregator(self) -> None:
        asyncio.run_coroutine_threadsafe(self.start_aggregator(), self.loop).result(60)

    def status(self) -> Frame:
        """Return what the controller says of itself, read in its own loop."""

        async def read() -> Frame:
            assert self.controller is not None
            return self.controller.status()

        return asyncio.run_coroutine_threadsafe(read(), self.loop).result(60)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self.thread.join()


def mute(member: Member) -> None:
    """Let a process answer nothing of what the controller forwards to it."""
    assert member._thread is not None
    member._thread.process.link.forward = lambda *_: None  # type: ignore[method-assign]


@contextlib.contextmanager
def loopback(
    folder: Path,
    loss: float = 0.0,
    place: Place = Place.HOST,
    open_socket: OpenSocket = UdpSocket,
) -> Iterator[Loopback]:
    """A network that runs."""
    made = Loopback(folder, loss, place, open_socket)
    made.thread.start()
    made.started.wait(60)
    try:
        yield made
    finally:
        made.stop()
