"""The registry's machine as the other shards see it: each gets a snapshot, then every record.

A follower reports how far it has applied entries and acted on them. An answer about the registry
holds everywhere: it leaves only when every following shard has acted on its entry. The partitions
of a new topic have leaders by then. The reply for a new producer leaves at once: a shard that does
not know the producer yet asks. A reply that fences a producer waits for *all* shards, because a
shard that was cut off for a moment could still confirm batches of the old owner. It also waits
until the batches that they had accepted are committed, so that the new owner finds everything that
the old one will have written. Messages behind an undecided scattering are not visible yet: a
request for positions with a stamp waits for that, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

import weir_raft as raft
from weir.broker.records.entries import ControlRecord, Payload
from weir.broker.records.registry import ProducerOpened
from weir.broker.records.snapshots import pack
from weir.broker.replica.group import Machine
from weir.broker.runtime.outbox import Caller, Outbox
from weir.errors import NotLeader, Refused, Unavailable
from weir.order.clock import Time
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.messages import Follow, Reply
from weir.protocol.frame import CLIENT_HEADER, CLIENT_VERSION, Flags

#: Longer than it takes to find that a shard stands still, and to start it again.
TOLD_WITHIN_MS = 15_000


class _Held(NamedTuple):
    """A reply that waits until all have done what the entry at index `entry` says."""

    entry: int
    record: ControlRecord
    until_ms: int
    caller: Caller
    reply: Reply


def is_fence(record: ControlRecord) -> bool:
    """Return whether a record ends an older epoch of a producer."""
    return isinstance(record, ProducerOpened) and record.epoch > 0


def is_grant(record: ControlRecord) -> bool:
    """Return whether a record opens a new producer: a shard that does not know it yet asks."""
    return isinstance(record, ProducerOpened) and not record.epoch


class Follower(msgspec.Struct):
    """A shard that follows: its session here, and how far it has applied."""

    session: int
    known: int = 0
    #: Whether it was sent the snapshot.
    fed: bool = False


class ShardTopics(Protocol):
    """The topics of a shard, which follow what the registry decides."""

    def is_settled(self, record: ControlRecord | None, /) -> bool:
        """Return whether this shard has done what a record of the registry means for it; None
        stands for all records that a snapshot covers.
        """


class HeldReplies:
    """What the registry answers by: a reply waits until this shard and all that follow have done
    what the entry means that it answers for.
    """

    def __init__(self, outbox: Outbox, time: Time, others: int, topics: ShardTopics) -> None:
        """Expect so many `others` to follow; `topics` are those of this shard."""
        self._outbox = outbox
        self._time = time
        self._others = others
        self._topics = topics
        #: The entry that is applied, or was last, and its record while it is.
        self.index = 0
        self.applying: ControlRecord | None = None
        #: By name of a shard.
        self.followers: dict[str, Follower] = {}
        #: Replies that wait.
        self.held: list[_Held] = []

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer, once all following shards know the entry that is being applied."""
        record = self.applying
        if record is None or is_grant(record):
            self._outbox.reply(caller, reply)
            return
        until = self._time.monotonic_ms() + TOLD_WITHIN_MS
        self.held.append(_Held(self.index, record, until, caller, reply))

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""
        self._outbox.refuse(caller, error)

    def lose(self, error: NotLeader) -> None:
        """What is held back is answered for by nobody here."""
        held, self.held = self.held, []
        for one in held:
            self._outbox.refuse(one.caller, error)

    def refuse_late(self) -> None:
        """Refuse what waited too long for a shard that is away."""
        if not self.held:
            return
        now = self._time.monotonic_ms()
        late = [held for held in self.held if held.until_ms <= now]
        if late:
            self.held = [held for held in self.held if held.until_ms > now]
        for held in late:
            error = Unavailable(
                "a shard of this node is away, or has no room for what is under way: ask again"
            )
            self._outbox.refuse(held.caller, error)

    def release(self) -> None:
        """Let the replies go whose time has come."""
        leaving = [held for held in self.held if self._may_leave(held)]
        self.held = [held for held in self.held if not self._may_leave(held)]
        for held in leaving:
            self._outbox.reply(held.caller, held.reply)

    def _may_leave(self, held: _Held) -> bool:
        if is_fence(held.record) and len(self.followers) < self._others:
            return False
        return self._topics.is_settled(held.record) and all(
            follower.known >= held.entry for follower in self.followers.values()
        )


class RegistryFeed:
    """Drives the registry, and feeds the shards that follow it."""

    def __init__(self, registry: Machine, replies: HeldReplies, outbox: Outbox) -> None:
        """Begin without followers of `registry`, which answers by `replies`."""
        self._registry = registry
        self._replies = replies
        self._outbox = outbox
        #: Whether followers may have the snapshot.
        self.is_open = False

    # -- the machine -------------------------------------------------------------------------

    def lead(self, leadership: raft.Leadership) -> None:
        """See `Machine`."""
        self._registry.lead(leadership)

    def lose(self, error: NotLeader, cut_off: bool) -> None:
        """See `Machine`; what is held back is answered for by nobody here."""
        self._replies.lose(error)
        self._registry.lose(error, cut_off)

    def decode(self, data: Any) -> object:
        """See `Machine`."""
        return self._registry.decode(data)

    def restore(self, state: Any) -> None:
        """See `Machine`."""
        self._registry.restore(state)
        for follower in self._replies.followers.values():
            if follower.fed:
                self._send_snapshot(follower)

    def apply(self, index: int, payload: Payload) -> None:
        """Let the registry apply an entry, and tell the followers."""
        replies = self._replies
        replies.index, replies.applying = index, payload.change
        self._registry.apply(index, payload)
        replies.applying = None
        if payload.control is not None and self._replies.followers:
            body = pack((index, b"".join(payload.buffers)))
            for follower in self._replies.followers.values():
                if follower.fed:
                    self._send(follower, body)
        self._replies.release()

    def changing(self) -> None:
        """See `Machine`."""

    def durable(self, index: int) -> None:
        """See `Machine`: nobody waits for this node's own disk."""

    def encode(self) -> object:
        """See `Machine`."""
        return self._registry.encode()

    @property
    def first_needed(self) -> int:
        """See `Machine`."""
        return self._registry.first_needed

    # -- followers ---------------------------------------------------------------------------

    def opened(self) -> None:
        """Every inherited entry is applied: followers may have the snapshot from here on."""
        if not self.is_open:
            self.is_open = True
            for follower in self._replies.followers.values():
                self._send_snapshot(follower)

    def follow(self, session: int, name: str, index: int) -> None:
        """A shard asks to follow, or, where it does, says how far it has applied."""
        follower = self._replies.followers.get(name)
        if follower is not None and follower.session == session:
            follower.known = max(follower.known, index)
            self._replies.release()
            return
        # One that comes again has started anew: what it knew before counts for nothing.
        follower = self._replies.followers[name] = Follower(session)
        if self.is_open:
            self._send_snapshot(follower)

    def closed(self, session: int) -> None:
        """A peer is gone, perhaps a follower."""
        for name, follower in list(self._replies.followers.items()):
            if follower.session == session:
                del self._replies.followers[name]
                self._replies.release()

    def _send_snapshot(self, follower: Follower) -> None:
        follower.fed = True
        self._send(follower, pack((self._replies.index, self.encode())))

    def _send(self, follower: Follower, body: bytes) -> None:
        # No reply of the client dialect: it may be longer than those, and comes again and again.
        header = CLIENT_HEADER.pack(
            CLIENT_VERSION, int(Flags.RESPONSE), opcode_of(Follow), len(body), 0
        )
        self._outbox.send(follower.session, header, body)
