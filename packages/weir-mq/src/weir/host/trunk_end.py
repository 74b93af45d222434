"""Writing to another shard, and to the peers that it has; what both ends of a trunk share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir.codec.fields import Buffer
from weir.errors import RemoteProtocolError
from weir.host.connections import Transport
from weir.host.shard_connections import LocalShard
from weir.protocol import trunk
from weir.protocol.trunk import Kind, TrunkFrame, TrunkStream


class ShardWriter:
    """Writing to another shard, and giving back what was charged once it is out."""

    def __init__(self, local: LocalShard, transport: Transport) -> None:
        """Write to `transport`."""
        self._local = local
        self._transport: Transport | None = transport
        self._unsent = 0

    @property
    def is_over(self) -> bool:
        """Whether the connection is gone."""
        return self._transport is None

    def pause_writing(self) -> None:
        """The other side does not take what it is sent."""

    def resume_writing(self) -> None:
        """The other side took it."""

    def lost(self, why: str) -> None:
        """The connection is over: give everything back."""
        self._transport = None
        self.give_back(self._unsent)
        self._unsent = 0

    def give_back(self, size: int) -> None:
        """These bytes have left this process, or never will."""
        self._local.budget.release(size)

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write buffers as they are; `charged` bytes are given back once they are out."""
        if self._transport is None:
            self.give_back(charged)
            return
        if charged:
            self.release_sent()
            self._unsent += charged
        self._transport.writelines(buffers)

    def release_sent(self) -> None:
        """Give back what has left this process since the last time."""
        if self._transport is not None:
            sent = self._unsent - min(self._unsent, self._transport.get_write_buffer_size())
            self._unsent -= sent
            self.give_back(sent)

    def close(self) -> None:
        """Close once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


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
        self._unsent += charged

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
        self._end.write(trunk.encode(Kind.REPLIES, self._remote, *buffers), charged)

    def answer(self, reply: bytes) -> None:
        """Send a small reply, with those to others."""
        self._end.answer(self._remote, reply)

    def hang_up(self, reason: str) -> None:
        """Let the other shard close the connection."""
        self._end.write(trunk.encode(Kind.HANGUP, self._remote, reason.encode()))
