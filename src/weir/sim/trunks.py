"""The simulated trunks of a process: its asking and serving ends; server.trunk's twin.

They join the shards of a node, and a shard with those of other nodes, which it knows by place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.broker import events as ev
from weir.codec.fields import Buffer
from weir.host.guest import Guest
from weir.model.ids import place_of
from weir.sim.network import Link, Way
from weir.wire import trunk
from weir.wire.frame import take_client_frame
from weir.wire.trunk import Kind, TrunkStream

if TYPE_CHECKING:
    from weir.sim.process import Process


class _AskingEnd:
    """This process asks another: requests out, what comes back in."""

    def __init__(self, process: Process, place: int) -> None:
        self.place = place
        self.link: Link | None = None
        self._process = process
        self._stream = TrunkStream()

    def received(self, link: Link, data: bytes) -> None:
        process = self._process
        if process.paused and process.asleep(self.received, link, data):
            return
        frames = self._stream.receive(data)
        if frames and process.trunks.asks(self):
            process.handle(ev.PassedBack(self.place, frames))

    def lost(self, link: Link) -> None:
        if not self._process.asleep(self.lost, link):
            self._process.trunks.lost(self)


class _ServingEnd:
    """Another process asks this one, for peers of its own: each is a session here."""

    def __init__(self, process: Process, place: int) -> None:
        self.link: Link | None = None
        self._process = process
        #: Of the one that asks, as this process knows it.
        self._place = place
        self._stream = TrunkStream()
        self._numbers: dict[int, int] = {}

    def received(self, link: Link, data: bytes) -> None:
        process = self._process
        if process.paused and process.asleep(self.received, link, data):
            return
        if process.shard is None:  # it has ended, and what was under way to it is lost
            return
        for kind, remote, body in self._stream.receive(data):
            if kind == Kind.OPENED:
                number = self._numbers[remote] = process.trunks.opened(self, remote)
                process.handle(ev.Opened(number, bytes(body).decode(), self._place))
            elif kind == Kind.CLOSED:
                self._closed(remote)
            elif kind == Kind.ARRIVALS:
                principal, arrivals = body
                for one in arrivals:
                    remote = one.session
                    one.session = process.trunks.opened(self, remote)
                    self._numbers[remote] = one.session
                process.handle(ev.Arrived(arrivals, principal, self._place))
            elif (number := self._numbers.get(remote, -1)) >= 0:
                client = kind == Kind.CLIENT
                request = take_client_frame(body) if client else body
                process.handle(ev.Received(number, [request]))

    def lost(self, link: Link) -> None:
        if self._process.asleep(self.lost, link):
            return
        self._process.trunks.forget(self)
        for remote in list(self._numbers):
            self._closed(remote)

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers; `charged` bytes are given back."""
        assert self.link is not None
        self._process.release(charged)
        self.link.to_client(b"".join(buffers))

    def answer(self, remote: int, reply: bytes) -> None:
        """Write a small reply."""
        self.write(trunk.encode(Kind.REPLIES, remote, reply))

    def _closed(self, remote: int) -> None:
        number = self._numbers.pop(remote, None)
        if number is not None:
            self._process.trunks.closed(number)


class Trunks:
    """All trunks of a process: it asks through one end for each other shard, and serves others."""

    def __init__(self, process: Process) -> None:
        """Begin without any."""
        self._process = process
        self._asking: dict[int, _AskingEnd] = {}
        self._serving: list[_ServingEnd] = []
        self._guests: dict[int, Guest] = {}

    @staticmethod
    def join(
        asking: Process, serving: Process, up: Way | None = None, down: Way | None = None
    ) -> None:
        """Let a process ask another; what it asked through an older trunk has no answer."""
        if asking.shard is None or serving.shard is None:
            return
        if not asking.asleep(Trunks.join, asking, serving, up, down):
            asking.trunks._replace(serving, up, down)

    def _replace(self, serving: Process, up: Way | None, down: Way | None) -> None:
        process = self._process
        place, back = _place(serving, process), _place(process, serving)
        if (old := self._asking.pop(place, None)) is not None:
            process.handle(ev.TrunkClosed(place))
            assert old.link is not None
            old.link.cut()
        client, host = _AskingEnd(process, place), _ServingEnd(serving, back)
        client.link = host.link = Link(process.world, client, host, up, down)
        serving.trunks._serving.append(host)
        self._asking[place] = client
        process.handle(ev.TrunkOpened(place))

    # -- what the process asks -------------------------------------------------------------------

    def send(self, place: int, data: bytes) -> None:
        """Send a frame to another shard, if there is a trunk."""
        end = self._asking.get(place)
        if end is not None and end.link is not None:
            end.link.to_host(data)

    def guest(self, session: int) -> Guest | None:
        """Return the peer of another shard that has this session here."""
        return self._guests.get(session)

    def hold(self, held: bool) -> None:
        """Read no requests for a while; what comes back is always read."""
        for end in list(self._serving):
            assert end.link is not None
            end.link.hold(held)

    def cut(self, silent: bool) -> None:
        """The process has ended, and its trunks with it."""
        ends: list[_AskingEnd | _ServingEnd] = [*self._asking.values(), *self._serving]
        for end in ends:
            assert end.link is not None
            end.link.cut(silent=silent)

    # -- what the ends tell ----------------------------------------------------------------------

    def asks(self, end: _AskingEnd) -> bool:
        """Return whether an end is the one in use."""
        return self._asking.get(end.place) is end

    def asks_place(self, place: int) -> bool:
        """Return whether there is a trunk to a place."""
        return place in self._asking

    def lost(self, end: _AskingEnd) -> None:
        """A trunk broke."""
        if self.asks(end):
            del self._asking[end.place]
            self._process.handle(ev.TrunkClosed(end.place))

    def forget(self, end: _ServingEnd) -> None:
        """Another shard is gone."""
        self._serving.remove(end)

    def opened(self, end: _ServingEnd, remote: int) -> int:
        """Begin a session for another shard's peer; return its number."""
        number = self._process.new_session()
        self._guests[number] = Guest(end, remote)
        return number

    def closed(self, number: int) -> None:
        """End such a session."""
        del self._guests[number]
        self._process.handle(ev.Closed(number))


def _place(process: Process, seen_from: Process) -> int:
    """Return where a process is for another: of the own node, its number alone."""
    elsewhere = process.node != seen_from.node
    return place_of(process.node, process.number) if elsewhere else process.number
