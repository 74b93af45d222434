"""The lanes of links: connections that carry frames one way, from shard to shard of two nodes.

How long the other side of a link may say nothing is decided from the gaps between its heartbeats. A
link on which heartbeats come steadily is given up soon. One whose heartbeats come late, because its
node or the network is loaded, is given more time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from weir.broker.api import events as ev
from weir.codec import Buffer, total
from weir.errors import RemoteProtocolError
from weir.host.ports import Transport
from weir.host.shard_connections import LocalShard, ShardWriter
from weir.model.limits import KIB, LINK_SILENT_MS, LINK_STALLED_MS, LINK_UNSENT_BYTES_MAX
from weir.protocol.link import PING, LinkStream, encode

#: The least and the most that the limit can be.
SILENT_LEAST_MS = 600
SILENT_MOST_MS = LINK_SILENT_MS
#: The limit is so many times the 99th percentile of the gaps.
_TIMES, _PERCENTILE = 6, 0.99
#: Gaps count for so long.
_KEPT_MS = 60_000
#: Below so many gaps nothing is known of a link yet.
_ENOUGH = 20
#: The limit is computed anew so often.
_ANEW_MS = 1_000
#: What is said of a connection that the other side has closed.
HUNG_UP = "it hung up"
# Ticks are counted, not seconds: a process that was stopped and goes on has missed none of them,
# and blames nobody for the time that it was not there.
_STALLED_TICKS = LINK_STALLED_MS // ev.TICK_MS
#: A quick lane is a heartbeat: it is asked whether anybody is there as often as leaders say so.
_PING_TICKS = 100 // ev.TICK_MS
#: The side that serves waits longer than the one that dialled: only one of them says why a link
#: ended.
_UNHEARD_TICKS = LINK_SILENT_MS // ev.TICK_MS * 3 // 2

#: A shard that reads no answers to its pings gets no more than so many bytes of them.
_ANSWERS_UNREAD_MAX = 4 * KIB

_PINGS = encode(PING, 0)

#: Told once, with the reason, when a lane is over.
Over = Callable[[str], None]


class LinkTimeout:
    """The heartbeats of one link, and the limit that follows from them."""

    __slots__ = ("_anew_at", "_gaps", "_last", "limit_ms")

    def __init__(self) -> None:
        """Know of no heartbeat yet."""
        #: Milliseconds without a word after which the link counts as silent.
        self.limit_ms = SILENT_MOST_MS
        self._last: int | None = None
        self._gaps: deque[tuple[int, int]] = deque()
        self._anew_at = 0

    def heard(self, now_ms: int) -> None:
        """A heartbeat came; `now_ms` never falls."""
        last, self._last = self._last, now_ms
        if last is None:
            return
        self._gaps.append((now_ms, now_ms - last))
        while self._gaps[0][0] <= now_ms - _KEPT_MS:
            self._gaps.popleft()
        # A longer gap raises the limit at once; it falls when it is computed anew.
        if now_ms >= self._anew_at or (now_ms - last) * _TIMES > self.limit_ms:
            self._anew_at = now_ms + _ANEW_MS
            self.limit_ms = silent_after_ms([gap for _, gap in self._gaps])


def silent_after_ms(gaps_ms: list[int]) -> int:
    """Return after how many milliseconds without a word a link counts as silent, given the gaps
    between its heartbeats of the last minute.
    """
    if len(gaps_ms) < _ENOUGH:
        return SILENT_MOST_MS
    ordered = sorted(gaps_ms)
    percentile = ordered[math.ceil(_PERCENTILE * len(ordered)) - 1]
    return min(max(_TIMES * percentile, SILENT_LEAST_MS), SILENT_MOST_MS)


class OutLane(ShardWriter):
    """The sending side: it dialled. A shard that takes or says nothing any more is cut."""

    def __init__(self, local: LocalShard, transport: Transport, quick: bool, over: Over) -> None:
        """Be a lane that is over when `over` is told. A quick one asks whether anybody is there."""
        super().__init__(local, transport)
        self._quick = quick
        self._over = over
        self._stream = LinkStream()
        self._written = 0
        self._sent = 0
        self._stalled = 0  # ticks without a byte taken, of those that wait
        self._silent = 0  # ticks without a word
        self._unasked = 0  # ticks since it was last asked whether anybody is there
        self._silence = LinkTimeout()
        if quick:
            self._ping()

    def receive(self, data: bytes) -> None:
        """Hear that the other side is there; nothing else is said on this way."""
        self._silent = 0
        if self._quick:
            self._silence.heard(int(self._local.time() * 1_000))
        try:
            if any(frame.kind != PING for frame in self._stream.receive(data)):
                raise RemoteProtocolError("frames came back on a one-way lane")
        except RemoteProtocolError as error:
            self.end(str(error))

    def lost(self, why: str) -> None:
        """The other side is gone, or this one cut it."""
        super().lost(why)
        self._over(why or HUNG_UP)

    def give_back(self, size: int) -> None:
        """These bytes have left this process, or never will."""
        if size:
            self._local.budget.release(size)

    def write(self, buffers: tuple[Buffer, ...], charged: int = 0) -> None:
        """Write whole frames; one that lets too much pile up is cut. A ping that is due goes with
        them: both ends spend less on one segment than on two.
        """
        if self._quick and self._unasked >= _PING_TICKS:
            self._unasked = 0
            buffers = (*_PINGS, *buffers)
        super().write(buffers, charged)
        self._written += total(buffers)
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() > LINK_UNSENT_BYTES_MAX:
            self.end(f"{LINK_UNSENT_BYTES_MAX:,} bytes wait to be sent to it")

    def check_silence(self) -> None:
        """Look whether what was sent is taken, and whether anybody is there."""
        if self._transport is None:
            return
        self.release_sent()
        sent = self._written - self._transport.get_write_buffer_size()
        waits = sent < self._written and sent == self._sent
        self._stalled = self._stalled + 1 if waits else 0
        self._sent = sent
        if self._stalled > _STALLED_TICKS:
            self.end(f"it took nothing for {LINK_STALLED_MS // 1000} s")
        elif self._quick:
            self._silent += 1
            limit_ms = self._silence.limit_ms
            if self._silent * ev.TICK_MS > limit_ms:
                self.end(f"it said nothing for {limit_ms / 1000:g} s")
            elif self._unasked >= _PING_TICKS:
                self._ping()
            self._unasked += 1

    def end(self, why: str) -> None:
        """Cut the connection, and say why."""
        self._over(why)
        self.cut()

    def _ping(self) -> None:
        self._unasked = 0
        self.write(_PINGS)


class InLane:
    """The receiving side. It is always read: what its frames mean may be what frees memory here,
    and two nodes that both hold would wait for each other for ever. What has come of a frame is
    bounded for all lanes together (see `LocalShard.brought`).
    """

    def __init__(self, local: LocalShard, transport: Transport, place: int, over: Over) -> None:
        """Hand on what the shard at `place` sends; `over` is told when that ends."""
        self._local = local
        self._place = place
        self._over = over
        self._stream = LinkStream()
        self._transport: Transport | None = transport
        self._pending = 0  # bytes told of the frame under way
        self._unheard = 0

    def pause_writing(self) -> None:
        """The other side does not take what it is answered: `_answer` looks at that."""

    def resume_writing(self) -> None:
        """The other side took it."""

    def receive(self, data: bytes) -> None:
        """Cut frames, send pings back, hand the rest on."""
        self._unheard = 0
        try:
            found = self._stream.receive(data)
        except RemoteProtocolError as error:
            self._over(str(error))
            self.cut()
            return
        frames = [frame for frame in found if frame.kind != PING]
        if len(frames) < len(found):
            self._answer()
        if frames:
            self._local.queue.put(ev.PeerSent(self._place, frames))
        self._count(self._stream.pending)

    def lost(self, why: str) -> None:
        """The other side is gone; what it was about to say is not kept."""
        self._transport = None
        self._count(0)
        self._over(why or HUNG_UP)

    def check_silence(self) -> None:
        """Cut one that pings no more."""
        self._unheard += 1
        if self._unheard > _UNHEARD_TICKS:
            self.cut()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _answer(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > _ANSWERS_UNREAD_MAX:
            self.cut()
        else:
            self._transport.writelines(_PINGS)

    def _count(self, pending: int) -> None:
        if pending or self._pending:
            self._pending = pending
            self._local.brought(self, pending)
