"""The two ends of trunks: bytes between shards, and virtual sessions of theirs.

The shards of a node have socket pairs; those of different nodes a lane of their link
(`weir.host.links.links`). A shard is told by its place, which on this node is its number.

Frames are passed on through the one end, and the other answers. What comes back is always read, so
that a shard which holds its peers' requests never holds another shard's replies: two shards that
are both short of memory cannot wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.host.connections import Transport
from weir.host.shard_connections import LocalShard, Wire
from weir.host.trunk_end import RemotePeer, TrunkEnd
from weir.model.ids import place_node
from weir.model.limits import CONNECTIONS_MAX
from weir.protocol import trunk
from weir.protocol.frame import take_client_frame
from weir.protocol.trunk import Arrival, Kind, TrunkFrame

#: Told of the shard whose trunk is over, by its place.
Told = Callable[[int], None]


class AskingEnd(TrunkEnd):
    """This shard asks another: requests out, what comes back in."""

    takes = frozenset((Kind.REPLIES, Kind.HANGUP, Kind.ANSWERS))

    def __init__(
        self,
        local: LocalShard,
        transport: Transport,
        shard: int,
        lost: Callable[[AskingEnd], None],
        told: Told | None,
    ) -> None:
        """Ask `shard`; `lost` is told when that is over, and tells `told`, if there is one."""
        super().__init__(local, transport)
        self.shard = shard
        self.told = told
        self._lost = lost
        local.queue.put(ev.TrunkOpened(shard))

    def give_back(self, size: int) -> None:
        """There is room for more to this shard."""
        self._local.passed_on(self.shard, size)

    def take(self, frames: Sequence[TrunkFrame]) -> None:
        """Hand on what came back."""
        if frames:
            self._local.queue.put(ev.PassedBack(self.shard, frames))

    def lost(self, why: str) -> None:
        """The other shard is gone, or this one stops."""
        super().lost(why)
        self._lost(self)


class ServingEnd(TrunkEnd):
    """Another shard asks this one, for peers of its own: each is a session here."""

    takes = frozenset((Kind.OPENED, Kind.CLOSED, Kind.CLIENT, Kind.DEVICE, Kind.ARRIVALS))

    def __init__(
        self,
        local: LocalShard,
        transport: Transport,
        shard: int,
        trunks: Trunks,
        told: Told,
        remote_peers_max: int,
    ) -> None:
        """Serve `shard`, up to `remote_peers_max` peers if it is another node's; make the sessions
        known to `trunks`. `told` is when that is over.
        """
        super().__init__(local, transport)
        self.shard = shard
        self._trunks = trunks
        self._told = told
        self._is_foreign = place_node(shard) != 0
        self._remote_peers_max = remote_peers_max
        self._numbers: dict[int, int] = {}
        self._waiting: deque[TrunkFrame] = deque()
        self._full = False
        #: Whether it is among those `unserved`.
        self.queued = False

    def take(self, frames: Sequence[TrunkFrame]) -> None:
        """Serve what can be served now."""
        self._waiting += frames
        self.update()
        self.serve()

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
        self.serve()
        self.update()

    def update(self) -> None:
        """Read, or not: under a used-up budget only to finish a frame that was begun."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._full or (self._local.queue.held and not self._stream.pending):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def lost(self, why: str) -> None:
        """All of the other shard's peers are gone."""
        super().lost(why)
        self._waiting.clear()
        for remote in list(self._numbers):
            self._closed(remote)
        self._told(self.shard)

    def serve(self) -> None:
        """Serve what waits. What devices ask is one to the shard, for they come in crowds; what a
        client asks is served by itself, behind the effects of what came before: its reply may fill
        the trunk.
        """
        begun = False
        while self._waiting and not (self._full or self.queued) and self._transport is not None:
            kind, remote, body = self._waiting[0]
            number = self._numbers.get(remote)
            if kind == Kind.CLIENT and number is not None:
                if not begun:
                    self._waiting.popleft()
                    self._local.connections.receive(number, [take_client_frame(body)])
                self._serve_more()
                return
            self._waiting.popleft()
            if kind == Kind.OPENED:
                self._closed(remote)
                if self._has_room(remote):
                    name = bytes(body).decode()
                    self._numbers[remote] = self._trunks.opened(self, remote, name)
            elif kind == Kind.CLOSED:
                self._closed(remote)
            elif kind == Kind.ARRIVALS:
                if self._is_foreign:
                    text = "a trunk broke: another node passes no crowds of devices on"
                    self._local.log.error(text)
                    self.cut()
                    return
                self._arrived(*body)
            elif number is None:
                continue
            else:
                requests = [body]
                # A device's hello comes with what it publishes: one event, as it was one packet.
                while self._waiting and self._waiting[0][:2] == (kind, remote):
                    requests.append(self._waiting.popleft()[2])
                self._local.connections.receive(number, requests)
            begun = True

    def _serve_more(self) -> None:
        if self._waiting:
            self.queued = True
            self._local.connections.unserved.append(self)

    def _has_room(self, remote: int) -> bool:
        """Whether another node's shard may have one more session here, or its peer is let go."""
        if not self._is_foreign or len(self._numbers) < self._remote_peers_max:
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
        self._local.queue.arrive(ev.Arrived(arrivals, principal, self.shard))

    def _closed(self, remote: int) -> None:
        number = self._numbers.pop(remote, None)
        if number is not None:
            self._trunks.closed(number)


class Trunks:
    """All trunks of a shard: it asks through one end for each other shard, and serves others."""

    def __init__(
        self,
        local: LocalShard,
        remote_peers: dict[int, RemotePeer],
        lost: Told,
        remote_peers_max: int = CONNECTIONS_MAX,
    ) -> None:
        """Begin without any. `remote_peers` are the peers of other shards, by their sessions here;
        a shard of another node lets in up to `remote_peers_max` of its own. `lost` is told of each
        other shard of this node that cannot be asked any more, and might be by a new trunk.
        """
        self.remote_peers_max = remote_peers_max
        self._local = local
        self._asking: dict[int, AskingEnd] = {}
        self._serving: list[ServingEnd] = []
        self._remote_peers = remote_peers
        self._trunk_lost = lost

    def join(self, transport: Transport, shard: int, asks: bool) -> Wire:
        """Take one end of a socket pair whose other end another shard of this node has."""
        take = self._to_ask if asks else self._to_serve
        return Wire(transport, take(shard, transport, None))

    def ask(self, place: int, wire: Wire, told: Told) -> TrunkEnd:
        """Ask a shard of another node over a connection; `told` is when that is over."""
        end = wire.end = self._to_ask(place, wire.transport, told)
        return end

    def serve(self, place: int, wire: Wire, told: Told, shards: int) -> TrunkEnd:
        """Serve a shard of another node, which has so many, over a connection; `told` is when that
        is over. The peers of all of them may come through this one, which is next to what they ask
        for.
        """
        end = wire.end = self._to_serve(place, wire.transport, told, shards)
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
            self._local.log.error("a trunk broke: %s", effect.reason)
            end.cut()

    def send(self, effect: ef.Pass) -> None:
        """Write a frame to another shard."""
        end = self._asking.get(effect.shard)
        if end is not None:
            end.write(effect.buffers, effect.charged)
        else:
            self._local.passed_on(effect.shard, effect.charged)

    def opened(self, end: ServingEnd, remote: int, principal: str) -> int:
        """Begin a session for another shard's peer; return its number."""
        number = self._local.connections.new_session()
        self._remote_peers[number] = RemotePeer(end, remote)
        self._local.queue.put(ev.Opened(number, principal, end.shard))
        return number

    def arrived(self, end: ServingEnd, arrivals: Sequence[Arrival]) -> None:
        """Begin sessions for another shard's devices; what they said is theirs from now on."""
        for one in arrivals:
            number = self._local.connections.new_session()
            self._remote_peers[number] = RemotePeer(end, one.session)
            one.session = number

    def closed(self, number: int) -> None:
        """End such a session."""
        del self._remote_peers[number]
        self._local.queue.put(ev.Closed(number))

    def flush(self) -> None:
        """Let out what was gathered, and give back what was sent."""
        for end in self._ends():
            end.flush()

    def update(self) -> None:
        """The shard holds, or does not any more."""
        for end in self._ends():
            end.update()

    def close(self) -> None:
        """Close all, once what was written is out."""
        self.flush()
        for end in self._ends():
            end.close()

    def _ends(self) -> list[TrunkEnd]:
        return [*self._asking.values(), *self._serving]

    def _to_ask(self, shard: int, transport: Transport, told: Told | None) -> TrunkEnd:
        self._ask_no_more(shard)
        end = self._asking[shard] = AskingEnd(self._local, transport, shard, self._lost, told)
        return end

    def _to_serve(
        self, shard: int, transport: Transport, told: Told | None, shards: int = 1
    ) -> TrunkEnd:
        most = shards * (self.remote_peers_max + 1)  # those it lets in, and one for itself
        end = ServingEnd(self._local, transport, shard, self, told or nobody, most)
        self._serving = [one for one in self._serving if not one.is_over]
        self._serving.append(end)
        return end

    def _ask_no_more(self, shard: int) -> None:
        if (end := self._asking.pop(shard, None)) is not None:
            self._local.queue.put(ev.TrunkClosed(shard))
            end.cut()

    def _lost(self, end: AskingEnd) -> None:
        if self._asking.get(end.shard) is end:
            del self._asking[end.shard]
            self._local.queue.put(ev.TrunkClosed(end.shard))
            (end.told or self._trunk_lost)(end.shard)


def nobody(shard: int) -> None:
    """There is nobody who could give a new trunk."""
