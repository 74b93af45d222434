"""The registry's machine as the other shards see it: each gets a snapshot, then every record.

A follower says how far it has applied. What a client was told of the registry holds everywhere: a
reply leaves only when every shard that follows has applied what it speaks of. One that fences a
producer waits for *all* shards: a shard that was away for a moment could else go on to confirm what
the old owner sends.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from weir import raft
from weir.broker.entries import Payload
from weir.broker.group import Machine
from weir.broker.outbox import Caller, Outbox
from weir.errors import Refused, Unavailable
from weir.order.clock import Time
from weir.wire.frame import CLIENT_HEADER, CLIENT_VERSION, Flags
from weir.wire.messages import Opcode, ProducerGrant, Reply

FENCE_WITHIN_MS = 10_000
_pack = msgspec.msgpack.Encoder().encode


class _Held(NamedTuple):
    """A reply that waits for followers to apply the entry at index `entry`."""

    entry: int
    everybody: bool
    until_ms: int
    caller: Caller
    reply: Reply


class Feed:
    """Drives the registry, feeds followers, and holds the registry's replies back for them."""

    def __init__(self, outbox: Outbox, time: Time, others: int) -> None:
        """Expect so many `others` to follow; `registry` must be set before the first entry."""
        self.registry: Machine | None = None
        self._outbox = outbox
        self._time = time
        self._others = others
        self._index = 0
        self._applying = False
        self._open = False
        #: By session of a follower, how far it has applied; -1 before it has the snapshot.
        self._followers: dict[int, int] = {}
        self._held: list[_Held] = []

    # -- what the registry answers -----------------------------------------------------------

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer, once whoever follows knows what is being applied."""
        if not self._applying or not self._others:
            self._outbox.reply(caller, reply)
            return
        fences = isinstance(reply, ProducerGrant) and reply.epoch > 0
        until = self._time.monotonic_ms() + FENCE_WITHIN_MS
        self._held.append(_Held(self._index, fences, until, caller, reply))

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""
        self._outbox.refuse(caller, error)

    # -- the machine -------------------------------------------------------------------------

    def lead(self, leadership: raft.Leadership) -> None:
        """See `Machine`."""
        assert self.registry is not None
        self.registry.lead(leadership)

    def apply(self, index: int, payload: Payload) -> None:
        """Let the registry apply an entry, and tell the followers."""
        assert self.registry is not None
        self._index = index
        self._applying = True
        self.registry.apply(index, payload)
        self._applying = False
        if payload.control is None:
            return
        body = _pack((index, b"".join(payload.buffers)))
        for session, known in self._followers.items():
            if known >= 0:
                self._send(session, body)
        self._release()

    def encode(self) -> object:
        """See `Machine`."""
        assert self.registry is not None
        return self.registry.encode()

    @property
    def first_needed(self) -> int:
        """See `Machine`."""
        assert self.registry is not None
        return self.registry.first_needed

    # -- followers ---------------------------------------------------------------------------

    def opened(self) -> None:
        """Every inherited entry is applied: followers may have the snapshot from here on."""
        if not self._open:
            self._open = True
            for session in self._followers:
                self._send_snapshot(session)

    def follow(self, session: int, index: int) -> None:
        """A shard asks to follow, or, where it does, says how far it has applied."""
        if session in self._followers:
            self._followers[session] = max(index, self._followers[session])
            self._release()
            return
        self._followers[session] = -1
        if self._open:
            self._send_snapshot(session)

    def closed(self, session: int) -> None:
        """A peer is gone, perhaps a follower."""
        if self._followers.pop(session, None) is not None:
            self._release()

    def tick(self) -> None:
        """Refuse what waited too long for a shard that is away."""
        now = self._time.monotonic_ms()
        late = [held for held in self._held if held.until_ms <= now]
        if late:
            self._held = [held for held in self._held if held.until_ms > now]
        for held in late:
            error = Unavailable("a shard of this node is away: ask again when it is back")
            self._outbox.refuse(held.caller, error)

    def _release(self) -> None:
        if not self._held:
            return
        leaving = [held for held in self._held if self._may_leave(held)]
        self._held = [held for held in self._held if not self._may_leave(held)]
        for held in leaving:
            self._outbox.reply(held.caller, held.reply)

    def _may_leave(self, held: _Held) -> bool:
        if held.everybody and len(self._followers) < self._others:
            return False
        return all(known >= held.entry for known in self._followers.values())

    def _send_snapshot(self, session: int) -> None:
        # By its acks it counts from here on: whatever is told meanwhile is in the snapshot.
        self._followers[session] = 0
        self._send(session, _pack((self._index, self.encode())))

    def _send(self, session: int, body: bytes) -> None:
        # No reply of the client dialect: it may be longer than those, and comes again and again.
        header = CLIENT_HEADER.pack(
            CLIENT_VERSION, int(Flags.RESPONSE), int(Opcode.FOLLOW), len(body), 0
        )
        self._outbox.send(session, header, body)
