"""The two ends of trunks: bytes between shards, and virtual sessions of theirs.

The shards of a node have socket pairs; those of different nodes a lane of their link
(`weir.server.links`). A shard is told by its place, which on this node is its number.

Frames are passed on through the one end, and the other answers. What comes back is always read, so
that a shard which holds its peers' requests never holds another shard's replies: two shards that
are both short of memory cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from socket import socket

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.host.guest import Guest
from weir.model.ids import place_node
from weir.model.limits import CONNECTIONS_MAX
from weir.server.driving import Driving
from weir.server.outlet import End
from weir.wire import trunk
from weir.wire.frame import take_client_frame
from weir.wire.trunk import Arrival, Kind, TrunkFrame

log = logging.getLogger(__name__)

#: Told of the shard whose trunk is over, by its place.
Told = Callable[[int], None]


class AskingEnd(End):
    """This shard asks another: requests out, what comes back in."""

    takes = frozenset((Kind.REPLIES, Kind.HANGUP, Kind.ANSWERS))

    def __init__(
        self, driver: Driving, shard: int, lost: Callable[[AskingEnd], None], told: Told | None
    ) -> None:
        """Ask `shard`; `lost` is told when that is over, and tells `told`, if there is one."""
        super().__init__(driver)
        self.shard = shard
        self.told = told
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the shard pass requests on."""
        super().connection_made(transport)
        self._driver.handle(ev.TrunkOpened(self.shard))

    def give_back(self, size: int) -> None:
        """There is room for more to this shard."""
        self._driver.passed_on(self.shard, size)

    def take(self, frames: deque[TrunkFrame]) -> None:
        """Hand on what came back."""
        if frames:
            self._driver.handle(ev.PassedBack(self.shard, frames))

    def connection_lost(self, error: Exception | None) -> None:
        """The other shard is gone, or this one stops."""
        super().connection_lost(error)
        self._lost(self)


class ServingEnd(End):
    """Another shard asks this one, for peers of its own: each is a session here."""

    takes = frozenset((Kind.OPENED, Kind.CLOSED, Kind.CLIENT, Kind.DEVICE, Kind.ARRIVALS))

    def __init__(self, driver: Driving, shard: int, trunks: Trunks, told: Told) -> None:
        """Serve `shard`; make the sessions known to `trunks`. `told` is when that is over."""
        super().__init__(driver)
        self.shard = shard
        self._trunks = trunks
        self._told = told
        self._is_foreign = place_node(shard) != 0
        self._numbers: dict[int, int] = {}
        self._waiting: deque[TrunkFrame] = deque()
        self._full = False

    def take(self, frames: deque[TrunkFrame]) -> None:
        """Serve what can be served now."""
        self._waiting += frames
        self.update()
        self._serve()

    def answer(self, remote: int, reply: bytes) -> None:
        """Write a small reply; another node may not know how to take many at once."""
        if self._is_foreign:
            self.write(trunk.encode(Kind.REPLIES, remote, reply))
        else:
            super().answer(remote, reply)

    def pause_writing(self) -> None:
        """The other shard does not take the replies: take no more requests."""
        self._full = True
        self.update()

    def resume_writing(self) -> None:
        """It took them."""
        self._full = False
        self._serve()
        self.update()

    def update(self) -> None:
        """Read, or not: under a used-up budget only to finish a frame that was begun."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._full or (self._driver.held and not self._stream.pending):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """All of the other shard's peers are gone."""
        super().connection_lost(error)
        self._waiting.clear()
        for remote in list(self._numbers):
            self._closed(remote)
        self._told(self.shard)

    def _serve(self) -> None:
        self._driver.gather()  # devices come in crowds
        try:
            self._serve_waiting()
        finally:
            self._driver.settle()

    def _serve_waiting(self) -> None:
        while self._waiting and not self._full and self._transport is not None:
            kind, remote, body = self._waiting.popleft()
            if kind == Kind.OPENED:
                self._closed(remote)
                if self._has_room(remote):
                    name = bytes(body).decode()
                    self._numbers[remote] = self._trunks.opened(self, remote, name)
                continue
            if kind == Kind.CLOSED:
                self._closed(remote)
                continue
            if kind == Kind.ARRIVALS:
                if self._is_foreign:
                    log.error("a trunk broke: another node passes no crowds of devices on")
                    self.cut()
                    return
                self._arrived(*body)
                continue
            number = self._numbers.get(remote)
            if number is None:
                continue
            if kind == Kind.CLIENT:  # by itself: its reply may fill the trunk
                self._driver.settle()
                self._driver.received(number, [take_client_frame(body)])
                self._driver.gather()
                continue
            requests = [body]
            # A device's hello comes with what it publishes: one event, as it was one packet.
            while self._waiting and self._waiting[0][:2] == (kind, remote):
                requests.append(self._waiting.popleft()[2])
            self._driver.received(number, requests)

    def _has_room(self, remote: int) -> bool:
        """Whether another node's shard may have one more session here; its peer is let go if not.
        It needs no more than it lets in, and one for itself.
        """
        if not self._is_foreign or len(self._numbers) <= self._trunks.guests_max:
            return True
        reason = b"its node has too many peers of the node that leads: connect again shortly"
        self.write(trunk.encode(Kind.HANGUP, remote, reason))
        return False

    def _arrived(self, principal: str, arrivals: list[Arrival]) -> None:
        remotes = [one.session for one in arrivals]
        for remote in remotes:
            self._closed(remote)
        self._trunks.arrived(self, arrivals)
        self._numbers.update(zip(remotes, [one.session for one in arrivals], strict=True))
        self._driver.arrived(ev.Arrived(arrivals, principal, self.shard))

    def _closed(self, remote: int) -> None:
        number = self._numbers.pop(remote, None)
        if number is not None:
            self._trunks.closed(number)


class Trunks:
    """All trunks of a shard: it asks through one end for each other shard, and serves others."""

    def __init__(self, driver: Driving, guests_max: int = CONNECTIONS_MAX) -> None:
        """Begin without any; the shard of another node has up to `guests_max` peers here."""
        self.guests_max = guests_max
        self._driver = driver
        self._asking: dict[int, AskingEnd] = {}
        self._serving: set[ServingEnd] = set()
        self._guests: dict[int, Guest] = {}
        #: Told of each other shard that cannot be asked any more, and might be by a new trunk.
        self.lost: Callable[[int], None] = _nobody

    async def join(self, end: socket, shard: int, asks: bool) -> None:
        """Take one end of a socket pair whose other end `shard` has; a new one replaces an old."""
        loop = asyncio.get_running_loop()
        protocol = self._to_ask(shard) if asks else self._to_serve(shard)
        await loop.create_unix_connection(lambda: protocol, sock=end)

    def ask(self, place: int, transport: asyncio.Transport, told: Told) -> End:
        """Ask a shard of another node over a connection; `told` is when that is over."""
        end = self._to_ask(place, told)
        adopt(transport, end)
        return end

    def serve(self, place: int, transport: asyncio.Transport, told: Told) -> End:
        """Serve a shard of another node over a connection; `told` is when that is over."""
        end = self._to_serve(place, told)
        adopt(transport, end)
        return end

    def leave(self, shards: Sequence[int]) -> None:
        """Cut the trunks to and from shards that stand still: what they were asked is refused, and
        what their peers hold or wait for here is given back.
        """
        for shard in shards:
            self._ask_no_more(shard)
        for serving in self._serving:
            if serving.shard in shards:
                serving.cut()

    def end(self, effect: ef.EndTrunk) -> None:
        """Cut the trunk to a shard; there may be a new one."""
        if (end := self._asking.get(effect.place)) is not None:
            log.error("a trunk broke: %s", effect.reason)
            end.cut()

    def send(self, effect: ef.Pass) -> None:
        """Write a frame to another shard."""
        end = self._asking.get(effect.shard)
        if end is not None:
            end.write(effect.buffers, effect.charged)
        else:
            self._driver.passed_on(effect.shard, effect.charged)

    def guest(self, session: int) -> Guest | None:
        """Return the peer of another shard that has this session here."""
        return self._guests.get(session)

    def opened(self, end: ServingEnd, remote: int, principal: str) -> int:
        """Begin a session for another shard's peer; return its number."""
        number = self._driver.new_session()
        self._guests[number] = Guest(end, remote)
        self._driver.handle(ev.Opened(number, principal, end.shard))
        return number

    def arrived(self, end: ServingEnd, arrivals: Sequence[Arrival]) -> None:
        """Begin sessions for another shard's devices; what they said is theirs from now on."""
        for one in arrivals:
            number = self._driver.new_session()
            self._guests[number] = Guest(end, one.session)
            one.session = number

    def closed(self, number: int) -> None:
        """End such a session."""
        del self._guests[number]
        self._driver.handle(ev.Closed(number))

    def tick(self) -> None:
        """Give back what was sent."""
        for end in self._ends():
            end.settle()

    def update(self) -> None:
        """The driver holds, or does not any more."""
        for end in self._ends():
            end.update()

    def close(self) -> None:
        """Close all, once what was written is out."""
        self.tick()
        for end in self._ends():
            end.close()

    def _ends(self) -> list[End]:
        return [*self._asking.values(), *self._serving]

    def _to_ask(self, shard: int, told: Told | None = None) -> End:
        self._ask_no_more(shard)
        end = self._asking[shard] = AskingEnd(self._driver, shard, self._lost, told)
        return end

    def _to_serve(self, shard: int, told: Told | None = None) -> End:
        end = ServingEnd(self._driver, shard, self, told or _nobody)
        self._serving = {one for one in self._serving if one._transport is not None}
        self._serving.add(end)
        return end

    def _ask_no_more(self, shard: int) -> None:
        if (end := self._asking.pop(shard, None)) is not None:
            self._driver.handle(ev.TrunkClosed(shard))
            end.cut()

    def _lost(self, end: AskingEnd) -> None:
        if self._asking.get(end.shard) is end:
            del self._asking[end.shard]
            self._driver.handle(ev.TrunkClosed(end.shard))
            (end.told or self.lost)(end.shard)


def adopt(transport: asyncio.Transport, end: asyncio.Protocol) -> None:
    """Let `end` have a connection that was another protocol's until now."""
    transport.set_protocol(end)
    end.connection_made(transport)


def _nobody(shard: int) -> None:
    """There is nobody who could give a new trunk."""
