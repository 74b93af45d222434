"""The two ends of trunks: bytes between shards, and virtual sessions of theirs.

The shards of a node have socket pairs; those of different nodes a lane of their link
(`weir.host.links`). A shard is told by its place, which on this node is its number.

Frames are passed on through the one end, and the other answers. What comes back is always read, so
that a shard which holds its peers' requests never holds another shard's replies: two shards that
are both short of memory cannot wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.codec import Buffer
from weir.errors import RemoteProtocolError
from weir.host.ports import Transport
from weir.host.shard_connections import LocalShard, ShardConnection, ShardWriter
from weir.host.shard_loop import ASK_FOR_MESSAGES, TURN_BYTES
from weir.model.ids import place_node
from weir.model.limits import CONNECTIONS_MAX
from weir.protocol import trunk
from weir.protocol.trunk import Arrival, Kind, TrunkFrame, TrunkStream

# Looked up once: to look up a member of an `Enum` takes as long as to serve a frame.
_OPENED, _CLOSED, _CLIENT = Kind.OPENED, Kind.CLOSED, Kind.CLIENT
_REPLIES, _ARRIVALS = Kind.REPLIES, Kind.ARRIVALS

#: Called with the place of the shard whose trunk is closed.
TrunkClosed = Callable[[int], None]


class TrunkEnd(ShardWriter):
    """What both ends of a trunk have in common.

    What is written in one turn of the loop goes out together: while thousands of devices connect, a
    write for each frame, and a read for each at the other end, would cost more than the frames do.
    """

    #: The kinds of frames that this end is sent.
    takes: frozenset[Kind]

    def __init__(self, local: LocalShard, transport: Transport) -> None:
        """Read from and write to `transport`."""
        super().__init__(local, transport)
        self._stream = TrunkStream()
        self._gathered: list[Buffer] = []
        #: Small replies behind that.
        self._answers: list[tuple[int, bytes]] = []
        self._flushes_soon = False
        self._pending = 0  # bytes told of the frame under way

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are, behind this turn of the loop; see `ShardWriter.write`."""
        if self._transport is None:
            self.give_back(charged)
            return
        self._flush_soon()
        self._put_answers()
        self._gathered += buffers
        self._unsent.size += charged

    def answer(self, remote: int, reply: bytes) -> None:
        """Write a small reply to a peer of the other shard: one frame for those of this turn."""
        self._flush_soon()
        self._answers.append((remote, reply))

    def _flush_soon(self) -> None:
        if not self._flushes_soon:
            self._flushes_soon = True
            self._local.soon(self.flush)

    def _put_answers(self) -> None:
        if self._answers:
            self._gathered += trunk.encode_answers(self._answers)
            self._answers = []

    def flush(self) -> None:
        """Let out what was gathered, and give back what has left this process."""
        self._flushes_soon = False
        self._put_answers()
        if self._gathered and self._transport is not None:
            gathered, self._gathered = self._gathered, []
            self._transport.writelines(gathered)
        self.release_sent()

    def close(self) -> None:
        """Close once what was written is out."""
        self.flush()
        super().close()

    def receive(self, data: bytes) -> None:
        """Cut frames; what makes no sense ends the trunk."""
        try:
            frames = self._stream.receive(data)
            for kind, _, _ in frames:
                if kind not in self.takes:
                    raise RemoteProtocolError(f"a frame of kind {kind} came the wrong way")
        except RemoteProtocolError as error:
            self._local.log.error("a trunk broke: %s", error)
            self.cut()
        else:
            self._count(self._stream.pending)
            self.take(frames)

    def lost(self, why: str) -> None:
        """Forget the frame under way, and give everything back."""
        self._count(0)
        super().lost(why)

    def _count(self, pending: int) -> None:
        """Tell how much there is of the frame under way; most reads end with none."""
        if pending or self._pending:
            self._pending = pending
            self._local.brought(self, pending)

    def take(self, frames: Sequence[TrunkFrame]) -> None:
        """Take whole frames, perhaps none; each end has its own use for them."""

    def update(self) -> None:
        """The shard holds, or does not any more."""


class Writes(Protocol):
    """The end of a trunk."""

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are; `charged` bytes are given back once they are out."""

    def answer(self, remote: int, reply: bytes) -> None:
        """Write a small reply to a session of the shard at the other end."""


class RemotePeer:
    """A peer of another shard, which has the connection: what is sent to it goes over a trunk."""

    __slots__ = ("_end", "_remote")

    def __init__(self, end: Writes, remote: int) -> None:
        """Be session `remote` of the shard at the other end."""
        self._end = end
        self._remote = remote

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Send replies."""
        self._end.write(trunk.encode(_REPLIES, self._remote, *buffers), charged)

    def answer(self, reply: bytes) -> None:
        """Send a small reply, with those to others."""
        self._end.answer(self._remote, reply)

    def hang_up(self, reason: str) -> None:
        """Let the other shard close the connection."""
        self._end.write(trunk.encode(Kind.HANGUP, self._remote, reason.encode()))


class AskingEnd(TrunkEnd):
    """This shard asks another: requests out, what comes back in."""

    takes = frozenset((Kind.REPLIES, Kind.HANGUP, Kind.ANSWERS))

    def __init__(
        self,
        local: LocalShard,
        transport: Transport,
        shard: int,
        lost: Callable[[AskingEnd], None],
        on_closed: TrunkClosed | None,
    ) -> None:
        """Ask `shard`; `lost` is called at the end, and calls `on_closed`, if there is one."""
        super().__init__(local, transport)
        self.shard = shard
        self.on_closed = on_closed
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
        on_closed: TrunkClosed,
        remote_peers_max: int,
    ) -> None:
        """Serve `shard`, up to `remote_peers_max` peers if it is another node's; make the sessions
        known to `trunks`. `on_closed` is called when that is over.
        """
        super().__init__(local, transport)
        self.shard = shard
        self._trunks = trunks
        self._on_closed = on_closed
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
            self.write(trunk.encode(_REPLIES, remote, reply))
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
        self._on_closed(self.shard)

    def serve(self) -> None:
        """Serve what waits as one, up to a client's request for messages: its reply may fill the
        trunk, so what is left comes behind what that causes. So it does behind `TURN_BYTES`, for
        the memory budget is not looked at meanwhile.
        """
        served = 0
        while self._waiting and not (self._full or self.queued) and self._transport is not None:
            kind, remote, body = self._waiting.popleft()
            number = self._numbers.get(remote)
            if kind == _CLIENT:
                if number is None:
                    continue
                self._local.queue.receive(number, [body])
                served += len(body.body)
                if body.opcode in ASK_FOR_MESSAGES or served > TURN_BYTES:
                    self._serve_more()
            elif kind == _OPENED:
                self._closed(remote)
                if self._has_room(remote):
                    self._numbers[remote] = self._trunks.opened(self, remote, body)
            elif kind == _CLOSED:
                self._closed(remote)
            elif kind == _ARRIVALS:
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
                self._local.queue.receive(number, requests)

    def _serve_more(self) -> None:
        if self._waiting:
            self.queued = True
            self._local.connections.backlog.unserved.append(self)

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
        lost: TrunkClosed,
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

    def join(self, transport: Transport, shard: int, asks: bool) -> ShardConnection:
        """Take one end of a socket pair whose other end another shard of this node has."""
        take = self._to_ask if asks else self._to_serve
        return ShardConnection(transport, take(shard, transport, None))

    def ask(self, place: int, connection: ShardConnection, on_closed: TrunkClosed) -> TrunkEnd:
        """Ask a shard of another node over a connection; `on_closed` is called at its end."""
        end = connection.handler = self._to_ask(place, connection.transport, on_closed)
        return end

    def serve(
        self, place: int, connection: ShardConnection, on_closed: TrunkClosed, shards: int
    ) -> TrunkEnd:
        """Serve a shard of another node, which has so many, over a connection; `on_closed` is
        called at its end. The peers of all of them may come through this one, which is next to what
        they ask for.
        """
        end = self._to_serve(place, connection.transport, on_closed, shards)
        connection.handler = end
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

    def opened(self, end: ServingEnd, remote: int, body: Buffer) -> int:
        """Begin a session for another shard's peer; return its number."""
        number = self._local.connections.new_session()
        self._remote_peers[number] = RemotePeer(end, remote)
        principal, how = trunk.decode_opened(body)
        self._local.queue.put(
            ev.Opened(number, principal, end.shard, how.address, how.admitted_at, how.token)
        )
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

    def _to_ask(self, shard: int, transport: Transport, on_closed: TrunkClosed | None) -> TrunkEnd:
        self._ask_no_more(shard)
        end = AskingEnd(self._local, transport, shard, self._lost, on_closed)
        self._asking[shard] = end
        return end

    def _to_serve(
        self,
        shard: int,
        transport: Transport,
        on_closed: TrunkClosed | None,
        shards: int = 1,
    ) -> TrunkEnd:
        most = shards * (self.remote_peers_max + 1)  # those it lets in, and one for itself
        end = ServingEnd(self._local, transport, shard, self, on_closed or nobody, most)
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
            (end.on_closed or self._trunk_lost)(end.shard)


def nobody(shard: int) -> None:
    """There is nobody who could give a new trunk."""
