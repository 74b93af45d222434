"""The role every node starts in: it keeps what a leader sends, and waits."""

from __future__ import annotations

from weir_raft.arriving import Arriving
from weir_raft.context import NEVER, Contact
from weir_raft.ground import Ground
from weir_raft.membership import Configuration
from weir_raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    SnapshotMeta,
    SnapshotReply,
)
from weir_raft.storage import NOBODY, Entry, EntryKind, Snapshot


class Follower:
    """A member that follows `leader` in the current term, or looks for one."""

    __slots__ = (
        "_acked",
        "_arriving",
        "_contact",
        "_ground",
        "_heard_at",
        "_matched",
        "_owes",
        "_target",
        "deadline",
        "leader",
        "owes_vote",
    )

    def __init__(self, ground: Ground, leader: int = NOBODY) -> None:
        self._ground = ground
        self.leader = leader
        #: Through here the log is the same as the leader's, durable or not.
        self._matched = 0
        #: The last match the leader was told, and whether and from where on it waits for another.
        self._acked = 0
        self._owes = False
        self._target = 0
        #: Whom to tell about a vote as soon as it is durable.
        self.owes_vote = NOBODY
        self._arriving: Arriving | None = None
        self._contact: Contact | None = None
        self._heard_at = ground.clock.now if leader else -NEVER
        #: When to campaign if nothing is heard until then; a lone voter waits for nobody. (§3.4)
        self.deadline = ground.clock.now + (0 if ground.alone else ground.timeout())

    def heard(self) -> None:
        """The leader is there, or a vote was given: wait for a whole timeout again."""
        clock = self._ground.clock
        self._heard_at = clock.now
        if self._contact is None:
            self.deadline = clock.now + self._ground.timeout()

    def rely_on(self, contact: Contact) -> None:
        """Hear of the leader through a shared link from now on, and keep no time meanwhile."""
        self._contact = contact
        self.deadline = NEVER

    def rely_no_more(self, wait_ms: int) -> None:
        """The link says nothing any more: campaign after `wait_ms`, and protect nobody."""
        self._contact = None
        self._heard_at = -NEVER
        self.deadline = self._ground.clock.now + wait_ms

    @property
    def protects_leader(self) -> bool:
        """Whether a leader was heard of so lately that nobody should depose it. (§4.2.3)"""
        if not self.leader:
            return False
        heard_at = self._heard_at
        if self._contact is not None:
            heard_at = max(heard_at, self._contact.heard_at)
        return self._ground.clock.now - heard_at < self._ground.config.election_ms

    def append(self, message: Append) -> None:
        """Keep the leader's entries if they follow on what is here. (§3.5)"""
        self.heard()
        log = self._ground.log
        prev, entries = message.prev_index, message.entries
        end = prev + len(entries)
        if entries and (entries[0].index != prev + 1 or entries[-1].index != end):
            return
        # Whatever leads now has all that is committed, so that far there is nothing to compare.
        sure = min(log.committed, log.last_index)
        if prev > log.last_index or (prev > sure and log.term(prev) != message.prev_term):
            self._reject(message, sure)
            return
        if prev != log.last_index:
            entries = self._unknown(entries, sure)
        if entries:
            self._keep(entries)
        self._matched = max(self._matched, end, sure)
        log.commit_to(min(message.commit, self._matched))
        self._target = end
        self._owes = True
        self.answer()

    def answer(self) -> None:
        """Tell the leader what is durable here and known to be the same as its own log. (§3.8)

        Never more: a repeated Append says nothing of entries behind its own.
        """
        ground, log = self._ground, self._ground.log
        if not self.leader or ground.durable_term != ground.term or log.installing:
            return
        index = min(log.durable, self._matched)
        if index <= self._acked and not (self._owes and index >= self._target):
            return
        self._acked = index
        self._owes = self._owes and index < self._target
        ground.outbox.append(
            AppendReply(self.leader, ground.id, ground.term, index, commit=log.committed)
        )

    def heartbeat(self, message: Heartbeat) -> None:
        """The leader is there; so am I."""
        self.heard()
        ground = self._ground
        # A leader names no more here than this node has acknowledged to it.
        ground.log.commit_to(min(message.commit, ground.log.last_index))
        reply = HeartbeatReply(message.sender, ground.id, ground.term, message.round)
        ground.outbox.append(reply)

    def install(self, message: InstallSnapshot) -> None:
        """Collect a snapshot's pieces; the whole replaces state and log. (§5.2)"""
        self.heard()
        meta, log = message.snapshot, self._ground.log
        if self._has(meta):
            sure = min(log.committed, log.last_index)
            self._matched = max(self._matched, sure, meta.base_index)
            self._target, self._owes = self._matched, True
            self.answer()
            return
        limit = self._ground.config.max_snapshot_bytes
        if meta.index < log.committed or meta.size > limit:
            self._reply_snapshot(message, 0, rejected=True)
            return
        arriving = self._arriving
        if arriving is None or arriving.meta != meta:
            arriving = self._arriving = Arriving(meta)
        arriving.take(message.position, message.data)
        if arriving.complete:
            self._restore(meta, arriving.data())
        else:
            self._reply_snapshot(message, arriving.position, rejected=False)

    def whole_with(self, message: InstallSnapshot) -> bytes | None:
        """Return the whole snapshot that a piece completes; None if it completes none."""
        arriving = self._arriving
        if arriving is None or arriving.meta != message.snapshot:
            arriving = Arriving(message.snapshot)
        return arriving.with_piece(message.position, message.data)

    def awaits(self, meta: SnapshotMeta) -> bool:
        """Whether no other snapshot is on its way."""
        return self._arriving is None or self._arriving.meta == meta

    def _has(self, meta: SnapshotMeta) -> bool:
        """Whether the leader can go on with the log as it is here, without the snapshot.

        What is here may be acknowledged already, and must not go again for what is sent anyway.
        """
        log, base = self._ground.log, meta.base_index
        if base <= min(log.committed, log.last_index):
            return True
        if meta.index <= log.last_index and log.term(meta.index) == meta.term:
            log.commit_to(meta.index)
            return True
        return base <= log.last_index and log.term(base) == meta.base_term

    def _restore(self, meta: SnapshotMeta, data: bytearray) -> None:
        ground = self._ground
        self._arriving = None
        snapshot = Snapshot(
            meta.index, meta.term, data, meta.configuration, meta.base_index, meta.base_term
        )
        ground.supersede(1)
        ground.log.restore(snapshot)
        ground.history.restart(meta.index, meta.configuration)
        ground.snapshot = snapshot
        self._matched = self._target = meta.base_index
        self._acked, self._owes = 0, True

    def _unknown(self, entries: tuple[Entry, ...], sure: int) -> tuple[Entry, ...]:
        """Of the leader's entries those that are not here yet, or others in their place."""
        log = self._ground.log
        for place, entry in enumerate(entries):
            index = entry.index
            if index > log.last_index or (index > sure and log.term(index) != entry.term):
                return entries[place:]
        return ()

    def _keep(self, entries: tuple[Entry, ...]) -> None:
        ground = self._ground
        first = entries[0].index
        if first <= ground.log.last_index:
            ground.supersede(first)
            ground.history.supersede(first)
        ground.log.extend(entries)
        for entry in entries:
            # What a snapshot already covers may be filled in below it, and is not in force.
            if entry.kind is EntryKind.CONFIGURATION and entry.index > ground.history.index:
                assert isinstance(entry.data, bytes)
                ground.history.append(entry.index, Configuration.unpack(entry.data))

    def ask_again(self) -> None:
        """Let the leader say again how it is with this member, though nothing else is to be said:
        a refusal at an entry at which both agree, which no Append can meet.
        """
        ground, last = self._ground, self._ground.log.last_index
        term = ground.log.term(last)
        if self.leader:
            reply = AppendReply(self.leader, ground.id, ground.term, last, True, last, term)
            ground.outbox.append(reply)

    def _reject(self, message: Append, sure: int) -> None:
        """Say where the logs could agree instead, whole terms at a time. (§3.5, end)"""
        ground, log = self._ground, self._ground.log
        hint = min(message.prev_index, log.last_index)
        hint = max(log.last_of_term(hint, message.prev_term), sure)
        ground.outbox.append(
            AppendReply(
                message.sender,
                ground.id,
                ground.term,
                message.prev_index,
                rejected=True,
                hint_index=hint,
                hint_term=log.term(hint),
            )
        )

    def _reply_snapshot(self, message: InstallSnapshot, position: int, *, rejected: bool) -> None:
        ground = self._ground
        ground.outbox.append(
            SnapshotReply(message.sender, ground.id, ground.term, position, rejected)
        )
